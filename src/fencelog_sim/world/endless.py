"""Ends a run whose clock stands still: steps that never wait, which no virtual limit ends."""

import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

CPU_S = 10.0
"""Runs take half a minute of virtual time, or more, in a second of CPU time."""
VIRTUAL_S = 0.5
FRAMES = 3


class EndlessStepError(KeyboardInterrupt):
    """A step, or a row of steps, does not end. Nothing takes it for an error to be handled, and
    asyncio passes it on at once.
    """


@contextmanager
def steps_end(clock: Callable[[], float]) -> Iterator[None]:
    """Raise EndlessStepError where ``clock`` has not gone on by VIRTUAL_S in CPU_S of CPU time.

    Signals reach the main thread only: elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = float("-inf")

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        del number
        if clock() < seen + VIRTUAL_S:
            raise EndlessStepError(f"steps without end: {_where(frame)}")
        seen = clock()

    before = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S, CPU_S)
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
