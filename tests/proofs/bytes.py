"""``./dev prove bytes``: a crash, or a flipped bit, at every byte of what a broker stores.

Recorded histories are cut at every length and damaged at every bit that matters, and started from
again, on the simulated disk; a sample of it on the real one. Exit status 0: every start served
what was promised and meant the same, or refused and named the file; and each fault of the source
was found. A whole run writes the dated report in ``docs/internals/proofs``.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from fencelog.adapters.file_disk import FileDisk
from fencelog.errors import CorruptionError
from fencelog_sim.world.disk import Loss, SimDisk
from tests.proofs._bytes_check import (
    FLIP,
    OFFLINE,
    SHORTER,
    Checker,
    Fault,
    Outcome,
    faults,
    kind_of,
    start,
)
from tests.proofs._bytes_history import Left, all_left, disk_of, recorded
from tests.proofs._bytes_report import report
from tests.proofs._report import publish
from tests.support.faults import ROOT
from tests.support.found import Search, look_for_all

AGAIN_EVERY = 16
"""Every so many starts a second one follows, after a kill and after a power cut.

And wherever a flipped bit took the partition offline: it must stay so.
"""
ON_DISK_EVERY = 997
PROBLEMS_KEPT = 20
PROBLEM = "PROBLEM "
FAULT_PART = 11

Row = tuple[str, str, str]
"""File, what was done to it, what came of it."""


@dataclass
class Counts:
    """What came of the faults in some histories."""

    outcomes: Counter[Row] = field(default_factory=Counter)
    again: int = 0
    on_disk: int = 0
    wrong: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, left: Left, fault: Fault, outcome: Outcome) -> None:
        """Count one."""
        self.outcomes[kind_of(fault.path), fault.kind, outcome.what] += 1
        if outcome.problem is not None:
            self.blame(left, fault, outcome.problem)

    def blame(self, left: Left, fault: Fault, problem: str) -> None:
        """Note what must not be."""
        self.wrong += 1
        if len(self.problems) < PROBLEMS_KEPT:
            where = f"{left.name}, {left.durability}, {left.stop}: {fault.path} {fault.kind}"
            self.problems.append(f"{where} at {fault.at}: {problem}")

    def join(self, other: "Counts") -> None:
        """Add another's."""
        self.outcomes += other.outcomes
        self.again += other.again
        self.on_disk += other.on_disk
        self.wrong += other.wrong
        self.problems += other.problems[: PROBLEMS_KEPT - len(self.problems)]


def damaged(left: Left, fault: Fault) -> dict[str, bytes]:
    """The files as they are found."""
    return {**left.files, fault.path: fault.applied(left.files[fault.path])}


async def try_out(left: Left, part: int, *, on_disk: bool) -> Counts:
    """Check every ``part``-th fault in one history; the first of each row of files is one."""
    counts, checker = Counts(), Checker(left)
    for rebuilt in (False, True):
        await checker.reference(left.end, rebuilt=rebuilt)
    for number, fault in enumerate(islice(faults(left), 0, None, part)):
        disk = disk_of(damaged(left, fault))
        outcome = await checker.check(fault, disk)
        counts.add(left, fault, outcome)
        is_reported = fault.kind == FLIP and outcome.what == OFFLINE
        if (number % AGAIN_EVERY == 0 or is_reported) and outcome.problem is None:
            counts.again += 1
            problem = await _start_again(left, fault, outcome, disk)
            if problem is not None:
                counts.blame(left, fault, problem)
        if on_disk and number % (ON_DISK_EVERY // part or 1) == 0:
            counts.on_disk += 1
            problem = await _on_disk(left, fault, outcome)
            if problem is not None:
                counts.blame(left, fault, problem)
    return counts


async def _start_again(left: Left, fault: Fault, outcome: Outcome, disk: SimDisk) -> str | None:
    """What was found once is found again, by the next start and after a power cut."""
    for after in (disk.restarted(), disk.power_loss(Loss.ALL)):
        try:
            started = await start(left, after)
        except CorruptionError as error:
            is_same = outcome.what in ("start refused", "partition offline")
            problem = f"a second start refuses: {error}"
        else:
            is_same = (started.end < left.end) == (outcome.what == SHORTER)
            problem = f"a second start serves up to {started.end}, the first: {outcome.what}"
            await started.store.close(clean=False)
        if not is_same:
            return problem
    return None


def _put(folder: str, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        file = Path(folder, path)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)


async def _on_disk(left: Left, fault: Fault, outcome: Outcome) -> str | None:
    """The same on files of the operating system."""
    with tempfile.TemporaryDirectory(prefix="fencelog-bytes-") as folder:
        _put(folder, damaged(left, fault))
        disk = FileDisk(folder)
        try:
            started = await start(left, disk)
            await started.store.close(clean=False)
        except CorruptionError as error:
            is_same = outcome.what in ("start refused", "partition offline")
            return None if is_same else f"on a real disk: {error}"
        finally:
            disk.close()
    is_same = (started.end < left.end) == (outcome.what == SHORTER)
    return None if is_same else f"on a real disk it ends at {started.end}"


def _one(name: str, durability: str, stop: str, part: int, on_disk: bool) -> Counts:
    return asyncio.run(try_out(recorded(name, durability, stop), part, on_disk=on_disk))


def count(
    part: int, *, on_disk: bool = False, workers: int = 1, until_wrong: bool = False
) -> Counts:
    """Check every ``part``-th fault in each history, or in each up to one with a problem."""
    total = Counts()
    names = [(left.name, left.durability, left.stop) for left in all_left()]
    if workers == 1:
        for name in names:
            total.join(_one(*name, part, on_disk))
            if until_wrong and total.wrong:
                break
        return total
    with ProcessPoolExecutor(workers) as pool:
        for counts in pool.map(_one, *zip(*((*n, part, on_disk) for n in names), strict=True)):
            total.join(counts)
    return total


def find_at_every_byte(search: Search) -> tuple[str, list[str]]:
    """Check a part of the damage with the copy, up to the first history with a problem."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.proofs.bytes", "--part", str(FAULT_PART), "--until-wrong"],
        cwd=ROOT,
        env={**os.environ, **search.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    problems = [line.removeprefix(PROBLEM) for line in done.stderr.splitlines() if PROBLEM in line]
    return done.stdout.strip().rpartition("\n")[2], problems


def main(argv: list[str]) -> int:
    """Run what is asked for; returns the exit status."""
    parser = argparse.ArgumentParser(prog="./dev prove bytes", description=__doc__)
    parser.add_argument("--part", type=int, default=1, help="every so manieth fault only")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--until-wrong", action="store_true", help="one worker, and no further")
    wanted = parser.parse_args(argv)
    began, clock = datetime.now(UTC), time.monotonic()
    is_whole = wanted.part == 1
    counts = count(
        wanted.part,
        on_disk=is_whole,
        workers=1 if wanted.until_wrong else wanted.workers,
        until_wrong=wanted.until_wrong,
    )
    seconds = time.monotonic() - clock
    used = os.times()
    cpu_s = used.user + used.system + used.children_user + used.children_system
    for problem in counts.problems:
        print(f"{PROBLEM}{problem}", file=sys.stderr)
    found = look_for_all("bytes", find_at_every_byte, 0) if is_whole else []
    missed = [each for each in found if not each.problems]
    if is_whole:
        publish("bytes", began, report(counts, found, began, (seconds, cpu_s)), None, is_full=True)
    total = sum(counts.outcomes.values())
    print(f"bytes: {total:,} faults in {seconds:.0f} s, {counts.wrong:,} problems")
    return 1 if counts.wrong or missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
