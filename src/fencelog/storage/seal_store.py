"""What there is of a segment of a stream whose files are removed: its seal, in memory.

It stands in the place of a ``PartitionStore``, so that readers, replicas and requests find the
segment as they left it. Nothing is ever written.
"""

from fencelog.log.partition_log import PartitionLog
from fencelog.log.values import Isolation, ReadPlan, SegmentWrite
from fencelog.storage.clean_stop import CleanStop
from fencelog.storage.segment import Batches, Pause
from fencelog.types import TimestampMs


class SealStore:
    """The one batch of a log of ``PartitionLog.of_seal``."""

    failure: str | None = None
    truncated: str | None = None
    must_sync = False
    clean_stop: CleanStop | None = None
    is_rebuilt = False
    knows_deleted = True

    def __init__(self, batch: bytes, log: PartitionLog) -> None:
        """``batch``: as the log was made of it."""
        self._batch = memoryview(batch)
        self.recovery_point = log.log_end_offset

    async def read(self, plan: ReadPlan, *, to_send: bool = False) -> Batches:
        """Return the batch, which every plan has in it."""
        del plan, to_send
        return Batches(self._batch, self.recovery_point)

    async def find_timestamp(
        self, timestamp: TimestampMs, isolation: Isolation, pause: Pause
    ) -> None:
        """Return None: there is no record."""
        del timestamp, isolation, pause

    async def write(self, unflushed: list[SegmentWrite]) -> None:
        """Accept nothing."""
        assert not unflushed, unflushed

    async def sync(self) -> None:
        """Return: all there is was stored with the metadata."""

    def begin_checkpoint(self) -> bool:
        """Return False: there is nothing to store."""
        return False

    async def close(self, *, clean: bool) -> None:
        """Return: no file is open."""
        del clean
