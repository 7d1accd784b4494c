"""Topics come, shrink and go: catalog, retention, deletion cut short, damaged partitions."""

import asyncio

import pytest

from fencelog.broker.metadata.catalog import name_problem
from fencelog.broker.partitions import log_manager
from fencelog.errors import ErrorCode
from fencelog_sim.world.disk import Loss, PowerCut
from tests.support.node import (
    Peer,
    World,
    batch,
    delete,
    metadata,
    visible,
)
from tests.support.storage import cut_at
from tests.support.transactions import partition_of


async def test_a_topic_is_created_on_request_unless_either_side_says_no(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await metadata(peer, "t", create=False) is unknown
        assert await metadata(peer, "t", create=True) is ErrorCode.NONE
        assert await metadata(peer, "a/b", create=True) is ErrorCode.INVALID_TOPIC_EXCEPTION
    async with world.node(auto_create_topics=False) as node, Peer.of(node) as peer:
        assert await metadata(peer, "u", create=True) is unknown
        assert await metadata(peer, "t", create=True) is ErrorCode.NONE


async def test_a_topic_that_is_made_again_holds_nothing_of_the_old_one(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.produce("t", batch("old", producer_id=5, epoch=0, sequence=0))
        assert await delete(peer, "t") is ErrorCode.NONE
        assert await delete(peer, "t") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await peer.create_topic("t")
        assert visible(await peer.fetch("t")) == []
        again = await peer.produce("t", batch("new", producer_id=5, epoch=0, sequence=0))
        assert (again.error, again.base_offset) == (ErrorCode.NONE, 0)


def test_a_deletion_that_a_crash_cut_short_is_finished_at_the_next_start(world: World) -> None:
    async def scenario(step: int) -> bool:
        """Cut the power at one operation of the deletion; True while there was such a step."""
        cut = False
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t", partitions=2)
            await peer.create_topic("kept")
            await peer.produce("kept", batch("here"))
            topic = node.broker.catalog.get("t")
            assert topic is not None
            cut_at(world.disk, step)
            try:
                await node.broker.controller.delete_topic(topic)
            except PowerCut:
                cut = True
            world.disk = world.disk.power_loss(Loss.ALL)
        async with world.node() as node, Peer.of(node) as peer:
            if node.broker.catalog.get("t") is None:
                assert node.logs._deleting is not None
                await node.logs._deleting
                names = await world.disk.list("")
                assert not [name for name in names if name.startswith("t-")], names
            assert visible(await peer.fetch("kept")) == [(0, "here")]
            for name in ("t", "kept"):
                await delete(peer, name)
        return cut

    step = 0
    while asyncio.run(scenario(step)):
        step += 1
    assert step > 2, "the deletion has several steps to be cut at"


async def test_retention_deletes_whole_segments_and_a_restart_agrees(world: World) -> None:  # D4
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t", segment_bytes="2000", retention_bytes="4000")
        for number in range(40):
            await peer.produce("t", batch(f"{number:02}" * 100))
        await node.broker.logs.upkeep(node.broker.clock.now_ms())
        first = (await peer.fetch("t", 39)).log_start_offset
        assert 0 < first < 40
        assert (await peer.fetch("t", 0)).error is ErrorCode.OFFSET_OUT_OF_RANGE
        # No clean stop writes the new start down a second time.
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        assert (await peer.fetch("t", 39)).log_start_offset == first
        offset, value = visible(await peer.fetch("t", first))[0]
        assert (offset, value) == (first, f"{first:02}" * 100)


async def test_a_stop_waits_for_one_slice_of_retention(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # D4
    monkeypatch.setattr(log_manager, "PARTITIONS_PER_SLICE", 2)
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=6, segment_bytes="1024", retention_bytes="1024")
        for number in range(18):
            await peer.produce("t", batch("x" * 700), partition=number % 6)
        node.logs.stop_upkeep()
        await node.logs.upkeep(node.broker.clock.now_ms())
        starts = [partition_of(node, "t", index).log.log_start_offset for index in range(6)]
        assert starts == [1, 1, 0, 0, 0, 0]
    async with world.node() as node:
        assert [partition_of(node, "t", index).log.log_start_offset for index in range(6)] == starts
        await node.logs.upkeep(node.broker.clock.now_ms())
        assert {each.log.log_start_offset for each in node.logs.partitions()} == {1}


async def test_a_damaged_partition_is_offline_and_the_others_serve(world: World) -> None:  # D3
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2, segment_bytes="2000")
        for number in range(30):
            await peer.produce("t", batch(f"{number:02}" * 100), partition=number % 2)
    world.disk.corrupt("t-0/00000000000000000000.log", 300)
    # Not trusted after an unclean stop, and below the recovery point: damage, not a torn tail.
    world.disk = world.disk.power_loss(Loss.NONE)
    await world.disk.remove(".kafka_cleanshutdown")
    async with world.node() as node, Peer.of(node) as peer:
        assert (await peer.fetch("t")).error is ErrorCode.KAFKA_STORAGE_ERROR
        refused = await peer.produce("t", batch("x"))
        assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert (await peer.produce("t", batch("x"), partition=1)).error is ErrorCode.NONE
        assert len(visible(await peer.fetch("t", partition=1))) > 0


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ü", "x" * 250, "a b"])
def test_illegal_topic_names_are_explained(name: str) -> None:
    assert repr(name) in (name_problem(name) or "")


def test_legal_topic_names_pass() -> None:
    assert name_problem("a.B_c-9") is None
