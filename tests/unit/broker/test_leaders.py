"""What a broker asks of a partition's leader and of a transaction's coordinator, through a node."""

import asyncio
from pathlib import Path

import pytest

from fencelog.broker.metadata.catalog import TRANSACTION_TOPIC
from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.shard import partition_for
from fencelog.coordination.transaction.state import ClientVersion, ProducerIdAndEpoch
from fencelog.errors import ErrorCode, NotLeaderError, StorageError
from fencelog.log.values import MarkerToWrite
from fencelog.node import Node
from fencelog.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from tests.support.log import marker
from tests.support.node import Peer, World, batch, until, visible
from tests.support.transactions import ID, Producer, Run, partition_of, settled
from tests.support.version_2 import Producer2

NAME = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
ELSEWHERE = "elsewhere"
"""A transactional id whose coordinator is another shard than that of ``ID``."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def identity(producer: Producer) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer.producer_id), ProducerEpoch(producer.epoch))


async def settle() -> None:
    """Let everything run that waits for nothing."""
    for _ in range(20):
        await asyncio.sleep(0)


async def begun(peer: Peer) -> Producer:
    """A version 1 producer with one record in an open transaction on ``t-0``."""
    await peer.create_topic("t", partitions=2)
    producer = Producer(peer)
    assert await producer.init() is ErrorCode.NONE
    assert await producer.add("t", 0) is ErrorCode.NONE
    assert await producer.produce("t", "a") is ErrorCode.NONE
    return producer


def end_of(producer: Producer, *, coordinator_epoch: int = 0) -> list[MarkerToWrite]:
    return [marker(producer.producer_id, producer.epoch, coordinator_epoch, commit=True)]


# -- markers -----------------------------------------------------------------------------------


def test_markers_are_appended_at_once_and_reported_once_they_are_committed(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            producer = await begun(peer)
            log = partition_of(node, "t").log
            world.disk.hold("t-0")
            result = asyncio.ensure_future(
                node.broker.leaders.write_markers(NAME, end_of(producer))
            )
            assert (log.log_end_offset, log.open_transactions()) == (2, [])
            await until(lambda: world.disk.waiting, "the flusher syncs")
            assert (result.done(), log.last_stable_offset) == (False, 0)
            world.disk.release()
            assert await result is True
            assert log.last_stable_offset == 2
            # Asked again, it is answered and not written again.
            assert await node.broker.leaders.write_markers(NAME, end_of(producer)) is True
            assert log.log_end_offset == 2
            assert visible(await peer.fetch("t")) == [(0, "a")]

    asyncio.run(scenario())


def test_markers_of_a_deleted_partition_count_as_written(world: World) -> None:  # E17
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            producer = await begun(peer)
            ask = node.broker.leaders.write_markers
            assert await ask(TopicPartition("gone", 0), end_of(producer)) is True
            world.disk.hold("t-0")
            result = asyncio.ensure_future(ask(NAME, end_of(producer)))
            topic = node.broker.catalog.get("t")
            assert topic is not None
            deletion = asyncio.ensure_future(node.broker.controller.delete_topic(topic))
            assert await result is True
            world.disk.release()
            await deletion
            assert await ask(NAME, end_of(producer)) is True

    asyncio.run(scenario())


@pytest.mark.parametrize("offline", [True, False])
def test_markers_are_to_be_asked_for_again_where_a_partition_is_not_served(
    world: World, *, offline: bool
) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            producer = await begun(peer)
            gone = node.logs._led.pop(OTHER)
            if offline:
                node.logs._offline[OTHER] = StorageError("damaged")
            ask = node.broker.leaders.write_markers
            assert await ask(OTHER, end_of(producer)) is False
            node.logs._led[OTHER] = gone

    asyncio.run(scenario())


def test_markers_of_an_older_coordinator_are_not_taken(world: World) -> None:  # E17
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            producer = await begun(peer)
            ask = node.broker.leaders.write_markers
            assert await ask(NAME, end_of(producer, coordinator_epoch=3)) is True
            assert await ask(NAME, end_of(producer, coordinator_epoch=2)) is False
            assert partition_of(node, "t").log.log_end_offset == 2

    asyncio.run(scenario())


def test_markers_are_to_be_asked_for_again_where_the_disk_fails(world: World) -> None:  # D2
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            producer = await begun(peer)
            world.disk.failing_syncs = 1
            ask = node.broker.leaders.write_markers
            assert await ask(NAME, end_of(producer)) is False
            assert partition_of(node, "t").failure is not None
            assert await ask(NAME, end_of(producer)) is False

    asyncio.run(scenario())


def test_who_asked_for_markers_may_be_gone_when_they_are_committed(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            producer = await begun(peer)
            world.disk.hold("t-0")
            result = asyncio.ensure_future(
                node.broker.leaders.write_markers(NAME, end_of(producer))
            )
            await until(lambda: world.disk.waiting, "the flusher syncs")
            result.cancel()
            world.disk.release()
            await settled(node, "t")
            assert node.failure() is None
            assert (await peer.produce("t", batch("b"))).base_offset == 2

    asyncio.run(scenario())


# -- verification ------------------------------------------------------------------------------


def test_a_version_1_producer_is_verified_and_nothing_is_added(world: World) -> None:  # E14
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            producer = await begun(peer)
            (coordinator,) = node.transactions.loaded()
            end = coordinator.partition.log.log_end_offset
            asked = [OTHER, NAME]
            found = await node.broker.leaders.verify(
                ID, identity(producer), asked, ClientVersion.V1
            )
            expected = {OTHER: ErrorCode.TRANSACTION_ABORTABLE, NAME: ErrorCode.NONE}
            assert found.errors == expected
            stranger = ProducerIdAndEpoch(ProducerId(999), ProducerEpoch(0))
            found = await node.broker.leaders.verify(ID, stranger, [NAME], ClientVersion.V1)
            assert found.errors == {NAME: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
            assert coordinator.partition.log.log_end_offset == end

    asyncio.run(scenario())


def test_a_version_2_producer_is_answered_once_its_partitions_are_durable(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", partitions=2)
            producer = Producer2(peer)
            assert await producer.init() is ErrorCode.NONE
            world.disk.hold(TRANSACTION_TOPIC)
            verification = asyncio.ensure_future(
                node.broker.leaders.verify(ID, identity(producer), [NAME, OTHER], ClientVersion.V2)
            )
            await until(lambda: world.disk.waiting, "the coordinator's log is synced")
            assert not verification.done()
            world.disk.release()
            assert (await verification).errors == {NAME: ErrorCode.NONE, OTHER: ErrorCode.NONE}
            (coordinator,) = node.transactions.loaded()
            found = coordinator.shard.describe(ID)
            assert found is not None
            assert set(found.partitions) == {NAME, OTHER}

    asyncio.run(scenario())


def test_an_attempt_of_a_versioned_transaction_is_enlisted(world: World) -> None:  # V5
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", partitions=2)
            joined = await Run(peer).join()
            producer = ProducerIdAndEpoch(
                ProducerId(joined.producer_id), ProducerEpoch(joined.producer_epoch)
            )
            (coordinator,) = node.versioned.loaded()
            end = coordinator.partition.log.log_end_offset
            ask = node.broker.leaders.verify
            found = await ask(joined.transactional_id, producer, [NAME, OTHER], ClientVersion.V1)
            assert found.errors == {NAME: ErrorCode.NONE, OTHER: ErrorCode.NONE}
            assert coordinator.partition.log.high_watermark > end
            stranger = ProducerIdAndEpoch(ProducerId(999), ProducerEpoch(0))
            found = await ask(joined.transactional_id, stranger, [NAME], ClientVersion.V1)
            assert found.errors[NAME] is not ErrorCode.NONE

    asyncio.run(scenario())


async def ended_before_its_markers(world: World, peer: Peer) -> Producer2:
    """A version 2 producer whose transaction is decided; its marker waits for the disk."""
    await peer.create_topic("t", partitions=2)
    producer = Producer2(peer)
    assert await producer.init() is ErrorCode.NONE
    assert await producer.produce("t", "a") is ErrorCode.NONE
    world.disk.hold("t-0")
    assert await producer.end(commit=True) is ErrorCode.NONE
    return producer


def test_a_first_write_waits_for_the_markers_of_the_last_transaction(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            producer = await ended_before_its_markers(world, peer)
            verification = asyncio.ensure_future(
                node.broker.leaders.verify(ID, identity(producer), [OTHER], ClientVersion.V2)
            )
            await settle()
            assert not verification.done()
            world.disk.release()
            assert (await verification).errors == {OTHER: ErrorCode.NONE}

    asyncio.run(scenario())


def test_a_first_write_waits_no_longer_than_a_client_would(
    world: World,
) -> None:
    async def scenario() -> None:
        async with world.node(markers_wait_s=0.0) as node, Peer.of(node) as peer:
            producer = await ended_before_its_markers(world, peer)
            found = await node.broker.leaders.verify(
                ID, identity(producer), [OTHER], ClientVersion.V2
            )
            assert found.errors == {OTHER: ErrorCode.CONCURRENT_TRANSACTIONS}
            world.disk.release()

    asyncio.run(scenario())


def test_who_waits_for_markers_is_told_that_the_coordinator_is_gone(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            producer = await ended_before_its_markers(world, peer)
            verification = asyncio.ensure_future(
                node.broker.leaders.verify(ID, identity(producer), [OTHER], ClientVersion.V2)
            )
            await settle()
            (coordinator,) = node.transactions.loaded()
            coordinator.partition.fail(StorageError("full"))
            with pytest.raises(NotLeaderError, match="full"):
                await verification
            world.disk.release()

    asyncio.run(scenario())


# -- outcomes ----------------------------------------------------------------------------------


def test_a_listing_wins_then_a_commit_and_whom_nobody_knows_is_aborted(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            producer = await begun(peer)
            joined = await Run(peer).join()
            assert await Run(peer).write(joined, "v") is ErrorCode.NONE
            versioned = ProducerIdAndEpoch(
                ProducerId(joined.producer_id), ProducerEpoch(joined.producer_epoch)
            )
            outcomes = await node.broker.leaders.outcomes([])
            assert outcomes.of(identity(producer), NAME) is TransactionOutcome.LISTED
            assert outcomes.of(versioned, NAME) is TransactionOutcome.LISTED
            assert outcomes.of(identity(producer), OTHER) is TransactionOutcome.ABORT
            stranger = ProducerIdAndEpoch(ProducerId(999), ProducerEpoch(0))
            assert outcomes.of(stranger, NAME) is TransactionOutcome.ABORT
            world.disk.hold("t-0/")  # the ends stay outstanding: a complete version is forgotten
            assert await producer.end(commit=True) is ErrorCode.NONE
            assert await Run(peer).commit(joined) is ErrorCode.NONE
            outcomes = await node.broker.leaders.outcomes([])
            assert outcomes.of(identity(producer), OTHER) is TransactionOutcome.COMMIT
            assert outcomes.of(versioned, OTHER) is TransactionOutcome.COMMIT
            world.disk.release()

    asyncio.run(scenario())


def test_outcomes_are_told_once_all_that_was_decided_is_committed(world: World) -> None:  # E16
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            producer = await begun(peer)
            world.disk.hold(TRANSACTION_TOPIC)
            adding = asyncio.ensure_future(producer.add("t", 1))
            await until(lambda: world.disk.waiting, "the coordinator's log is synced")
            asked = asyncio.ensure_future(node.broker.leaders.outcomes([]))
            await settle()
            assert not asked.done()
            world.disk.release()
            assert (await asked).of(identity(producer), OTHER) is TransactionOutcome.LISTED
            assert await adding is ErrorCode.NONE

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["transactions", "versioned"])
def test_outcomes_are_not_used_once_a_shard_is_dropped(world: World, kind: str) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            producer = await begun(peer)
            await Run(peer).join()
            outcomes = await node.broker.leaders.outcomes([])
            runtime = getattr(node, kind)
            (loaded,) = runtime.loaded()
            runtime._unload(loaded)
            with pytest.raises(NotLeaderError, match="was unloaded"):
                outcomes.of(identity(producer), NAME)
            # Asked anew, the shard is loaded from its log.
            again = await node.broker.leaders.outcomes([])
            assert again.of(identity(producer), NAME) is TransactionOutcome.LISTED

    asyncio.run(scenario())


def test_outcomes_know_what_a_shard_has_begun_that_was_not_there_when_they_were_asked(
    world: World,
) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await begun(peer)
            outcomes = await node.broker.leaders.outcomes([])
            shards = node.transactions.partition_count
            assert partition_for(ELSEWHERE, shards) != partition_for(ID, shards)
            producer = ProducerIdAndEpoch(ProducerId(70), ProducerEpoch(0))
            await begin_elsewhere(node, producer)
            assert outcomes.of(producer, OTHER) is TransactionOutcome.LISTED

    asyncio.run(scenario())


async def begin_elsewhere(node: Node, producer: ProducerIdAndEpoch) -> None:
    """Begin a transaction on ``t-1`` whose coordinator is a shard that nothing used before."""
    now_ms = node.broker.clock.now_ms()
    await node.transactions.decide(
        ELSEWHERE,
        lambda shard, now: shard.init_producer_id(
            ELSEWHERE,
            60_000,
            NO_PRODUCER_ID,
            NO_PRODUCER_EPOCH,
            new_producer_id=producer.producer_id,
            wall_ms=now_ms,
        ),
    )
    found = await node.broker.leaders.verify(ELSEWHERE, producer, [OTHER], ClientVersion.V2)
    assert found.errors == {OTHER: ErrorCode.NONE}
