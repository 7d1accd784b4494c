"""Claims at both coordinators, through a whole node: older producers, foreign commits (O8)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode
from fencelog.log.ownership import Owner
from fencelog.node import Node
from fencelog.types import TopicPartition
from fencelog.wire.own import owned_id, producers_key
from fencelog_sim.world.disk import Loss
from tests.support.groups import FAST, Member, committed
from tests.support.node import Peer, World, batch, visible
from tests.support.ownership import Claimant
from tests.support.transactions import Producer, Worker, listed, offsets_settled, settled

KEY = producers_key("g", "orders")
T0 = TopicPartition("t", 0)
NONE, REFUSED = ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED
FENCED, OLD = ErrorCode.OWNER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH


def owner(epoch: int, *, live: bool = True) -> Owner:
    return Owner("g", epoch, f"s{epoch}", owned_id(KEY, epoch), "me", live)


async def own_producers(node: Node, new: Owner) -> ErrorCode:
    """Set the owner of the transactional ids, repeated as the sender of outstanding work does."""
    assert new.transactional_id is not None
    while True:
        error = await node.broker.transactions.decide(
            new.transactional_id,
            lambda shard, now: shard.set_owner(KEY, new, wall_ms=node.broker.clock.now_ms()),
        )
        if error is not ErrorCode.CONCURRENT_TRANSACTIONS:
            return error
        await asyncio.sleep(0)


async def own_commits(node: Node, new: Owner) -> ErrorCode:
    return await node.broker.groups.decide("g", lambda shard, now: shard.set_owner("g", new, [T0]))


def attach(node: Node, peer: Peer, session: str) -> None:
    """Attach the peer's connection to a session."""
    (connection,) = (each for each in node.server._connections if each.peer == peer.name)
    connection.session = session


