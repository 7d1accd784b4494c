"""What a severed connection still does: nothing (O7, O9)."""

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from fencelog.broker.coordinators.leaders import OFFLINE, LocalLeaders
from fencelog.broker.network.connection import Connection
from fencelog.coordination.ownership.model import NO_FENCE
from fencelog.errors import ErrorCode, StorageError
from fencelog.log.ownership import Owner
from fencelog.node import Node
from fencelog.types import TopicPartition
from fencelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from fencelog.wire.messages.release_ownership import (
    ReleaseOwnershipRequest,
    ReleaseOwnershipResponse,
)
from fencelog.wire.messages.renew_ownership import RenewOwnershipRequest
from fencelog_sim.world.disk_image import Loss
from tests.support.groups import Member, committed
from tests.support.node import Peer, World, batch, delete, until, visible
from tests.support.ownership import Claimant, closed, described, until_state
from tests.support.transactions import Producer, settled


@asynccontextmanager
async def stage(world: World) -> AsyncIterator[tuple[Node, Claimant, Peer, Claimant]]:
    """An owner of a partition, a connection attached to its claim, and one who will claim."""
    async with (
        world.node() as node,
        Peer.of(node) as claiming,
        Peer.of(node) as attached,
        Peer.of(node) as next_one,
    ):
        await next_one.create_topic("t")
        first = Claimant(claiming)
        assert (await first.own("t/0")).error_code == 0
        assert (await first.attach(attached)).error_code == 0
        yield node, first, attached, Claimant(next_one)


def connection_of(node: Node, peer: Peer) -> Connection:
    host, port = peer._writer.get_extra_info("sockname")
    return next(each for each in node.server._connections if each.peer == f"{host}:{port}")


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


async def test_a_write_in_verification_is_not_appended_once_its_connection_is_severed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's answer is there in the very step in which the claim ends (O7)."""
    may_answer, asked = asyncio.Event(), asyncio.Event()
    verify = LocalLeaders.verify

    async def late(leaders: LocalLeaders, *what: Any) -> Any:
        answer = await verify(leaders, *what)
        asked.set()
        await may_answer.wait()
        return answer

    async with stage(world) as (node, first, attached, next_one):
        await next_one.peer.create_topic("unowned")
        producer = Producer(attached)
        await producer.init()
        await producer.add("unowned", 0)
        monkeypatch.setattr(LocalLeaders, "verify", late)
        sent = batch("a", producer_id=producer.producer_id, epoch=0, sequence=0, transactional=True)
        attached.send_produce("unowned", sent, transactional_id=producer.transactional_id)
        attached.send_produce("unowned", batch("queued behind"))
        await asked.wait()
        may_answer.set()
        node.broker.leaders.sever(first.session)
        await closed(attached)
        log = node.logs.get("unowned", 0)
        assert log is not None
        assert log.log.log_end_offset == 0


async def test_an_end_of_a_claim_is_no_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with stage(world) as (_node, _first, attached, next_one):  # O7
        assert (await next_one.own("t/0")).error_code == 0
        await closed(attached)
    lines = [each for each in caplog.records if "its claim has ended" in each.message]
    assert [each.levelno for each in lines] == [logging.INFO] * 2


