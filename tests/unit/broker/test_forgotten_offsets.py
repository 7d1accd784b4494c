"""A deleted topic's offsets are gone before the next topic of its name may have any (E16)."""

import asyncio

import pytest

from fencelog.broker.metadata.cluster_state import DeletedTopic
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.coordination.shard import partition_for
from fencelog.errors import ErrorCode
from fencelog.types import Offset, TopicId
from fencelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from fencelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from tests.support.node import Peer, World, delete, until
from tests.unit.broker.test_moving_shards import forgotten_topics

SHARDS = 2
GROUPS = [
    next(f"g{n}" for n in range(100) if partition_for(f"g{n}", SHARDS) == index)
    for index in range(SHARDS)
]


async def commit(peer: Peer, group: str, offset: int) -> ErrorCode:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="t", partitions=[part])],
    )
    answer = await peer.ask(request, 8, OffsetCommitResponse)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def fetched(peer: Peer, group: str) -> int:
    topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    answer = await peer.ask(
        OffsetFetchRequest(group_id=group, topics=[topic]), 7, OffsetFetchResponse
    )
    return answer.topics[0].partitions[0].committed_offset


@pytest.mark.parametrize("slow", range(SHARDS))
async def test_the_next_topic_of_a_name_keeps_its_offsets(world: World, slow: int) -> None:
    node_of = world.node(internal_partitions=SHARDS)
    async with node_of as node, Peer.of(node) as admin, Peer.of(node) as consumer:
        await admin.create_topic("t")
        for group in GROUPS:
            assert await commit(consumer, group, 3) is ErrorCode.NONE
        world.disk.hold(f"__consumer_offsets-{slow}")  # one sync takes a while
        deleting = asyncio.create_task(delete(admin, "t"))
        await until(lambda: world.disk.waiting, "a shard deletes its offsets")
        assert node.broker.catalog.get("t") is None
        async with Peer.of(node) as other:
            creating = asyncio.create_task(other.create_topic("t"))
            for loaded in node.broker.groups.loaded():
                assert "t" not in loaded.shard.topics()
            world.disk.release()
            await asyncio.gather(deleting, creating)
        for group in GROUPS:
            assert await fetched(consumer, group) == -1
            assert await commit(consumer, group, 7) is ErrorCode.NONE
            assert await fetched(consumer, group) == 7


async def test_a_topic_inherits_no_offsets_though_who_deleted_the_last_one_hung_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.node(internal_partitions=SHARDS) as node, Peer.of(node) as consumer:
        await consumer.create_topic("t")
        assert await commit(consumer, "g0", 3) is ErrorCode.NONE
        begun, go_on, remove = asyncio.Event(), asyncio.Event(), LogManager.remove

        async def slow(logs: LogManager, deleted: object) -> None:
            begun.set()
            await go_on.wait()  # many partitions, or a slow disk
            await remove(logs, deleted)  # type: ignore[arg-type]

        monkeypatch.setattr(LogManager, "remove", slow)
        async with Peer.of(node) as admin:
            deleting = asyncio.create_task(delete(admin, "t"))
            await begun.wait()
            deleting.cancel()
        await until(lambda: len(node.server._connections) == 1, "its connection is closed")
        go_on.set()
        await consumer.create_topic("t")
        assert await fetched(consumer, "g0") == -1


async def test_what_is_heard_while_a_shard_is_loaded_counts_once_it_is(
    world: World,
) -> None:  # the next topic of the name is heard of then, too
    async with world.node(internal_partitions=1) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        assert await commit(peer, "g", 3) is ErrorCode.NONE
        deleted: dict[TopicId, DeletedTopic] = {}
        forgotten = forgotten_topics(node, deleted)
        (loaded,) = node.broker.groups.loaded()
        begun, go_on, committed = asyncio.Event(), asyncio.Event(), loaded.partition.committed

        async def slow(end: Offset) -> None:
            begun.set()
            await go_on.wait()
            await committed(end)

        node.broker.groups.resign(loaded.index)
        loaded.partition.committed = slow
        node.broker.groups.lead(loaded.index)
        await begun.wait()
        gone = TopicId(bytes(16))
        deleted[gone] = DeletedTopic("t", (), 1)
        forgotten.changed({gone})
        go_on.set()
        loaded.partition.committed = committed
        assert await fetched(peer, "g") == -1
        assert await commit(peer, "g", 7) is ErrorCode.NONE
        # Once only: a later load keeps what the next topic has.
        node.broker.groups.resign(0)
        node.broker.groups.lead(0)
        assert await fetched(peer, "g") == 7
        await forgotten.stop()
