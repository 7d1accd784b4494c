"""One timer for a deadline that moves on with every request, which costs no timer of its own."""

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls back once its deadline has passed."""

    __slots__ = ("_deadline", "_ring", "_timer")

    def __init__(self, ring: Callable[[], None]) -> None:
        """Wait for nothing yet."""
        self._ring = ring
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, deadline: float) -> None:
        """Call back at this time of the loop, instead of the one before, which was no later."""
        self._deadline = deadline
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._due)

    def clear(self) -> None:
        """Do not call back until the next ``set``."""
        self._deadline = None

    def close(self) -> None:
        """Never call back again."""
        self.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer, deadline = None, self._deadline
        if deadline is None:
            return
        if asyncio.get_running_loop().time() >= deadline:
            self._deadline = None
            self._ring()
        else:
            self.set(deadline)
