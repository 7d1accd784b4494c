"""When a waiting fetch is answered, and that nothing is read from disk before."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fencelog.adapters.system_clock import SystemClock
from fencelog.broker.handlers.fetch import COMMON_S, wait_deadline
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode
from fencelog.log.values import ReadPlan
from fencelog.node import Node
from fencelog.storage.partition_store import PartitionStore
from fencelog.storage.segment import Batches
from fencelog.types import Offset
from fencelog.wire.hot import FetchedPartition
from tests.support.log import commit
from tests.support.node import Peer, World, batch, until, visible
from tests.unit.broker.test_delete_records import delete_records

LONG_MS = 60_000


class Reads:
    """Counts the reads of every store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans: list[ReadPlan] = []
        original = PartitionStore.read

        async def read(store: PartitionStore, plan: ReadPlan, *, to_send: bool) -> Any:
            self.plans.append(plan)
            return await original(store, plan, to_send=to_send)

        monkeypatch.setattr(PartitionStore, "read", read)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@asynccontextmanager
async def stage(world: World, **settings: str) -> AsyncIterator[tuple[Node, Peer, Peer]]:
    """A broker with a topic, one who waits and one who writes."""
    async with world.node() as node, Peer.of(node) as reader, Peer.of(node) as writer:
        await writer.create_topic("t", **settings)
        yield node, reader, writer


async def waiting(node: Node, reader: Peer, **how: Any) -> "asyncio.Task[FetchedPartition]":
    """A fetch that has looked and waits."""
    task = asyncio.create_task(reader.fetch("t", max_wait_ms=LONG_MS, **how))
    partition = partition_of(node)
    await until(lambda: partition._purgatory._readers, "it listens")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


def partition_of(node: Node) -> Partition:
    partition = node.logs.get("t", 0)
    assert partition is not None
    return partition


async def test_a_fetch_waits_for_its_bytes_and_reads_once(world: World, reads: Reads) -> None:
    async with stage(world) as (node, reader, writer):
        size = len(batch("a"))
        task = await waiting(node, reader, min_bytes=3 * size)
        for number in range(3):
            assert not task.done()
            assert reads.plans == []
            assert (await writer.produce("t", batch("abc"[number]))).base_offset == number
        assert [value for _, value in visible(await task)] == ["a", "b", "c"]
        assert len(reads.plans) == 1
        assert not partition_of(node)._purgatory._readers


async def test_what_is_there_counts_towards_the_minimum(world: World, reads: Reads) -> None:
    async with stage(world) as (node, reader, writer):
        size = len(batch("a"))
        await writer.produce("t", batch("a"))
        task = await waiting(node, reader, min_bytes=2 * size)
        await writer.produce("t", batch("b"))
        assert [value for _, value in visible(await task)] == ["a", "b"]
        assert len(reads.plans) == 1


async def test_a_sparse_index_costs_one_read_more_at_most(world: World, reads: Reads) -> None:
    # The index has no entry near offset 3, so all of the segment seems to be ahead of it.
    async with stage(world) as (node, reader, writer):
        size = len(batch("a"))
        for value in "abcd":
            await writer.produce("t", batch(value))
        task = await waiting(node, reader, offset=3, min_bytes=3 * size)
        assert len(reads.plans) == 1
        await writer.produce("t", batch("e"))
        await until(lambda: partition_of(node).log.high_watermark == 5, "e is committed")
        assert not task.done()
        assert len(reads.plans) == 1
        await writer.produce("t", batch("f"))
        assert [value for _, value in visible(await task)] == ["d", "e", "f"]
        assert len(reads.plans) == 2


@pytest.mark.parametrize(("isolation", "is_held"), [(0, False), (1, True)])
async def test_who_reads_committed_waits_for_the_last_stable_offset(
    world: World, reads: Reads, isolation: int, *, is_held: bool
) -> None:  # F6, E10
    async with stage(world) as (node, reader, writer):
        partition = partition_of(node)
        task = await waiting(node, reader, isolation=isolation)
        await open_transaction(partition)
        await until(lambda: partition.log.high_watermark == 1, "it is committed")
        if is_held:
            await writer.produce("t", batch("behind it"))
            assert not task.done()
            assert reads.plans == []
            partition.append_markers([commit(5)], now_ms=1)
        found = await task
        assert found.last_stable_offset == (3 if is_held else 0)
        expected = ["in it", "behind it"] if is_held else ["in it"]
        assert [value for _, value in visible(found)] == expected


