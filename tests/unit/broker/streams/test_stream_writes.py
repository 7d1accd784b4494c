"""Writes to a stream: who may write, and what follows for a batch at a sealed segment (R2)."""

from dataclasses import replace

import pytest

from fencelog.broker.handlers.stream_writes import refused_write, sealed_write
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.streams.model import HASH_SPACE, SegmentState, with_state
from fencelog.errors import ErrorCode
from fencelog.node import Node
from fencelog.types import Offset, TopicId
from fencelog.wire.batch import read_header
from fencelog.wire.hot import AppendTags, PartitionResult, SealedSegment, Successor
from tests.support.node import Peer, World, batch, until, visible
from tests.support.streams import create_stream, resized
from tests.unit.broker.test_delete_records import delete_records

BY_RANGES = AppendTags(median_hash=5)


async def write(
    peer: Peer, sequence: int, *, producer_id: int = 7, epoch: int = 0, partition: int = 0
) -> PartitionResult:
    records = batch(str(sequence), producer_id=producer_id, epoch=epoch, sequence=sequence)
    return await peer.produce("s", records, partition=partition, tags=BY_RANGES)


def put(node: Node, index: int, state: SegmentState, end: int = -1) -> Partition:
    """Let a segment be in this state, by what the broker knows of the metadata."""
    topic = node.broker.catalog.get("s")
    assert topic is not None
    assert topic.stream is not None
    changed = with_state(topic.stream.segments[index], state, Offset(end))
    stream = topic.stream.changed([changed])
    node.broker.catalog.apply("s", replace(topic, stream=stream))
    partition = node.broker.logs.get("s", index)
    assert partition is not None
    return partition


@pytest.mark.parametrize("name", ["s", "t"])
async def test_a_batch_for_a_topic_that_had_the_name_before_is_not_of_this_log(
    world: World, name: str
) -> None:  # R1, R4, E13
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        await peer.create_topic("t")
        topic = node.broker.catalog.get(name)
        assert topic is not None
        records = batch("x", producer_id=7, epoch=0, sequence=3)
        tags = BY_RANGES._replace(topic_id=TopicId(b"x" * 16))
        refused = await peer.produce(name, records, tags=tags)
        assert refused.error is ErrorCode.UNKNOWN_TOPIC_ID
        assert "was deleted and created again" in (refused.error_message or "")
        # The same producer may begin above it here: its sequences go on.
        later = batch("y", producer_id=7, epoch=0, sequence=5)
        ours = BY_RANGES._replace(topic_id=topic.topic_id)
        assert (await peer.produce(name, later, tags=ours)).base_offset == 0


@pytest.mark.parametrize("version", [3, 8, 9, 12])
async def test_a_stock_producer_is_refused_for_good_and_told_what_to_use(
    world: World, version: int
) -> None:  # R1
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        records = batch("x", producer_id=7, epoch=0, sequence=0)
        refused = await peer.produce("s", records, version=version)
        assert refused.error is ErrorCode.POLICY_VIOLATION
        if version >= 8:
            assert refused.error_message is not None
            for name in ("fencelog.connect(...).producer()", "fencelog topic produce", "Spark"):
                assert name in refused.error_message
        partition = node.broker.logs.get("s", 0)
        assert partition is not None
        assert partition.log.log_end_offset == 0
        assert partition.load is None


async def test_a_transaction_of_a_stock_producer_is_refused_before_its_coordinator_is_asked(
    world: World,
) -> None:  # R1
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        records = batch("x", producer_id=7, epoch=0, sequence=0, transactional=True)
        refused = await peer.produce("s", records, transactional_id="nobody")
        assert refused.error is ErrorCode.POLICY_VIOLATION


async def test_a_client_that_knows_ranges_writes_and_is_counted(world: World) -> None:  # R3
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        assert (await write(peer, 0)).base_offset == 0
        records = batch("a", "b", producer_id=7, epoch=0, sequence=1)
        await peer.produce("s", records, tags=AppendTags(median_hash=9))
        repeated = await write(peer, 0)
        assert (repeated.error, repeated.base_offset) == (ErrorCode.NONE, 0)
        await peer.produce("s", batch("keyless"), tags=AppendTags(median_hash=-1))
        partition = node.broker.logs.get("s", 0)
        assert partition is not None
        assert partition.load is not None
        assert partition.load.records == 4, "a repeated batch is not written"
        assert partition.load.bytes == partition.log.size
        assert partition.load.samples == [(5, 1), (9, 2)]


