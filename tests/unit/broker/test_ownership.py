"""Claims over real sockets: what is granted, refused and ended (O1 to O6, O10)."""

import asyncio

import pytest

from fencelog.errors import ErrorCode
from fencelog.wire.messages.own import OwnRequest, OwnResource, OwnResponse
from fencelog.wire.messages.release_ownership import (
    ReleaseOwnershipRequest,
    ReleaseOwnershipResponse,
)
from tests.support.node import Peer, World, until
from tests.support.ownership import Claimant, closed, described, until_state


def errors(answer: OwnResponse) -> list[ErrorCode]:
    return [ErrorCode(each.error_code) for each in answer.resources]


async def test_a_free_resource_is_granted_and_a_lower_generation_is_refused(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:  # O1, O4, O6
        answer = await Claimant(one, holder="first").own(("a", 5), "b")
        assert (answer.error_code, answer.error_message) == (0, None)
        assert [(e.resource, e.generation, e.epoch) for e in answer.resources] == [
            ("a", 5, 1),
            ("b", 1, 1),
        ]
        assert answer.lease_ms == 30_000
        refused = await Claimant(two).own("free", ("a", 4))
        assert refused.error_code == ErrorCode.RESOURCE_OWNED
        assert errors(refused) == [ErrorCode.NONE, ErrorCode.RESOURCE_OWNED]
        in_the_way = refused.resources[1]
        assert (in_the_way.holder, in_the_way.generation, in_the_way.epoch) == ("first", 5, 1)
        assert "'first'" in in_the_way.error_message or "first" in in_the_way.error_message
        assert [each.resource for each in await described(two)] == ["a", "b"]


async def test_an_owner_is_severed_by_a_claim_with_its_generation(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:  # O1, O7
        first, second = Claimant(one), Claimant(two)
        await first.own(("a", 5))
        answer = await second.own(("a", 5))
        assert (answer.error_code, answer.resources[0].epoch) == (0, 2)
        await closed(one)
        assert (await second.renew()).error_code == 0


async def test_a_claim_ends_with_its_connection(world: World) -> None:
    async with world.node() as node, Peer.of(node) as two:
        async with Peer.of(node) as one:
            await Claimant(one).own("a")
        freed = await until_state(two, "a", "free")
        assert (freed.epoch, freed.generation) == (1, 1)
