"""Coordinators' shards in a cluster: they go with the leadership, and forget what is deleted."""

import asyncio
from pathlib import Path

import pytest

from fencelog.broker.coordinators import runtime
from fencelog.broker.coordinators.forgotten_topics import ForgottenTopics
from fencelog.errors import NotCoordinatorError, StorageError
from fencelog.types import CoordinatorEpoch, TopicPartition
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


async def test_a_group_forgets_what_was_deleted_while_nobody_had_it(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        broker = node.broker
        forgotten = ForgottenTopics(
            broker.groups, broker.group_requests, broker.catalog, node._ports.metadata
        )
        for topic in ("gone", "kept", "unheard"):
            await peer.create_topic(topic)
            request = OffsetCommitRequest(
                group_id="g",
                generation_id_or_member_epoch=-1,
                topics=[
                    OffsetCommitRequestTopic(
                        name=topic, partitions=[OffsetCommitRequestPartition(committed_offset=7)]
                    )
                ],
            )
            answer = await peer.ask(request, 8, OffsetCommitResponse)
            assert answer.topics[0].partitions[0].error_code == 0
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
