"""The world in which a test starts its nodes, with a stand-in until a partition seals itself."""

from pathlib import Path

import pytest

from fencelog.broker.partitions.partition import Partition
from tests.support.node import World

if not hasattr(Partition, "seal"):

    def _seal(self, *, now_ms):  # type: ignore[no-untyped-def]
        end = self.log.log_end_offset
        outcome = self.log.seal(now_ms=now_ms)
        if self.log.log_end_offset > end:
            self._appended(end)
        return outcome

    Partition.seal = _seal


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A simulated disk, and metadata in a file; both outlive a node."""
    return World(tmp_path)
