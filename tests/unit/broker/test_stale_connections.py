"""A request on a connection that its client has given up (E14)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fencelog.broker.handlers.record_keys import RECORDS_AT_ONCE
from fencelog.broker.network.stale_connections import StaleConnections
from fencelog.errors import ErrorCode
from fencelog.types import ProducerEpoch, ProducerId
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from fencelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.groups import FAST, Member, committed
from tests.support.node import Peer, World, visible
from tests.support.transactions import ID, Worker, settled

PRODUCER = ProducerId(7)
EPOCH = ProducerEpoch(3)
CLOSED = (ConnectionResetError, asyncio.IncompleteReadError)


def taken(
    newest: StaleConnections, producer: ProducerId, epoch: ProducerEpoch, key: ApiKey, number: int
) -> bool:
    """Whether a request is not refused for its connection; it is accepted then."""
    if newest.is_stale(producer, epoch, key, number):
        return False
    newest.accepted(producer, epoch, key, number)
    return True


def test_a_connection_that_is_older_than_the_newest_is_not_admitted() -> None:  # E14
    newest = StaleConnections()
    assert taken(newest, PRODUCER, EPOCH, ApiKey.END_TXN, 1)
    assert taken(newest, PRODUCER, EPOCH, ApiKey.END_TXN, 4)
    assert taken(newest, PRODUCER, EPOCH, ApiKey.END_TXN, 4)
    assert newest.is_stale(PRODUCER, EPOCH, ApiKey.END_TXN, 1)
    assert newest.is_stale(PRODUCER, EPOCH, ApiKey.END_TXN, 3)
    assert taken(newest, PRODUCER, EPOCH, ApiKey.END_TXN, 5)


def test_each_kind_of_request_and_each_producer_has_a_newest_of_its_own() -> None:  # E14
    newest = StaleConnections()
    assert taken(newest, PRODUCER, EPOCH, ApiKey.END_TXN, 4)
    assert taken(newest, PRODUCER, EPOCH, ApiKey.PRODUCE, 1)
    assert taken(newest, ProducerId(8), EPOCH, ApiKey.END_TXN, 1)


def test_a_connection_that_was_replaced_for_one_kind_of_request_is_replaced_for_all() -> None:
    newest = StaleConnections()  # E14
    assert taken(newest, PRODUCER, EPOCH, ApiKey.END_TXN, 1)
    assert taken(newest, PRODUCER, EPOCH, ApiKey.PRODUCE, 2)
    assert taken(newest, PRODUCER, EPOCH, ApiKey.END_TXN, 3)
    assert newest.is_stale(PRODUCER, EPOCH, ApiKey.TXN_OFFSET_COMMIT, 1)
    assert taken(newest, PRODUCER, EPOCH, ApiKey.TXN_OFFSET_COMMIT, 2)
    assert taken(newest, PRODUCER, EPOCH, ApiKey.PRODUCE, 2)
    assert taken(newest, PRODUCER, ProducerEpoch(4), ApiKey.TXN_OFFSET_COMMIT, 1)


def test_a_producer_that_always_reconnects_is_followed_all_the_same() -> None:
    newest = StaleConnections()  # E14
    for number in range(100):
        assert taken(newest, PRODUCER, EPOCH, ApiKey.END_TXN, number)
    assert newest.is_stale(PRODUCER, EPOCH, ApiKey.PRODUCE, 98)
    assert taken(newest, PRODUCER, EPOCH, ApiKey.PRODUCE, 99)


def test_a_newer_epoch_begins_anew_and_an_older_one_is_left_to_its_fence() -> None:  # E2, E14
    newest = StaleConnections()
    assert taken(newest, PRODUCER, EPOCH, ApiKey.END_TXN, 4)
    assert taken(newest, PRODUCER, ProducerEpoch(4), ApiKey.END_TXN, 2)
    assert taken(newest, PRODUCER, EPOCH, ApiKey.END_TXN, 1)
    assert newest.is_stale(PRODUCER, ProducerEpoch(4), ApiKey.END_TXN, 1)


def test_no_more_producers_are_followed_than_allowed_and_the_busy_ones_stay() -> None:
    newest = StaleConnections(producers_max=2)
    for number in range(100):
        assert taken(newest, PRODUCER, EPOCH, ApiKey.END_TXN, 200)
        assert taken(newest, ProducerId(1000 + number), EPOCH, ApiKey.PRODUCE, number)
        assert len(newest) <= 2
    assert newest.is_stale(PRODUCER, EPOCH, ApiKey.END_TXN, 199)


def test_an_accepted_request_that_waited_does_not_make_an_old_connection_the_newest() -> None:
    newest = StaleConnections()  # E14
    assert not newest.is_stale(PRODUCER, EPOCH, ApiKey.END_TXN, 1)
    newest.accepted(PRODUCER, EPOCH, ApiKey.END_TXN, 4)
    newest.accepted(PRODUCER, EPOCH, ApiKey.END_TXN, 1)
    assert newest.is_stale(PRODUCER, EPOCH, ApiKey.END_TXN, 1)
    assert not newest.is_stale(PRODUCER, EPOCH, ApiKey.END_TXN, 4)


async def two_workers(old: Peer, new: Peer) -> tuple[Worker, Worker]:
    """One producer on two connections: the second was opened later."""
    await old.create_topic("t")
    worker, again = Worker(old), Worker(new)
    await worker.init()
    again.producer_id, again.epoch = worker.producer_id, worker.epoch
    return worker, again


def short_and_long(worker: Worker) -> tuple[bytes, bytes]:
    """A producer's first two writes; the second needs more than one time slice."""
    record = RecordToWrite(key=b"k", value=b"v", timestamp_ms=1000)
    short, long = (
        build_batch(
            [record] * count,
            producer_id=worker.producer_id,
            producer_epoch=worker.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        for count, sequence in ((1, 0), (RECORDS_AT_ONCE + 1, 1))
    )
    return short, long


@pytest.mark.parametrize("commit", [True, False])
async def test_an_end_from_an_old_connection_does_not_end_the_next_transaction(
    world: World, commit: bool
) -> None:  # E14
    async with world.node() as node, Peer.of(node) as old, Peer.of(node) as new:
        held, worker = await two_workers(old, new)
        for value in ("a", "b"):
            await worker.add("t", 0)
            assert await worker.produce("t", value) is ErrorCode.NONE
            if value == "b":
                with pytest.raises(CLOSED):
                    await held.end(commit=commit)
            assert await worker.end(commit=True) is ErrorCode.NONE
            await settled(node, "t")
        assert [value for _, value in visible(await new.fetch("t"))] == ["a", "b"]


async def test_a_write_from_an_old_connection_does_not_reach_the_next_transaction(
    world: World,
) -> None:  # E14
    async with world.node() as node, Peer.of(node) as old, Peer.of(node) as new:
        held, worker = await two_workers(old, new)
        await worker.add("t", 0)
        assert await worker.produce("t", "a") is ErrorCode.NONE
        assert await worker.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        await worker.add("t", 0)
        held.sequence = worker.sequence  # The worst case: its number is the one that is due.
        with pytest.raises(CLOSED):
            await held.produce("t", "late")
        assert await worker.produce("t", "b") is ErrorCode.NONE
        assert await worker.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        assert [value for _, value in visible(await new.fetch("t"))] == ["a", "b"]


async def test_a_long_write_to_a_compacted_topic_from_an_old_connection_is_not_taken_either(
    world: World,
) -> None:  # E14
    async with world.node() as node, Peer.of(node) as old, Peer.of(node) as new:
        _, worker = await two_workers(old, new)
        await new.create_topic("c", cleanup_policy="compact")
        short, long = short_and_long(worker)
        await worker.add("c", 0)
        assert (await new.produce("c", short, transactional_id=ID)).error is ErrorCode.NONE
        with pytest.raises(CLOSED):
            await old.produce("c", long, transactional_id=ID)


async def test_a_long_write_that_a_newer_connection_overtakes_is_not_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # E14
    async with world.node() as node, Peer.of(node) as old, Peer.of(node) as new:
        worker, _ = await two_workers(old, new)
        await new.create_topic("c", cleanup_policy="compact")
        await worker.add("c", 0)
        short, long = short_and_long(worker)
        turn = node.broker.time_slices.next
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def held() -> None:
            begun.set()
            await go_on.wait()
            await turn()

        monkeypatch.setattr(node.broker.time_slices, "next", held)
        old.send_produce("c", long, transactional_id=ID)
        await begun.wait()
        # Its records are being looked through, and a newer connection writes.
        assert (await new.produce("c", short, transactional_id=ID)).error is ErrorCode.NONE
        go_on.set()
        with pytest.raises(CLOSED):
            await old.produced()


async def test_partitions_and_offsets_from_an_old_connection_are_not_taken_either(
    world: World,
) -> None:  # E14
    async with (
        world.node(**FAST) as node,
        Peer.of(node) as old,
        Peer.of(node) as older,
        Peer.of(node) as new,
    ):
        held, worker = await two_workers(old, new)
        also_held = Worker(older)
        also_held.producer_id, also_held.epoch = held.producer_id, held.epoch
        await worker.add("t", 0)
        await worker.add_offsets()
        assert await worker.commit_offset(5) is ErrorCode.NONE
        with pytest.raises(CLOSED):
            await held.commit_offset(3)
        with pytest.raises(CLOSED):
            await also_held.add("t", 0)
        assert await worker.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        assert await committed(new) == 5


async def test_offsets_of_an_aborted_transaction_from_an_old_connection_are_not_the_next_one_s(
    world: World,
) -> None:  # E14
    async with world.node(**FAST) as node, Peer.of(node) as old, Peer.of(node) as new:
        held, worker = await two_workers(old, new)
        await held.add("t", 0)
        await held.add_offsets()
        assert await worker.end(commit=False) is ErrorCode.NONE
        await worker.add("t", 0)
        await worker.add_offsets()
        with pytest.raises(CLOSED):
            await held.commit_offset(3)
        assert await worker.end(commit=True) is ErrorCode.NONE
        assert await committed(new) == -1


async def test_a_client_may_use_a_connection_of_its_own_for_each_kind_of_request(
    world: World,
) -> None:  # E14
    async with world.node() as node, Peer.of(node) as old, Peer.of(node) as new:
        writer, manager = await two_workers(old, new)
        for _ in range(3):
            assert await manager.add("t", 0) is ErrorCode.NONE
            assert await writer.produce("t", "x") is ErrorCode.NONE
            assert await manager.end(commit=True) is ErrorCode.NONE


async def refused_end(stranger: Worker) -> ErrorCode:
    request = EndTxnRequest(
        transactional_id="another",
        producer_id=stranger.producer_id,
        producer_epoch=stranger.epoch,
        committed=False,
    )
    answer = await stranger.peer.ask(request, 3, EndTxnResponse)
    return ErrorCode(answer.error_code)


async def refused_offsets(stranger: Worker) -> ErrorCode:
    member = Member(stranger.peer)
    member.member_id, member.generation = "no member", 3
    return await stranger.commit_offset(3, member)


async def refused_write(stranger: Worker) -> ErrorCode:
    stranger.sequence = 99
    return await stranger.produce("t", "x")


async def refused_addition_of_offsets(stranger: Worker) -> ErrorCode:
    request = AddOffsetsToTxnRequest(
        transactional_id=ID,
        producer_id=stranger.producer_id,
        producer_epoch=stranger.epoch,
        group_id="",
    )
    answer = await stranger.peer.ask(request, 3, AddOffsetsToTxnResponse)
    return ErrorCode(answer.error_code)


REFUSED: dict[str, Callable[[Worker], Awaitable[ErrorCode]]] = {
    "AddPartitionsToTxn": lambda stranger: stranger.add("no such topic", 0),
    "AddOffsetsToTxn": refused_addition_of_offsets,
    "TxnOffsetCommit": refused_offsets,
    "Produce": refused_write,
    "EndTxn": refused_end,
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("newer_by", [0, 1], ids=["its epoch", "a later epoch"])
async def test_a_refused_request_on_a_newer_connection_replaces_none(
    world: World, kind: str, newer_by: int
) -> None:  # E14
    async with world.node(**FAST) as node, Peer.of(node) as old, Peer.of(node) as new:
        worker, stranger = await two_workers(old, new)
        await worker.add("t", 0)
        await worker.add_offsets()
        assert await worker.produce("t", "a") is ErrorCode.NONE
        assert await worker.commit_offset(5) is ErrorCode.NONE
        stranger.epoch += newer_by
        assert await REFUSED[kind](stranger) is not ErrorCode.NONE
        assert await worker.add("t", 0) is ErrorCode.NONE
        assert await worker.add_offsets() is ErrorCode.NONE
        assert await worker.produce("t", "b") is ErrorCode.NONE
        assert await worker.commit_offset(6) is ErrorCode.NONE
        assert await worker.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        assert [value for _, value in visible(await old.fetch("t"))] == ["a", "b"]


async def test_a_request_of_a_later_epoch_that_is_refused_forgets_no_connection(
    world: World,
) -> None:  # E14
    async with world.node() as node, Peer.of(node) as old, Peer.of(node) as new:
        held, worker = await two_workers(old, new)
        await worker.add("t", 0)
        assert await worker.produce("t", "a") is ErrorCode.NONE
        assert await worker.end(commit=True) is ErrorCode.NONE
        await worker.add("t", 0)
        worker.epoch += 1
        assert await worker.end(commit=True) is not ErrorCode.NONE
        with pytest.raises(CLOSED):
            await held.end(commit=False)
