"""``./dev prove mutation``: change single expressions of the source; some test must fail.

mutmut makes the mutants, in an environment of its own below ``.cache``. A sample of each room, the
same for the same seed, is tried: with mypy, the room's own tests, the quick tier, seeds of the
simulator and process tests, until one of them fails. What survives all is equivalent
(explained in ``equivalent_mutants.toml``), or a test is missing. Results are kept in ``.cache``: a
run that was stopped goes on. A killed mutant is tried again when its function changes, a survivor
when source or tests do. ``--write`` keeps the report, ``--survivors`` prints what lives so far.
"""

import argparse
import json
import subprocess
import sys
import time
import venv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.proofs import _mutant_stages as stages
from tests.proofs._mutants import (
    GOAL_PERCENT,
    ROOMS,
    STAGES,
    SURVIVED,
    Mutant,
    Outcome,
    Score,
    complaints,
    equivalents,
    is_explained,
    sample,
    scores,
    table,
)
from tests.proofs._report import commit, head, problem_lines, publish
from tests.support.faults import ROOT

PINS = ("mutmut==3.8.1", "libcst==1.9.0")
HOME = ROOT / ".cache" / PINS[0].replace("==", "-")
GENERATE = Path(__file__).parent / "_mutant_generate.py"
GENERATED = ROOT / "src/fencelog/coordination/schemas"
SAMPLE, SEED = 200, 2026
FAST = ("types", "room")
"""The stages that try explained mutants, too: one that they kill is not equivalent."""
RUN: Mapping[str, Callable[[stages.Work, Sequence[Mutant]], None]] = {
    "types": stages.by_types,
    "room": stages.by_tests_of_room,
    "fresh": stages.by_fresh_process,
    "quick": stages.by_quick_tier,
    "simulator": stages.by_simulator,
    "processes": stages.by_processes,
}


def environment() -> Path:
    """Make mutmut's own environment, once; returns its Python."""
    python = HOME / "venv/bin/python"
    stamp = HOME / "venv/.made"
    if not stamp.exists():
        venv.create(HOME / "venv", clear=True, with_pip=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PINS], check=True)
        stamp.touch()
    return python


def all_mutants(rooms: Sequence[str]) -> list[Mutant]:
    """Every mutant of these rooms; a file's are listed again when it changes."""
    lists = HOME / "mutants"
    lists.mkdir(parents=True, exist_ok=True)
    kept = {
        str(path.relative_to(ROOT)): lists / f"{stages.digest([path, GENERATE])}.jsonl"
        for room in rooms
        for path in sorted((ROOT / "src/fencelog" / room).rglob("*.py"))
        if GENERATED not in path.parents
    }
    if new := [file for file, path in kept.items() if not path.exists()]:
        command = [environment(), GENERATE, ROOT]
        done = subprocess.run(
            command, input="\n".join(new), cwd=HOME, stdout=subprocess.PIPE, text=True, check=True
        )
        by_file: dict[str, list[str]] = {file: [] for file in new}
        for line in done.stdout.splitlines():
            by_file[json.loads(line)["file"]].append(f"{line}\n")
        for file, lines in by_file.items():
            kept[file].write_text("".join(lines), encoding="utf-8")
    texts = [path.read_text(encoding="utf-8") for path in kept.values()]
    return [Mutant.from_json(json.loads(line)) for text in texts for line in text.splitlines()]


class Results:
    """What is known of each mutant, from the file of all results."""

    def __init__(self, path: Path) -> None:
        self.killed: dict[tuple[str, str], tuple[str, str]] = {}
        self.survived: set[tuple[str, str, str, str]] = set()
        self.need_process: set[str] = set()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            each = json.loads(line)
            if each["by"]:
                self.killed[each["name"], each["body"]] = (each["stage"], each["by"])
            else:
                self.survived.add((each["name"], each["body"], each["stage"], each["sources"]))
            if each.get("needs process"):
                self.need_process.add(each["name"])

    def outcome(self, mutant: Mutant) -> Outcome:
        """What became of a mutant so far."""
        killer, by = self.killed.get((mutant.name, mutant.body), (SURVIVED, ""))
        return Outcome(mutant=mutant, killer=killer, by=by)

    def waits_for(self, mutant: Mutant, stage: str) -> bool:
        """Whether a stage has still to try it."""
        if (mutant.name, mutant.body) in self.killed:
            return False
        is_compiled = mutant.file in stages.KERNELS
        if stage in {"room", "quick"} and is_compiled:
            return False
        if stage == "fresh" and not (is_compiled or mutant.name in self.need_process):
            return False
        tried_with = stages.sources(stage, mutant.room)
        return (mutant.name, mutant.body, stage, tried_with) not in self.survived