async def test_an_older_producer_is_fenced_and_its_transaction_aborted(  # O8
    world: World,
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        old, new = Producer(peer, owned_id(KEY, 8)), Producer(peer, owned_id(KEY, 9))
        assert await old.init() is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await own_producers(node, owner(8)) is NONE
        assert await old.init() is NONE
        await old.add("t", 0)
        assert await old.produce("t", "zombie's") is NONE
        assert await own_producers(node, owner(9)) is NONE
        await settled(node, "t")
        assert await old.produce("t", "late") is OLD
        assert await old.add("t", 0) is ErrorCode.PRODUCER_FENCED
        assert await old.add("t", 0, version=1) is OLD
        assert await old.end(commit=True) is ErrorCode.PRODUCER_FENCED
        assert await old.end(commit=True, version=1) is OLD
        again = Producer(peer, old.transactional_id)
        assert await again.init() is ErrorCode.PRODUCER_FENCED
        assert await again.init(version=3) is OLD
        assert await new.init() is NONE
        await new.add("t", 0)
        assert await new.produce("t", "owner's") is NONE
        assert await new.end(commit=True) is NONE
        await settled(node, "t")
        assert [value for _, value in visible(await peer.fetch("t"))] == ["owner's"]
        assert [each[0] for each in await listed(peer)] == [
            old.transactional_id,
            new.transactional_id,
        ]


async def test_a_grant_waits_for_the_markers_of_a_decided_commit(world: World) -> None:  # E7, E9
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await own_producers(node, owner(9))
        old = Producer(peer, owned_id(KEY, 9))
        await old.init()
        await old.add("t", 0)
        await old.produce("t", "kept")
        world.disk.hold("t-0")
        assert await old.end(commit=True) is NONE
        new = owner(10)
        assert new.transactional_id is not None
        error = await node.broker.transactions.decide(
            new.transactional_id,
            lambda shard, now: shard.set_owner(KEY, new, wall_ms=node.broker.clock.now_ms()),
        )
        assert error is ErrorCode.CONCURRENT_TRANSACTIONS
    world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        assert await own_producers(node, new) is NONE
        assert [value for _, value in visible(await peer.fetch("t"))] == ["kept"]
        assert await Producer(peer, old.transactional_id).init() is ErrorCode.PRODUCER_FENCED


async def test_only_the_owner_commits_offsets_also_after_a_power_cut(world: World) -> None:  # O8
    async with world.node(crash=True, **FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        member = Member(peer)
        assert await member.commit(1) is NONE
        assert await own_commits(node, owner(8)) is NONE
        assert await own_commits(node, owner(9)) is NONE
        assert await member.commit(2) is REFUSED
    world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        member = Member(peer)
        assert await member.commit(2) is REFUSED
        attach(node, peer, "s8")
        assert await member.commit(2) is FENCED
        attach(node, peer, "s9")
        assert await member.commit(2) is NONE
        assert await committed(peer) == 2
        assert await own_commits(node, owner(8)) is FENCED
        assert await own_commits(node, owner(9, live=False)) is NONE
        assert await member.commit(3) is NONE


@asynccontextmanager
async def claimants(world: World) -> AsyncIterator[tuple[Node, Claimant, Claimant]]:
    """A node in ``os`` mode that crashes in the end; a claim of ``orders`` in the group is held.

    The others that may claim are one of the group and one of no group.
    """
    async with (
        world.node(crash=True, durability="os", **FAST) as node,
        Peer.of(node) as one,
        Peer.of(node) as two,
        Peer.of(node) as three,
    ):
        await one.create_topic("t")
        await Claimant(one, "g").own("t/0", name="orders")
        yield node, Claimant(two, "g"), Claimant(three)


@pytest.mark.parametrize("goes_on", [True, False])
async def test_what_counts_as_told_of_an_owner_outlives_a_power_cut_in_os_mode(  # O8
    world: World, goes_on: bool
) -> None:
    """A claim's shard is synced in every mode; so must be what it has recorded as done."""
    async with claimants(world) as (node, new, writer):
        await writer.own("t/0")
        await node.logs.checkpoint()
        await new.own("t/0", name="orders")
        if not goes_on:
            await new.release()
            await writer.release()
            await node.ownership_sender.drain()
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node(durability="os", **FAST) as node, Peer.of(node) as peer:
        assert await Worker(peer, owned_id(KEY, 1)).init() is ErrorCode.PRODUCER_FENCED
        written = (await peer.produce("t", batch("by nobody"))).error
        committed_by_nobody = await Member(peer).commit(1)
        assert (written, committed_by_nobody) == ((REFUSED,) * 2 if goes_on else (NONE,) * 2)


async def test_what_others_lost_of_an_owner_is_told_again_when_its_shard_is_loaded(  # O8
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a replica leads that had not synced what its old leader had."""
    async with claimants(world) as (node, new, writer):
        await node.logs.checkpoint()
        monkeypatch.setattr(Partition, "sync_appended", lambda _: None)
        await new.own("t/0", name="orders")
        await writer.own("t/0")
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node(durability="os", **FAST) as node, Peer.of(node) as peer:
        await node.ownership_sender.drain()
        assert await Worker(peer, owned_id(KEY, 1)).init() is ErrorCode.PRODUCER_FENCED
        assert (await peer.produce("t", batch("by nobody"))).error is REFUSED
        assert await Member(peer).commit(1) is REFUSED


@pytest.mark.parametrize("first", ["commits", "producers"])
async def test_offsets_in_a_transaction_are_taken_from_the_claims_producer(  # O8
    world: World, first: str
) -> None:
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        old, new = Worker(peer, owned_id(KEY, 9)), Worker(peer, owned_id(KEY, 10))
        foreign = Worker(peer, "mine")
        await foreign.init()
        await foreign.add_offsets()
        assert await foreign.commit_offset(1) is NONE
        await own_commits(node, owner(9))
        await own_producers(node, owner(9))
        await old.init()
        await old.add_offsets()
        assert await old.commit_offset(5) is NONE
        await (own_commits if first == "commits" else own_producers)(node, owner(10))
        assert await old.commit_offset(6) is OLD
        await own_commits(node, owner(10))
        await own_producers(node, owner(10))
        assert await foreign.commit_offset(7) is REFUSED
        # Its own transaction is open there, and the name that it gives is another's.
        foreign.transactional_id = owned_id(KEY, 10)
        assert await foreign.commit_offset(7) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        foreign.transactional_id = "mine"
        assert await foreign.end(commit=True) is NONE
        await new.init()
        assert await new.add_offsets() is NONE
        assert await new.commit_offset(8) is NONE
        assert await new.end(commit=True) is NONE
        await offsets_settled(node)
        assert await committed(peer) == 8


async def test_the_owner_passes_a_fence_for_members(world: World) -> None:  # E8
    async with world.node(**FAST) as node, Peer.of(node) as peer, Peer.of(node) as outside:
        await peer.create_topic("t", group_fence="required")
        member, alone = Member(peer), Member(outside)
        await member.join()
        await member.lead()
        await own_commits(node, owner(9))
        assert await member.commit(1) is REFUSED
        assert await alone.commit(1) is REFUSED
        attach(node, outside, "s9")
        assert await alone.commit(1) is NONE
        await own_commits(node, owner(9, live=False))
        assert await alone.commit(2) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await member.commit(2) is NONE


@pytest.mark.parametrize(
    ("setting", "free", "owned"),
    [("off", NONE, NONE), ("if-owned", NONE, REFUSED), ("required", REFUSED, REFUSED)],
)
async def test_the_topic_says_whether_its_commits_need_an_owner(  # O8
    world: World, setting: str, free: ErrorCode, owned: ErrorCode
) -> None:
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t", ownership=setting)
        assert await Member(peer).commit(1) is free
        await own_commits(node, owner(9))
        assert await Member(peer).commit(2) is owned
        attach(node, peer, "s9")
        assert await Member(peer).commit(3) is NONE
        attach(node, peer, "s8")
        assert await Member(peer).commit(4) is owned, "this claim never owned it"
        await own_commits(node, owner(10))
        attach(node, peer, "s9")
        assert await Member(peer).commit(5) is (NONE if setting == "off" else FENCED)
