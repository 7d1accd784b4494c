"""Coordinators' shards in a cluster: they go with the leadership, and forget what is deleted."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest

from fencelog.broker.coordinators import runtime
from fencelog.broker.coordinators.forgotten_topics import ForgottenTopics
from fencelog.broker.metadata.cluster_state import DeletedTopic
from fencelog.errors import NotCoordinatorError, StorageError
from fencelog.node import Node
from fencelog.types import CoordinatorEpoch, NodeId, TopicId, TopicPartition
from fencelog.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from fencelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tests.support.brokers import begun, topic_of
from tests.support.node import Peer, World, until
from tests.support.transactions import settled


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# -- shards that move --------------------------------------------------------------------------


async def test_a_shard_that_moves_answers_and_decides_nothing_more(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        producer = await begun(peer)
        (loaded,) = node.transactions.loaded()
        world.disk.hold(node.transactions.topic)
        ending = asyncio.ensure_future(producer.end(commit=True))
        await until(lambda: world.disk.waiting, "the decision is synced")
        node.transactions.resign(loaded.index)
        assert loaded.dropped
        assert loaded.timer.due is None
        with pytest.raises(NotCoordinatorError):
            await node.transactions.decide_on(loaded, lambda shard, now: pytest.fail("decided"))
        world.disk.release()
        await ending
        node.transactions.lead(loaded.index)
        await until(node.transactions.loaded, "the shard is loaded again")
        await settled(node, "t")


async def test_a_load_ends_with_the_leadership(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await begun(peer)
        (loaded,) = node.transactions.loaded()
        node.transactions.resign(loaded.index)
        world.disk.hold(node.transactions.topic)
        partition = loaded.partition
        epoch = asyncio.Event()

        async def waits(name: TopicPartition) -> CoordinatorEpoch:
            await epoch.wait()
            return CoordinatorEpoch(9)

        node.transactions._next_epoch = waits
        loading = asyncio.ensure_future(node.transactions.load(loaded.index))
        await asyncio.sleep(0)
        node.transactions.resign(loaded.index)
        with pytest.raises(NotCoordinatorError):
            await loading
        assert node.transactions.loaded() == []
        assert partition.markers_appended is None
        world.disk.release()


async def test_a_list_of_groups_has_those_of_a_shard_that_is_not_loaded_yet(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await commit(peer, "t")
        node.broker.groups.resign(next(each.index for each in node.broker.groups.loaded()))
        listed = await peer.ask(ListGroupsRequest(), 4, ListGroupsResponse)
        assert [each.group_id for each in listed.groups] == ["g"]


async def test_a_shard_that_cannot_be_loaded_is_tried_again_while_it_is_led(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "LOAD_RETRY_S", 0.0)
    async with world.node() as node, Peer.of(node) as peer:
        await begun(peer)
        (loaded,) = node.transactions.loaded()
        node.transactions.resign(loaded.index)
        answers: list[Exception] = [StorageError("the store is away"), NotCoordinatorError("moved")]
        asked: list[TopicPartition] = []

        async def epoch(name: TopicPartition) -> CoordinatorEpoch:
            asked.append(name)
            if answers:
                raise answers.pop(0)
            return CoordinatorEpoch(9)

        node.transactions._next_epoch = epoch
        node.transactions.lead(loaded.index)
        await until(lambda: not node.transactions._reloading, "it is not tried any more")
        assert (len(asked), node.transactions.loaded()) == (2, [])
        node.transactions.lead(loaded.index)
        await until(node.transactions.loaded, "the shard is loaded")


# -- offsets of deleted topics -----------------------------------------------------------------


async def commit(peer: Peer, *topics: str) -> None:
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[
            OffsetCommitRequestTopic(
                name=topic, partitions=[OffsetCommitRequestPartition(committed_offset=7)]
            )
            for topic in topics
        ],
    )
    answer = await peer.ask(request, 8, OffsetCommitResponse)
    assert [each.partitions[0].error_code for each in answer.topics] == [0] * len(topics)


def forgotten_topics(
    node: Node, deleted: Mapping[TopicId, DeletedTopic] = MappingProxyType({})
) -> ForgottenTopics:
    broker = node.broker
    return ForgottenTopics(broker.groups, broker.catalog, node._ports.metadata, deleted)


async def test_a_group_forgets_what_was_deleted_while_nobody_had_it(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        broker = node.broker
        forgotten = forgotten_topics(node)
        for topic in ("gone", "kept", "unheard"):
            await peer.create_topic(topic)
        await commit(peer, "gone", "kept", "unheard")
        (loaded,) = broker.groups.loaded()
        del broker.catalog._topics["unheard"]
        topic_gone = topic_of(node, "gone")
        await broker.controller.delete_topics([topic_gone])
        broker.groups.resign(loaded.index)
        broker.groups.lead(loaded.index)
        await until(broker.groups.loaded, "the shard is loaded")
        (again,) = broker.groups.loaded()
        await until(lambda: "gone" not in again.shard.topics(), "its offsets are deleted")
        assert set(again.shard.topics()) == {"kept", "unheard"}
        await forgotten.stop()


async def test_the_next_topic_of_a_name_keeps_its_offsets(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await commit(peer, "t")
        (loaded,) = node.broker.groups.loaded()
        first, earlier = TopicId(bytes(16)), TopicId(bytes([1] * 16))
        deleted = {earlier: DeletedTopic("t", (NodeId(3),), 1)}
        forgotten = forgotten_topics(node, deleted)
        deleted[first] = DeletedTopic("t", (NodeId(2), NodeId(3)), 2)
        forgotten.changed({first})
        assert set(loaded.shard.topics()) == set()  # in this step
        await commit(peer, "t")
        for each in (first, earlier):  # one more broker has none of its files any more
            deleted[each] = DeletedTopic("t", (), 3)
            forgotten.changed({each})
            del deleted[each]
            forgotten.changed({each})
        assert set(loaded.shard.topics()) == {"t"}
        await forgotten.stop()


async def test_a_topic_that_is_created_while_a_load_asks_for_it_keeps_its_offsets(
    world: World,
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await commit(peer, "t")
        (loaded,) = node.broker.groups.loaded()
        forgotten = forgotten_topics(node)
        store, catalog = node._ports.metadata, node.broker.catalog
        topic = catalog._topics.pop("t")
        asked = asyncio.Event()

        async def get(key: str) -> None:
            catalog._topics["t"] = topic
            asked.set()

        forgotten._store = SimpleNamespace(get=get)  # type: ignore[assignment]
        forgotten.loaded(loaded)
        await asked.wait()
        await until(lambda: not forgotten._background._tasks, "the look is over")
        assert set(loaded.shard.topics()) == {"t"}
        assert await store.get("topic/t")
        await forgotten.stop()


async def test_a_shard_without_a_disk_forgets_at_its_next_load(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        for topic in ("t", "kept"):
            await peer.create_topic(topic)
        await commit(peer, "t", "kept")
        (loaded,) = node.broker.groups.loaded()
        deleted: dict[TopicId, DeletedTopic] = {}
        forgotten = forgotten_topics(node, deleted)
        loaded.partition.fail(StorageError("no disk"))
        topic_id = TopicId(bytes(16))
        deleted[topic_id] = DeletedTopic("t", (), 1)
        forgotten.changed({topic_id})
        assert set(loaded.shard.topics()) == {"t", "kept"}, "what cannot be stored is not decided"
        assert "offsets of deleted topics stay until the next load" in caplog.text
        await forgotten.stop()
        index = loaded.index
    async with world.node() as node:
        groups, catalog = node.broker.groups, node.broker.catalog
        forgotten = forgotten_topics(node, deleted)
        forgotten._store = SimpleNamespace(get=nothing)  # type: ignore[assignment]
        del catalog._topics["t"]
        groups.resign(index)
        groups.lead(index)
        await until(groups.loaded, "the shard is loaded")
        (again,) = groups.loaded()
        await until(lambda: set(again.shard.topics()) == {"kept"}, "its offsets are deleted")
        await forgotten.stop()


async def nothing(key: str) -> None:
    """A store without this key."""