async def test_a_tag_on_an_ordinary_topic_changes_nothing(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        assert (await peer.produce("t", batch("x"), tags=BY_RANGES)).error is ErrorCode.NONE
        partition = node.broker.logs.get("t", 0)
        assert partition is not None
        assert partition.load is None


async def test_a_sealed_segment_says_what_it_has_of_the_producer_and_who_follows(
    world: World,
) -> None:  # R2
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        for sequence in range(3):
            await write(peer, sequence)
        assert await resized(peer, [0], at=100) == [1, 2]
        successors = (Successor(1, 0, 100), Successor(2, 100, HASH_SPACE))
        refused = await write(peer, 3)
        assert refused.error is ErrorCode.SEGMENT_SEALED
        assert refused.sealed == SealedSegment(3, 2, successors)
        assert refused.error_message is not None
        assert "successors, 1, 2" in refused.error_message
        for producer_id, epoch in ((8, 0), (7, 1)):
            refused = await write(peer, 0, producer_id=producer_id, epoch=epoch)
            assert refused.sealed == SealedSegment(3, -1, successors), (
                "another producer's, or epoch"
            )
        refused = await peer.produce("s", batch("x"), tags=BY_RANGES)
        assert refused.sealed == SealedSegment(3, -1, successors)
        stored = await write(peer, 2)
        assert (stored.error, stored.base_offset) == (ErrorCode.NONE, 2), "E4"
        assert (await write(peer, 0, partition=2)).error is ErrorCode.NONE


async def test_what_a_sealed_segment_has_of_a_producer_outlives_a_restart(
    world: World,
) -> None:  # R2, E15
    for crash in (True, False):
        async with world.node(crash=crash) as node, Peer.of(node) as peer:
            if crash:
                await create_stream(peer)
                await write(peer, 0)
                await resized(peer, [0])
            refused = await write(peer, 1)
            assert refused.error is ErrorCode.SEGMENT_SEALED
            assert refused.sealed is not None
            assert refused.sealed.last_sequence == 0
    async with world.node() as node, Peer.of(node) as peer:
        assert (await write(peer, 1)).error is ErrorCode.SEGMENT_SEALED
        assert (await write(peer, 0)).base_offset == 0


async def test_what_a_sealed_segment_has_of_a_producer_outlives_its_records_and_a_kill(
    world: World,
) -> None:  # R2, E15
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await create_stream(peer, settings={"segment.bytes": "1024"})
        for sequence in range(2):
            records = batch("x" * 900, producer_id=7, epoch=0, sequence=sequence)
            await peer.produce("s", records, tags=BY_RANGES)
        await resized(peer, [0])
        await world.disk.remove("s-0/00000000000000000002.snapshot")  # as if not written yet
        assert await delete_records(peer, 2, "s") == (ErrorCode.NONE, 2)
        partition = node.broker.logs.get("s", 0)
        assert partition is not None
        assert partition.log.segment_base_offsets == [2], "the file of the seal"
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        refused = await write(peer, 2)
        assert refused.error is ErrorCode.SEGMENT_SEALED
        assert refused.sealed is not None
        assert refused.sealed.last_sequence == 1


async def test_until_the_successors_are_open_a_sealed_segment_is_only_being_resized(
    world: World,
) -> None:  # R2
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        await write(peer, 0)
        partition = put(node, 0, SegmentState.OPEN)
        partition.seal(now_ms=0)
        for state in (SegmentState.OPEN, SegmentState.SEALING):
            put(node, 0, state)
            refused = await write(peer, 1)
            assert (refused.error, refused.sealed) == (ErrorCode.RESIZE_IN_PROGRESS, None)
        assert (await write(peer, 0)).base_offset == 0, "E4"


async def test_a_segment_that_is_not_open_yet_takes_nothing_out_of_order(
    world: World,
) -> None:  # R2, E13
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer, segments=2)
        put(node, 1, SegmentState.OPENING)
        refused = await write(peer, 0, partition=1)
        assert refused.error is ErrorCode.RESIZE_IN_PROGRESS
        put(node, 1, SegmentState.OPEN)
        overtaking = await write(peer, 1, partition=1)
        assert overtaking.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await write(peer, 0, partition=1)).base_offset == 0
        assert (await write(peer, 1, partition=1)).base_offset == 1


async def test_a_segment_whose_seal_was_lost_takes_nothing_either(world: World) -> None:  # R2
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        await write(peer, 0)
        put(node, 0, SegmentState.SEALED, 8)
        refused = await write(peer, 1)
        assert refused.error is ErrorCode.SEGMENT_SEALED
        assert refused.sealed == SealedSegment(8, 0, ())


async def test_a_log_that_may_not_be_the_one_with_the_seal_says_nothing_of_a_producer(
    world: World,
) -> None:  # R2, F8
    # So is it with a leader that hears of the seal before it hears who leads instead.
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        await write(peer, 0)
        records = batch("1", producer_id=7, epoch=0, sequence=1)
        header = read_header(records)
        partition = put(node, 0, SegmentState.SEALED, 8)
        topic = node.broker.catalog.get("s")
        assert topic is not None
        partition.append(memoryview(records), header, now_ms=header.max_timestamp)
        refused = refused_write(topic, partition, header, BY_RANGES)
        assert refused is not None
        assert (refused.error, refused.sealed) == (ErrorCode.RESIZE_IN_PROGRESS, None)
        partition.seal(now_ms=0)
        refused = sealed_write(topic, partition, header)
        assert (refused.error, refused.sealed) == (ErrorCode.RESIZE_IN_PROGRESS, None)
        await partition.committed(partition.log.log_end_offset)
        refused = sealed_write(topic, partition, header)
        assert refused.sealed == SealedSegment(8, 1, ())


async def test_deletion_up_to_the_high_watermark_stops_at_the_seal(world: World) -> None:  # R2, D4
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        for sequence in range(3):
            await write(peer, sequence)
        await resized(peer, [0])
        for offset in (-1, 4):
            assert await delete_records(peer, offset, "s") == (ErrorCode.NONE, 3)
        partition = node.broker.logs.get("s", 0)
        assert partition is not None
        assert partition.log.is_emptied
        left = [name for name in await world.disk.list("s-0") if name.endswith(".log")]
        assert left == [f"{3:020}.log"]
        assert visible(await peer.fetch("s", 3)) == []
        assert (await write(peer, 3)).sealed is not None


async def test_a_seal_is_on_stable_storage_before_it_is_committed_in_every_mode(
    world: World,
) -> None:  # R2, D1
    async with world.node(durability="os") as node, Peer.of(node) as peer:
        await create_stream(peer)
        await write(peer, 0)
        await resized(peer, [0])
        partition = node.broker.logs.get("s", 0)
        assert partition is not None
        await until(lambda: partition.log.high_watermark == 2, "the seal is committed")
        assert partition.recovery_point == 2
