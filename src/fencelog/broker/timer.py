"""One callback at one time of the loop, which is kept beside the handle.

A loop need not tell a handle's time: uvloop's ``call_at`` returns a plain handle for what is due
within half a millisecond. It rounds to milliseconds, so it also calls back that much early.
"""

import asyncio
from collections.abc import Callable

from fencelog.types import Instant

RESOLUTION_S = 0.001


class Timer:
    """Runs one callback when it is due and never before; it can be set again and again.

    Invariant: ``due`` is None exactly when the loop holds no handle of this timer.
    """

    __slots__ = ("_callback", "_handle", "due")

    def __init__(self, callback: Callable[[], None]) -> None:
        """Start unset."""
        self._callback = callback
        self._handle: asyncio.Handle | None = None
        self.due: Instant | None = None
        """When the callback runs, by the loop's clock; None while it is not set."""

    def set(self, due: Instant) -> None:
        """Run the callback at ``due`` instead of whenever it was due before."""
        if due != self.due:
            self.cancel()
            self._handle = asyncio.get_running_loop().call_at(due, self._run)
            self.due = due

    def cancel(self) -> None:
        """Do not run the callback, until the timer is set again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = self.due = None

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        if self.due is not None and loop.time() < self.due:
            self._handle = loop.call_later(RESOLUTION_S, self._run)
            return
        self._handle = self.due = None
        self._callback()