async def test_a_request_does_not_sever_its_own_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would cancel itself before it is done (O7)."""
    async with stage(world) as (node, first, _attached, _next_one):
        sever, refused = Connection.sever, []

        def checked(connection: Connection, reason: str) -> None:
            with pytest.raises(AssertionError):
                sever(connection, reason)
            refused.append(connection)

        async def severs(*_: Any) -> None:
            node.broker.leaders.sever(first.session)

        monkeypatch.setattr(Connection, "sever", checked)
        monkeypatch.setattr(node.ownership, "decide_on", severs)
        first.peer.send(RenewOwnershipRequest.API_KEY, 0, renewal(first).write(0))
        await until(lambda: refused, "it is carried out")


def renewal(claimant: Claimant) -> RenewOwnershipRequest:
    return RenewOwnershipRequest(session=claimant.session, epoch=claimant.epoch)


async def test_partitions_that_are_not_available_are_one_line_of_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.node() as node:
        monkeypatch.setattr(node.broker.catalog, "has", lambda name: True)
        names = [TopicPartition("t", number) for number in range(10)]
        offline = dict.fromkeys(names, StorageError("damaged"))
        monkeypatch.setattr(node.logs, "offline", lambda: offline)
        owner = Owner(None, 1, "session", None, "holder", is_live=True)
        for name in names:
            assert await node.broker.leaders.own_partition(name, owner) == OFFLINE
        assert caplog.text.count("is offline") == 1


async def test_what_has_arrived_from_a_zombie_is_neither_stored_nor_answered(world: World) -> None:
    """Its bytes were in the socket before it was severed (O7)."""
    async with stage(world) as (node, _first, attached, next_one), Peer.of(node) as other:
        zombie = connection_of(node, attached)
        zombie._transport.pause_reading()
        for number in range(20):
            attached.send_produce("t", batch(f"zombie {number}"))
        await attached._writer.drain()
        assert (await next_one.own("t/0")).error_code == 0
        await closed(attached)
        assert await values(other) == []


async def test_a_parked_fetch_of_a_severed_connection_is_not_answered(world: World) -> None:
    async with stage(world) as (node, _first, attached, next_one):  # O7
        task = asyncio.create_task(attached.fetch("t", 1, max_wait_ms=60_000))
        await until(lambda: node.logs.get("t", 0)._purgatory._readers, "it listens")
        assert (await next_one.own("t/0")).error_code == 0
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await task
        assert (await next_one.peer.produce("t", batch("b"))).error == 0
        assert not node.logs.get("t", 0)._purgatory._readers


async def test_a_severed_connection_is_not_kept_by_anything(world: World) -> None:
    async with stage(world) as (node, _first, attached, next_one):
        severed = [weakref.ref(each) for each in node.server._connections if each.session]
        assert len(severed) == 2
        gc.collect()
        gc.disable()
        try:
            attached.send_produce("t", batch("in flight"))
            assert (await next_one.own("t/0")).error_code == 0
            await until(lambda: not any(each() for each in severed), "both are freed")
        finally:
            gc.enable()


async def test_a_claim_is_answered_only_when_its_record_in_the_partition_is_synced(
    world: World,
) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as other:  # O9
        await other.create_topic("t")
        world.disk.hold("t-0")
        claimant = Claimant(one)
        claimant.send_own("t/0")
        await until(lambda: world.disk.waiting, "the record waits for its sync")
        refused = await Claimant(other).own("t/0")
        assert refused.error_code == ErrorCode.CLAIM_IN_PROGRESS
        assert (await described(other, "t/0"))[0].state == "claiming"
        answer = asyncio.create_task(claimant.owned())
        assert not (await asyncio.wait([answer], timeout=0))[0]
        world.disk.release()
        assert (await answer).error_code == 0


async def test_a_grant_goes_on_when_its_claimant_dies_and_then_all_is_free(world: World) -> None:
    async with world.node() as node, Peer.of(node) as other:  # O9
        await other.create_topic("t")
        world.disk.hold("t-0")
        async with Peer.of(node) as one:
            Claimant(one).send_own("t/0", "plain")
            await until(lambda: world.disk.waiting, "the record waits for its sync")
        world.disk.release()
        assert (await until_state(other, "t/0", "free")).epoch == 1
        assert (await Claimant(other).own("t/0", "plain")).error_code == 0
        assert node.logs.get("t", 0).log.owner(None).epoch == 2


async def test_a_grant_that_a_crash_interrupts_is_completed_by_the_next_start(world: World) -> None:
    async with world.node(crash=True) as node, Peer.of(node) as one:  # O9, E16
        await one.create_topic("t")
        claimant = Claimant(one, holder="before")
        world.disk.hold("t-0")
        claimant.send_own("t/0", lease_ms=60_000)
        await until(lambda: world.disk.waiting, "the record waits for its sync")
    world.disk = world.disk.power_loss(Loss.ALL)
    world.disk.release()
    async with world.node() as node, Peer.of(node) as other:
        (state,) = await described(other, "t/0")
        assert (state.state, state.holder, state.epoch) == ("held", "before", 1)
        assert state.fence_offset == 0
        assert node.logs.get("t", 0).log.owner(None).is_live


@pytest.mark.parametrize("crash", [True, False], ids=["killed", "stopped"])
async def test_a_holder_outlives_the_broker_for_its_lease(world: World, *, crash: bool) -> None:
    async with AsyncExitStack() as connections, world.node(crash=crash) as node:  # O10
        # It is the broker that closes the connection.
        one = await connections.enter_async_context(Peer.of(node))
        await one.create_topic("t")
        claimant = Claimant(one)
        await claimant.own("t/0", ("x", 7), lease_ms=60_000)
    async with world.node(crash=True) as node, Peer.of(node) as one:
        await Claimant(one).own(("silent", 3), lease_ms=500)
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as other:
        assert (await until_state(other, "silent", "free")).generation == 3
        refused = await Claimant(other).own(("x", 6))
        assert refused.error_code == ErrorCode.RESOURCE_OWNED
        assert (await claimant.renew(one)).error_code == 0
        assert (await claimant.attach(one)).error_code == 0
        assert (await one.produce("t", batch("goes on"))).error == 0
        assert (await other.produce("t", batch("not mine"))).error != 0


async def test_a_lease_ends_after_a_start_though_nobody_asks(world: World) -> None:
    """Who died with the broker must not keep the partition (O10)."""
    async with world.node(crash=True) as node, Peer.of(node) as one:
        await one.create_topic("t")
        await Claimant(one).own("t/0", lease_ms=500)
    async with world.node() as node:
        log = node.logs.get("t", 0)
        assert log is not None
        assert log.log.owner(None).is_live
        await until(lambda: not log.log.owner(None).is_live, "its end stands in the log")


async def test_a_partition_that_is_deleted_holds_no_grant_up(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as other:  # E17
        await other.create_topic("t")
        world.disk.hold("t-0")
        claimant = Claimant(one)
        claimant.send_own("t/0")
        await until(lambda: world.disk.waiting, "the record waits for its sync")
        deleted = asyncio.create_task(delete(other, "t"))
        answer = await claimant.owned()
        assert (answer.error_code, answer.resources[0].fence_offset) == (0, -1)
        world.disk.release()
        assert await deleted == ErrorCode.NONE
        owner = Owner(None, 2, "session", None, "holder", is_live=True)
        name = TopicPartition("t", 0)
        assert await node.broker.leaders.own_partition(name, owner) == NO_FENCE


async def test_the_connection_that_releases_is_answered_and_may_claim_again(world: World) -> None:
    async with stage(world) as (_node, first, attached, _next_one):
        released = await first.release()
        assert [(each.resource, each.epoch) for each in released.released] == [("t/0", 1)]
        await closed(attached)
        assert (await first.release()).released == []
        assert (await first.own("t/0")).resources[0].epoch == 2


async def test_an_operator_ends_a_claim(world: World) -> None:
    async with stage(world) as (node, first, attached, _next_one), Peer.of(node) as operator:
        request = ReleaseOwnershipRequest(resources=["t/0", "never claimed"])
        answer = await operator.ask(request, 0, ReleaseOwnershipResponse)
        assert [(each.resource, each.epoch) for each in answer.released] == [("t/0", 1)]
        await closed(first.peer)
        await closed(attached)
        assert (await described(operator, "t/0"))[0].state == "free"


async def test_the_zombies_transaction_is_aborted_before_its_successor_is_answered(
    world: World,
) -> None:
    async with (
        world.node() as node,
        Peer.of(node) as one,
        Peer.of(node) as two,
        Peer.of(node) as stock,
    ):  # O8, O9
        await two.create_topic("t")
        first = await Claimant(one).own("t/0", name="etl")
        assert first.transactional_id == "__fencelog.own//etl~1"
        zombie = Producer(stock, first.transactional_id)
        assert await zombie.init() == ErrorCode.NONE
        await zombie.add("t", 0)
        assert await zombie.produce("t", "a") == ErrorCode.NONE
        second = await Claimant(two).own("t/0", name="etl")
        assert (second.error_code, second.resources[0].epoch) == (0, 2)
        log = node.logs.get("t", 0)
        assert log is not None
        assert log.log.last_stable_offset == log.log.log_end_offset  # nothing is open
        assert await zombie.produce("t", "b") == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await zombie.end(commit=True) == ErrorCode.PRODUCER_FENCED
        assert await zombie.init() == ErrorCode.PRODUCER_FENCED
        owner = Producer(stock, second.transactional_id or "")
        assert await owner.init() == ErrorCode.NONE
        await owner.add("t", 0)
        assert await owner.produce("t", "c") == ErrorCode.NONE
        assert await owner.end(commit=True) == ErrorCode.NONE
        await settled(node, "t")
        assert await values(two) == ["c"]


async def test_only_the_owner_commits_the_groups_offsets(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:  # O8
        await two.create_topic("t")
        reader = Claimant(one, group="g")
        assert (await reader.own("t/0")).error_code == 0
        assert await Member(one).commit(5) == ErrorCode.NONE
        assert await Member(two).commit(7) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (await reader.release()).error_code == 0
        async with Peer.of(node) as three:
            assert (await Claimant(three, group="g").own("t/0")).error_code == 0
            assert await Member(one).commit(8) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert await committed(three) == 5


async def test_no_token_is_granted_twice_though_the_power_fails_in_os_mode(world: World) -> None:
    async with world.node(crash=True, durability="os") as node, Peer.of(node) as one:  # O3
        await one.create_topic("t")
        granted = await Claimant(one).own("t/0", "job")
    world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node(durability="os") as node, Peer.of(node) as two:
        again = await Claimant(two).own("t/0", "job")
        assert [each.epoch for each in granted.resources] == [1, 1]
        assert [each.epoch for each in again.resources] == [2, 2]
        assert node.logs.get("t", 0).log.owner(None).epoch == 2


@pytest.mark.parametrize("how", ["served on", "crashed before", "granted without it"])
async def test_a_topic_that_is_deleted_and_made_again_keeps_its_owner(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Else everybody would write to a partition whose claim is held (O8)."""
    async with AsyncExitStack() as connections, world.node(crash=True) as node:
        one = await connections.enter_async_context(Peer.of(node))
        other = await connections.enter_async_context(Peer.of(node))
        await other.create_topic("t", partitions=2)
        claimant = Claimant(one)
        world.disk.hold("t-0" if how == "granted without it" else "nothing")
        claimant.send_own("t/0", "t/1", lease_ms=60_000)
        if how != "granted without it":
            assert (await claimant.owned()).error_code == 0
        else:
            await until(lambda: world.disk.waiting, "the record waits for its sync")
        deleted = asyncio.create_task(delete(other, "t"))
        if how == "granted without it":
            assert (await claimant.owned()).resources[0].fence_offset == -1
            world.disk.release()
        assert await deleted == ErrorCode.NONE
        if how == "crashed before":
            monkeypatch.setattr(node.logs, "on_created", lambda names: None)
        await other.create_topic("t")
        if how != "crashed before":
            assert (await other.produce("t", batch("not mine"))).error != 0
            assert (await one.produce("t", batch("goes on"))).error == 0
            async with Peer.of(node) as two:  # it has more partitions again
                await node.broker.controller.add_partitions(node.broker.catalog.get("t"), 2)
                refused = await two.produce("t", batch("not mine"), partition=1)
                assert refused.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as other:
        assert (await other.produce("t", batch("not mine"))).error != 0
        assert (await claimant.attach(one)).error_code == 0
        assert (await one.produce("t", batch("goes on"))).error == 0
