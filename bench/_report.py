"""The result of a script: a table on the terminal, and as markdown in ``bench/results``."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
LOOP_PASSES = 1_000_000
HEADINGS = ("figure", "measured", "ceiling", "of ceiling", "goal", "met")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table. Without a goal it informs; without a ceiling it stands alone."""

    name: str
    value: float
    unit: str
    ceiling: float | None = None
    ceiling_name: str = ""
    goal: str = ""
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        """The line's texts, in the order of ``HEADINGS``."""
        ceiling = share = ""
        if self.ceiling is not None:
            ceiling = f"{show(self.ceiling)} {self.unit} ({self.ceiling_name})"
            share = f"{100 * self.value / self.ceiling:.0f} %" if self.ceiling else ""
        met = "" if self.met is None else "yes" if self.met else "NO"
        return (self.name, f"{show(self.value)} {self.unit}", ceiling, share, self.goal, met)


def show(value: float) -> str:
    """Return a number with few digits."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


@dataclass
class Report:
    """All that one script found."""

    name: str
    question: str
    method: str
    """How it was measured, in a few sentences: they go into the result."""
    call: str = ""
    """What ``./dev bench`` was called with, if that is not the name."""
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    load_at_start: float = field(default_factory=lambda: os.getloadavg()[0])

    def add(self, figure: Figure) -> None:
        """Take a figure, and show it at once."""
        self.figures.append(figure)
        print("  " + " | ".join(cell for cell in figure.cells() if cell), flush=True)

    def note(self, text: str) -> None:
        """Take a sentence or a block of text that belongs below the table."""
        self.notes.append(text)

    def finish(self) -> None:
        """Print the table, and store it unless this was a ``--quick`` run."""
        rows = [HEADINGS, *(figure.cells() for figure in self.figures)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
        print(f"\n{self.name}: {self.question}")
        for row in rows:
            print(
                "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            )
        for note in self.notes:
            print(f"\n{note}")
        if is_quick():
            print("\n(--quick: only shows that the script works; nothing was stored)")
            return
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self.name}.md").write_text(self._markdown(), encoding="utf-8")

    def _markdown(self) -> str:
        call = self.call or self.name
        lines = [
            f"# {self.name}: {self.question}",
            "",
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit()}, `./dev bench {call}`",
            "",
            f"{machine()}; load average {self.load_at_start:.1f} when it began.",
            "",
            self.method,
            "",
            _row(HEADINGS),
            _row(["---"] * len(HEADINGS)),
            *(_row(figure.cells()) for figure in self.figures),
        ]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def is_quick() -> bool:
    """Whether tiny sizes were asked for, to see that the script works."""
    return "--quick" in sys.argv


def sized(full: int, quick: int) -> int:
    """Return the size to work with."""
    return quick if is_quick() else full


def commit() -> str:
    """Name what was measured; a changed checkout says so."""
    name = _git("rev-parse", "--short", "HEAD")
    return f"{name} with changes" if _git("status", "--porcelain", "src", "bench/*.py") else name


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or ("unknown" if done.returncode else "")


def machine() -> str:
    """Say on what it was measured."""
    cpu = memory = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            memory = f"{int(line.split()[1]) / 2**20:.0f} GiB"
    return (
        f"{os.cpu_count()} cores of {cpu}, {memory}, Linux {platform.release()}, "
        f"Python {platform.python_version()} (a loop of {LOOP_PASSES:,} passes takes it "
        f"{1e3 * min(_loop_s() for _ in range(5)):.0f} ms)"
    )


def _loop_s() -> float:
    """Time a plain loop: builds of one version of Python differ by half and more."""
    began = time.perf_counter()
    last: dict[int, int] = {}
    for number in range(LOOP_PASSES):
        last[number & 1023] = number
    return time.perf_counter() - began
