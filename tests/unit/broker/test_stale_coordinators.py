"""A coordinator that knows less than the logs: a power cut set it back, as it may in ``os`` mode.

What it hands out next must be nothing that a log has seen: new records would pass for duplicates of
lost transactions' records, or be fenced, or their markers be refused for ever (E7, E17).
"""

import asyncio
import shutil
from pathlib import Path

import pytest

from fencelog import node as node_module
from fencelog.coordination.transaction.state import TxnState
from fencelog.errors import ErrorCode
from fencelog.node import Node
from fencelog_sim.world.disk import Loss
from tests.support.node import Peer, World, until, visible
from tests.support.transactions import ID, Producer, settled
from tests.support.version_2 import Producer2


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    # Nothing of the coordinators' logs is known to be synced, however slow the machine is.
    monkeypatch.setattr(node_module, "CHECKPOINT_INTERVAL_S", 3600.0)
    return World(tmp_path)


async def remember(world: World) -> dict[str, bytes]:
    """What the coordinators' files hold now."""
    names = await world.disk.list("")
    paths = [
        f"{name}/00000000000000000000.log"
        for name in names
        if name.startswith("__transaction_state-")
    ]
    return {path: world.disk.contents(path) for path in paths}


def cut_power(world: World, remembered: dict[str, bytes]) -> None:
    """The partitions keep all, the coordinators what they had then."""
    world.disk = world.disk.power_loss(Loss.NONE)
    for path, data in remembered.items():
        world.disk.overwrite(path, data)


async def completed(node: Node) -> None:
    """Return once the coordinator has said that all markers are in."""
    (loaded,) = node.broker.transactions.loaded()

    def is_complete() -> bool:
        found = loaded.shard.describe(ID)
        return found is not None and found.state is TxnState.COMPLETE_COMMIT

    await until(is_complete, "all markers are in")
    await node.flusher.drained()


async def values(node: Node, peer: Peer) -> list[str]:
    await settled(node, "t")
    return [value for _, value in visible(await peer.fetch("t"))]


@pytest.mark.parametrize("version", [1, 2])
def test_no_new_record_passes_for_one_of_a_transaction_that_the_coordinator_lost(
    world: World, version: int
) -> None:  # E4, E7
    async def scenario() -> None:
        async with world.node(durability="os", crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            producer = Producer(peer)
            await producer.init()
            remembered = await remember(world)
            await producer.init()
            await producer.add("t", 0)
            assert await producer.produce("t", "before") is ErrorCode.NONE
            assert await producer.end(commit=True) is ErrorCode.NONE
            await settled(node, "t")
            cut_power(world, remembered)
        async with world.node(durability="os") as node, Peer.of(node) as peer:
            producer = Producer(peer) if version == 1 else Producer2(peer)
            assert await producer.init() is ErrorCode.NONE
            if version == 1:
                await producer.add("t", 0)
            assert await producer.produce("t", "after") is ErrorCode.NONE
            assert await producer.end(commit=True) is ErrorCode.NONE
            assert await values(node, peer) == ["before", "after"]

    asyncio.run(scenario())


def test_what_came_after_a_commit_of_version_2_is_not_committed_with_it(world: World) -> None:
    async def scenario() -> None:  # E10, E17
        async with world.node(durability="os", crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            producer = Producer2(peer)
            await producer.init()
            await producer.produce("t", "committed")
            await producer.end(commit=True)
            await completed(node)
            remembered = await remember(world)
            assert await producer.produce("t", "open") is ErrorCode.NONE
            cut_power(world, remembered)
        async with world.node(durability="os") as node, Peer.of(node) as peer:
            assert await values(node, peer) == ["committed"]
            # Of a transaction that is void in part nothing more is taken.
            producer.peer = peer
            assert await producer.produce("t", "rest") is ErrorCode.INVALID_PRODUCER_EPOCH
            assert await producer.init() is ErrorCode.NONE
            assert await producer.produce("t", "again") is ErrorCode.NONE
            assert await producer.end(commit=True) is ErrorCode.NONE
            assert await values(node, peer) == ["committed", "again"]

    asyncio.run(scenario())


def test_an_open_transaction_that_is_later_than_the_coordinators_ends(world: World) -> None:
    async def scenario() -> None:  # E7, E10
        async with world.node(durability="os", crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            producer = Producer2(peer)
            await producer.init()
            await producer.produce("t", "a")
            remembered = await remember(world)
            for value in ("b", "c", "d"):
                await producer.end(commit=True)
                assert await producer.produce("t", value) is ErrorCode.NONE
            cut_power(world, remembered)
        async with world.node(durability="os") as node, Peer.of(node) as peer:
            assert await values(node, peer) == ["a", "b", "c"]
            again = Producer2(peer)
            assert await again.init() is ErrorCode.NONE
            assert await again.produce("t", "e") is ErrorCode.NONE
            assert await again.end(commit=True) is ErrorCode.NONE
            assert await values(node, peer) == ["a", "b", "c", "e"]

    asyncio.run(scenario())


def test_a_decision_is_carried_out_though_the_log_has_the_next_transaction(world: World) -> None:
    async def scenario() -> None:  # E9, E17
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            producer = Producer2(peer)
            await producer.init()
            await producer.produce("t", "a")
            world.disk.hold("t-0")
            await producer.end(commit=True)
            remembered = await remember(world)
            world.disk.release()
            assert await producer.produce("t", "open") is ErrorCode.NONE
            cut_power(world, remembered)
        async with world.node(durability="os") as node, Peer.of(node) as peer:
            assert await values(node, peer) == ["a"]
            again = Producer2(peer)
            assert await again.init() is ErrorCode.NONE
            assert await again.produce("t", "b") is ErrorCode.NONE

    asyncio.run(scenario())


def test_markers_are_taken_though_the_metadata_comes_from_an_older_copy(
    world: World, tmp_path: Path
) -> None:  # E17
    async def scenario() -> None:
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            await Producer(peer).init()
        copy = tmp_path / "older.sqlite"
        shutil.copyfile(world.metadata_path, copy)
        for value in ("a", "b", "open"):
            world.disk = world.disk.power_loss(Loss.NONE)
            async with world.node(crash=True) as node, Peer.of(node) as peer:
                producer = Producer(peer)
                await producer.init()
                await producer.add("t", 0)
                assert await producer.produce("t", value) is ErrorCode.NONE
                if value != "open":
                    assert await producer.end(commit=True) is ErrorCode.NONE
                    await settled(node, "t")
        world.disk = world.disk.power_loss(Loss.NONE)
        shutil.copyfile(copy, world.metadata_path)
        async with world.node() as node, Peer.of(node) as peer:
            assert await Producer(peer).init() is ErrorCode.NONE
            assert await values(node, peer) == ["a", "b"]

    asyncio.run(scenario())
