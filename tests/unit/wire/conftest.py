"""Fixtures of the wire's tests."""

import tracemalloc
from collections.abc import Callable

import pytest


@pytest.fixture
def peak_of() -> Callable[[Callable[[], object]], int]:
    """Measure how many bytes a call allocates at most."""

    def measure(call: Callable[[], object]) -> int:
        tracemalloc.start()
        try:
            call()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure
