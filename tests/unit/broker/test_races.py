"""What comes at the wrong moment: deletions, cancellations and failures in the middle of things."""

import asyncio
import json

import pytest

from fencelog.errors import ErrorCode
from fencelog.log import layout
from fencelog.node import Node
from fencelog.storage.recover import Durability
from fencelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog_sim.world.disk import READING
from fencelog_sim.world.gate import NO_SPACE, Fault
from tests.support.node import Peer, World, batch, delete, metadata, until, visible
from tests.support.transactions import Producer
from tests.unit.broker.test_fetch_waits import waiting


async def is_served(node: Node) -> bool:
    async with asyncio.timeout(2), Peer.of(node) as peer:
        answer = await peer.ask(ApiVersionsRequest(), 3, ApiVersionsResponse)
        return answer.error_code == 0


def end_of(node: Node, topic: str) -> int:
    partition = node.broker.logs.get(topic, 0)
    return partition.log.log_end_offset if partition else 0


async def test_a_fetch_of_a_failed_partition_waits_and_delays_no_other(world: World) -> None:  # D2
    async with world.node(crash=True) as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t")
        await peer.produce("t", batch("a"))
        world.disk.failing_syncs = 1
        assert (await peer.produce("t", batch("x"))).error is ErrorCode.KAFKA_STORAGE_ERROR
        task = await waiting(node, peer, offset=1)
        assert await is_served(node)
        assert not task.done()
        task.cancel()
        assert visible(await other.fetch("t", 1, max_wait_ms=50)) == []


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
async def test_no_client_shapes_an_internal_topic(world: World, topic: str) -> None:  # E9
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        assert await metadata(peer, topic, create=True) is not ErrorCode.NONE
        asked = CreatableTopic(
            name=topic,
            num_partitions=1,
            replication_factor=1,
            configs=[CreatableTopicConfig(name="cleanup.policy", value="delete")],
        )
        answer = await peer.ask(CreateTopicsRequest(topics=[asked]), 7, CreateTopicsResponse)
        assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert node.broker.catalog.get(topic) is None
        await Producer(peer).init()
    async with world.node() as node, Peer.of(node) as peer:
        assert await Producer(peer).init() is ErrorCode.NONE


async def test_a_shard_s_place_does_not_move_with_the_settings(world: World) -> None:  # E7
    async with world.node(internal_partitions=16) as node, Peer.of(node) as peer:
        first = Producer(peer)
        await first.init()
    async with world.node(internal_partitions=50) as node, Peer.of(node) as peer:
        second = Producer(peer)
        await second.init()
        assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)