def report(
    began: datetime,
    found: Sequence[Score],
    outcomes: Sequence[Outcome],
    problems: Sequence[str],
    ran: Sequence[str],
    seed: int,
) -> str:
    """The dated report; ``ran`` are the stages that every survivor has met."""
    explained = equivalents()
    lived = [each.mutant for each in outcomes if each.killer == SURVIVED]
    silent = [each for each in explained if any(each.is_for(mutant) for mutant in lived)]
    survivors = [each for each in lived if not is_explained(each, explained)]
    return "\n".join(
        [
            *head(
                "Mutation",
                began=began,
                holds=not problems and all(each.percent >= GOAL_PERCENT for each in found),
                summary=_summary(found),
                again="`./dev prove mutation --write`",
                code=commit(),
            ),
            f"- mutants of {PINS[0]}, seed {seed}; [how to read this](../mutation.md)",
            f"- tried by {', '.join(STAGES[each] for each in ran)}",
            "",
            *table(found),
            "",
            *problem_lines(problems),
            *(["## Survivors", ""] if survivors else []),
            *(["```diff", *(each.diff() for each in survivors), "```", ""] if survivors else []),
            "## Equivalent",
            "",
            *(
                f"- `{each.where}`: `{_line(each.old)}` as `{_line(each.new)}`: {each.why}"
                for each in silent
            ),
            "",
        ]
    )


def _line(text: str) -> str:
    return " ".join(text.split())


def _summary(found: Sequence[Score]) -> str:
    worst = min(found, key=lambda each: each.percent)
    sampled, lived = sum(each.sampled for each in found), sum(each.survived for each in found)
    silent = sum(each.equivalent for each in found)
    return (
        f"{sampled} mutants, {sampled - silent - lived} killed, {silent} equivalent, {lived}"
        f" survived; the lowest room is {worst.room} with {worst.percent:.1f} %"
    )


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev prove mutation", description=__doc__)
    add = parser.add_argument
    add("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS), help="default: all")
    add("--sample", type=int, default=SAMPLE, help="how many mutants of each room")
    add("--seed", type=int, default=SEED, help="of the sample")
    add("--jobs", type=int, default=1, help="how many are tried side by side")
    add("--limit-minutes", type=float, default=24 * 60, help="then it stops, to go on another time")
    add("--until", choices=STAGES, default="processes", help="the last stage that is run")
    add("--survivors", action="store_true", help="print what no stage has killed so far")
    add("--write", action="store_true", help="keep the report, by date")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run all stages on the sample; returns the exit status."""
    asked = _arguments(arguments)
    began, deadline = datetime.now(tz=UTC), time.monotonic() + 60 * asked.limit_minutes
    everything = all_mutants(asked.rooms)
    chosen, explained = sample(everything, asked.sample, asked.seed), equivalents()
    results = HOME / "results.jsonl"
    work = stages.Work(folder=HOME, results=results, jobs=asked.jobs, deadline=deadline)
    names = list(STAGES)
    names = names[: names.index(asked.until) + 1]
    for stage in names:
        known = Results(results)
        todo = [each for each in chosen if known.waits_for(each, stage)]
        if stage not in FAST:
            todo = [each for each in todo if not is_explained(each, explained)]
        print(f"{len(todo)} mutants for {STAGES[stage]}", file=sys.stderr, flush=True)
        if todo and not work.is_over:
            RUN[stage](work, todo)
    known = Results(results)
    outcomes = [known.outcome(each) for each in chosen]
    found = scores(outcomes, explained, Counter(each.room for each in everything))
    problems = complaints(everything, outcomes, explained)
    if asked.survivors:
        lived = [each.mutant for each in outcomes if each.killer == SURVIVED]
        print(*(each.diff() for each in lived if not is_explained(each, explained)), sep="\n")
    if asked.write:
        text = report(began, found, outcomes, problems, names, asked.seed)
        publish("mutation", began, text, None, is_full=True)
    print(*table(found), *problems, sep="\n")
    return 1 if problems or any(each.percent < GOAL_PERCENT for each in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
