"""What a broker is done with is freed at once: nothing of it is left to the garbage collector.

A full collection stops the loop for a time that grows with the number of partitions, so a broker
avoids them. Objects that have lived long must not be in a cycle of references when they end.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from fencelog.broker.fetching.sessions import FINAL_EPOCH
from fencelog.node import Node
from fencelog.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tests.support.frozen import freeze_all
from tests.support.groups import FAST, Member
from tests.support.node import Peer, World, batch, delete, until
from tests.support.ownership import Claimant
from tests.support.transactions import Producer
from tests.unit.broker.test_fetch_sessions import asking, begun, fetch
from tests.unit.broker.test_fetch_waits import waiting


@pytest.fixture(autouse=True)
def _only_of_this_test() -> None:
    """Exempt what is there before."""
    freeze_all()


@asynccontextmanager
async def _nothing_to_collect() -> AsyncIterator[None]:
    """Fail if the block leaves cycles with objects of the broker in them."""
    gc.collect()
    gc.disable()
    try:
        yield
        await asyncio.sleep(0)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [each for each in gc.garbage if type(each).__module__.startswith("fencelog.")]
        assert not left, sorted({type(each).__qualname__ for each in left})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def _disconnects(node: Node) -> None:
    async with Peer.of(node) as peer:
        await peer.produce("t", batch("a"))


async def _disconnects_while_a_fetch_waits(node: Node) -> None:
    async with Peer.of(node) as peer:
        task = await waiting(node, peer)
    task.cancel()
    await asyncio.wait([task])


async def _fetches_in_a_session(node: Node) -> None:
    async with Peer.of(node) as peer:
        session = await begun(peer, {0: 0})
        await fetch(peer, asking(session, FINAL_EPOCH, {}))


async def _joins_a_group_and_leaves(node: Node) -> None:
    async with Peer.of(node) as peer:
        member = Member(peer)
        await member.join()
        await member.lead()
        await member.commit(1)
        await member.leave()


async def _joins_a_group_and_disconnects(node: Node) -> None:
    async with Peer.of(node) as first, Peer.of(node) as second:
        one, two = Member(first), Member(second)
        await one.join(session_ms=200)
        await one.lead()
        two.send_join(version=3, session_ms=200)
        await until(lambda: _busy(node) == 1, "the second one waits for the first")
    async with Peer.of(node) as peer:
        listed = None
        while listed != "Empty":  # until both sessions have timed out
            answer = await peer.ask(ListGroupsRequest(), 4, ListGroupsResponse)
            listed = answer.groups[0].group_state


async def _writes_a_transaction(node: Node) -> None:
    async with Peer.of(node) as peer:
        producer = Producer(peer)
        await producer.init()
        for commit in (True, False):
            await producer.add("t", 0)
            await producer.produce("t", "x")
            await producer.end(commit=commit)


async def _creates_a_topic_and_deletes_it(node: Node) -> None:
    async with Peer.of(node) as peer:
        await peer.create_topic("other", 3)
        await peer.produce("other", batch("a"))
        await delete(peer, "other")


async def _is_severed_with_requests_in_flight(node: Node) -> None:
    async with Peer.of(node) as claiming, Peer.of(node) as attached, Peer.of(node) as next_one:
        first = Claimant(claiming)
        await first.own("t/0", name="n")
        await first.attach(attached)
        attached.send_produce("t", batch("a"))
        fetching = asyncio.create_task(attached.fetch("t", min_bytes=1 << 20, max_wait_ms=60_000))
        await Claimant(next_one).own("t/0", name="n")
        await asyncio.wait([fetching])
        fetching.exception()


def _busy(node: Node) -> int:
    return sum(each.busy for each in node.server._connections)


@pytest.mark.parametrize(
    "what",
    [
        _disconnects,
        _disconnects_while_a_fetch_waits,
        _fetches_in_a_session,
        _joins_a_group_and_leaves,
        _joins_a_group_and_disconnects,
        _writes_a_transaction,
        _creates_a_topic_and_deletes_it,
        _is_severed_with_requests_in_flight,
    ],
)
async def test_a_client_leaves_nothing_to_the_garbage_collector(
    world: World, what: Callable[[Node], Awaitable[None]]
) -> None:
    async with world.node(**FAST) as node:
        async with Peer.of(node) as peer:
            await peer.create_topic("t")
        await what(node)  # what is made once, by the first one
        async with _nothing_to_collect():
            await what(node)
            await until(lambda: not node.server._connections, "the broker has seen it leave")