async def test_a_topic_is_made_whole_though_its_client_hangs_up(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        for steps in range(30):
            name = f"t{steps}"
            task = asyncio.create_task(node.broker.controller.create_topic(name, 2, {}))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert await metadata(peer, name, create=True) is ErrorCode.NONE
            async with node.broker.controller._changes._turn:
                topic = node.broker.catalog.get(name)
            assert topic is not None
            for partition in range(topic.partitions):
                async with asyncio.timeout(10):
                    done = await peer.produce(name, batch("a"), partition=partition)
                    # Retriable: the topic is stored, and its partitions are being opened.
                    while done.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        done = await peer.produce(name, batch("a"), partition=partition)
                assert done.error is ErrorCode.NONE, (steps, partition, done)


def test_a_topic_is_deleted_whole_though_its_client_hangs_up(world: World) -> None:
    async def scenario(step: int) -> bool:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            topic = node.broker.catalog.get("t")
            assert topic is not None
            deleting = asyncio.create_task(node.broker.controller.delete_topic(topic))
            left = step

            def gate(verb: str, path: str, size: int) -> None:
                nonlocal left
                left -= verb not in READING
                if left == 0:
                    deleting.cancel()

            world.disk.gate = gate
            await asyncio.wait([deleting])
            world.disk.gate = None
            await peer.create_topic("t", partitions=3)
            for partition in range(3):
                done = await peer.produce("t", batch("new"), partition=partition)
                assert done.error is ErrorCode.NONE, (step, partition, done)
        async with world.node() as node, Peer.of(node) as peer:
            for partition in range(3):
                found = await peer.fetch("t", partition=partition)
                assert visible(found) == [(0, "new")], step
            await delete(peer, "t")
        return left <= 0

    step = 1
    while asyncio.run(scenario(step)):
        step += 1
    assert step > 2


def test_a_deletion_that_failed_takes_nothing_of_the_next_topic(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")

            def gate(verb: str, path: str, size: int) -> Fault | None:
                return Fault() if verb == "rename" and "-delete" in path else None

            world.disk.gate = gate
            assert await delete(peer, "t") is ErrorCode.KAFKA_STORAGE_ERROR
            world.disk.gate = None
            topics = [CreatableTopic(name="t", num_partitions=2, replication_factor=1)]
            answer = await peer.ask(CreateTopicsRequest(topics=topics), 7, CreateTopicsResponse)
            assert answer.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", partitions=2)
            for partition in (0, 1):
                done = await peer.produce("t", batch("a"), partition=partition)
                assert done.error is ErrorCode.NONE

    asyncio.run(scenario())


def test_a_deletion_noted_and_not_ended_spares_the_next_topic_of_its_name(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")

            def gate(verb: str, path: str, size: int) -> Fault | None:
                return Fault() if verb == "sync_directory" and not path else None

            world.disk.gate = gate
            assert await delete(peer, "t") is ErrorCode.KAFKA_STORAGE_ERROR
            world.disk.gate = None
            await peer.create_topic("t")
            assert (await peer.produce("t", batch("new"))).error is ErrorCode.NONE
        async with world.node() as node, Peer.of(node) as peer:
            assert visible(await peer.fetch("t")) == [(0, "new")]

    asyncio.run(scenario())


def test_a_topic_that_cannot_be_made_is_refused_and_can_be_made_later(world: World) -> None:  # D2
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("kept")

            def gate(verb: str, path: str, size: int) -> Fault | None:
                made = verb == "create" and path.startswith("t-1/partition.metadata")
                return Fault(NO_SPACE) if made else None

            world.disk.gate = gate
            topics = [CreatableTopic(name="t", num_partitions=2, replication_factor=1)]
            request = CreateTopicsRequest(topics=topics)
            answer = await peer.ask(request, 7, CreateTopicsResponse)
            assert answer.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert await metadata(peer, "t", create=True) is ErrorCode.NONE
            await delete(peer, "t")
            world.disk.gate = None
            await peer.create_topic("t", partitions=2)
            assert (await peer.produce("t", batch("a"), partition=1)).error is ErrorCode.NONE
        async with world.node() as node, Peer.of(node) as peer:
            assert visible(await peer.fetch("t", partition=1)) == [(0, "a")]

    asyncio.run(scenario())


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_a_deletion_amid_writes_and_syncs_ends_nothing_else(
    world: World, durability: Durability
) -> None:
    async with world.node(durability=durability) as node:
        async with Peer.of(node) as peer, Peer.of(node) as other:
            await peer.create_topic("kept")
            for held in ("t-0/", "t-0/00000000000000000000", "t-0/00000000000000000001"):
                await peer.create_topic("t", segment_bytes="1024")
                world.disk.hold(held)
                for _ in range(6):
                    other.send_produce("t", batch("x" * 700))
                await until(lambda: end_of(node, "t") == 6, "they are appended")
                checkpoint = asyncio.create_task(node.broker.logs.checkpoint())
                await asyncio.sleep(0.02)
                deleting = asyncio.create_task(delete(peer, "t"))
                await asyncio.sleep(0.02)
                world.disk.release()
                assert await deleting is ErrorCode.NONE
                for _ in range(6):
                    await other.produced()
                await checkpoint
                assert node.failure() is None
                assert (await peer.produce("kept", batch("a"))).error is ErrorCode.NONE
        assert world.disk.open_files == 1


async def test_a_stop_amid_a_checkpoint_is_a_clean_stop(world: World) -> None:  # D1
    async with (
        world.node(durability="os", checkpoint_interval_s=0.01) as node,
        Peer.of(node) as peer,
    ):
        await peer.create_topic("t")
        world.disk.hold("t-0/")
        await peer.produce("t", batch("a"))
        await until(lambda: world.disk.waiting > 0, "the checkpoint syncs")
        asyncio.get_running_loop().call_later(0.05, world.disk.release)
    marker = json.loads(world.disk.contents(layout.CLEAN_SHUTDOWN))
    assert list(marker["clean"]) == ["t-0"]


async def test_a_stop_does_not_wait_for_a_checkpoint_of_all_partitions(world: World) -> None:  # D1
    async with world.node(durability="os") as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=20)
        for index in range(20):
            await peer.produce("t", batch("a"), partition=index)
        world.disk.hold("t-")
        checkpoint = asyncio.create_task(node.logs.checkpoint())
        await until(lambda: world.disk.waiting == 1, "the checkpoint syncs")
        node.logs.stop_upkeep()
        world.disk.release()
        await checkpoint
        assert world.disk.waiting == 1
        assert len([each for each in node.logs.partitions() if each.needs_sync]) == 19
    marker = json.loads(world.disk.contents(layout.CLEAN_SHUTDOWN))
    assert len(marker["clean"]) == 20


async def test_a_stop_waits_for_the_write_that_is_under_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # D1
    async with world.node() as node, Peer.of(node) as peer:
        for topic in ("t", "full"):
            await peer.create_topic(topic, segment_bytes="1024")
            await peer.produce(topic, batch("x" * 100))
        synced, partition = node.broker.logs.get("t", 0), node.broker.logs.get("full", 0)
        assert synced is not None
        assert partition is not None
        go_on, sync = asyncio.Event(), synced._store.sync

        async def slow_sync() -> None:
            await go_on.wait()
            await sync()

        monkeypatch.setattr(synced._store, "sync", slow_sync)
        await peer.produce("t", batch("a"), acks=1)
        await until(lambda: synced in node.flusher._busy, "its sync has begun")
        world.disk.hold("full-0/")
        # Both are in one tail, so that the second finds the first one's segment unsynced.
        for _ in range(2):
            peer.send_produce("full", batch("x" * 700), acks=1)
        await until(lambda: world.disk.waiting > 0, "the full segment is synced amid a write")
        drained = asyncio.create_task(node.flusher.drained())
        go_on.set()
        await until(lambda: synced.log.high_watermark == 2, "the other sync has ended")
        await asyncio.sleep(0)
        assert not drained.done()
        world.disk.release()
        await drained
        assert partition.log.high_watermark == 3


async def test_a_broker_whose_flusher_ends_still_stops(world: World) -> None:
    async with asyncio.timeout(20), world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")

        def gate(verb: str, path: str, size: int) -> None:
            if path.startswith("t-0/"):
                raise RuntimeError("a mistake of ours")

        world.disk.gate = gate
        peer.send_produce("t", batch("a"))
        await node.wait_failed()
        world.disk.gate = None
        assert node.failure() is not None


async def test_topics_that_fill_the_limit_leave_partitions_for_the_coordinators(
    world: World,
) -> None:  # E9
    async with world.node(partitions_max=4) as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=4)
        async with asyncio.timeout(5):
            assert await Producer(peer).init() is ErrorCode.NONE
