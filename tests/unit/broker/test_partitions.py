"""CreatePartitions, and the names that a topic may not have beside another one."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from fencelog.broker.metadata.catalog import GROUP_TOPIC
from fencelog.errors import ErrorCode
from fencelog.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog_sim.world.disk import Loss, PowerCut
from tests.support.node import HeldDisk, Peer, World, batch, visible
from tests.support.storage import cut_at


async def grow(
    peer: Peer,
    count: int,
    topic: str = "t",
    *,
    on: list[list[int]] | None = None,
    dry: bool = False,
    times: int = 1,
) -> ErrorCode:
    assignments = on and [CreatePartitionsAssignment(broker_ids=brokers) for brokers in on]
    asked = CreatePartitionsTopic(name=topic, count=count, assignments=assignments)
    request = CreatePartitionsRequest(topics=[asked] * times, validate_only=dry)
    answer = await peer.ask(request, 3, CreatePartitionsResponse)
    return ErrorCode(answer.results[0].error_code)


async def test_new_partitions_serve_at_once_and_after_a_kill(world: World) -> None:
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.produce("t", batch("old"))
        assert await grow(peer, 3, dry=True) is ErrorCode.NONE
        assert (await peer.fetch("t", partition=2)).error is not ErrorCode.NONE
        assert await grow(peer, 3) is ErrorCode.NONE
        assert (await peer.produce("t", batch("new"), partition=2)).error is ErrorCode.NONE
        assert await grow(peer, 4, on=[[1]]) is ErrorCode.NONE
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        assert visible(await peer.fetch("t")) == [(0, "old")]
        assert visible(await peer.fetch("t", partition=2)) == [(0, "new")]
        assert (await peer.produce("t", batch("x"), partition=3)).error is ErrorCode.NONE


async def test_counts_that_make_no_sense_are_refused(world: World) -> None:
    async with world.node(partitions_max=30) as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2)
        await node.broker.controller.open_internal(GROUP_TOPIC, 0)
        assert await grow(peer, 2) is ErrorCode.INVALID_PARTITIONS
        assert await grow(peer, 1) is ErrorCode.INVALID_PARTITIONS
        assert await grow(peer, 5, "u") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await grow(peer, 99) is ErrorCode.POLICY_VIOLATION
        assert await grow(peer, 3, times=2) is ErrorCode.INVALID_REQUEST
        internal = await grow(peer, 99, GROUP_TOPIC)
        assert internal is ErrorCode.INVALID_TOPIC_EXCEPTION
        misplaced = ErrorCode.INVALID_REPLICATION_ASSIGNMENT
        assert await grow(peer, 3, on=[[2]]) is misplaced
        assert await grow(peer, 3, on=[[1], [1]]) is misplaced
        assert node.broker.catalog.get("t").partitions == 2


def test_a_power_cut_at_any_step_leaves_the_old_count_or_the_new_one(tmp_path: Path) -> None:
    async def scenario(step: int) -> bool:
        (tmp_path / str(step)).mkdir()
        world = World(tmp_path / str(step))
        grown = True
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            cut_at(world.disk, step)
            try:
                await node.broker.controller.add_partitions(node.broker.catalog.get("t"), 3)
            except PowerCut:
                grown = False
            world.disk = world.disk.power_loss(Loss.ALL)
        async with world.node() as node, Peer.of(node) as peer:
            count = node.broker.catalog.get("t").partitions
            assert count in ({3} if grown else {1, 3})
            for index in range(count):
                assert (await peer.produce("t", batch("x"), partition=index)).error == 0
            if count == 1:
                assert await grow(peer, 3) is ErrorCode.NONE
        return grown

    step = 0
    while not asyncio.run(scenario(step)):
        step += 1
    assert step > 4


@pytest.mark.parametrize("loss", [Loss.ALL, Loss.NONE])
@pytest.mark.parametrize("left", range(4))
async def test_a_kill_between_the_writes_of_a_creation_loses_no_partition(
    world: World, monkeypatch: pytest.MonkeyPatch, left: int, loss: Loss
) -> None:
    """``left``: how many writes of metadata come before the power cut."""
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        store = node._ports.metadata
        put, puts = store.put, []

        async def put_or_cut(key: str, value: bytes, *, expected_version: int) -> int | None:
            puts.append(key)
            if len(puts) > left:
                raise PowerCut
            return await put(key, value, expected_version=expected_version)

        with monkeypatch.context() as cut, suppress(PowerCut):
            cut.setattr(store, "put", put_or_cut)
            await node.broker.controller.create_topic("u", 2, {})
            await node.broker.controller.open_internal(GROUP_TOPIC, 0)
        world.disk = world.disk.power_loss(loss)
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        assert not node.logs.offline()
        for topic in node.broker.catalog.topics():
            made = [each.name.partition for each in node.logs.partitions()]
            assert topic.created <= set(made)
            if not topic.internal:
                assert topic.created == set(range(topic.partitions))
                assert (await peer.produce(topic.name, batch("x"))).error is ErrorCode.NONE
    # What was created is never created again: the disk is another one.
    world.disk = HeldDisk()
    async with world.node(crash=True) as node:
        for topic in node.broker.catalog.topics():
            for index in topic.created:
                assert node.logs.missing(topic.name, index) is ErrorCode.KAFKA_STORAGE_ERROR


async def test_names_that_differ_in_dots_and_underscores_only_collide(world: World) -> None:
    async def create(peer: Peer, name: str) -> ErrorCode:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        answer = await peer.ask(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)
        return ErrorCode(answer.topics[0].error_code)

    async with world.node() as node, Peer.of(node) as peer:
        assert await create(peer, "a.b_c") is ErrorCode.NONE
        assert await create(peer, "a_b.c") is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await create(peer, "a.b_c") is ErrorCode.TOPIC_ALREADY_EXISTS
        topic = node.broker.catalog.get("a.b_c")
        await node.broker.controller.delete_topic(topic)
        assert await create(peer, "a_b.c") is ErrorCode.NONE
    async with world.node() as node, Peer.of(node) as peer:
        assert await create(peer, "a.b.c") is ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_the_first_use_of_an_internal_partition_lists_its_own_directory_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.node() as node:
        open_internal = node.broker.controller.open_internal
        await open_internal(GROUP_TOPIC, 0)
        listed: list[str] = []
        list_names = world.disk.list

        async def recorded(path: str) -> list[str]:
            listed.append(path)
            return await list_names(path)

        monkeypatch.setattr(world.disk, "list", recorded)
        await open_internal(GROUP_TOPIC, 1)
        assert set(listed) == {f"{GROUP_TOPIC}-1"}
