"""What the user sees while the demo works: bars on a terminal, plain lines elsewhere. On stderr."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from fencelog_demo.events import Event
from fencelog_demo.plan import PIPELINES
from fencelog_demo.processes import describe
from fencelog_demo.stage import Stage

SENT = "sent"


class Screen:
    """Progress of the stage. A context manager."""

    def __init__(self, rows: int) -> None:
        """Lay out a bar for the producer and one for each pipeline."""
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._last = ""
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("flights  {task.fields[note]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        names = {SENT: "sent", **{name: f"delivered {name}" for name in PIPELINES}}
        self._bars: dict[str, TaskID] = {
            name: self._progress.add_task(text, total=rows, note="") for name, text in names.items()
        }

    def __enter__(self) -> Self:
        """Show the bars."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the bars as they stand."""
        self._progress.stop()

    def say(self, text: str) -> None:
        """One line above the bars."""
        self._console.print(text, markup=False)

    def show(self, stage: Stage, new: Sequence[Event], begun: float) -> None:
        """Move the bars, and print each fault and each end of a process."""
        tally = stage.tally
        self._progress.update(self._bars[SENT], completed=tally.produced)
        note = f"{tally.faults}/{len(stage.setup.plan)} faults"
        for name in PIPELINES:
            self._progress.update(self._bars[name], completed=tally.delivered(name), note=note)
        for event in new:
            line = line_of(event)
            # Spark retries a refused task, which is refused again.
            if line and line != self._last:
                self.say(f"{event.at - begun:6.1f} s  {line}")
                self._last = line


def line_of(event: Event) -> str:
    """An event as a line for the user; empty for an event that gets none."""
    label = event.text("label")
    watched = event.text("role") in {"broker", "driver"} and label
    line = ""
    match event.kind:
        case "injected":
            line = injected(event)
        case "resumed":
            line = "the frozen driver is resumed, a zombie"
        case "exited" if watched:
            line = f"{label} ended: {describe(event.number('status'))}"
        case "started" if watched:
            line = f"{label} starts, pid {event.number('pid')}"
        case "fenced":
            line = f"the broker fences the zombie from {event.text('pipeline')}"
        case "unplanned-restart":
            line = f"{label} failed unplanned and is restarted"
        case "resized":
            line = resized(event)
        case "all-produced":
            line = f"all flights are sent; {event.number('aborted')} had been aborted first"
        case _:
            pass
    return line


def resized(event: Event) -> str:
    """A resize of a stream: ``flights: segment 3 becomes 4 and 5``."""
    before, after = (event.facts[name] for name in ("segments", "successors"))
    assert isinstance(before, list)
    assert isinstance(after, list)
    names = [" and ".join(map(str, each)) for each in (before, after)]
    verb = "segment {} becomes {}" if len(before) == 1 else "segments {} become {}"
    return f"{event.text('stream')}: {verb.format(*names)}"


def injected(event: Event) -> str:
    """An injected fault: signal, title, and processes."""
    pids = event.facts["pids"]
    assert isinstance(pids, dict)
    ids = ", ".join(f"{name} {pid}" for pid, name in list(pids.items())[:2])
    more = f" and {len(pids) - 2} more" if len(pids) > 2 else ""
    return f"{event.text('signal')} to {event.text('title')} ({ids}{more})"
