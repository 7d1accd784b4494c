"""The budget for responses: what counts, who waits, and that nobody is kept out by slow readers."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise
from unittest.mock import Mock

import pytest

from fencelog.broker.network.outgoing import Outgoing
from fencelog.broker.network.response_budget import (
    GRANT_BYTES_MIN,
    GRANTS_PER_ITERATION_BYTES,
    SHARE,
    SMALL_BYTES,
    UNCOUNTED_BYTES,
    QueuedResponses,
    ResponseBudget,
    held_bytes,
)
from fencelog.types import Instant
from fencelog.wire import hot
from fencelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.node import DEADLINE_S, Peer, World, batch, until

MIB = 1 << 20
BUDGET = 8 * MIB


def test_a_view_counts_with_the_whole_buffer_that_it_keeps_and_only_once() -> None:
    whole = bytes(1000)
    views = [memoryview(whole)[:10], memoryview(whole)[20:30]]
    assert held_bytes([b"head", *views, bytearray(5)], 29) == 4 + 1000 + 5
    assert held_bytes([b"head", bytearray(5)], 9) == 0


def test_a_small_response_of_plain_bytes_does_not_count() -> None:
    assert held_bytes([bytes(UNCOUNTED_BYTES)], UNCOUNTED_BYTES) == 0
    assert held_bytes([bytes(UNCOUNTED_BYTES + 1)], UNCOUNTED_BYTES + 1) == UNCOUNTED_BYTES + 1


async def test_the_least_is_granted_where_just_that_is_free() -> None:
    budget = ResponseBudget(BUDGET)
    assert await QueuedResponses(budget).grant(BUDGET - MIB, least=BUDGET - MIB) == BUDGET - MIB
    late = asyncio.create_task(QueuedResponses(budget).grant(2 * MIB, least=MIB + 1))
    await asyncio.sleep(0)
    assert budget.free == MIB
    late.cancel()
    await asyncio.wait([late])
    async with asyncio.timeout(DEADLINE_S):
        assert await QueuedResponses(budget).grant(2 * MIB, least=MIB) == MIB


async def test_who_wants_nothing_waits_for_nothing_and_keeps_nobody_waiting() -> None:
    """A response about a group without offsets, say, behind one that is not read yet."""
    budget = ResponseBudget(BUDGET)
    slow = QueuedResponses(budget)
    slow.queue(MIB)
    async with asyncio.timeout(DEADLINE_S):
        assert await slow.grant(0, least=0) == 0
        assert await QueuedResponses(budget).grant(MIB) == MIB
    assert budget.free == BUDGET - 2 * MIB


async def test_a_grant_shrinks_with_what_is_free_but_not_below_one_batch() -> None:
    budget = ResponseBudget(BUDGET)
    grants = []
    while budget.free >= GRANT_BYTES_MIN:
        grants.append(await QueuedResponses(budget).grant(100 * MIB))
    assert grants[0] == BUDGET // SHARE
    assert grants == sorted(grants, reverse=True)
    assert grants[-1] == GRANT_BYTES_MIN


async def test_what_is_granted_in_one_iteration_of_the_loop_is_limited() -> None:
    budget = ResponseBudget(100 * MIB)
    tasks = [
        asyncio.create_task(QueuedResponses(budget).grant(3 * MIB, least=MIB)) for _ in range(10)
    ]
    free = []
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        free.append(budget.free)
    granted = [before - after for before, after in pairwise([100 * MIB, *free])]
    assert max(granted) <= GRANTS_PER_ITERATION_BYTES + 3 * MIB
    assert sum(granted) == 30 * MIB


async def test_grants_are_given_in_order_of_arrival_whatever_their_size() -> None:
    budget = ResponseBudget(BUDGET)
    first = QueuedResponses(budget)
    first.queue(BUDGET)
    order: list[str] = []

    async def ask(name: str, wanted: int) -> None:
        await QueuedResponses(budget).grant(wanted, least=wanted)
        order.append(name)

    tasks = [asyncio.create_task(ask("large", 6 * MIB)), asyncio.create_task(ask("medium", MIB))]
    await asyncio.sleep(0)
    first.sent(2 * MIB)  # enough for the second, which waits for its predecessor
    await asyncio.sleep(0)
    assert order == []
    first.sent(6 * MIB)
    await asyncio.wait(tasks)
    assert order == ["large", "medium"]


async def test_a_connection_with_nothing_queued_gets_a_small_response_at_once() -> None:
    budget = ResponseBudget(BUDGET)
    QueuedResponses(budget).queue(2 * BUDGET)
    modest = QueuedResponses(budget)
    assert modest.may_begin
    assert await modest.grant(SMALL_BYTES) == SMALL_BYTES
    assert not modest.may_begin


async def test_a_grant_that_does_not_come_in_time_is_nothing_and_blocks_nobody() -> None:
    budget = ResponseBudget(BUDGET)
    holder = QueuedResponses(budget)
    holder.queue(BUDGET)
    now = Instant(asyncio.get_running_loop().time())
    late = QueuedResponses(budget)
    assert await late.grant(MIB, now) == 0
    assert late.held == 0
    holder.close()
    assert await QueuedResponses(budget).grant(MIB) == MIB


async def test_a_deadline_is_for_others_to_read_not_for_the_turn_of_the_next_iteration() -> None:
    budget = ResponseBudget(100 * MIB)
    now = Instant(asyncio.get_running_loop().time())
    asked = [QueuedResponses(budget) for _ in range(30)]
    granted = asyncio.gather(*(each.grant(MIB, now) for each in asked))
    assert await granted == [MIB] * 30


async def test_who_is_late_gets_nothing_once_others_have_to_read_first() -> None:
    budget = ResponseBudget(100 * MIB)
    now = Instant(asyncio.get_running_loop().time())
    tasks = [
        asyncio.create_task(QueuedResponses(budget).grant(3 * MIB, now, least=3 * MIB))
        for _ in range(20)
    ]
    for _ in range(4):  # the deadline has passed, and some have their grant
        await asyncio.sleep(0)
    QueuedResponses(budget).queue(100 * MIB)
    granted = await asyncio.gather(*tasks)
    assert set(granted) == {3 * MIB, 0}
    assert granted == sorted(granted, reverse=True)


async def test_a_wait_that_is_cancelled_gives_its_turn_to_the_next() -> None:
    budget = ResponseBudget(BUDGET)
    holder = QueuedResponses(budget)
    holder.queue(BUDGET)
    gone, next_one = QueuedResponses(budget), QueuedResponses(budget)
    tasks = [asyncio.create_task(each.grant(MIB)) for each in (gone, next_one)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    gone.close()
    holder.close()
    assert await tasks[1] == MIB
    assert budget.free == BUDGET - MIB


def fetch_request(max_bytes: int, max_wait_ms: int = 0) -> bytes:
    asked = hot.FetchPartition(0, -1, 0, -1, max_bytes)
    topic = hot.FetchTopic("t", None, [asked])
    return hot.write_fetch_request(
        11, hot.FetchRequest(-1, max_wait_ms, 1, max_bytes, 0, 0, -1, [topic])
    )


async def filled(peer: Peer, batches: int) -> None:
    await peer.create_topic("t")
    for _ in range(batches):
        assert (await peer.produce("t", batch("x" * 900_000))).error == 0


async def test_readers_that_do_not_read_hold_no_more_than_the_budget(world: World) -> None:
    async with (
        world.node(queued_response_bytes_max=BUDGET) as node,
        AsyncExitStack() as stack,
        Peer.of(node) as writer,
    ):
        await filled(writer, 30)
        before = set(node.server._connections)
        peers = [await stack.enter_async_context(Peer.of(node)) for _ in range(40)]
        for peer in peers:
            peer._writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(12):  # the kernel takes the first ones
                peer.send(1, 11, fetch_request(32 * MIB, max_wait_ms=60_000))
        budget = node.server.responses
        await until(lambda: budget.is_scarce, "the budget is used up")
        held = sum(each.responses.held for each in node.server._connections)
        assert BUDGET - GRANT_BYTES_MIN < held <= BUDGET
        # Others are served: nothing of theirs is queued.
        assert (await writer.produce("t", batch("y"))).error == 0
        for peer in peers:
            peer._writer.close()
        await until(lambda: set(node.server._connections) == before, "they are gone")
        assert budget.free == BUDGET


async def test_fetches_that_wait_for_the_budget_are_answered_once_others_have_read(
    world: World,
) -> None:
    async with (
        world.node(queued_response_bytes_max=2 * MIB) as node,
        AsyncExitStack() as stack,
        Peer.of(node) as writer,
    ):
        await filled(writer, 3)
        peers = [await stack.enter_async_context(Peer.of(node)) for _ in range(20)]
        for peer in peers:
            peer.send(1, 11, fetch_request(2 * MIB, max_wait_ms=10_000))
        for peer in peers:
            answer = hot.read_fetch_response(await peer.answer(1, 11), 11)
            (records,) = answer.topics[0].partitions[0].records
            assert len(records) > 900_000


async def test_a_fetch_that_gets_no_budget_within_its_wait_is_answered_without_records(
    world: World,
) -> None:
    async with world.node(queued_response_bytes_max=BUDGET) as node, Peer.of(node) as peer:
        await filled(peer, 1)
        QueuedResponses(node.server.responses).queue(BUDGET)
        fetched = await peer.fetch("t", max_wait_ms=1)
        assert (fetched.error, fetched.high_watermark) == (0, 1)
        assert not fetched.records


async def test_metadata_of_everything_waits_for_the_budget(world: World) -> None:
    async with world.node(queued_response_bytes_max=BUDGET) as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=200)
        holder = QueuedResponses(node.server.responses)
        holder.queue(BUDGET)
        asked = MetadataRequest(topics=None)
        answer = asyncio.create_task(peer.ask(asked, 9, MetadataResponse))
        await until(lambda: node.server.responses._waiters, "it waits")
        assert not answer.done()
        holder.close()
        assert len((await answer).topics[0].partitions) == 200


async def test_pipelined_requests_go_on_one_by_one_while_the_budget_is_used_up(
    world: World,
) -> None:
    async with world.node(queued_response_bytes_max=BUDGET) as node, Peer.of(node) as peer:
        QueuedResponses(node.server.responses).queue(2 * BUDGET)
        for _ in range(50):
            peer.send(18, 0)
        for _ in range(50):
            assert (await peer.answer(18, 0))[:2] == b"\0\0"


def outgoing(unsent: int) -> tuple[Outgoing, Mock, Mock]:
    """A connection whose client has not read anything yet."""
    loop, transport = Mock(), Mock()
    loop.time.return_value = 100.0
    sending = Outgoing(ResponseBudget(BUDGET), loop)
    sending.open(transport)
    transport.write.side_effect = lambda _: sending.paused()
    transport.writelines.side_effect = lambda _: sending.paused()
    transport.get_write_buffer_size.return_value = unsent
    sending.queued.queue(unsent)
    sending.add([bytes(unsent - 4)], unsent - 4, unsent)
    sending.write()
    return sending, loop, transport


def test_a_client_that_reads_slowly_is_too_slow_only_while_others_wait() -> None:
    sending, _, transport = outgoing(4 * MIB)
    transport.get_write_buffer_size.return_value = 4 * MIB - 1
    assert sending.unread_s(Instant(130.0), scarce=False) == 0
    assert sending.unread_s(Instant(130.0), scarce=True) == 30
    transport.get_write_buffer_size.return_value = MIB
    assert sending.unread_s(Instant(131.0), scarce=True) == 0


def test_a_client_that_stopped_reading_is_known_by_when_it_read_last() -> None:
    sending, _, transport = outgoing(4 * MIB)
    assert sending.unread_s(Instant(110.0), scarce=False) == 10
    transport.get_write_buffer_size.return_value = 3 * MIB
    assert sending.unread_s(Instant(120.0), scarce=False) == 0
    assert sending.unread_s(Instant(150.0), scarce=False) == 30
    sending.resumed()
    assert sending.unread_s(Instant(160.0), scarce=False) == 0
    assert sending.queued.held == 0


@pytest.mark.parametrize("held", [0, 5])
def test_a_small_response_counts_once_it_waits_and_only_once(held: int) -> None:
    sending, _, _ = outgoing(4 * MIB)
    before = sending.queued.held
    sending.queued.queue(held)  # what was granted to it
    sending.add([b"12345678"], 8, held)
    sending.write()
    assert sending.queued.held == before + 4 + 8
    sending.resumed()
    assert sending.queued.held == 0


async def test_who_counts_in_a_reserve_does_not_wait_for_what_others_hold() -> None:
    budget = ResponseBudget(BUDGET)
    reserve = budget.reserve(2 * MIB)
    slow, broker = QueuedResponses(budget), QueuedResponses(budget)
    assert broker.is_scarce is False
    broker.queue(100)
    broker.move(reserve)
    slow.queue(budget.free)
    assert (slow.is_scarce, broker.is_scarce) == (True, False)
    async with asyncio.timeout(DEADLINE_S):
        assert await broker.grant(MIB) == MIB
    assert (budget.free, reserve.free) == (0, MIB - 100), "together no more than the whole"
    broker.close()
    slow.close()
    assert (budget.free, reserve.free) == (BUDGET - 2 * MIB, 2 * MIB)