async def open_transaction(partition: Partition) -> None:
    from fencelog.wire.batch import read_header

    one = memoryview(batch("in it", producer_id=5, epoch=0, sequence=0, transactional=True))
    header = read_header(one)
    guard = partition.log.begin_verification(header.producer_id, header.producer_epoch, 0)
    partition.append(one, header, now_ms=SystemClock().now_ms(), guard=guard)


async def test_the_end_of_the_wait_returns_what_there_is(world: World) -> None:
    async with stage(world) as (_, reader, writer):
        await writer.produce("t", batch("a"))
        found = await reader.fetch("t", min_bytes=1 << 20, max_wait_ms=20)
        assert [value for _, value in visible(found)] == ["a"]
        assert (await reader.fetch("t", 1, max_wait_ms=20)).error is ErrorCode.NONE


async def test_a_log_start_that_passes_the_reader_ends_its_wait(world: World) -> None:  # D4
    async with stage(world) as (node, reader, writer):
        await writer.produce("t", batch("a", "b"))
        task = await waiting(node, reader, min_bytes=1 << 20)
        await delete_records(writer, 1)
        found = await task
        assert (found.error, found.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 1)


async def test_a_reader_of_an_older_segment_does_not_wait(world: World) -> None:
    async with stage(world, segment_bytes="1024") as (_, reader, writer):
        for _ in range(3):
            await writer.produce("t", batch("a" * 700))
        found = await reader.fetch("t", min_bytes=1 << 20, max_wait_ms=LONG_MS)
        assert [offset for offset, _ in visible(found)] == [0]


async def test_a_segment_that_goes_while_it_is_read_is_told_by_the_log_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # D4
    async with stage(world, segment_bytes="1024") as (node, reader, writer):
        for _ in range(3):
            await writer.produce("t", batch("a" * 700))
        original = PartitionStore.read

        async def read(store: PartitionStore, plan: ReadPlan, *, to_send: bool) -> Any:
            monkeypatch.setattr(PartitionStore, "read", original)
            await delete_records(writer, 2)
            return await original(store, plan, to_send=to_send)

        monkeypatch.setattr(PartitionStore, "read", read)
        found = await reader.fetch("t", max_wait_ms=LONG_MS)
        assert (found.error, found.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)
        assert partition_of(node).log.log_start_offset == Offset(2)


async def test_a_read_that_finds_nothing_waits_for_the_next_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As while compaction replaces the file: the plan is of the old one.
    async with stage(world) as (node, reader, writer):
        await writer.produce("t", batch("a"))
        original, plans = PartitionStore.read, []

        async def nothing(store: PartitionStore, plan: ReadPlan, *, to_send: bool) -> Batches:
            plans.append(plan)
            return Batches(memoryview(b""), plan.offset)

        monkeypatch.setattr(PartitionStore, "read", nothing)
        task = await waiting(node, reader)
        assert len(plans) == 1
        monkeypatch.setattr(PartitionStore, "read", original)
        partition_of(node).compacted()
        assert [value for _, value in visible(await task)] == ["a"]


async def test_a_partition_alone_with_too_little_does_not_hold_back_what_is_limited(
    world: World,
) -> None:
    # Nothing more can come of it: the limit of the partition is below the minimum of the fetch.
    async with stage(world) as (_, reader, writer):
        for value in "ab":
            await writer.produce("t", batch(value * 500))
        found = await reader.fetch("t", min_bytes=600, max_bytes=700, max_wait_ms=LONG_MS)
        assert [offset for offset, _ in visible(found)] == [0]


def test_waits_of_the_same_length_end_together_and_never_early() -> None:
    assert wait_deadline(7.123, 0) == wait_deadline(7.123, -1) == 7.123
    for max_wait_ms, interval_s in (
        (1, 0.00005),
        (100, 0.005),
        (500, COMMON_S),
        (60_000, COMMON_S),
    ):
        begun = [1000 + number * 0.0001 for number in range(1000)]
        ends = [wait_deadline(now, max_wait_ms) for now in begun]
        late = [end - now - max_wait_ms / 1000 for now, end in zip(begun, ends, strict=True)]
        assert -1e-9 < min(late) <= max(late) < interval_s + 1e-9
        assert len(set(ends)) <= 0.1 / interval_s + 2
