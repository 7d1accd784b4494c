"""``./dev prove chaos --minutes N``: workloads against a real broker that nothing is spared.

Chapter after chapter a fresh broker, clients that are processes of their own and a proxy between
them are killed, stopped, filled up, cut and delayed; everything is healed, the log must come to
rest, and the history is checked while the next chapter is played. At the end the same chaos meets
copies of the source with a planted break each, which it must find.

Exit status 0: no anomaly, and every break found. A run of an hour writes the dated report in
``docs/internals/proofs``.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path

from fencelog.sim.workload import Scale
from fencelog.sim.workloads import WORKLOADS
from tests.proofs._breaks import ANSWERED_BEFORE_WRITTEN, BrokerBreak, plant
from tests.proofs._chaos_chapter import Script, play
from tests.proofs._chaos_check import Check
from tests.proofs._chaos_nemesis import number_of
from tests.proofs._chaos_report import Chapter, Found, Proof, report
from tests.proofs._report import commit

ROOT = Path(__file__).parent.parent.parent
REPORTS = ROOT / "docs/internals/proofs"
FULL_MINUTES = 60.0
CHAPTER_S = 120.0
GAP_S = 3.0
LARGE = Scale(clients=4, partitions=3, records_per_send=300, pause_s=0.02, key_records=50_000)
SMALL = Scale(clients=3, partitions=2, records_per_send=20, pause_s=0.01, key_records=2_000)
BREAK_CHAPTER_S = 20.0
BREAK_GAP_S = 0.7
BREAK_ROUNDS_MAX = 6
SPOKEN_EVERY_S = 20.0

DEDUPE_MISSING = BrokerBreak(
    name="a repeated batch is appended again",
    rule="E4",
    file="log/producers.py",
    sound="                return stored  # E4\n",
    broken="                return None\n",
    durability="os",
    kills=0,
)
STABLE_IS_HIGH = BrokerBreak(
    name="the last stable offset is the high watermark",
    rule="E10",
    file="log/partition_log.py",
    sound="        stable = self._state.transactions.last_stable_offset(self.high_watermark)\n",
    broken="        stable = self.high_watermark\n",
    durability="os",
    kills=0,
)
BREAKS = (DEDUPE_MISSING, STABLE_IS_HIGH, ANSWERED_BEFORE_WRITTEN)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev prove chaos", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=5.0, help="of chapters; the breaks come on top")
    add("--chapter-seconds", type=float, default=CHAPTER_S, help="of faults in each chapter")
    add("--gap", type=float, default=GAP_S, help="mean seconds between two faults of a row")
    add("--workloads", default=",".join(WORKLOADS), help="by chapters, in turn")
    add("--no-breaks", action="store_true", help="leave out the planted breaks")
    add("--seed", type=int, default=None, help="default: a new one; it is printed")
    add("--report", type=Path, default=None, help="default: by date, for a run of an hour")
    return parser.parse_args(argv)


class Live:
    """Says how far a run is: a line that is written over, or one now and then."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._acknowledged = self._polled = self._checked = self._bad = 0
        self._faults = 0
        self._tty = sys.stderr.isatty()

    def watch(
        self, what: str, over: threading.Event, counts: Callable[[], tuple[int, int]]
    ) -> None:
        """Follow a chapter until it is over, from a thread of its own."""
        spoken = 0.0
        chapter_began = time.monotonic()
        while not over.wait(1.0):
            now = time.monotonic()
            if self._tty or now - spoken >= SPOKEN_EVERY_S:
                spoken = now
                acknowledged, polled = counts()
                rate = acknowledged / (now - chapter_began)
                self._say(
                    f"{_clock(now - self._began)}  {what}: {rate:,.0f} records acknowledged/s, "
                    f"{self._acknowledged + acknowledged:,} acknowledged, "
                    f"{self._polled + polled:,} polled, {self._faults} faults before; "
                    f"{self._checked:,} checked, {self._bad} bad"
                )

    def _say(self, line: str) -> None:
        sys.stderr.write(f"\r\x1b[K{line}" if self._tty else line + "\n")
        sys.stderr.flush()

    def played(self, chapter: Chapter, counts: tuple[int, int]) -> None:
        """Add a chapter to the sums."""
        self._acknowledged += counts[0]
        self._polled += counts[1]
        self._faults += number_of(chapter.faults)

    def checked(self, chapter: Chapter) -> None:
        """Add a verdict to the sums."""
        assert chapter.checked is not None
        self._checked += chapter.checked.counts["sends acknowledged"]
        self._bad += len(chapter.problems)
        sys.stderr.write("\r\x1b[K" if self._tty else "")
        for problem in chapter.problems[:10]:
            print(f"  PROBLEM in chapter {chapter.name}: {problem}", file=sys.stderr)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"


