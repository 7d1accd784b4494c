"""A partition on a simulated disk, with nobody but the test to flush it."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec

from fencelog.broker.partitions.partition import Partition
from fencelog.broker.partitions.role import Alone, Role
from fencelog.broker.partitions.tail_cache import TailCache
from fencelog.errors import ErrorCode
from fencelog.log.config import LogConfig
from fencelog.log.values import Appended, Duplicate, Isolation, MarkerToWrite, Rejected
from fencelog.storage.partition_store import PartitionStore
from fencelog.types import Offset, ProducerEpoch, ProducerId, TopicPartition
from fencelog.wire.batch import iterate, read_header
from fencelog_sim.world.disk import SimDisk
from tests.support.log import NOW_MS, make_batch
from tests.support.observing import Told
from tests.support.storage import TOPIC_ID

P = ParamSpec("P")

NAME = TopicPartition("t", 0)
EVERY = 1 << 20
"""More bytes than any of these partitions has."""


class Reading:
    """A reader that waits on a partition and notes how it is called."""

    def __init__(self, *, goes_on: bool = True) -> None:
        self.calls: list[str] = []
        self._goes_on = goes_on

    def advanced(self) -> bool:
        self.calls.append("advanced")
        return self._goes_on

    def interrupted(self) -> None:
        self.calls.append("interrupted")


@dataclass
class Rig:
    """A partition, its disk, and whom it told that something is to be flushed."""

    partition: Partition
    disk: SimDisk
    queued: list[Partition]
    observer: Told
    waits: list[str] = field(default_factory=list)

    @classmethod
    async def of(
        cls, role: Role | None = None, disk: SimDisk | None = None, **config: object
    ) -> "Rig":
        disk = disk or SimDisk()
        queued: list[Partition] = []
        observer = Told()
        store, log = await PartitionStore.create(
            disk, "t-0", TOPIC_ID, LogConfig(**config), "fsync"
        )
        partition = Partition(
            NAME,
            log,
            store,
            role=role or Alone(),
            enqueue=queued.append,
            observer=observer,
            tails=TailCache(1 << 20),
        )
        return cls(partition, disk, queued, observer)

    def append(self, *args: int, **more: Any) -> Appended | Duplicate | Rejected:
        """A producer's batch: (producer id, epoch, sequence, count)."""
        batch = make_batch(*args, **more)
        return self.partition.append(batch, read_header(batch), now_ms=NOW_MS)

    def append_in_transaction(
        self, producer_id: int, sequence: int = 0, count: int = 1
    ) -> Appended:
        guard = self.partition.log.begin_verification(
            ProducerId(producer_id), ProducerEpoch(0), sequence
        )
        batch = make_batch(producer_id, 0, sequence, count, transactional=True)
        outcome = self.partition.append(batch, read_header(batch), now_ms=NOW_MS, guard=guard)
        assert isinstance(outcome, Appended), outcome
        return outcome

    def mark(self, *markers: MarkerToWrite) -> Appended | Rejected:
        return self.partition.append_markers(markers, now_ms=NOW_MS)

    async def flush(self) -> None:
        """One round of the flusher."""
        end_offset = await self.partition.write()
        if end_offset is not None and await self.partition.sync():
            self.partition.flushed(end_offset)

    def wait(self, end_offset: int, name: str) -> None:
        """Note how this wait ends."""

        def done(error: Exception | None) -> None:
            self.waits.append(name if error is None else f"{name}: {type(error).__name__}")

        self.partition.when_committed(Offset(end_offset), done)

    async def offsets(self, isolation: Isolation, offset: int = 0) -> list[int]:
        """Base offsets of the batches that a reader of this isolation gets."""
        found = await self.partition.read(Offset(offset), EVERY, isolation)
        assert found.error is ErrorCode.NONE
        return [header.base_offset for header, _ in iterate(found.records)]


def scenario(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Run an async test in a loop of its own."""

    @wraps(test)
    def run(*args: P.args, **options: P.kwargs) -> None:
        asyncio.run(test(*args, **options))

    return run
