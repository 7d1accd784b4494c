"""CreatePartitions, and the names that a topic may not have beside another one."""

import asyncio
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
from fencelog_sim.world.disk import READING, Loss, PowerCut
from tests.support.node import Peer, World, batch, visible


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


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


def test_new_partitions_serve_at_once_and_after_a_kill(world: World) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_counts_that_make_no_sense_are_refused(world: World) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_power_cut_at_any_step_leaves_the_old_count_or_the_new_one(tmp_path: Path) -> None:
    async def scenario(step: int) -> bool:
        (tmp_path / str(step)).mkdir()
        world = World(tmp_path / str(step))
        grown = True
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            left = step

            def gate(verb: str, path: str, size: int) -> None:
                nonlocal left
                left -= verb not in READING
                if left < 0:
                    raise PowerCut

            world.disk.gate = gate
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


def test_names_that_differ_in_dots_and_underscores_only_collide(world: World) -> None:
    async def create(peer: Peer, name: str) -> ErrorCode:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        answer = await peer.ask(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)
        return ErrorCode(answer.topics[0].error_code)

    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            assert await create(peer, "a.b_c") is ErrorCode.NONE
            assert await create(peer, "a_b.c") is ErrorCode.INVALID_TOPIC_EXCEPTION
            assert await create(peer, "a.b_c") is ErrorCode.TOPIC_ALREADY_EXISTS
            topic = node.broker.catalog.get("a.b_c")
            await node.broker.controller.delete_topic(topic)
            assert await create(peer, "a_b.c") is ErrorCode.NONE
        async with world.node() as node, Peer.of(node) as peer:
            assert await create(peer, "a.b.c") is ErrorCode.INVALID_TOPIC_EXCEPTION

    asyncio.run(scenario())
