"""Waiting for a condition with a deadline, so that no test sleeps for luck."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    *,
    deadline_s: float = 10.0,
    what: str = "condition",
    every_s: float = 0.02,
) -> T:
    """Return the first true value of ``condition``; AssertionError after the deadline."""
    ends_at = time.monotonic() + deadline_s
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > ends_at:
            raise AssertionError(f"{what}: not within {deadline_s} s, last value {value!r}")
        pause.wait(every_s)
