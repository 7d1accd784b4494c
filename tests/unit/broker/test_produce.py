"""Produce through a whole node: when it answers, what it refuses, what a failing disk does."""

import asyncio
import gc

import pytest

from fencelog.adapters.system_clock import SystemClock
from fencelog.errors import ErrorCode
from fencelog.wire.batch import Compression
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.node import HeldDisk, Peer, World, batch, until, visible
from tests.support.transactions import partition_of
from tests.unit.broker.test_replica_roles import progress_of


async def held(disk: HeldDisk) -> None:
    """Return once a sync waits."""
    await until(lambda: disk.waiting > 0, "a sync waits")


def run(coroutine: object) -> None:
    asyncio.run(coroutine)  # type: ignore[arg-type]


def test_an_answer_waits_for_the_sync_in_fsync_mode(world: World) -> None:  # D1
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            world.disk.hold("t-0")
            peer.send_produce("t", batch("a"))
            await held(world.disk)
            async with Peer.of(node) as other:
                assert visible(await other.fetch("t", isolation=0)) == []
                world.disk.release()
                assert (await peer.produced()).error is ErrorCode.NONE
                assert visible(await other.fetch("t", isolation=0)) == [(0, "a")]

    run(scenario())


def test_a_duplicate_is_answered_only_once_its_original_is_committed(world: World) -> None:  # E4
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as again:
            await peer.create_topic("t")
            world.disk.hold("t-0")
            peer.send_produce("t", batch("a", "b", producer_id=7, epoch=0, sequence=0))
            await held(world.disk)
            again.send_produce(
                "t", batch("a", "b", producer_id=7, epoch=0, sequence=0), timeout_ms=50
            )
            late = await again.produced()
            assert late.error is ErrorCode.REQUEST_TIMED_OUT
            world.disk.release()
            first = await peer.produced()
            retry = await again.produce("t", batch("a", "b", producer_id=7, epoch=0, sequence=0))
            assert (first.error, first.base_offset) == (ErrorCode.NONE, 0)
            assert (retry.error, retry.base_offset) == (ErrorCode.NONE, 0)
            assert visible(await peer.fetch("t")) == [(0, "a"), (1, "b")]

    run(scenario())


@pytest.mark.parametrize("acks", [0, 1])
def test_acks_below_all_never_wait(world: World, acks: int) -> None:  # D1, F5
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            world.disk.hold("t-0")
            peer.send_produce("t", batch("a"), acks=acks)
            if acks == 1:
                assert (await peer.produced()).base_offset == 0
            await held(world.disk)
            world.disk.release()
            assert (await peer.produce("t", batch("b"))).base_offset == 1

    run(scenario())


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_what_was_answered_keeps_no_memory_while_nothing_is_committed(
    world: World, acks: int
) -> None:  # F5
    size = 100_000

    def kept() -> int:
        gc.collect()
        views = [each for each in gc.get_objects() if type(each) is memoryview]
        return sum(each.nbytes for each in views if each.nbytes >= size)

    async with world.node(crash=True, tail_bytes_max=0) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        partition = partition_of(node, "t")
        partition.lead(progress_of(partition))  # broker 2 is in sync, and does not fetch
        before = kept()
        for _ in range(3):
            peer.send_produce("t", batch("x" * size), acks=acks, timeout_ms=1)
            if acks:
                answer = await peer.produced()
                assert answer.error is (ErrorCode.NONE if acks > 0 else ErrorCode.REQUEST_TIMED_OUT)
        await until(lambda: partition.durable_end == 3, "all is written")
        await until(lambda: kept() <= before, "no records are kept")
        assert partition.log.high_watermark == 0


def test_pipelined_batches_are_answered_in_order_and_a_gap_is_refused(world: World) -> None:
    # E3, E5, E13
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            for sequence in (0, 1, 3, 2):
                peer.send_produce(
                    "t", batch(str(sequence), producer_id=7, epoch=0, sequence=sequence)
                )
            errors = [(await peer.produced()).error for _ in range(4)]
            assert errors == [
                ErrorCode.NONE,
                ErrorCode.NONE,
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                ErrorCode.NONE,
            ]
            assert [value for _, value in visible(await peer.fetch("t"))] == ["0", "1", "2"]

    run(scenario())


def test_a_failed_sync_ends_one_partition_and_leaves_the_others(world: World) -> None:  # D2
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", partitions=2)
            assert (await peer.produce("t", batch("kept"))).error is ErrorCode.NONE
            world.disk.failing_syncs = 1
            assert (await peer.produce("t", batch("x"))).error is ErrorCode.KAFKA_STORAGE_ERROR
            # The disk is well again; what it has of the partition is still not known.
            for acks in (-1, 1):
                refused = await peer.produce("t", batch("y"), acks=acks)
                assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
            assert (await peer.produce("t", batch("z"), partition=1)).error is ErrorCode.NONE
            assert visible(await peer.fetch("t")) == [(0, "kept")]
        async with world.node() as node, Peer.of(node) as peer:
            assert (await peer.produce("t", batch("after"))).error is ErrorCode.NONE
            values = [value for _, value in visible(await peer.fetch("t"))]
            assert values[0] == "kept"
            assert values[-1] == "after"

    run(scenario())


def test_a_full_disk_is_an_error_and_never_half_a_batch(world: World) -> None:  # D2
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            assert (await peer.produce("t", batch("kept"))).error is ErrorCode.NONE
            world.disk.free_bytes = 50
            refused = await peer.produce("t", batch("x" * 100))
            assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
            assert "No space left" in (refused.error_message or "")
            world.disk.free_bytes = None
        async with world.node() as node, Peer.of(node) as peer:
            assert visible(await peer.fetch("t")) == [(0, "kept")]

    run(scenario())


def test_clients_may_not_write_to_internal_topics(world: World) -> None:  # E9
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await node.broker.transactions.load(0)
            answer = await peer.produce("__transaction_state", batch("x"))
            assert answer.error is ErrorCode.INVALID_TOPIC_EXCEPTION

    run(scenario())


def test_a_damaged_batch_is_refused_on_arrival(world: World) -> None:  # D3
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            damaged = batch("abc")
            damaged[-2] ^= 1
            assert (await peer.produce("t", damaged)).error is ErrorCode.CORRUPT_MESSAGE
            two = batch("a") + batch("b")
            assert (await peer.produce("t", two)).error is ErrorCode.INVALID_RECORD
            assert visible(await peer.fetch("t")) == []

    run(scenario())


def test_zstd_is_not_sent_to_clients_that_cannot_read_it(world: World) -> None:
    async def scenario() -> None:
        unknown = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        records = [RecordToWrite(None, b"v", SystemClock().now_ms())]
        packed = build_batch(records, compression=Compression.ZSTD)
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            assert (await peer.produce("t", packed, version=6)).error is unknown
            assert (await peer.produce("t", packed, version=7)).error is ErrorCode.NONE
            assert (await peer.fetch("t", version=9)).error is unknown
            assert (await peer.fetch("t", version=10)).error is ErrorCode.NONE

    run(scenario())
