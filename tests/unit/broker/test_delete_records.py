"""DeleteRecords: where a partition begins, for good, whatever happens in between (D4)."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fencelog.adapters.system_clock import SystemClock
from fencelog.broker.metadata.catalog import GROUP_TOPIC
from fencelog.broker.partitions.log_starts import advance_starts
from fencelog.errors import ErrorCode, StorageError
from fencelog.log import layout
from fencelog.node import Node
from fencelog.types import Offset
from fencelog.wire.batch import read_header
from fencelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from fencelog_sim.world.disk import Loss, PowerCut
from tests.support.node import Peer, World, batch, until, visible
from tests.support.storage import LOSSES, cut_at

T = TypeVar("T")


async def delete_records(
    peer: Peer, offset: int, topic: str = "t", partition: int = 0, version: int = 2
) -> tuple[ErrorCode, int]:
    asked = DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[asked])])
    answer = await peer.ask(request, version, DeleteRecordsResponse)
    result = answer.topics[0].partitions[0]
    return ErrorCode(result.error_code), result.low_watermark


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_log_starts_at_the_requested_offset_and_segments_below_are_deleted(
    world: World, version: int
) -> None:  # D4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", segment_bytes="2000")
        for number in range(40):
            await peer.produce("t", batch(f"{number:02}" * 100))
        assert await delete_records(peer, 33, version=version) == (ErrorCode.NONE, 33)
        assert (await peer.fetch("t", 32)).error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert visible(await peer.fetch("t", 33))[0] == (33, "33" * 100)
        left = [name for name in await world.disk.list("t-0") if name.endswith(".log")]
        assert len(left) == 2, left
        # Below where it begins there is nothing to do, and nothing goes back.
        assert await delete_records(peer, 3) == (ErrorCode.NONE, 33)
        assert await delete_records(peer, -1) == (ErrorCode.NONE, 40)
        assert (await peer.fetch("t", 40)).error is ErrorCode.NONE


async def test_a_client_that_hangs_up_while_records_are_deleted_harms_nothing(
    world: World,
) -> None:  # D2
    async with world.node(durability="os") as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        for number in range(3):
            await peer.produce("t", batch(str(number)))
        world.disk.hold("t-0/")
        async with Peer.of(node) as hasty:
            asked = DeleteRecordsPartition(partition_index=0, offset=2)
            topic = DeleteRecordsTopic(name="t", partitions=[asked])
            hasty.send(21, 2, DeleteRecordsRequest(topics=[topic]).write(2))
            await until(lambda: world.disk.waiting > 0, "it syncs")
        await until(lambda: len(node.server._connections) == 1, "it is gone")
        world.disk.release()
        assert (await peer.produce("t", batch("3"))).error is ErrorCode.NONE
        partition = node.broker.logs.get("t", 0)
        assert partition is not None
        await until(lambda: partition.log.log_start_offset == 2, "it is done all the same")


async def test_a_topic_may_be_deleted_while_its_records_are(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:  # D4
    async with world.node(durability="os") as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t")
        for number in range(3):
            await peer.produce("t", batch(str(number)))
        world.disk.hold("t-0/")
        answer = asyncio.create_task(delete_records(peer, 2))
        await until(lambda: world.disk.waiting > 0, "it syncs")
        topic = node.broker.catalog.get("t")
        assert topic is not None
        deletion = asyncio.create_task(node.broker.controller.delete_topic(topic))
        await until(lambda: node.broker.logs.get("t", 0) is None, "the topic is gone")
        world.disk.release()
        assert await answer == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        await deletion
        await other.create_topic("t")
        assert await delete_records(peer, -1) == (ErrorCode.NONE, 0)
    assert not [record.message for record in caplog.records if record.levelname == "ERROR"]


async def test_what_may_not_be_deleted_is_refused(world: World) -> None:  # D4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.create_topic("compacted", cleanup_policy="compact")
        await peer.produce("t", batch("a", "b"))
        await node.broker.controller.open_internal(GROUP_TOPIC, 0)
        refused = ErrorCode.OFFSET_OUT_OF_RANGE
        assert await delete_records(peer, 3) == (refused, -1)
        assert await delete_records(peer, -2) == (refused, -1)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await delete_records(peer, 0, partition=1) == (unknown, -1)
        assert await delete_records(peer, 0, topic="u") == (unknown, -1)
        policy = ErrorCode.POLICY_VIOLATION
        assert await delete_records(peer, 0, topic="compacted") == (policy, -1)
        internal = ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await delete_records(peer, 0, topic=GROUP_TOPIC) == (internal, -1)


async def test_records_that_are_not_durable_are_not_deleted(world: World) -> None:  # D4
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t")
        await peer.produce("t", batch("a"))
        world.disk.hold("t-0")
        other.send_produce("t", batch("b"))
        await until(lambda: world.disk.waiting, "the second record waits for the disk")
        assert await delete_records(peer, 2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert await delete_records(peer, -1) == (ErrorCode.NONE, 1)
        world.disk.release()
        assert (await other.produced()).base_offset == 1


async def test_the_lso_rises_where_an_open_transaction_is_passed(world: World) -> None:  # D4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        log = node.broker.logs.get("t", 0).log
        guard = log.begin_verification(7, 0, 0)
        one = memoryview(batch("x", producer_id=7, epoch=0, sequence=0, transactional=True))
        log.append(one, read_header(one), now_ms=0, guard=guard, internal=True)
        await peer.produce("t", batch("a", "b"))
        assert (await peer.fetch("t")).last_stable_offset == 0
        assert await delete_records(peer, 2) == (ErrorCode.NONE, 2)
        fetched = await peer.fetch("t", 2)
        assert (fetched.last_stable_offset, fetched.log_start_offset) == (2, 2)


async def test_a_waiting_fetch_below_the_new_log_start_is_answered(world: World) -> None:  # D4
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as reader:
        await peer.create_topic("t")
        await peer.produce("t", batch("a"))
        fetching = asyncio.create_task(reader.fetch("t", 0, max_wait_ms=9000, min_bytes=10_000))
        partition = node.broker.logs.get("t", 0)
        await until(lambda: partition._purgatory._readers, "the reader waits")
        await delete_records(peer, 1)
        assert (await fetching).error is ErrorCode.OFFSET_OUT_OF_RANGE


async def delete_until_cut(world: World, node: Node, step: int, offset: int) -> bool:
    """Delete records and cut the power at one disk operation; whether it was answered."""
    cut_at(world.disk, step)
    partition = node.broker.logs.get("t", 0)
    assert partition is not None
    errors = await until_cut(node, node.broker.logs.delete_records({partition: Offset(offset)}))
    assert errors is None or errors[partition] is ErrorCode.NONE
    return errors is not None


async def until_cut(node: Node, work: Coroutine[Any, Any, T]) -> T | None:
    """Return what it returns; None where the power was cut before.

    The cut may end the flusher, and as in a machine without power nobody is told.
    """
    working = asyncio.create_task(work)
    failing = asyncio.create_task(node.wait_failed())
    try:
        async with asyncio.timeout(10):
            await asyncio.wait([working, failing], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    except PowerCut:
        return None
    finally:
        for task in (working, failing):
            task.cancel()


@pytest.mark.parametrize("durability", ["fsync", "os"])
@LOSSES
def test_a_power_cut_at_any_step_leaves_the_start_before_or_after(
    tmp_path: Path, loss: Loss, durability: str
) -> None:  # D4
    async def scenario(step: int) -> bool:
        folder = tmp_path / str(step)
        folder.mkdir()
        world = World(folder)
        async with world.node(crash=True, durability=durability) as node, Peer.of(node) as peer:
            await peer.create_topic("t", segment_bytes="2000")
            for number in range(30):
                await peer.produce("t", batch(f"{number:02}" * 100))
            await node.broker.logs.checkpoint()
            assert await delete_records(peer, 7) == (ErrorCode.NONE, 7)
            answered = await delete_until_cut(world, node, step, 25)
            world.disk = world.disk.power_loss(loss)
        async with world.node(durability=durability) as node, Peer.of(node) as peer:
            start = (await peer.fetch("t", 30)).log_start_offset
            assert start in ({25} if answered else {7, 25}), step
            assert visible(await peer.fetch("t", start))[0] == (start, f"{start:02}" * 100)
        return answered

    step = 0
    while not asyncio.run(scenario(step)):
        step += 1
    assert step > 4, "a deletion has several steps to be cut at"


@pytest.mark.parametrize("way", ["deleted", "retained"])
async def test_the_starts_of_many_logs_are_stored_with_one_write(
    world: World, way: str
) -> None:  # D4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=5, retention_bytes="1", segment_bytes="1024")
        for index in range(5):
            for _ in range(3):
                await peer.produce("t", batch("x" * 600), partition=index)
        stored = []
        world.disk.gate = lambda verb, path, size: stored.append(path) if verb == "rename" else None
        found = [node.broker.logs.get("t", index) for index in range(5)]
        partitions = [each for each in found if each is not None]
        if way == "deleted":
            errors = await node.broker.logs.delete_records(dict.fromkeys(partitions, Offset(2)))
            assert set(errors.values()) == {ErrorCode.NONE}
        else:
            await node.broker.logs.upkeep(SystemClock().now_ms())
        assert [each.log.log_start_offset for each in partitions] == [2] * 5
        assert stored.count(layout.LOG_START_CHECKPOINT) == 1


async def test_a_log_that_failed_or_is_gone_keeps_no_other_from_beginning_later(
    world: World,
) -> None:  # D2, D4
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=4)
        for index in range(4):
            for _ in range(3):
                await peer.produce("t", batch("x"), partition=index)
        found = [node.broker.logs.get("t", index) for index in range(4)]
        failing, gone, *others = [each for each in found if each is not None]
        failing.fail(StorageError("the disk is broken"))
        starts = dict.fromkeys((failing, gone, *others), Offset(2))
        failed = await advance_starts(node.broker.logs._directory, starts, lambda p: p is not gone)
        assert {each.name: str(error) for each, error in failed.items()} == {
            failing.name: "t-0 has failed: the disk is broken"
        }
        assert [each.log.log_start_offset for each in (failing, gone, *others)] == [0, 0, 2, 2]


async def test_deleting_a_topic_stores_and_lists_once_for_all_its_partitions(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=8)
        for index in range(8):
            await peer.produce("t", batch("x"), partition=index)
        await node.broker.logs.checkpoint()
        done = []
        world.disk.gate = lambda verb, path, size: done.append((verb, path))
        topic = node.broker.catalog.get("t")
        assert topic is not None
        await node.broker.controller.delete_topic(topic)
        assert done.count(("rename", layout.RECOVERY_POINT_CHECKPOINT)) == 1
        assert done.count(("list", "")) <= 2
        assert not [name for name in await world.disk.list("") if name.startswith("t-")]
