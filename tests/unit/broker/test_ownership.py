"""Claims over real sockets: what is granted, refused and ended (O1 to O6, O10)."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fencelog.coordination.ownership.shard import OwnershipShard
from fencelog.errors import ErrorCode
from fencelog.wire.messages.describe_ownership import (
    DescribeOwnershipRequest,
    DescribeOwnershipResponse,
)
from fencelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from fencelog.wire.messages.own import OwnResponse
from fencelog.wire.messages.watch_ownership import WatchOwnershipRequest, WatchOwnershipResponse
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


async def test_claims_wait_in_order_and_sever_nobody(world: World) -> None:
    async with world.node() as node, AsyncExitStack() as stack:  # O10
        peers = [await stack.enter_async_context(Peer.of(node)) for _ in range(4)]
        claimants = [Claimant(each, holder=str(number)) for number, each in enumerate(peers)]
        holder, *waiting, watcher = claimants
        await holder.own("a")
        for place, each in enumerate(waiting):
            answer = await each.own("a", claim_id="1", wait_ms=1)
            assert (answer.error_code, answer.place) == (ErrorCode.CLAIM_WAITING, place)
        for each in waiting:
            each.send_own("a", claim_id="1", wait_ms=30_000)
        (state,) = await described(watcher.peer, "a")
        assert (state.holder, state.waiting) == ("0", 2)
        await holder.release()
        assert (await waiting[0].owned()).resources[0].epoch == 2
        # Which holds it now: a repeated claim is answered with it.
        assert (await waiting[0].own("a", claim_id="1", wait_ms=1)).resources[0].epoch == 2
        await waiting[0].release()
        assert (await waiting[1].owned()).resources[0].epoch == 3


async def test_a_waiting_claim_is_gone_with_its_connection(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as last:  # O10
        holder = Claimant(one)
        await holder.own("a")
        async with Peer.of(node) as two:
            Claimant(two, holder="gone").send_own("a", claim_id="1", wait_ms=30_000)
            await until_waiting(last, 1)
        third = Claimant(last, holder="third")
        await until_waiting(last, 0)
        third.send_own("a", claim_id="1", wait_ms=30_000)
        await holder.release()
        assert (await third.owned()).error_code == 0
        assert (await described(last, "a"))[0].holder == "third"


async def test_a_silent_claimant_loses_its_place_and_one_that_asks_again_keeps_it(
    world: World,
) -> None:
    """Each request is answered in time to be repeated within the lease (O10)."""
    async with world.node() as node, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(Peer.of(node)) for _ in range(3)]
        holder, silent, alive = [Claimant(each) for each in peers]
        await holder.own("a")
        silent.send_own("a", claim_id="1", lease_ms=500, wait_ms=60_000)
        await until_waiting(holder.peer, 1)
        async with asyncio.timeout(10):
            answer = await alive.own("a", claim_id="1", lease_ms=1000, wait_ms=60_000)
            first = answer.session
            assert answer.error_code == ErrorCode.CLAIM_WAITING
            while answer.place:
                answer = await alive.own("a", claim_id="1", lease_ms=1000, wait_ms=60_000)
        assert answer.session == first
        assert (await described(holder.peer, "a"))[0].waiting == 1


async def test_a_waiting_claim_can_be_given_up(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:
        await Claimant(one).own("a")
        second = Claimant(two)
        waits = await second.own("a", claim_id="1", wait_ms=1)
        second.session = waits.session or ""
        assert (await second.release()).released == []
        assert (await described(two, "a"))[0].waiting == 0
        assert (await second.own("b")).error_code == 0


async def until_waiting(peer: Peer, count: int) -> None:
    async with asyncio.timeout(10):
        while (await described(peer, "a"))[0].waiting != count:
            pass


async def test_one_connection_has_one_claim(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:  # O7
        first, second = Claimant(one), Claimant(two)
        await first.own("a")
        again = await first.own("b")
        assert again.error_code == ErrorCode.INVALID_REQUEST
        assert "another connection" in (again.error_message or "")
        await second.own("b")
        assert (await first.attach(two)).error_code == ErrorCode.INVALID_REQUEST
        async with Peer.of(node) as attached:
            assert (await first.attach(attached)).error_code == 0
            assert (await first.attach(attached)).error_code == 0
            assert (await second.attach(attached)).error_code == ErrorCode.INVALID_REQUEST
            assert (await Claimant(attached).own("c")).error_code == ErrorCode.INVALID_REQUEST
        assert (await first.renew()).error_code == 0  # the end of an attached one means nothing


async def test_only_a_live_claims_session_and_epoch_attach_and_renew(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:  # O7, O10
        first = Claimant(one)
        await first.own("a")
        for session, epoch in (("another", 1), (first.session, 0), (first.session, 2)):
            answer = await first.attach(two, session=session, epoch=epoch)
            assert (answer.error_code, answer.lease_ms) == (ErrorCode.OWNER_FENCED, -1)
        assert (await first.renew(two)).lease_ms == 30_000
        await first.release()
        assert (await first.attach(two)).error_code == ErrorCode.OWNER_FENCED
        assert (await first.renew()).error_code == ErrorCode.OWNER_FENCED


async def test_a_zombie_that_claims_again_is_told_so_and_severs_nobody(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:  # O5
        await Claimant(one).own(("a", 9))
        successor, zombie = Claimant(two, holder="successor"), None
        await successor.own(("a", 9))
        async with Peer.of(node) as three:
            zombie = await Claimant(three).own(("a", 9, 1))
        assert zombie.error_code == ErrorCode.OWNER_FENCED
        assert zombie.resources[0].holder == "successor"
        held = "a was granted since (epoch 2, generation 9), and successor holds it: stop"
        assert zombie.resources[0].error_message == held
        assert (await successor.renew()).error_code == 0
        await successor.release()
        async with Peer.of(node) as three:
            late = await Claimant(three).own(("a", 9, 1), ("never", -1, 1))
        assert [ErrorCode(each.error_code) for each in late.resources] == [
            ErrorCode.OWNER_FENCED
        ] * 2
        free, never = [each.error_message or "" for each in late.resources]
        assert "a was granted since (epoch 2, generation 9), and nobody holds it now" in free
        assert "never was never claimed" in never


async def test_a_half_open_connection_loses_its_claim_with_the_lease(world: World) -> None:
    """Its machine is gone: nothing is closed and nothing is renewed (O10)."""
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:
        silent, alive = Claimant(one), Claimant(two)
        await silent.own("a", lease_ms=500)
        await alive.own("b", lease_ms=60_000)
        await until_state(two, "a", "free")
        await closed(one)
        assert (await alive.renew()).error_code == 0


async def test_the_brokers_own_pause_is_nobodys_silence(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:  # O10
        await Claimant(one).own("a", lease_ms=500)
        begun = node._pauses._seen
        await until(lambda: node._pauses._seen > begun, "the next tick is after the lease's end")
        time.sleep(0.5)  # noqa: ASYNC251 - the loop stands still, as in a stopped process
        assert (await described(two, "a"))[0].state == "held"
        assert (await until_state(two, "a", "free")).epoch == 1


async def test_watching_tells_what_changes(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:
        claimant = Claimant(one, group="g", holder="me")
        await claimant.own("a")
        first = await watch(two, -1, group="g")
        assert [(each.resource, each.state) for each in first.resources] == [("a", "held")]
        nothing = await watch(two, first.revision, group="g", max_wait_ms=1)
        assert (nothing.revision, nothing.resources) == (first.revision, [])
        next_one = asyncio.create_task(watch(two, first.revision, group="g"))
        await until(lambda: node.broker.ownership_requests._watching, "it waits")
        await claimant.release()
        answer = await next_one
        assert [(each.resource, each.state) for each in answer.resources] == [("a", "free")]
        assert answer.revision > first.revision


async def test_a_commit_looks_at_the_watches_of_its_shard_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.node() as node, Peer.of(node) as one, AsyncExitStack() as stack:
        groups = [f"g{number}" for number in range(20)]
        for group in groups:
            peer = await stack.enter_async_context(Peer.of(node))
            request = WatchOwnershipRequest(group=group, seen_revision=-1, max_wait_ms=60_000)
            peer.send(request.API_KEY, 0, request.write(0))
        requests = node.broker.ownership_requests
        await until(lambda: requests._watching == len(groups), "all wait")
        looked: list[str | None] = []
        revision = OwnershipShard.revision

        def counted(shard: OwnershipShard, group: str | None) -> int:
            looked.append(group)
            return revision(shard, group)

        monkeypatch.setattr(OwnershipShard, "revision", counted)
        await Claimant(one, group="g0").own("a")
        shard = await node.ownership.shard_of("g0")
        same = [group for group in groups if await node.ownership.shard_of(group) is shard]
        assert len(same) < len(groups)
        assert set(looked) <= set(same)


async def watch(
    peer: Peer, seen: int, *, group: str | None = None, max_wait_ms: int = 30_000
) -> WatchOwnershipResponse:
    request = WatchOwnershipRequest(group=group, seen_revision=seen, max_wait_ms=max_wait_ms)
    return await peer.ask(request, 0, WatchOwnershipResponse)


async def test_all_groups_are_described_in_pages(world: World) -> None:
    async with world.node() as node, AsyncExitStack() as stack:
        for group in (None, "b", "a", "c", "d"):
            peer = await stack.enter_async_context(Peer.of(node))
            await Claimant(peer, group=group).own("x", "y")
        found: list[tuple[str | None, str]] = []
        has_more = True
        while has_more:
            last = found[-1] if found else (None, None)
            request = DescribeOwnershipRequest(
                all_groups=True, limit=3, after_group=last[0], after_resource=last[1]
            )
            page = await peer.ask(request, 0, DescribeOwnershipResponse)
            found += [(each.group, each.resource) for each in page.resources]
            has_more = page.has_more
        groups = (None, "a", "b", "c", "d")
        assert found == [(group, name) for group in groups for name in ("x", "y")]


async def test_the_coordinator_of_a_claim_is_found_by_its_group(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:  # O6
        request = FindCoordinatorRequest(key_type=100, coordinator_keys=["", "g"])
        answer = await peer.ask(request, 4, FindCoordinatorResponse)
        assert [(each.key, each.error_code) for each in answer.coordinators] == [("", 0), ("g", 0)]


@pytest.mark.parametrize("wait_ms", [0, 30_000])
async def test_a_claim_does_not_wait_for_a_shard_that_is_loaded_again(
    world: World, monkeypatch: pytest.MonkeyPatch, wait_ms: int
) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:  # O10
        await Claimant(one).own("a")
        decide_on = node.ownership.decide_on

        async def then_unloaded(loaded: Any, rule: Any) -> Any:
            answer = await decide_on(loaded, rule)
            node.ownership._unload(loaded)
            return answer

        monkeypatch.setattr(node.ownership, "decide_on", then_unloaded)
        async with asyncio.timeout(10):
            answer = await Claimant(two).own("a", claim_id="1", wait_ms=wait_ms)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_claim_that_lost_its_place_before_it_was_answered_asks_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not told that it has ended: it was never granted (O10)."""
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:
        await Claimant(one).own("a")
        decide_on = node.ownership.decide_on

        async def stalled(loaded: Any, rule: Any) -> Any:
            answer = await decide_on(loaded, rule)
            ends = asyncio.get_running_loop().time() + 1
            await decide_on(loaded, lambda shard, now: shard.expire(ends, 0))
            return answer

        monkeypatch.setattr(node.ownership, "decide_on", stalled)
        answer = await Claimant(two).own("a", claim_id="1", lease_ms=500, wait_ms=30_000)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_stop_answers_who_waits(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:
        await Claimant(one).own("a")
        waiting = Claimant(two)
        waiting.send_own("a", claim_id="1", wait_ms=60_000)
        await until(lambda: node.broker.ownership_requests._claims, "it waits")
        stopping = asyncio.create_task(node.stop())
        assert (await waiting.owned()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await stopping
