"""How a long proof says on stderr how far it is, and what it found."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

Step = Callable[[], None]


@contextmanager
def progress(what: str, total: int) -> Iterator[Step]:
    """A bar on a terminal, a line at begin and end elsewhere; on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description:<44}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    began = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task(what, total=total)
        if not console.is_terminal:
            console.print(f"{what} …")
        yield lambda: bars.advance(bar)
    if not console.is_terminal:
        console.print(f"{what}: {time.monotonic() - began:.0f} s")


def say(problems: Sequence[str]) -> None:
    """The first problems, on stderr."""
    for problem in problems[:20]:
        print(f"  PROBLEM {problem}", file=sys.stderr)
    if len(problems) > 20:
        print(f"  and {len(problems) - 20} more", file=sys.stderr)
