"""``./dev prove chaos --minutes N``: workloads against a real broker that nothing is spared.

Chapter after chapter a fresh broker, clients that are processes of their own and a proxy between
them are killed, stopped, filled up, cut and delayed; everything is healed, the log must come to
rest, and the history is checked while the next chapter is played. At the end the same chaos meets
copies of the source with a fault each, which it must find.

Exit status 0: no anomaly, and every fault found. A run of an hour writes the dated report in
``docs/internals/proofs``.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path

from fencelog_sim.workload import Scale
from tests.proofs._chaos_chapter import Script
from tests.proofs._chaos_check import Check
from tests.proofs._chaos_live import Live, run_chapter
from tests.proofs._chaos_report import Chapter, Proof, report
from tests.proofs._chaos_shorts import CHAPTERS, find_in_chaos, play_ends
from tests.proofs._report import ROOT, chosen_seed, commit, conclude, parser
from tests.support.found import look_for_all

FULL_MINUTES = 60.0
CHAPTER_S = 100.0
GAP_S = 3.0
LARGE = Scale(clients=4, partitions=3, records_per_send=600, pause_s=0.02, key_records=100_000)
ENDS_ALONE = ("queue", "queue-aiokafka")
"""Played once more with nothing but old EndTxn frames: one client of each transaction version."""


def _arguments(argv: list[str]) -> argparse.Namespace:
    found = parser("chaos", __doc__, full="a run of an hour")
    add = found.add_argument
    add("--minutes", type=float, default=5.0, help="of chapters; the faults come on top")
    add("--chapter-seconds", type=float, default=CHAPTER_S, help="of faults in each chapter")
    add("--gap", type=float, default=GAP_S, help="mean seconds between two faults of a row")
    add("--workloads", default=",".join(CHAPTERS), help="by chapters, in turn")
    add("--only-chapters", action="store_true", help="no faults of the source, no old EndTxn alone")
    return found.parse_args(argv)


def _scripts(wanted: argparse.Namespace, seed: int) -> Iterator[Script]:
    """Chapters without end: the workloads in turn, then again in the other mode of durability."""
    names = wanted.workloads.split(",")
    for number, (name, durability) in enumerate(
        cycle([(name, mode) for mode in ("os", "fsync") for name in names]), 1
    ):
        yield Script(
            number=number,
            workload=name,
            durability=durability,
            seed=f"{seed}-{number}",
            seconds=wanted.chapter_seconds,
            gap_s=wanted.gap,
            scale=LARGE,
        )


def _run(wanted: argparse.Namespace, seed: int) -> list[Chapter]:
    """Chapters until the time is over; each is checked while the next one is played."""
    live = Live()
    chapters: list[Chapter] = []
    under_check: list[tuple[Chapter, Check, Path]] = []
    ends_at = time.monotonic() + 60 * wanted.minutes
    for script in _scripts(wanted, seed):
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            break
        folder = Path(tempfile.mkdtemp(prefix=f"fencelog-chaos-{script.number}-"))
        chapter = run_chapter(script, folder, live)
        chapters.append(chapter)
        _finish(under_check, live)
        under_check.append((chapter, Check(script.workload, folder), folder))
    _finish(under_check, live)
    return chapters


def _finish(under_check: list[tuple[Chapter, Check, Path]], live: Live) -> None:
    """Take in what is checked; only the files of a chapter with problems are kept."""
    while under_check:
        chapter, check, folder = under_check.pop()
        chapter.checked = check.result()
        live.checked(chapter)
        if chapter.problems:
            print(f"  its files are kept in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)


@contextmanager
def copied_code() -> Iterator[None]:
    """Let all processes run a copy: what happens to the checkout must not be half under test."""
    with tempfile.TemporaryDirectory(prefix="fencelog-chaos-code-") as folder:
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, Path(folder) / name)
        os.environ["PYTHONPATH"] = str(Path(folder) / "src")
        try:
            with chdir(folder):
                yield
        finally:
            del os.environ["PYTHONPATH"]


def main(argv: list[str]) -> int:
    """Run what is asked for; returns the exit status."""
    wanted = _arguments(argv)
    seed = chosen_seed(wanted.seed)
    began = datetime.now(UTC)
    under_test = commit()
    with copied_code():
        chapters = _run(wanted, seed)
        others = [] if wanted.only_chapters else play_ends(seed, ENDS_ALONE)
    proof = Proof(
        began=began,
        commit=under_test,
        command=f"./dev prove chaos --minutes {wanted.minutes:g} --seed {seed}",
        chapters=chapters,
        ends_alone=others,
        found=[] if wanted.only_chapters else look_for_all("chaos", find_in_chaos, seed),
    )
    is_full = wanted.minutes >= FULL_MINUTES and not wanted.only_chapters
    return conclude("chaos", proof, report(proof), wanted.report, is_full=is_full)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
