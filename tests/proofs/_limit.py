"""A limit on the time of a part of a proof, whatever it waits for."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

AGAIN_S: Final = 60.0
"""What cleans up after the first error may wait as well."""


@contextmanager
def limited(seconds: float, what: str) -> Iterator[None]:
    """Raise TimeoutError in what runs longer, and again each minute. In the main thread only."""

    def late(*_: object) -> None:
        raise TimeoutError(f"{what} has not ended within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
