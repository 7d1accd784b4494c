"""A partition on a simulated disk, and what its producers got as responses."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from fencelog.log.config import LogConfig
from fencelog.log.partition_log import PartitionLog
from fencelog.log.transactions import aborted_between
from fencelog.log.values import Appended, Isolation, MarkerToWrite, ReadPlan, SegmentWrite
from fencelog.storage.partition_store import PartitionStore
from fencelog.storage.writeback import Writeback, WritebackLimits
from fencelog.types import (
    CoordinatorEpoch,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicId,
)
from fencelog.wire.batch import iterate, read_header
from fencelog.wire.records import RecordToWrite, build_batch, read_records
from fencelog_sim.world.disk import READING, Loss, PowerCut, SimDisk
from fencelog_sim.world.gate import Fault, Halt
from tests.support.log import flush_and_commit, snapshot_of

_T = TypeVar("_T")

DIRECTORY = "t-0"
FIRST = f"{DIRECTORY}/{0:020d}.log"
TOPIC_ID = TopicId(bytes(range(16)))
NOW_MS = 1_700_000_000_000
SMALL_SEGMENTS = LogConfig(segment_bytes=1024, index_interval_bytes=100)
AT_EACH_WRITE = WritebackLimits(each=1, total=1, least=1)
"""A recovery checkpoint after each write, unless one is under way."""
LOSSES = pytest.mark.parametrize(
    "loss",
    [
        pytest.param(Loss.ALL, marks=pytest.mark.slow),
        Loss.TORN,
        pytest.param(Loss.NONE, marks=pytest.mark.slow),
    ],
)
"""What a power cut at each of many operations loses; the quick tests try one kind."""


def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end; the simulated disk never waits.

    Nobody awaits the background tasks of a broker that has lost its power.
    """

    async def main() -> _T:
        asyncio.get_running_loop().set_task_factory(_task)
        return await coroutine

    return asyncio.run(main())


def _task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, _T], **options: Any
) -> "asyncio.Task[_T]":
    task = asyncio.Task(coroutine, loop=loop, **options)
    task.add_done_callback(_look_for_a_power_cut)
    return task


def _look_for_a_power_cut(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled() and isinstance(task._exception, PowerCut):  # type: ignore[attr-defined]
        task.exception()  # or it would be told as one that was never retrieved


def batch_of(*values: bytes, producer_id: int = -1, sequence: int = -1, **options) -> bytearray:
    """One batch of these values, as a producer sends it."""
    records = [RecordToWrite(None, value, NOW_MS + i) for i, value in enumerate(values)]
    epoch = 0 if producer_id >= 0 else -1
    return build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        **options,
    )


