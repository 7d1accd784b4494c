"""Groups through a whole node, request by request."""

import asyncio
from unittest.mock import AsyncMock

import pytest

from fencelog.errors import ErrorCode, StorageError
from fencelog.node import Node
from fencelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from fencelog.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from fencelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from fencelog.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from fencelog_sim.world.disk import Loss
from tests.support.groups import FAST, Member, committed, subscription
from tests.support.node import Peer, World, until


@pytest.mark.parametrize(
    ("join", "sync", "heartbeat", "leave", "commit"),
    [(0, 0, 0, 0, 2), (3, 1, 2, 2, 5), (5, 3, 3, 3, 7), (6, 4, 4, 4, 8), (9, 5, 4, 5, 9)],
)
async def test_a_member_joins_syncs_and_leaves_in_every_request_version(
    world: World, join: int, sync: int, heartbeat: int, leave: int, commit: int
) -> None:
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        member = Member(peer)
        answer = await member.join(join)
        assert (answer.error_code, answer.generation_id) == (ErrorCode.NONE, 1)
        assert answer.leader == answer.member_id == member.member_id
        assert [each.metadata for each in answer.members] == [subscription(["t"])]
        assert await member.lead(sync) == (ErrorCode.NONE, b"all")
        assert await member.heartbeat(heartbeat) is ErrorCode.NONE
        assert await member.commit(5, commit) is ErrorCode.NONE
        assert await committed(peer) == 5
        assert await member.leave(leave) == [ErrorCode.NONE]
        assert await member.leave(leave) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert await member.heartbeat(heartbeat) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(6))
async def test_groups_are_listed_and_described(world: World, version: int) -> None:
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        member = Member(peer)
        await member.join()
        await member.lead()
        listed = await peer.ask(ListGroupsRequest(), version, ListGroupsResponse)
        (one,) = listed.groups
        assert (one.group_id, one.protocol_type) == ("g", "consumer")
        assert one.group_state == ("Stable" if version >= 4 else "")
        if version >= 4:
            request = ListGroupsRequest(states_filter=["Empty"])
            assert (await peer.ask(request, version, ListGroupsResponse)).groups == []
        request = DescribeGroupsRequest(groups=["g", "nobody"])
        described = await peer.ask(request, version, DescribeGroupsResponse)
        found, unknown = described.groups
        assert (found.group_state, found.protocol_data) == ("Stable", "range")
        assert [(each.member_id, each.member_assignment) for each in found.members] == [
            (member.member_id, b"all")
        ]
        assert found.members[0].client_host == "/127.0.0.1"
        assert (unknown.error_code, unknown.group_state) == (ErrorCode.NONE, "Dead")


async def test_the_others_are_answered_although_the_last_one_to_join_has_hung_up(
    world: World,
) -> None:
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        waits = Member(peer)
        async with Peer.of(node) as last:
            leader = Member(last)
            await leader.join()
            await leader.lead()
            waits.send_join(version=3)
            await until(lambda: len(_members(node)) == 2, "the newcomer waits")
            world.disk.hold()
            leader.send_join()
            await until(lambda: world.disk.waiting > 0, "the generation is being stored")
        connected = node.server._connections
        await until(lambda: len(connected) == 1, "the leader's connection is gone")
        world.disk.release()
        assert (await waits.joined(version=3)).generation_id == 2


def _members(node: Node) -> tuple[object, ...]:
    (shard,) = [each.shard for each in node.broker.groups.loaded() if each.shard.groups()]
    return shard.describe("g").members


async def test_no_member_learns_a_generation_that_is_not_stored(world: World) -> None:  # E16
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        member = Member(peer)
        member.send_join()
        await member.joined()
        world.disk.hold()
        member.send_join()
        await until(lambda: world.disk.waiting > 0, "the generation is being stored")
        asked = asyncio.create_task(member.joined())
        await asyncio.sleep(0)
        assert not asked.done()
        world.disk.release()
        assert (await asked).generation_id == 1


