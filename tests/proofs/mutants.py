"""``./dev prove mutants [NAME…]``: plant each bug in turn and count the seeds until it is found.

A simulator that finds nothing proves nothing. Each bug of ``tests/simulation/_planted`` is put
into a copy of the source, and seeds run from 0 until one fails, 1,000 at most; then the sound
source runs over the same seeds and must fail nowhere. ``--write`` keeps the table in the page of
the simulator and the report.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.simulation._bug import SOURCE, Bug, plant
from tests.simulation._planted import PLANTED

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs/internals/simulation.md"
REPORT = ROOT / "docs/internals/proofs/mutants.md"
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"
SEEDS_MAX = 1000
CONTROL_SEEDS_MIN = 50
HUNT_LIMIT_S = 1800.0
"""For one bug and one workload, of real time; a bug that hangs a run is found by that."""


@dataclass(frozen=True)
class Hunt:
    """What became of the search for one bug with one workload."""

    workload: str
    seeds: int
    """How many ran, the one that failed included."""
    problem: str
    """What the checker, or whoever it was, told first; empty where nothing did."""
    kinds: tuple[str, ...]
    """Who told of it."""
    real_s: float


def hunt(source: Path, workload: str, seeds: int = SEEDS_MAX, *, checker: bool = False) -> Hunt:
    """Run seeds from 0 on a source until one fails; ``checker``: in the checker's eyes."""
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.proofs._seek", workload, "0", str(seeds)]
    with subprocess.Popen(
        [*command, *(["--checker"] if checker else [])],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=HUNT_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            took = time.monotonic() - began
            return Hunt(workload, seeds, "a run never ended", ("a bound",), took)
    took = time.monotonic() - began
    try:
        found = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        raise RuntimeError(f"the search ended without a word: {errors[-2000:]}") from None
    if found["seed"] is None:
        return Hunt(workload, seeds, "", (), took)
    return Hunt(workload, found["seed"] + 1, found["problem"], tuple(found["kinds"]), took)


def find(bug: Bug, seeds: int = SEEDS_MAX) -> Hunt:
    """Look for a bug with each of its workloads in turn; returns the first success."""
    with tempfile.TemporaryDirectory(prefix="fencelog-mutant-") as folder:
        source = plant(bug, Path(folder))
        first, *others = bug.workloads
        hunted = hunt(source, first, seeds)
        for workload in others:
            if hunted.problem:
                break
            hunted = hunt(source, workload, seeds)
    return hunted


def control(hunts: Iterable[Hunt], seeds_min: int = CONTROL_SEEDS_MIN) -> list[Hunt]:
    """Run the sound source over every seed that was needed, workload by workload."""
    needed: dict[str, int] = {}
    for each in hunts:
        needed[each.workload] = max(needed.get(each.workload, seeds_min), each.seeds)
    return [hunt(SOURCE, workload, seeds) for workload, seeds in sorted(needed.items())]


def table(found: Sequence[tuple[Bug, Hunt]]) -> list[str]:
    """The rows of the page: each bug, what it breaks, what found it."""
    lines = [
        "| planted bug | breaks | what it does | workload | seeds | told by | seconds |",
        "|---|---|---|---|---:|---|---:|",
    ]
    for bug, hunted in found:
        told = ", ".join(hunted.kinds) or "**not found**"
        lines.append(
            f"| {bug.name} | {bug.rule} | {bug.says} | {hunted.workload} | {hunted.seeds} "
            f"| {told} | {hunted.real_s:.0f} |"
        )
    return lines


def write(found: Sequence[tuple[Bug, Hunt]], verdict: Sequence[str]) -> None:
    """Put the table between the markers of the page, and keep the report."""
    lines = table(found)
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert rest, f"{PAGE} has no place for the table: {BEGIN} … {END}"
    text = "\n".join([BEGIN, "", *lines, "", *verdict, "", END])
    PAGE.write_text(before + text + after, encoding="utf-8")
    today = datetime.now(tz=UTC).date().isoformat()
    head = [
        f"# Planted bugs, {today}",
        "",
        f"`./dev prove mutants --write`, CPython {platform.python_version()}, one process.",
        "",
    ]
    details = ["", "What was told first:", ""]
    details += [f"- {bug.name}: `{hunted.problem}`" for bug, hunted in found]
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text("\n".join([*head, *lines, "", *verdict, *details, ""]), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Hunt all bugs, or those whose names contain one of the words."""
    parser = argparse.ArgumentParser(prog="./dev prove mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a bug's name")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="at most so many for each")
    parser.add_argument("--jobs", type=int, default=1, help="bugs hunted side by side (1 or 2)")
    parser.add_argument("--write", action="store_true", help="keep table and report")
    options = parser.parse_args(arguments)
    wanted = [b for b in PLANTED if not options.names or any(n in b.name for n in options.names)]
    found: list[tuple[Bug, Hunt]] = []
    with ThreadPoolExecutor(min(options.jobs, 2)) as pool:
        hunts = pool.map(lambda bug: find(bug, options.seeds), wanted)
        for bug, hunted in zip(wanted, hunts, strict=True):
            found.append((bug, hunted))
            print(
                f"{hunted.seeds:5} seeds {hunted.real_s:5.0f} s  {hunted.workload:9} "
                f"{bug.name}: {', '.join(hunted.kinds) or 'NOT FOUND'}: {hunted.problem[:110]}",
                flush=True,
            )
    controls = control((each for _, each in found), min(CONTROL_SEEDS_MIN, options.seeds))
    bad = [each for each in controls if each.problem]
    survivors = [bug.name for bug, each in found if not each.problem]
    verdict = [
        f"{len(found)} bugs planted, {len(found) - len(survivors)} found. "
        f"The sound source over the same seeds: "
        + ", ".join(f"{c.workload} {c.seeds}" for c in controls)
        + (" without a failure." if not bad else f", FAILED: {[c.problem for c in bad]}.")
    ]
    print("\n".join(verdict), *(f"survivor: {name}" for name in survivors), sep="\n")
    if options.write and wanted == list(PLANTED) and not bad:
        write(found, verdict)
    return 1 if bad or survivors or not wanted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
