"""How long a call may take, whatever is tried meanwhile."""

import asyncio


class Deadline:
    """The loop time by which a call must have succeeded."""

    def __init__(self, seconds: float) -> None:
        """Begin now."""
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + seconds
        self._seconds = seconds

    def within(self, seconds: float) -> "Deadline":
        """Return this deadline, or the one in so many seconds if that is earlier."""
        return Deadline(seconds) if seconds < self.left_s else self

    @property
    def left_s(self) -> float:
        """Seconds that remain; never negative."""
        return max(self._at - self._loop.time(), 0.0)

    @property
    def passed(self) -> bool:
        """Whether no time remains."""
        return self._loop.time() >= self._at

    def __str__(self) -> str:
        """The allowed time as text."""
        return f"{self._seconds:g} s"
