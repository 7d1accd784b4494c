"""Fixtures of the client's tests."""

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def collected() -> Iterator[None]:
    """Collect what a reader that crashes leaves: a connection may be opening as its task ends."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
