"""Ends a step that never waits: the clock stands still in it, so no virtual limit ends the run."""

import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STEP_CPU_S = 10.0
"""Steps take milliseconds."""
FRAMES = 3


class EndlessStepError(KeyboardInterrupt):
    """A step does not end. Nothing takes it for an error to be handled, and asyncio passes it on
    at once.
    """


@contextmanager
def steps_end(begun: Callable[[], int]) -> Iterator[None]:
    """Raise EndlessStepError in a step that has taken ``STEP_CPU_S`` of CPU time, or up to twice.

    ``begun``: how many steps have. Signals reach the main thread only: elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = -1

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        del number
        if begun() == seen:
            raise EndlessStepError(f"a step does not end: {_where(frame)}")
        seen = begun()

    before = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, STEP_CPU_S, STEP_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _where(frame: FrameType | None) -> str:
    """The innermost calls, the outer ones first."""
    return ", ".join(
        f"{each.name} ({each.filename.rpartition('/')[2]}:{each.lineno})"
        for each in traceback.extract_stack(frame)[-FRAMES:]
    )
