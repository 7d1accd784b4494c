"""Kafka's transactions through a whole node, request by request."""

import asyncio

import pytest

from fencelog.errors import ErrorCode, StorageError
from fencelog.log.values import ReadPlan
from fencelog.storage.partition_store import PartitionStore
from fencelog.storage.segment import Batches
from fencelog.types import ProducerEpoch, ProducerId
from fencelog.wire.batch import iterate, read_header
from fencelog.wire.control import read_marker
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.records import RecordToWrite, build_batch
from fencelog_sim.world.disk import Loss
from tests.support.hanging import hang
from tests.support.node import Peer, World, batch, until, visible
from tests.support.transactions import Producer, partition_of, settled


async def test_a_committed_transaction_appears_at_once_and_an_aborted_one_never(
    world: World,
) -> None:  # E10
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as reader:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        assert await producer.add("t", 0) is ErrorCode.NONE
        assert await producer.produce("t", "a", "b") is ErrorCode.NONE
        held_back = await reader.fetch("t")
        assert (held_back.last_stable_offset, held_back.high_watermark) == (0, 2)
        assert visible(held_back) == []
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        assert await producer.add("t", 0) is ErrorCode.NONE
        assert await producer.produce("t", "void") is ErrorCode.NONE
        assert await producer.end(commit=False) is ErrorCode.NONE
        await settled(node, "t")
        assert visible(await reader.fetch("t")) == [(0, "a"), (1, "b")]
        assert [v for _, v in visible(await reader.fetch("t", isolation=0))] == [
            "a",
            "b",
            "void",
        ]


async def test_a_write_to_a_partition_that_was_not_enlisted_is_refused(world: World) -> None:  # E14
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2)
        producer = Producer(peer)
        await producer.init()
        assert await producer.produce("t", "x") is ErrorCode.INVALID_TXN_STATE
        await producer.add("t", 0)
        assert await producer.produce("t", "x", partition=1) is ErrorCode.INVALID_TXN_STATE
        abortable = await producer.produce("t", "x", partition=1, version=11)
        assert abortable is ErrorCode.TRANSACTION_ABORTABLE
        assert await producer.produce("t", "x") is ErrorCode.NONE


async def test_a_write_that_arrives_after_the_end_of_its_transaction_is_refused(
    world: World,
) -> None:  # E14
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        await producer.add("t", 0)
        assert await producer.produce("t", "in time") is ErrorCode.NONE
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        assert await producer.produce("t", "delayed") is ErrorCode.INVALID_TXN_STATE
        assert visible(await peer.fetch("t")) == [(0, "in time")]


