"""Judges the history of one chapter, in a process of its own while the next chapter is played.

``python -m tests.proofs._chaos_check WORKLOAD FOLDER`` joins the client's files, checks them, and
writes ``history.jsonl`` only where something is wrong; its findings go to ``verdict.json``.
"""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fencelog.check import check
from fencelog.check.history import Event
from fencelog_sim.workloads import WORKLOADS
from tests.proofs._chaos_rig import tail

VERDICT, HISTORY = "verdict.json", "history.jsonl"
PROBLEMS_MAX = 30
NICE = 5


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a check says."""

    problems: list[str]
    found: dict[str, int]
    """Findings of each kind, those that are allowed by design among them."""
    counts: dict[str, int]
    seconds: float
    text: str

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what a check left."""
        return cls(**json.loads((folder / VERDICT).read_text(encoding="utf-8")))


def _lines(path: Path) -> Iterator[Event]:
    """A client's events; a last line that a kill cut off is none."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def events_of(folder: Path) -> list[Event]:
    """All events of a chapter in the order of their times."""
    events = [event for path in sorted(folder.glob("*.jsonl")) for event in _lines(path)]
    # Stable: what one client wrote at one time stays in its order.
    events.sort(key=lambda event: event["time"])  # type: ignore[arg-type,return-value]
    return events


def check_chapter(workload: str, folder: Path) -> Checked:
    """Check a chapter's history and ask the workload."""
    began = time.monotonic()
    events = events_of(folder)
    verdict = check(events)
    problems = [str(each) for each in verdict.problems]
    if verdict.outcome == "nothing-checked":
        problems.append("nothing was checked")
    problems += WORKLOADS[workload]().check(events)
    if problems:
        with (folder / HISTORY).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
    return Checked(
        problems=problems[:PROBLEMS_MAX],
        found=dict(verdict.found),
        counts=dict(verdict.counts),
        seconds=time.monotonic() - began,
        text=verdict.text(),
    )


class Check:
    """A check under way."""

    def __init__(self, workload: str, folder: Path) -> None:
        """Start it."""
        self.folder = folder
        self._log = folder / "check.log"
        command = ["nice", "-n", str(NICE), sys.executable, "-m", "tests.proofs._chaos_check"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, workload, str(folder)], stdout=log, stderr=log
            )

    def result(self) -> Checked:
        """Wait for it. Raises RuntimeError where the checker itself failed."""
        if self._process.wait():
            raise RuntimeError(f"the check of {self.folder} failed: {tail(self._log)}")
        return Checked.load(self.folder)


if __name__ == "__main__":
    # Millions of small lists that all live to the end: the collector would only walk them.
    gc.disable()
    checked = check_chapter(sys.argv[1], Path(sys.argv[2]))
    (Path(sys.argv[2]) / VERDICT).write_text(json.dumps(vars(checked)), encoding="utf-8")
