"""Expires waits at their deadlines, with one timer for all: most waits end long before."""

import asyncio
from operator import itemgetter
from typing import Protocol

from fencelog.broker.timer import Timer
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
        self._timer = Timer(self._expire)

    def add(self, wait: Expires, after_s: float) -> None:
        """Call ``wait.expire()`` after this time unless the wait is discarded before."""
        due = Instant(asyncio.get_running_loop().time() + after_s)
        self._due[wait] = due
        if self._timer.due is None or due < self._timer.due:
            self._timer.set(due)

    def discard(self, wait: Expires) -> None:
        """Remove a wait that is done. The timer stays, and looks for the waits that are left."""
        self._due.pop(wait, None)

    def stop(self) -> None:
        """Expire nothing any more: who waits is gone."""
        self._due.clear()
        self._timer.cancel()

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        try:
            late = [
                each for each, due in sorted(self._due.items(), key=itemgetter(1)) if due <= now
            ]
            for wait in late:
                # A wait that expires may discard others.
                if self._due.pop(wait, None) is not None:
                    wait.expire()
        finally:
            if self._due:
                self._timer.set(min(self._due.values()))
