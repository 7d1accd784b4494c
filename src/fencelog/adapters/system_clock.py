"""The machine's clocks and randomness, behind the WallClock, Stopwatch and Random ports."""

import os
import time

from fencelog.ports import Stopwatch
from fencelog.types import TimestampMs

system_stopwatch: Stopwatch = time.perf_counter


class SystemClock:
    """The time of day of the machine."""

    def now_ms(self) -> TimestampMs:
        """Return milliseconds since 1970-01-01 UTC."""
        return TimestampMs(time.time_ns() // 1_000_000)


class SystemRandom:
    """The randomness of the machine."""

    def bytes(self, count: int) -> bytes:
        """Return ``count`` random bytes."""
        return os.urandom(count)