async def test_a_new_incarnation_aborts_the_open_transaction_and_fences_the_zombie(
    world: World,
) -> None:  # E2, E7
    async with world.node() as node, Peer.of(node) as old, Peer.of(node) as new:
        await old.create_topic("t")
        zombie, successor = Producer(old), Producer(new)
        await zombie.init()
        await zombie.add("t", 0)
        assert await zombie.produce("t", "zombie") is ErrorCode.NONE
        assert await successor.init() is ErrorCode.NONE
        assert successor.epoch > zombie.epoch
        # The markers were written before the new epoch was answered.
        found = node.broker.logs.get("t", 0)
        assert found is not None
        assert found.log.open_transactions() == []
        assert await zombie.produce("t", "late") is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await zombie.add("t", 0) is ErrorCode.PRODUCER_FENCED
        assert await zombie.add("t", 0, version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await zombie.end(commit=True) is ErrorCode.PRODUCER_FENCED
        assert await zombie.end(commit=True, version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert visible(await new.fetch("t")) == []


async def test_a_transaction_past_its_timeout_is_aborted_and_its_producer_learns_it(
    world: World,
) -> None:  # E12
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init(timeout_ms=100)
        await producer.add("t", 0)
        assert await producer.produce("t", "slow") is ErrorCode.NONE
        await settled(node, "t")
        assert await producer.end(commit=True) is ErrorCode.PRODUCER_FENCED
        assert visible(await peer.fetch("t")) == []


async def test_a_commit_is_answered_and_marked_only_once_the_decision_is_durable(
    world: World,
) -> None:  # E16
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        await producer.add("t", 0)
        await producer.produce("t", "a")
        data = node.broker.logs.get("t", 0)
        assert data is not None
        world.disk.hold("__transaction_state")
        ending = asyncio.ensure_future(producer.end(commit=True))
        await until(lambda: world.disk.waiting > 0, "the decision's sync waits")
        async with Peer.of(node) as other:
            assert visible(await other.fetch("t")) == []
        assert data.log.log_end_offset == 1, "no marker before the decision is durable"
        assert not ending.done()
        world.disk.release()
        assert await ending is ErrorCode.NONE
        await settled(node, "t")
        assert visible(await peer.fetch("t")) == [(0, "a")]


@pytest.mark.parametrize("commit", [True, False])
async def test_a_decision_is_carried_out_after_a_crash(
    world: World, commit: bool
) -> None:  # E9, E16
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        await producer.add("t", 0)
        await producer.produce("t", "a")
        # The markers cannot become durable: the crash comes first.
        world.disk.hold("t-0")
        assert await producer.end(commit=commit) is ErrorCode.NONE
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        # Before the first request is taken the markers are in.
        found = await peer.fetch("t")
        assert found.last_stable_offset == found.high_watermark == 2
        assert visible(found) == ([(0, "a")] if commit else [])


async def test_a_transaction_that_no_coordinator_lists_is_aborted_at_start(
    world: World,
) -> None:  # E17
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await hang(node, "t", 900)
        world.disk = world.disk.power_loss(Loss.NONE)
    async with world.node() as node, Peer.of(node) as peer:
        found = await peer.fetch("t")
        assert found.last_stable_offset == found.high_watermark == 2
        assert visible(found) == []


async def test_an_open_transaction_survives_a_crash_and_can_be_committed(
    world: World,
) -> None:  # E15
    producers = []
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        await producer.add("t", 0)
        await producer.produce("t", "before")
        producers.append(producer)
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        (producer,) = producers
        producer.peer = peer
        assert visible(await peer.fetch("t")) == []
        assert await producer.produce("t", "after") is ErrorCode.NONE
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        assert visible(await peer.fetch("t")) == [(0, "before"), (1, "after")]


async def test_producer_ids_are_never_reused_after_a_crash(world: World) -> None:  # E1, E7
    taken: list[int] = []
    for _ in range(3):
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            request = InitProducerIdRequest(transactional_id=None)
            for _ in range(3):
                answer = await peer.ask(request, 4, InitProducerIdResponse)
                taken.append(answer.producer_id)
            world.disk = world.disk.power_loss(Loss.ALL)
    assert len(set(taken)) == len(taken), taken


async def test_a_partition_out_of_service_holds_up_no_other_and_is_not_marked_twice(
    world: World,
) -> None:  # D2, E17
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2)
        producer = Producer(peer)
        await producer.init()
        await producer.add("t", 0, 1)
        await producer.produce("t", "a")
        producer.sequence = 0
        await producer.produce("t", "b", partition=1)
        world.disk.failing_syncs = 1
        assert (await peer.produce("t", batch("x"))).error is ErrorCode.KAFKA_STORAGE_ERROR
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t", 1)
        healthy = node.broker.logs.get("t", 1)
        assert healthy is not None
        marked = healthy.log.log_end_offset
        sender = node.marker_senders[0]
        for _ in range(3):  # rounds of the sender
            for loaded in node.broker.transactions.loaded():
                sender.wake(loaded)
            await asyncio.sleep(0.01)
        assert healthy.log.log_end_offset == marked
        world.disk = world.disk.power_loss(Loss.NONE)
    async with world.node() as node, Peer.of(node) as peer:
        assert [v for _, v in visible(await peer.fetch("t"))][:1] == ["a"]
        assert [v for _, v in visible(await peer.fetch("t", partition=1))] == ["b"]


async def test_markers_carry_a_coordinator_epoch_that_grows_with_every_start(
    world: World,
) -> None:  # E17
    for _ in range(3):
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            if node.broker.catalog.get("t") is None:
                await peer.create_topic("t")
            producer = Producer(peer)
            await producer.init()
            await producer.add("t", 0)
            await producer.produce("t", "a")
            assert await producer.end(commit=True) is ErrorCode.NONE
            await settled(node, "t")
            found = await peer.fetch("t")
            world.disk = world.disk.power_loss(Loss.NONE)
    epochs = [
        read_marker(one).coordinator_epoch
        for records in found.records
        for header, one in iterate(records)
        if header.is_control
    ]
    assert len(epochs) == 3
    assert epochs == sorted(set(epochs))


async def test_a_decision_that_is_not_durable_is_not_carried_out(world: World) -> None:  # E16
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t", partitions=2)
        first = Producer(peer)
        await first.init()
        await first.add("t", 0)
        await first.produce("t", "a")
        world.disk.hold("__transaction_state")
        ending = asyncio.ensure_future(first.end(commit=True))
        await until(lambda: world.disk.waiting > 0, "the decision's sync waits")
        # Another round of the sender must not take up what is appended and not committed.
        for loaded in node.broker.transactions.loaded():
            node.marker_senders[0].wake(loaded)
            assert node.marker_senders[0]._doing == {}
        assert visible(await other.fetch("t")) == []
        world.disk.release()
        assert await ending is ErrorCode.NONE
        await settled(node, "t")


async def test_a_coordinator_that_cannot_read_its_log_leaves_the_others_serving(
    world: World,
) -> None:  # D3
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        assert await Producer(peer).init() is ErrorCode.NONE
        (loaded,) = node.broker.transactions.loaded()
        foreign = memoryview(build_batch([RecordToWrite(b"?", b"?", 0)]))
        loaded.partition.log.append(foreign, read_header(foreign), now_ms=0, internal=True)
        node.flusher.enqueue(loaded.partition)
        await node.flusher.drained()
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        assert (await peer.produce("t", batch("a"))).error is ErrorCode.NONE
        assert await Producer(peer).init() is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_coordinator_with_a_hole_in_its_log_is_not_available(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # D3
    async def nothing(store: PartitionStore, plan: ReadPlan, *, to_send: bool) -> Batches:
        return Batches(memoryview(b""), plan.offset)

    async with world.node() as node, Peer.of(node) as peer:
        await Producer(peer).init()
    monkeypatch.setattr(PartitionStore, "read", nothing)
    async with world.node() as node, Peer.of(node) as peer:
        assert await Producer(peer).init() is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_an_orphan_is_ended_though_another_partition_takes_no_markers(
    world: World,
) -> None:  # E17
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.create_topic("bad")
        producer = Producer(peer)
        await producer.init()
        await producer.add("bad", 0)
        await producer.produce("bad", "a")
        await node.broker.logs.checkpoint()
        orphan = partition_of(node, "t")
        data = memoryview(batch("orphan", producer_id=7, epoch=0, sequence=0, transactional=True))
        guard = orphan.log.begin_verification(ProducerId(7), ProducerEpoch(0), 0)
        orphan.log.append(data, read_header(data), now_ms=2**60, guard=guard)
        partition_of(node, "bad").fail(StorageError("a test"))
        await producer.end(commit=True)
        node.flusher.enqueue(orphan)
        await node.flusher.drained()
        world.disk = world.disk.power_loss(Loss.ALL)
        world.disk.corrupt("bad-0/00000000000000000000.log", 20)
    async with world.node(resume_timeout_s=0.2) as node, Peer.of(node) as peer:
        assert (await peer.fetch("bad")).error is ErrorCode.KAFKA_STORAGE_ERROR
        found = await peer.fetch("t")
        assert found.last_stable_offset == found.high_watermark == 2


@pytest.mark.parametrize("is_waiting", [False, True], ids=["before the end", "amid its marker"])
async def test_a_deleted_topic_holds_no_decided_transaction_up(
    world: World, is_waiting: bool
) -> None:  # E17
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.create_topic("old")
        old = node.broker.catalog.get("old")
        assert old is not None
        producer = Producer(peer)
        await producer.init()
        await producer.add("t", 0)
        assert await producer.produce("t", "a") is ErrorCode.NONE
        await producer.add("old", 0)
        if is_waiting:
            world.disk.hold("old-0/")
        else:
            await node.broker.controller.delete_topic(old)
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        if is_waiting:
            deletion = asyncio.create_task(node.broker.controller.delete_topic(old))
            await until(lambda: node.broker.logs.get("old", 0) is None, "it is out of service")
            world.disk.release()
            await deletion
        # The next transaction begins once this one is complete.
        assert await producer.add("t", 0) is ErrorCode.NONE
        assert visible(await peer.fetch("t")) == [(0, "a")]
