"""Bugs that Kafka's own coordinator and logs had, one test each, through a whole node."""

import asyncio
from pathlib import Path

import pytest

from fencelog.coordination.transaction.state import TxnState
from fencelog.errors import ErrorCode
from tests.support.node import Peer, World, until, visible
from tests.support.transactions import Producer, partition_of, settled
from tests.support.version_2 import Producer2, age


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_fencing_at_the_last_epoch_takes_one_epoch_and_not_two(world: World) -> None:
    """KAFKA-19367: the fence and the abort each took one, from 32766 past the end of an int16."""

    async def scenario() -> None:  # E7
        async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
            await peer.create_topic("t")
            zombie, successor = Producer2(peer), Producer2(other)
            await zombie.init()
            await age(node, 32766)
            zombie.epoch = 32766
            assert await zombie.produce("t", "void") is ErrorCode.NONE
            assert await successor.init() is ErrorCode.NONE
            assert successor.producer_id != zombie.producer_id
            assert successor.epoch == 0
            (state,) = partition_of(node, "t").log.producers()
            assert state.producer_epoch == 32767
            assert (await zombie.ask_to_end(commit=False))[
                0
            ] is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            assert await successor.produce("t", "seen") is ErrorCode.NONE
            assert await successor.end(commit=True) is ErrorCode.NONE
            await settled(node, "t")
            assert [value for _, value in visible(await peer.fetch("t"))] == ["seen"]

    asyncio.run(scenario())


@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize("ahead", [-1, 1])
def test_an_end_of_any_other_epoch_is_refused(world: World, version: int, ahead: int) -> None:
    """KAFKA-9600: an EndTxn of an epoch that nobody has was accepted."""

    async def scenario() -> None:  # E2
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            producer = Producer2(peer)
            await producer.init()
            await producer.init()
            await producer.produce("t", "a")
            producer.epoch += ahead
            error, _ = await producer.ask_to_end(commit=True, version=version)
            assert error is ErrorCode.PRODUCER_FENCED
            assert len(partition_of(node, "t").log.open_transactions()) == 1

    asyncio.run(scenario())


def test_an_answer_from_before_a_marker_does_not_count_in_the_next_transaction(
    world: World,
) -> None:
    """KAFKA-14884: verified in one transaction, appended in the next (ABA)."""

    async def scenario() -> None:  # E14
        async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
            await peer.create_topic("t")
            await peer.create_topic("u")
            producer, late = Producer(peer), Producer(other)
            await producer.init()
            await producer.add("t", 0)
            late.producer_id, late.epoch = producer.producer_id, producer.epoch
            # Its question is asked and not answered: the answer waits for what is being stored.
            world.disk.hold("__transaction_state")
            adding = asyncio.ensure_future(producer.add("u", 0))
            await until(lambda: world.disk.waiting > 0, "the enlistment's sync waits")
            writing = asyncio.ensure_future(late.produce("t", "late"))
            log = partition_of(node, "t").log
            await until(lambda: bool(log._guards), "the late write is being verified")
            world.disk.release()
            # It is answered and appended, or void: never appended after this marker.
            assert await adding is ErrorCode.NONE
            assert await producer.end(commit=False) is ErrorCode.NONE
            await settled(node, "t")
            assert await producer.add("t", 0) is ErrorCode.NONE
            assert await producer.end(commit=True) is ErrorCode.NONE
            await writing
            await settled(node, "t")
            assert visible(await peer.fetch("t")) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("version", [9, 12])
def test_a_fenced_producer_learns_of_its_epoch_before_the_state_of_anything(
    world: World, version: int
) -> None:
    """KAFKA-19690: INVALID_TXN_STATE, which is fatal, where INVALID_PRODUCER_EPOCH was due."""

    async def scenario() -> None:  # E2
        async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
            await peer.create_topic("t")
            zombie, successor = Producer2(peer), Producer2(other)
            await zombie.init()
            await zombie.produce("t", "a")
            await successor.init()
            for _ in range(2):  # between transactions, and inside one of its successor's
                late = await zombie.produce("t", "late", version=version)
                assert late is ErrorCode.INVALID_PRODUCER_EPOCH
                assert (await zombie.ask_to_end(commit=True))[0] is ErrorCode.PRODUCER_FENCED
                await successor.produce("t", "b")

    asyncio.run(scenario())


def test_a_write_that_arrives_after_the_end_of_its_transaction_leaves_nothing_hanging(
    world: World,
) -> None:
    """KAFKA-18957: it began a transaction that nobody would end, and readers stood still."""

    async def scenario() -> None:  # E10, E14
        async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
            await peer.create_topic("t", partitions=2)
            producer, late = Producer2(peer), Producer2(other)
            await producer.init()
            late.producer_id, late.epoch = producer.producer_id, producer.epoch
            await producer.produce("t", "a")
            late.sequence = producer.sequence
            assert await producer.end(commit=True) is ErrorCode.NONE
            assert await late.produce("t", "late") is ErrorCode.INVALID_PRODUCER_EPOCH
            await settled(node, "t")
            late.sequence = 0
            elsewhere = await late.produce("t", "late", partition=1)
            assert elsewhere is ErrorCode.INVALID_PRODUCER_EPOCH
            for partition in (0, 1):
                found = await peer.fetch("t", partition=partition)
                assert found.last_stable_offset == found.high_watermark
            (loaded,) = node.broker.transactions.loaded()
            (known,) = loaded.shard.transactions()
            assert known.state is TxnState.COMPLETE_COMMIT

    asyncio.run(scenario())


def test_a_delayed_end_does_not_end_the_next_transaction(world: World) -> None:
    """KAFKA-17754: it committed half of the next one, or aborted what would be committed."""

    async def scenario() -> None:  # E14
        async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
            await peer.create_topic("t")
            producer, late = Producer2(peer), Producer2(other)
            await producer.init()
            late.producer_id, late.epoch = producer.producer_id, producer.epoch
            await producer.produce("t", "a")
            assert await producer.end(commit=True) is ErrorCode.NONE
            await settled(node, "t")
            assert await producer.produce("t", "b") is ErrorCode.NONE
            for commit in (True, False):
                error, _ = await late.ask_to_end(commit=commit)
                assert error is ErrorCode.PRODUCER_FENCED
            assert await producer.produce("t", "c") is ErrorCode.NONE
            assert await producer.end(commit=True) is ErrorCode.NONE
            await settled(node, "t")
            assert [value for _, value in visible(await peer.fetch("t"))] == ["a", "b", "c"]

    asyncio.run(scenario())
