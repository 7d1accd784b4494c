"""Offsets in transactions through a whole node (E8): pending until the marker, whatever happens."""

import pytest

from fencelog.errors import ErrorCode
from fencelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from fencelog_sim.world.disk import Loss
from tests.support.groups import FAST, Member, committed
from tests.support.node import Peer, World, visible
from tests.support.transactions import Worker, offsets_settled, settled


async def fetch_errors(peer: Peer, version: int) -> tuple[ErrorCode, ErrorCode, int]:
    """The whole answer's error, the partition's, and its offset."""
    if version >= 8:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
        (group,) = (await peer.ask(request, version, OffsetFetchResponse)).groups
        (part,) = group.topics[0].partitions
        return ErrorCode(group.error_code), ErrorCode(part.error_code), part.committed_offset
    topics = None if version >= 2 else []
    request = OffsetFetchRequest(group_id="g", topics=topics)
    answer = await peer.ask(request, version, OffsetFetchResponse)
    (part,) = answer.topics[0].partitions
    return ErrorCode(answer.error_code), ErrorCode(part.error_code), part.committed_offset


@pytest.mark.parametrize("version", [2, 5, 6, 7, 8, 9])
async def test_a_pending_offset_counts_with_its_marker_and_is_not_passed_before(
    world: World, version: int
) -> None:
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        worker = Worker(peer)
        await worker.init()
        assert await worker.add_offsets() is ErrorCode.NONE
        assert await worker.commit_offset(5) is ErrorCode.NONE
        whole, part, offset = await fetch_errors(peer, version)
        if version >= 7:
            assert (whole, part) == (ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        else:
            loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert (whole, part) == (loading, loading)
        assert offset == -1
        assert await worker.end(commit=True) is ErrorCode.NONE
        await offsets_settled(node)
        assert await fetch_errors(peer, version) == (ErrorCode.NONE, ErrorCode.NONE, 5)


async def test_an_aborted_offset_never_was(world: World) -> None:
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        worker = Worker(peer)
        await worker.init()
        await worker.add_offsets()
        assert await worker.commit_offset(5) is ErrorCode.NONE
        assert await worker.end(commit=False) is ErrorCode.NONE
        await offsets_settled(node)
        assert await committed(peer) == -1


async def test_output_and_offset_appear_together_or_not_at_all(world: World) -> None:  # E10, E11
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.create_topic("out")
        worker = Worker(peer)
        await worker.init()
        for offset, commit in ((1, True), (2, False), (2, True)):
            await worker.add("out", 0)
            await worker.produce("out", f"{offset} {commit}")
            assert await worker.add_offsets() is ErrorCode.NONE
            assert await worker.commit_offset(offset) is ErrorCode.NONE
            assert await worker.end(commit=commit) is ErrorCode.NONE
            await settled(node, "out")
            await offsets_settled(node)
        assert [value for _, value in visible(await peer.fetch("out"))] == ["1 True", "2 True"]
        assert await committed(peer) == 2


@pytest.mark.parametrize("decided", [False, True], ids=["open", "decided"])
@pytest.mark.parametrize("commit", [False, True], ids=["abort", "commit"])
async def test_pending_offsets_survive_a_power_cut_and_end_with_their_transaction(
    world: World, decided: bool, commit: bool
) -> None:  # E15, E16
    async with world.node(crash=True, **FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        worker = Worker(peer)
        await worker.init()
        await worker.add_offsets()
        assert await worker.commit_offset(5) is ErrorCode.NONE
        if decided:
            # The decision is stored, and no marker will be: the disk of its partition hangs.
            world.disk.hold("__consumer_offsets")
            assert await worker.end(commit=commit) is ErrorCode.NONE
    world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        worker.peer = peer
        if not decided:
            _, part, _ = await fetch_errors(peer, 7)
            assert part is ErrorCode.UNSTABLE_OFFSET_COMMIT
            assert await worker.end(commit=commit) is ErrorCode.NONE
        await offsets_settled(node)
        assert await committed(peer) == (5 if commit else -1)


async def test_a_stale_member_takes_no_offset_into_a_transaction(world: World) -> None:  # E8
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        member, worker = Member(peer), Worker(peer)
        await member.join()
        await member.lead()
        await worker.init()
        await worker.add_offsets()
        assert await worker.commit_offset(5, member) is ErrorCode.NONE
        member.generation = 0
        assert await worker.commit_offset(99, member) is ErrorCode.ILLEGAL_GENERATION
        member.member_id = "somebody"
        assert await worker.commit_offset(99, member) is ErrorCode.UNKNOWN_MEMBER_ID
        # What names no member is let through (no fence is required here), as Kafka does.
        assert await worker.commit_offset(6, version=2) is ErrorCode.NONE


async def test_a_replaced_static_member_takes_no_offset_into_a_transaction(
    world: World,
) -> None:  # E8
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        zombie, successor, worker = Member(peer, "i"), Member(peer, "i"), Worker(peer)
        await zombie.join()
        await zombie.lead()
        assert (await successor.join(9)).skip_assignment
        assert await successor.lead() == (ErrorCode.NONE, b"all")
        assert successor.generation == zombie.generation
        await worker.init()
        await worker.add_offsets()
        assert await worker.commit_offset(99, zombie) is ErrorCode.FENCED_INSTANCE_ID
        assert await worker.commit_offset(5, successor) is ErrorCode.NONE
        assert await zombie.heartbeat() is ErrorCode.FENCED_INSTANCE_ID


async def test_a_required_fence_refuses_transactional_offsets_without_a_member(
    world: World,
) -> None:  # E8
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t", group_fence="required")
        member, worker = Member(peer), Worker(peer)
        await member.join()
        await member.lead()
        await worker.init()
        await worker.add_offsets()
        assert await worker.commit_offset(99, version=2) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await worker.commit_offset(5, member) is ErrorCode.NONE


async def test_an_offset_outside_an_open_transaction_is_refused(world: World) -> None:  # E14
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        worker = Worker(peer)
        await worker.init()
        assert await worker.commit_offset(1) is ErrorCode.INVALID_TXN_STATE
        await worker.add_offsets()
        assert await worker.commit_offset(1) is ErrorCode.NONE
        await worker.end(commit=True)
        await offsets_settled(node)
        # Delayed on the way, say: its transaction has ended.
        assert await worker.commit_offset(99) is ErrorCode.INVALID_TXN_STATE
        worker.producer_id += 1
        wrong_id = await worker.commit_offset(99)
        assert wrong_id is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await committed(peer) == 1


async def test_a_fenced_producer_takes_no_offsets_anywhere(world: World) -> None:  # E2, E7
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        zombie, successor = Worker(peer), Worker(peer)
        await zombie.init()
        await zombie.add_offsets()
        assert await zombie.commit_offset(99) is ErrorCode.NONE
        assert await successor.init() is ErrorCode.NONE
        # Its transaction was aborted before the successor was answered.
        assert await committed(peer) == -1
        assert await zombie.commit_offset(99) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await zombie.add_offsets() is ErrorCode.PRODUCER_FENCED
        assert await zombie.add_offsets(version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await successor.add_offsets() is ErrorCode.NONE
        assert await successor.commit_offset(5) is ErrorCode.NONE
        assert await zombie.commit_offset(99) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await successor.end(commit=True) is ErrorCode.NONE
        await offsets_settled(node)
        assert await committed(peer) == 5


async def test_a_transaction_that_times_out_gives_its_offsets_back(world: World) -> None:  # E12
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        worker = Worker(peer)
        await worker.init(timeout_ms=100)
        await worker.add_offsets()
        assert await worker.commit_offset(5) is ErrorCode.NONE
        await offsets_settled(node)
        assert await committed(peer) == -1
        assert await worker.commit_offset(5) is ErrorCode.INVALID_PRODUCER_EPOCH
