"""The world in which a test starts its nodes."""

from pathlib import Path

import pytest

from tests.support.node import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A simulated disk, and metadata in a file; both outlive a node."""
    return World(tmp_path)
