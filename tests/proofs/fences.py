"""``./dev prove fences [FENCE…]``: remove each fence and show the failure that it prevents.

Each fence is taken away by a fault of ``tests/faults``: seeds run from 0 until the
checker itself finds a violation; that run is made small, described, and run again with the fence.
``--write`` puts the transcripts and the table into ``docs/guide/fences.md``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeAlias

from tests.proofs._hunt import Hunt, hunt
from tests.proofs._report import between
from tests.support.faults import ROOT, SOURCE, Fault, copy_source, load

PAGE = ROOT / "docs/guide/fences.md"
SEEDS_MAX = 1000
SEEDS_WHERE_HELD = 200
"""Run where another fence is expected to hold."""
CASE_LIMIT_S = 900
COUNTEREXAMPLE_CHARACTERS = 150
CaseReport: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Ablation:
    """A fence taken away by a fault, or two that catch the same."""

    fence: str
    name: str
    """Of the fault."""
    why: str
    """Why the checker then shows a violation, or what holds in its place."""
    is_seen: bool = True

    @property
    def fault(self) -> Fault:
        """The patch."""
        return load(self.name)

    @property
    def workload(self) -> str:
        """Whose traffic should meet it."""
        argument = next(iter(self.fault.arguments("simulator")), "queue")
        return argument.split()[0]


ABLATIONS: tuple[Ablation, ...] = (
    Ablation(
        "sequence",
        "sequence-not-checked",
        why="nothing else tells a repeated batch from a new one",
    ),
    Ablation(
        "producer epoch",
        "epoch-not-checked-by-partition",
        is_seen=False,
        why="the first write of a transaction is verified, and the coordinator refuses the older"
        " epoch; inside an open transaction another epoch is refused whichever is older",
    ),
    Ablation(
        "producer epoch",
        "epoch-not-checked-by-coordinator",
        why="EndTxn goes to the coordinator alone, so nothing behind it can refuse it",
    ),
    Ablation(
        "producer epoch",
        "epoch-not-checked-at-all",
        why="with both gone a fenced producer writes into its successor's transaction",
    ),
    Ablation(
        "generation",
        "generation-not-checked",
        why="a member that missed a rebalance has a live session, a producer of its own and the"
        " right epoch; only the number of the generation says that its partitions are another's",
    ),
    Ablation(
        "generation",
        "member-and-generation-not-checked",
        why="who is no member any more is let in by nothing else either",
    ),
    Ablation(
        "verification",
        "verification-skipped",
        why="a versioned producer has no epoch that outlives its transaction: its marker drops its"
        " state, so only the coordinator knows that it is over",
    ),
    Ablation(
        "verification",
        "epoch-of-a-fencing-marker-not-adopted",
        why="a producer with a transactional id is stopped by the fencing marker's epoch as well;"
        " with both gone its late write opens a transaction that nobody will end",
    ),
    Ablation(
        "LSO filter",
        "lso-is-high-watermark",
        why="the aborted list can name only what is decided; an open transaction is in none",
    ),
)


@dataclass(frozen=True)
class Outcome:
    """The result of one ablation; ``without`` and ``with_it`` describe the same small case."""

    ablation: Ablation
    hunted: Hunt
    without: CaseReport | None = None
    with_it: CaseReport | None = None

    @property
    def is_as_expected(self) -> bool:
        """Seen where it should be, and gone with the fence."""
        if not self.ablation.is_seen:
            return not self.hunted.problem
        return self.with_it is not None and not self.with_it["problems"]


def run_case(source: Path, case: Mapping[str, object], kind: str | None = None) -> CaseReport:
    """Run a case on a source; with a kind of anomaly it is made small first."""
    command = [sys.executable, "-m", "tests.proofs._run_case", json.dumps(case)]
    done = subprocess.run(
        [*command, *([kind] if kind else [])],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=CASE_LIMIT_S,
        check=True,
    )
    report: CaseReport = json.loads(done.stdout.splitlines()[-1])
    return report


def take_away(ablation: Ablation) -> Outcome:
    """Look for the violation, describe it, and run the same case with the fence."""
    seeds = SEEDS_MAX if ablation.is_seen else SEEDS_WHERE_HELD
    with tempfile.TemporaryDirectory(prefix="fencelog-fence-") as folder:
        source = copy_source(ablation.fault, Path(folder))
        hunted = hunt(source, ablation.workload, seeds, checker=True)
        if not hunted.problem:
            return Outcome(ablation, hunted)
        case = {"seed": hunted.seeds - 1, "workload": hunted.workload}
        without = run_case(source, case, hunted.kinds[0])
    return Outcome(ablation, hunted, without, run_case(SOURCE, without["case"]))


def transcript(outcome: Outcome) -> list[str]:
    """What the page shows of one fence that was taken away."""
    without, with_it = outcome.without, outcome.with_it
    if without is None or with_it is None:
        return [f"{outcome.hunted.seeds} seeds without it: no anomaly"]
    case = without["case"]
    # The worst kind comes first; of it, show the finding with the longest counterexample.
    kind = without["findings"][0]["kind"]
    finding = max(
        (each for each in without["findings"] if each["kind"] == kind),
        key=lambda each: len(each["counterexample"]),
    )
    counterexample = [" ".join(line.split()) for line in finding["counterexample"]]
    checked = ", ".join(f"{count} {what}" for what, count in with_it["checked"].items())
    return [
        f"without: {outcome.ablation.name}",
        f"({case['workload']}, seed {case['seed']}, made small: {without['setting']})",
        *(without["faults"] or ["  no fault at all"]),
        without["headline"],
        f"  {finding['kind']}: {finding['text']}",
        *(
            f"    {shorten(line, COUNTEREXAMPLE_CHARACTERS, placeholder=' …')}"
            for line in counterexample
        ),
        "",
        "with it, the same seed and faults:",
        *(with_it["faults"] or ["  no fault at all"]),
        f"{with_it['headline']} in {checked}",
    ]


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """One row for each fence, or pair of fences, that was taken away."""
    lines = [
        "| fence | taken away | seeds | the checker shows | with it | why |",
        "|---|---|---:|---|---|---|",
    ]
    for each in outcomes:
        shown = each.without["headline"].removeprefix("INVALID: ") if each.without else "nothing"
        held = "nothing" if each.with_it and not each.with_it["problems"] else ""
        effect = each.ablation.fault.effect
        lines.append(
            f"| {each.ablation.fence} | {effect} | {each.hunted.seeds} | {shown} "
            f"| {held} | {each.ablation.why} |"
        )
    return lines


def main(arguments: Sequence[str]) -> int:
    """Take away every fence, or those whose ablations contain one of the words."""
    parser = argparse.ArgumentParser(prog="./dev prove fences", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("names", nargs="*", metavar="FENCE", help="whose names hold one of these")
    asked = parser.parse_args(arguments)
    wanted = [a for a in ABLATIONS if not asked.names or any(n in a.name for n in asked.names)]
    if not wanted:
        parser.error(f"the fences are {', '.join(each.name for each in ABLATIONS)}")
    outcomes = []
    for ablation in wanted:
        outcomes.append(take_away(ablation))
        print("\n".join(transcript(outcomes[-1])), "", sep="\n", flush=True)
    if asked.write:
        for each in outcomes:
            between(PAGE, each.ablation.name, ["```text", *transcript(each), "```"])
        if wanted == list(ABLATIONS):
            between(PAGE, "table", table(outcomes))
    wrong = [each.ablation.name for each in outcomes if not each.is_as_expected]
    print(f"{len(outcomes)} taken away; not as expected: {', '.join(wrong) or 'none'}")
    return 1 if wrong or not wanted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
