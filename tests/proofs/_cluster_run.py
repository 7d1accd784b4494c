"""Plays ``./dev prove cluster``, in namespaces of its own if ``cluster`` started it there."""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path

from fencelog_sim.workload import Scale
from tests.proofs._chaos_check import Check
from tests.proofs._cluster_chapter import HOSTS, Chapter, Script, play
from tests.proofs._cluster_report import Proof, report
from tests.proofs._report import chosen_seed, commit, conclude, parser
from tests.proofs.chaos import copied_code
from tests.support.network import Frames, Network

WORKLOADS = ("queue", "bank", "versioned", "copy", "owners")
SLOW = {"copy": 2}
"""Records at once, where a member copies each by itself."""
CHAPTER_S, GAP_S, FULL_MINUTES = 60.0, 3.0, 20.0
SCALE = Scale(clients=4, partitions=3, records_per_send=600, pause_s=0.02, key_records=100_000)


def arguments(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    found = parser("cluster", __doc__, full=f"a run of {FULL_MINUTES:g} minutes")
    add = found.add_argument
    add("--minutes", type=float, default=5.0, help="of chapters")
    add("--chapter-seconds", type=float, default=CHAPTER_S, help="of faults in each chapter")
    add("--gap", type=float, default=GAP_S, help="mean seconds between two faults of a row")
    add("--workloads", default=",".join(WORKLOADS), help="by chapters, in turn")
    add("--processes-only", action="store_true", help="nothing is cut; needs no root")
    return found.parse_args(argv)


def _scripts(wanted: argparse.Namespace, seed: int) -> Iterator[Script]:
    """Chapters without end: the workloads in turn, then again in the other mode of durability."""
    names = wanted.workloads.split(",")
    plays = cycle([(name, mode) for mode in ("os", "fsync") for name in names])
    for number, (name, durability) in enumerate(plays, 1):
        yield Script(
            number=number,
            workload=name,
            durability=durability,
            seed=f"{seed}-{number}",
            seconds=wanted.chapter_seconds,
            gap_s=wanted.gap,
            scale=replace(SCALE, records_per_send=SLOW.get(name, SCALE.records_per_send)),
        )


def _run(wanted: argparse.Namespace, seed: int) -> tuple[list[Chapter], Frames | None]:
    """Chapters until the time is over; each is checked while the next one is played.

    Returns also what the network did to frames, if there is one.
    """
    chapters: list[Chapter] = []
    under_check: list[tuple[Chapter, Check, Path]] = []
    ends_at = time.monotonic() + 60 * wanted.minutes
    with ExitStack() as stack:
        network = None if wanted.processes_only else stack.enter_context(Network(HOSTS))
        for script in _scripts(wanted, seed):
            if chapters and time.monotonic() + wanted.chapter_seconds > ends_at:
                break
            folder = Path(tempfile.mkdtemp(prefix=f"fencelog-cluster-{script.number}-"))
            chapter = play(script, folder, network)
            chapters.append(chapter)
            print(
                f"{time.strftime('%H:%M:%S')} chapter {chapter.name}: {chapter.seconds:.0f} s, "
                f"{sum(chapter.faults.values())} faults, rest in {chapter.rest_s:.1f} s",
                file=sys.stderr,
                flush=True,
            )
            _finish(under_check)
            under_check.append((chapter, Check(script.workload, folder), folder))
        _finish(under_check)
        return chapters, None if network is None else Frames(network.dropped, network.delayed)


def _finish(under_check: list[tuple[Chapter, Check, Path]]) -> None:
    """Take in what is checked; only the files of a chapter with problems are kept."""
    while under_check:
        chapter, check, folder = under_check.pop()
        chapter.checked = check.result()
        acknowledged = chapter.checked.counts["sends acknowledged"]
        print(
            f"  chapter {chapter.name} checked: {acknowledged:,} records acknowledged, "
            f"{len(chapter.problems)} bad",
            file=sys.stderr,
        )
        if chapter.problems:
            for problem in chapter.problems[:10]:
                print(f"  PROBLEM: {problem}", file=sys.stderr)
            print(f"  its files are kept in {folder}", file=sys.stderr, flush=True)
        else:
            shutil.rmtree(folder)


def main(argv: list[str]) -> int:
    """Run what is asked for; returns the exit status."""
    wanted = arguments(argv)
    seed = chosen_seed(wanted.seed)
    began, under_test = datetime.now(UTC), commit()
    with copied_code():
        chapters, frames = _run(wanted, seed)
    proof = Proof(
        began=began,
        commit=under_test,
        command=f"./dev prove cluster --minutes {wanted.minutes:g} --seed {seed}",
        frames=frames,
        chapters=chapters,
    )
    is_full = wanted.minutes >= FULL_MINUTES and not wanted.processes_only
    return conclude("cluster", proof, report(proof), wanted.report, is_full=is_full)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
