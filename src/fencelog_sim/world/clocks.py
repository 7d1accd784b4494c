"""The simulated wall clock, and the Stopwatch and Random ports from a seed."""

from collections.abc import Callable
from random import Random

from fencelog.types import TimestampMs

WORK_S = 0.0005
"""Mean of what a request takes: some connections have to wait for their turn in every run."""


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


class SimStopwatch:
    """The Stopwatch port: what work takes, from a seed. Virtual time stands still meanwhile."""

    def __init__(self, random: Random) -> None:
        """Draw from this generator, which is used for nothing else."""
        self._random = random
        self._seconds = 0.0

    def __call__(self) -> float:
        """Seconds since the start, a little more than at the last call."""
        self._seconds += self._random.expovariate(1 / WORK_S)
        return self._seconds


class SimRandom:
    """The Random port over a seeded generator."""

    def __init__(self, random: Random) -> None:
        """Draw from this generator, which is used for nothing else."""
        self._random = random

    def bytes(self, count: int) -> bytes:
        """Return ``count`` bytes."""
        return self._random.randbytes(count)
