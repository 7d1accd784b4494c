"""Plays a chapter and says meanwhile how it goes."""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.proofs._chaos_chapter import Script, play
from tests.proofs._chaos_nemesis import number_of
from tests.proofs._chaos_report import Chapter

SPOKEN_EVERY_S = 20.0


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
