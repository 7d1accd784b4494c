"""Expires waits at their deadlines, with one timer for all: most waits end long before."""

import asyncio
from typing import Protocol

from fencelog.types import Instant


class Expires(Protocol):
    """A wait with a deadline."""

    def expire(self) -> None:
        """The deadline has passed; the wait is discarded already."""
        ...


class Deadlines:
    """Waits and their deadlines. A loop timer per request would cost as much as its append.

    Invariant: while there are waits, the timer is set for the earliest deadline or before it.
    """

    def __init__(self) -> None:
        """Start without waits."""
        self._due: dict[Expires, Instant] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, wait: Expires, after_s: float) -> None:
        """Call ``wait.expire()`` after this time unless the wait is discarded before."""
        loop = asyncio.get_running_loop()
        due = Instant(loop.time() + after_s)
        self._due[wait] = due
        if self._timer is None or due < self._timer.when():
            self._set_timer(loop, due)

    def discard(self, wait: Expires) -> None:
        """Remove a wait that is done. The timer stays, and looks for the waits that are left."""
        self._due.pop(wait, None)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, due: Instant) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for wait in [wait for wait, due in self._due.items() if due <= now]:
            # A wait that expires may discard others.
            if self._due.pop(wait, None) is not None:
                wait.expire()
        if self._due and self._timer is None:
            self._set_timer(loop, min(self._due.values()))