@dataclass
class World:
    """A partition in service."""

    disk: SimDisk
    store: PartitionStore
    log: PartitionLog
    durability: str = "fsync"
    appended: list[bytes] = field(default_factory=list)
    """Every batch as it was given to the log, offsets assigned."""
    acknowledged: int = 0

    @classmethod
    async def create(
        cls,
        disk: SimDisk | None = None,
        *,
        config: LogConfig = SMALL_SEGMENTS,
        durability: str = "fsync",
        limits: WritebackLimits | None = None,
    ) -> "World":
        disk = disk or SimDisk(operations=[])
        store, log = await PartitionStore.create(
            disk, DIRECTORY, TOPIC_ID, config, durability, Writeback(limits)
        )
        return cls(disk, store, log, durability)

    @classmethod
    async def recover(
        cls,
        disk: SimDisk,
        *,
        config: LogConfig = SMALL_SEGMENTS,
        durability: str = "fsync",
        recovery_point: int = 0,
        log_start: int = 0,
        clean: str | None = None,
        was_compacted: bool = False,
        was_created: bool = False,
        leader_epoch: int = 0,
        limits: WritebackLimits | None = None,
        **more: Offset | None,
    ) -> "World":
        store, log = await PartitionStore.recover(
            disk,
            DIRECTORY,
            config,
            clean=clean,
            recovery_point=Offset(recovery_point),
            log_start=Offset(log_start),
            durability=durability,
            topic_id=TOPIC_ID,
            was_compacted=was_compacted,
            was_created=was_created,
            leader_epoch=LeaderEpoch(leader_epoch),
            writeback=Writeback(limits),
            **more,
        )
        return cls(disk, store, log, durability)

    async def stop(self) -> str:
        """Close cleanly; returns the checksum that the next start is to find again."""
        await self.store.close(clean=True)
        assert self.store.clean_stop is not None
        return self.store.clean_stop.checksum

    def append(self, batch: bytearray, **options) -> Appended:
        """Into the tail only."""
        view = memoryview(batch)
        verdict = self.log.append(view, read_header(view), now_ms=NOW_MS, internal=True, **options)
        assert isinstance(verdict, Appended), verdict
        self.appended.append(bytes(batch))
        return verdict

    def append_values(self, *values: bytes) -> Appended:
        return self.append(batch_of(*values))

    def append_transactional(self, producer_id: int, sequence: int, *values: bytes) -> Appended:
        batch = batch_of(*values, producer_id=producer_id, sequence=sequence, transactional=True)
        guard = self.log.begin_verification(ProducerId(producer_id), ProducerEpoch(0), sequence)
        return self.append(batch, guard=guard)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        marker = MarkerToWrite(
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(0),
            commit=commit,
            coordinator_epoch=CoordinatorEpoch(1),
        )
        verdict = self.log.append_markers([marker], now_ms=NOW_MS)
        assert isinstance(verdict, Appended), verdict

    async def write(self, tail: list[SegmentWrite] | None = None) -> Offset:
        """Into the page cache, as the flusher does."""
        tail = self.log.take_unflushed() if tail is None else tail
        if not tail:
            return self.log.log_end_offset
        await self.store.write(tail)
        self.log.written(tail[-1].end_offset)
        return tail[-1].end_offset

    async def checkpointed(self) -> None:
        """Wait for the recovery checkpoint under way."""
        task = self.store._checkpointing
        if task is not None:
            await task

    async def flush(self) -> None:
        """One round of the flusher; what it makes durable counts as acknowledged."""
        end = await self.write()
        if self.durability == "fsync":
            await self.store.sync()
        flush_and_commit(self.log, end)
        self.acknowledged = end

    async def read_all(self, max_bytes: int = 1 << 20) -> bytes:
        """Every byte from the log's start to the high watermark."""
        parts = []
        offset = self.log.log_start_offset
        while offset < self.log.high_watermark:
            plan = self.log.read(offset, max_bytes, Isolation.REPLICATED)
            assert isinstance(plan, ReadPlan), plan
            part = (await self.store.read(plan)).data
            assert part, plan
            parts.append(bytes(part))
            *_, (last, _) = iterate(part)
            offset = last.next_offset
        return b"".join(parts)

    async def find_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Look up a time without yielding."""

        async def pause() -> None:
            pass

        return await self.store.find_timestamp(TimestampMs(timestamp), Isolation.REPLICATED, pause)

    async def values(self) -> list[bytes | None]:
        """Values of all records below the high watermark, markers left out."""
        return [
            record.value
            for header, batch in iterate(await self.read_all())
            if not header.is_control
            for record in read_records(batch)
        ]


async def one_segment(batches: int = 4, *, durability: str = "fsync") -> World:
    """Batches of two records each, all flushed into the first segment."""
    world = await World.create(durability=durability)
    for number in range(batches):
        world.append_values(b"%d" % number, b"x" * 20)
    await world.flush()
    assert world.log.segment_base_offsets == [0]
    return world


async def many_segments(batches: int = 40, *, durability: str = "fsync") -> World:
    """Batches over several segments, with transactions open, committed and aborted."""
    world = await World.create(durability=durability)
    for number in range(batches):
        world.append_values(b"%d" % number, b"x" * 60)
        world.append_transactional(100 + number, 0, b"t%d" % number)
        if number % 3:
            world.end_transaction(100 + number, commit=number % 3 == 1)
        if number % 10 == 0:
            await world.flush()
    await world.flush()
    assert len(world.log.segment_base_offsets) > 4
    return world


def truncated(disk: SimDisk, path: str, size: int) -> None:
    """Cut a stored file."""
    disk.overwrite(path, disk.contents(path)[:size])


def assert_same_state(actual: World, expected: World) -> None:
    """Offsets, producers, transactions and leader epochs agree."""
    assert actual.log.log_end_offset == expected.log.log_end_offset
    assert actual.log.last_stable_offset == expected.log.last_stable_offset
    assert snapshot_of(actual.log) == snapshot_of(expected.log)
    assert actual.log.open_transactions() == expected.log.open_transactions()
    everything = Offset(0), expected.log.log_end_offset
    aborted = aborted_between(expected.log.aborted, *everything)
    assert aborted_between(actual.log.aborted, *everything) == aborted
    assert actual.log._state.epochs.entries == expected.log._state.epochs.entries
    assert actual.log.segment_base_offsets == expected.log.segment_base_offsets


def cut_at(disk: SimDisk, number: int, *, fault: int | None = None) -> None:
    """Stop the world in the change to the disk of this number, counted from now.

    ``fault``: how many changes before that one fails.
    """
    left = number

    def cut() -> None:
        raise PowerCut

    def gate(verb: str, path: str, size: int) -> Halt | Fault | None:
        nonlocal left
        if verb in READING:
            return None
        if left == 0:
            return Halt(size // 2, cut)
        left -= 1
        return Fault(done=size // 2) if left == fault else None

    disk.gate = gate
