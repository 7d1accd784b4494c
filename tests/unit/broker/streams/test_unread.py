"""DescribeUnread: the stored bytes that follow a position, by the index of the leader (R10)."""

import pytest

from fencelog.errors import ErrorCode
from fencelog.wire.messages.describe_unread import (
    DescribeUnreadRequest,
    DescribeUnreadResponse,
    UnreadPartition,
    UnreadTopic,
)
from tests.support.node import Peer, World, batch
from tests.unit.broker.test_delete_records import delete_records

SIZE = 1000


async def unread(peer: Peer, *offsets: int, topic: str = "t", partition: int = 0) -> list[int]:
    """The bytes from each of these offsets on, or the negative error."""
    found = []
    for offset in offsets:
        asked = UnreadPartition(partition_index=partition, offset=offset)
        request = DescribeUnreadRequest(topics=[UnreadTopic(name=topic, partitions=[asked])])
        answer = await peer.ask(request, 0, DescribeUnreadResponse)
        ((result,),) = (each.partitions for each in answer.topics)
        assert (result.error_code == 0) == (result.bytes >= 0)
        assert result.partition_index == partition
        found.append(-result.error_code or result.bytes)
    return found


async def filled(peer: Peer, **configs: str) -> int:
    """A topic of 10 batches of a record each; the size of one."""
    await peer.create_topic("t", **configs)
    records = batch("x" * SIZE)
    for _ in range(10):
        await peer.produce("t", bytearray(records))
    return len(records)


async def test_with_an_entry_for_each_batch_the_bytes_are_exact(world: World) -> None:  # R10
    async with world.node() as node, Peer.of(node) as peer:
        size = await filled(peer, index_interval_bytes="0", segment_bytes="4000")
        partition = node.broker.logs.get("t", 0)
        assert partition is not None
        assert partition.log.segment_base_offsets == [0, 3, 6, 9]
        expected = [10 * size, 10 * size, 9 * size, 7 * size, 6 * size, size, 0, 0]
        # The first batch of a segment has no entry, nor has the one before the first entry.
        found = await unread(peer, -5, 0, 1, 3, 4, 9, 10, 1 << 62)
        assert found == [10 * size, 10 * size, found[2], 7 * size, found[4], size, 0, 0]
        for several, exact in zip(found, expected, strict=True):
            assert exact <= several <= exact + size


async def test_between_two_entries_they_are_up_to_an_interval_too_many(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        size = await filled(peer, index_interval_bytes="3000")
        for offset in range(10):
            (found,) = await unread(peer, offset)
            assert (10 - offset) * size <= found <= (10 - offset) * size + 3000 + size
        assert await unread(peer, 10) == [0]


async def test_below_the_log_start_only_what_is_left_counts(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        size = await filled(peer, segment_bytes="4000")
        assert await delete_records(peer, 6) == (ErrorCode.NONE, 6)
        assert await unread(peer, 0, 6) == [4 * size] * 2


@pytest.mark.parametrize(("topic", "partition"), [("other", 0), ("t", 1), ("t", -1)])
async def test_a_partition_that_does_not_exist_is_an_error(
    world: World, topic: str, partition: int
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await filled(peer)
        found = await unread(peer, 0, topic=topic, partition=partition)
        assert found == [-ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
