"""What a severed connection still does: nothing (O7, O9)."""

import asyncio
import gc

from fencelog.broker.coordinators.leaders import LocalLeaders
from fencelog.errors import ErrorCode
from fencelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from fencelog.wire.messages.own import OwnResponse
from tests.support.node import Peer, World, batch, delete, until, visible
from tests.support.ownership import Claimant, closed, described, until_state
from tests.support.transactions import Producer


async def values(peer: Peer, topic: str = "t") -> list[str]:
    return [value for _, value in visible(await peer.fetch(topic))]


async def test_a_grant_stands_in_the_partitions_log_before_it_is_answered(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as other:  # O9
        await other.create_topic("t")
        await other.produce("t", batch("before"))
        claimant = Claimant(one)
        answer = await claimant.own("t/0")
        assert answer.error_code == 0, answer.error_message
        assert answer.resources[0].fence_offset == 1
        assert (await one.produce("t", batch("of the owner"))).base_offset == 2
        assert node.logs.get("t", 0).log.owner(None).session == claimant.session


async def test_every_connection_of_a_preempted_owner_is_closed(world: World) -> None:
    async with (
        world.node() as node,
        Peer.of(node) as claiming,
        Peer.of(node) as attached,
        Peer.of(node) as stranger,
        Peer.of(node) as next_one,
    ):
        await stranger.create_topic("t")
        first = Claimant(claiming)
        await first.own("t/0")
        assert (await first.attach(attached)).error_code == 0
        assert (await attached.produce("t", batch("a"))).error == 0
        answer = await Claimant(next_one).own("t/0")
        assert answer.error_code == 0, answer.error_message
        await closed(claiming)
        await closed(attached)
        assert (await stranger.ask(ApiVersionsRequest(), 3, ApiVersionsResponse)).error_code == 0
        assert (await next_one.produce("t", batch("b"))).error == 0
