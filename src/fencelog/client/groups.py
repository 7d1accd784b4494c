"""Requests about consumer groups, for operators."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from fencelog.client.cluster import GROUP, Cluster
from fencelog.client.model import GroupDescription, GroupListing, GroupMember, GroupOffset
from fencelog.client.retry import retrying
from fencelog.errors import ErrorCode, WireError
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import TopicPartition
from fencelog.wire.message import Message
from fencelog.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from fencelog.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from fencelog.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from fencelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from fencelog.wire.primitives import Reader, error_code

R = TypeVar("R", bound=Message)
T = TypeVar("T")
OFFSET_FETCH_VERSION_MAX = 7  # above it a request has a list of groups (KIP-709)
DEAD = "Dead"


class Groups:
    """Requests about groups, sent to the coordinator of each group."""

    def __init__(self, cluster: Cluster) -> None:
        """Use the cluster's connections."""
        self._cluster = cluster

    async def list(self) -> list[GroupListing]:
        """Ask every broker for the groups that it coordinates."""
        deadline = self._cluster.deadline()
        view = await self._cluster.metadata([], deadline)
        found: dict[str, GroupListing] = {}

        async def ask(node_id: int) -> None:
            address = self._cluster.address_of(node_id)
            connection = (
                await self._cluster.any_broker(deadline)
                if address is None
                else await self._cluster.connection(address, deadline)
            )
            answer = await self._cluster.ask(
                connection, ListGroupsRequest(), ListGroupsResponse, deadline
            )
            if answer.error_code:
                code = error_code(answer.error_code)
                raise failure(code, f"groups of broker {connection.address}")
            for each in answer.groups:
                found[each.group_id] = GroupListing(
                    group=each.group_id, state=each.group_state, protocol_type=each.protocol_type
                )

        for broker in view.brokers:
            await retrying(partial(ask, broker.node_id), deadline)
        return [found[name] for name in sorted(found)]

    async def describe(self, group: str) -> GroupDescription:
        """Members and offsets of one group. Raises RequestError (GROUP_ID_NOT_FOUND)."""
        request = DescribeGroupsRequest(groups=[group])

        async def attempt(deadline: Deadline) -> GroupDescription:
            answer = await self._ask(group, request, DescribeGroupsResponse, deadline)
            for each in answer.groups:
                if each.error_code:
                    raise failure(error_code(each.error_code), f"group {group}")
                if each.group_state == DEAD:
                    break
                return GroupDescription(
                    group=each.group_id,
                    state=each.group_state,
                    protocol_type=each.protocol_type,
                    protocol=each.protocol_data,
                    members=tuple(
                        GroupMember(
                            member_id=member.member_id,
                            instance_id=member.group_instance_id,
                            client_id=member.client_id,
                            host=member.client_host.removeprefix("/"),
                            partitions=assigned(member.member_assignment),
                        )
                        for member in each.members
                    ),
                    offsets=await self._offsets(group, deadline),
                )
            raise failure(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group}")

        return await self._retrying(group, attempt)

    async def _offsets(self, group: str, deadline: Deadline) -> dict[TopicPartition, GroupOffset]:
        request = OffsetFetchRequest(group_id=group, topics=None, require_stable=True)
        answer = await self._ask(
            group, request, OffsetFetchResponse, deadline, OFFSET_FETCH_VERSION_MAX
        )
        if answer.error_code:
            raise failure(error_code(answer.error_code), f"offsets of group {group}")
        found = {}
        for topic in answer.topics:
            for each in topic.partitions:
                place = TopicPartition(topic.name, each.partition_index)
                code = error_code(each.error_code)
                is_pending = code is ErrorCode.UNSTABLE_OFFSET_COMMIT
                if each.error_code and not is_pending:
                    raise failure(code, f"offset of {place} in group {group}")
                committed = each.committed_offset if each.committed_offset >= 0 else None
                found[place] = GroupOffset(committed=committed, pending=is_pending)
        return found

    async def delete(self, group: str) -> None:
        """Delete a group without members, and its offsets."""
        request = DeleteGroupsRequest(groups_names=[group])

        async def attempt(deadline: Deadline) -> None:
            answer = await self._ask(group, request, DeleteGroupsResponse, deadline)
            for each in answer.results:
                if each.error_code:
                    raise failure(error_code(each.error_code), f"deletion of group {group}")

        await self._retrying(group, attempt)

    # --- inside

    async def _ask(
        self,
        group: str,
        request: Message,
        response: type[R],
        deadline: Deadline,
        version_max: int = 1 << 15,
    ) -> R:
        return await self._cluster.ask_coordinator(
            GROUP, group, request, response, deadline, version_max
        )

    async def _retrying(self, group: str, attempt: Callable[[Deadline], Awaitable[T]]) -> T:
        deadline = self._cluster.deadline()
        return await retrying(
            partial(attempt, deadline),
            deadline,
            lambda: self._cluster.forget_coordinator(GROUP, group),
        )


def assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of a consumer's assignment; empty if the bytes cannot be parsed.

    Kafka's ConsumerProtocolAssignment: a version, topics with their partitions, user data.
    """
    reader = Reader(assignment)
    found = []
    try:
        reader.int16()
        for _ in range(reader.array_length(flexible=False, item_bytes_min=6)):
            topic = reader.string(flexible=False)
            count = reader.array_length(flexible=False, item_bytes_min=4)
            found += [TopicPartition(topic, reader.int32()) for _ in range(count)]
    except WireError:
        return ()
    return tuple(sorted(found))