async def test_a_broker_that_stops_sends_waiting_members_away_at_once(world: World) -> None:
    loop = asyncio.get_running_loop()
    async with world.node(**FAST) as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t")
        leader, late = Member(peer), Member(other)
        await leader.join()
        await leader.lead()
        late.send_join(version=3)
        await until(lambda: len(_members(node)) == 2, "the newcomer waits")
        began = loop.time()
        stopping = asyncio.create_task(node.stop())
        answer = await late.joined(version=3)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await stopping
        assert loop.time() - began < 4
        node.stop = _nothing  # type: ignore[method-assign]  # done already


async def _nothing() -> None:
    """The end of a node that has ended."""


async def test_members_are_known_again_after_a_kill_and_have_a_session_to_come_back(
    world: World,
) -> None:  # E15
    async with world.node(crash=True, **FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        member = Member(peer)
        await member.join(session_ms=300)
        assert await member.lead() == (ErrorCode.NONE, b"all")
    world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        member.peer = peer
        assert await member.heartbeat() is ErrorCode.NONE
        assert await member.lead() == (ErrorCode.NONE, b"all")
        assert await member.commit(7) is ErrorCode.NONE
        await until(lambda: not _members(node), "its session ends when it falls silent")
        assert await member.commit(8) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await committed(peer) == 7


async def test_a_stale_generation_commits_nothing(world: World) -> None:  # E8
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        member = Member(peer)
        await member.join()
        await member.lead()
        assert await member.commit(5) is ErrorCode.NONE
        await member.join()
        await member.lead()
        assert member.generation == 2
        member.generation = 1
        assert await member.commit(99) is ErrorCode.ILLEGAL_GENERATION
        assert await member.heartbeat() is ErrorCode.ILLEGAL_GENERATION
        assert await committed(peer) == 5


@pytest.mark.parametrize("by_topic", [True, False], ids=["of the topic", "of the broker"])
async def test_a_required_fence_lets_only_members_commit(
    world: World, by_topic: bool
) -> None:  # E8
    defaults = {} if by_topic else {"group.fence": "required"}
    async with world.node(topic_defaults=defaults, **FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t", **({"group_fence": "required"} if by_topic else {}))
        stranger, member = Member(peer), Member(peer)
        # A group without members records progress only, and is free to (S6).
        assert await stranger.commit(1) is ErrorCode.NONE
        await member.join()
        await member.lead()
        assert await stranger.commit(2) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await member.commit(3) is ErrorCode.NONE
        await member.leave()
        assert await stranger.commit(4) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await committed(peer) == 3


async def test_a_fence_may_be_required_while_the_broker_serves(world: World) -> None:  # E8
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        stranger, member = Member(peer), Member(peer)
        await member.join()
        await member.lead()
        await member.leave()
        assert await stranger.commit(1) is ErrorCode.NONE
        change = AlterableConfig(name="group.fence", config_operation=0, value="required")
        request = IncrementalAlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=2, resource_name="t", configs=[change])]
        )
        answer = await peer.ask(request, 1, IncrementalAlterConfigsResponse)
        assert answer.responses[0].error_code == ErrorCode.NONE, answer
        assert await stranger.commit(2) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_offsets_of_a_deleted_topic_are_removed_even_after_a_kill_in_between(
    world: World,
) -> None:
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        member = Member(peer)
        assert await member.commit(5) is ErrorCode.NONE
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name="t")], topic_names=["t"], timeout_ms=1000
        )
        await peer.ask(request, 6, DeleteTopicsResponse)
        assert await committed(peer) == -1
        await peer.create_topic("t")
        assert await committed(peer) == -1
        assert await member.commit(6) is ErrorCode.NONE
        # As though the power had failed between the deletion and the forgetting.
        node.broker.controller.on_deleted = AsyncMock()
        topic = node.broker.catalog.get("t")
        assert topic is not None
        await node.broker.controller.delete_topic(topic)
        assert await committed(peer) == 6
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        assert await committed(peer) == -1


async def test_waiting_members_get_an_error_when_the_coordinators_disk_fails(
    world: World,
) -> None:  # D2
    async with world.node(**FAST) as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t")
        leader, late = Member(peer), Member(other)
        await leader.join()
        await leader.lead()
        late.send_join(version=3)
        await until(lambda: len(_members(node)) == 2, "the newcomer waits")
        (loaded,) = [each for each in node.broker.groups.loaded() if each.shard.groups()]
        loaded.partition.fail(StorageError("no space left"))
        assert await leader.heartbeat() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer = await late.joined(version=3)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