def _scripts(wanted: argparse.Namespace, seed: int) -> Iterator[Script]:
    """Chapters without end: the workloads in turn, each in both modes of durability."""
    names = wanted.workloads.split(",")
    for number, (name, durability) in enumerate(
        cycle([(name, mode) for mode in ("os", "fsync") for name in names]), 1
    ):
        # With an odd count of workloads the modes would otherwise come in long rows.
        yield Script(
            number=number,
            workload=name,
            durability=durability,
            seed=f"{seed}-{number}",
            seconds=wanted.chapter_seconds,
            gap_s=wanted.gap,
            scale=LARGE,
        )


def run_chapter(script: Script, folder: Path, live: Live) -> Chapter:
    """Play one chapter; its check is still to come."""
    over = threading.Event()
    tellers: list[Callable[[], tuple[int, int]]] = []
    what = f"chapter {script.number} ({script.workload}, {script.durability})"

    def watch(counts: Callable[[], tuple[int, int]]) -> None:
        tellers.append(counts)
        threading.Thread(target=live.watch, args=(what, over, counts), daemon=True).start()

    try:
        outcome = play(script, folder, watch)
    finally:
        over.set()
    chapter = Chapter.of(outcome)
    live.played(chapter, tellers[0]() if tellers else (0, 0))
    return chapter


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


def find_break(broken: BrokerBreak, folder: Path, seed: int, workloads: Sequence[str]) -> Found:
    """Play short chapters over a copy of the source with this break until one turns red."""
    environment = plant(broken, folder)
    began = time.monotonic()
    faults = 0
    for number, workload in zip(range(BREAK_ROUNDS_MAX), cycle(workloads), strict=False):
        place = folder / f"round-{number}"
        place.mkdir()
        script = Script(
            number=number,
            workload=workload,
            durability=broken.durability,
            seed=f"{seed}-{broken.rule}-{number}",
            seconds=BREAK_CHAPTER_S,
            gap_s=BREAK_GAP_S,
            scale=SMALL,
            environment=environment,
        )
        chapter = run_chapter(script, place, Live())
        chapter.checked = Check(workload, place).result()
        faults += number_of(chapter.faults)
        if chapter.problems:
            return Found(broken, time.monotonic() - began, faults, tuple(chapter.problems))
    return Found(broken, time.monotonic() - began, faults, ())


def _find_breaks(seed: int, workloads: Sequence[str]) -> list[Found]:
    found = []
    for broken in BREAKS:
        with tempfile.TemporaryDirectory(prefix="fencelog-chaos-") as folder:
            found.append(find_break(broken, Path(folder), seed, workloads))
        verdict = "red" if found[-1].problems else "NOT FOUND"
        print(f"planted: {broken.name}: {verdict} after {found[-1].seconds:.0f} s", file=sys.stderr)
    return found


def main(argv: list[str]) -> int:
    """Run what is asked for; returns the exit status."""
    wanted = _arguments(argv)
    seed = random.SystemRandom().randrange(10**6) if wanted.seed is None else wanted.seed
    print(f"seed {seed}", file=sys.stderr)
    began = datetime.now(UTC)
    under_test = commit(ROOT)
    with tempfile.TemporaryDirectory(prefix="fencelog-chaos-") as folder:
        # An hour is long: what happens to the checkout meanwhile must not be half under test.
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)
        os.environ["PYTHONPATH"] = str(source)
        chapters = _run(wanted, seed)
        os.environ.pop("PYTHONPATH")
    proof = Proof(
        began=began,
        commit=under_test,
        command=f"./dev prove chaos --minutes {wanted.minutes:g} --seed {seed}",
        chapters=chapters,
        breaks=[] if wanted.no_breaks else _find_breaks(seed, wanted.workloads.split(",")),
    )
    text = report(proof)
    path = wanted.report
    if path is None and wanted.minutes >= FULL_MINUTES and not wanted.no_breaks:
        path = REPORTS / f"chaos-{began:%Y-%m-%d}.md"
    if path is None:
        print(text)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"report: {path}")
    print(f"chaos: {proof.summary}")
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
