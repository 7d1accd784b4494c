"""The simulated wall clock, and the Random port from a seed."""

from collections.abc import Callable
from random import Random

from fencelog.types import TimestampMs


class SimWallClock:
    """The time of day of a simulated machine: virtual time since an epoch, set wrong at will."""

    def __init__(self, now: Callable[[], float], epoch_ms: int) -> None:
        """``now`` gives virtual seconds; at its 0 the clock says ``epoch_ms``."""
        self._now = now
        self._epoch_ms = epoch_ms
        self.skew_ms = 0
        """How far the clock is ahead of the time; negative where it is behind."""

    def now_ms(self) -> TimestampMs:
        """Milliseconds since 1970-01-01 UTC, as this machine believes."""
        return TimestampMs(self._epoch_ms + int(self._now() * 1000) + self.skew_ms)


class SimRandom:
    """The Random port over a seeded generator."""

    def __init__(self, random: Random) -> None:
        """Draw from this generator, which is used for nothing else."""
        self._random = random

    def bytes(self, count: int) -> bytes:
        """Return ``count`` bytes."""
        return self._random.randbytes(count)
