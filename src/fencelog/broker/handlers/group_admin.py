"""ListGroups, DescribeGroups, DeleteGroups, OffsetDelete.

Version notes: ListGroups filters by state from 4 on and by type from 5 on. An unknown group is
described as Dead, up to DescribeGroups 5 without an error, from 6 on with GROUP_ID_NOT_FOUND.
"""

from fencelog.broker.context import Broker
from fencelog.broker.coordinators.outcomes import shards_here
from fencelog.broker.handlers.security import GROUP_OPERATIONS
from fencelog.broker.network.connection import Request
from fencelog.coordination.group.model import GroupState, GroupView
from fencelog.errors import ErrorCode, NotLeaderError
from fencelog.types import TopicPartition
from fencelog.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from fencelog.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from fencelog.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from fencelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

CLASSIC = "classic"
"""The only supported group type."""
NOT_FOUND_FROM = 6
"""From this version of DescribeGroups on an unknown group is an error."""


async def list_groups(
    broker: Broker, message: ListGroupsRequest, request: Request
) -> ListGroupsResponse:
    """Return every group, also those with offsets only, or an error.

    Without the groups of one coordinator partition others would look deleted.
    """
    del request
    states = {each.lower() for each in message.states_filter}
    types = {each.lower() for each in message.types_filter}
    try:
        await shards_here(broker.groups, broker.logs)
        found = await broker.groups.read_all(lambda shard: shard.groups())
    except NotLeaderError as refused:
        return ListGroupsResponse(error_code=refused.coordinator_error)
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=each.group,
                protocol_type=each.protocol_type,
                group_state=each.state.value,
                group_type=CLASSIC,
            )
            for each in sorted(found, key=lambda view: view.group)
            if (not states or each.state.value.lower() in states)
            and (not types or CLASSIC in types)
        ]
    )


async def describe_groups(
    broker: Broker, message: DescribeGroupsRequest, request: Request
) -> DescribeGroupsResponse:
    """Return state, protocol and members of each named group."""
    knows_not_found = request.header.api_version >= NOT_FOUND_FROM
    groups = []
    async for name in broker.time_slices.each(message.groups):
        group = await _describe(broker, name, knows_not_found=knows_not_found)
        if message.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = GROUP_OPERATIONS
        groups.append(group)
    return DescribeGroupsResponse(groups=groups)


async def _describe(broker: Broker, name: str, *, knows_not_found: bool) -> DescribedGroup:
    error, text = ErrorCode.NONE if name else ErrorCode.INVALID_GROUP_ID, None
    view = GroupView(group=name, state=GroupState.DEAD)
    if name:
        try:
            view = await broker.groups.read(name, lambda shard: shard.describe(name))
        except NotLeaderError as refused:
            error = refused.coordinator_error
    if knows_not_found and error is ErrorCode.NONE and view.state is GroupState.DEAD:
        error, text = ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name}"
    return DescribedGroup(
        error_code=error,
        error_message=text,
        group_id=name,
        group_state=view.state.value,
        protocol_type=view.protocol_type,
        protocol_data=view.protocol,
        members=[
            DescribedGroupMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.subscription,
                member_assignment=each.assignment,
            )
            for each in view.members
        ],
    )


async def delete_groups(
    broker: Broker, message: DeleteGroupsRequest, request: Request
) -> DeleteGroupsResponse:
    """Delete groups without members, and their offsets."""
    del request
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=name, error_code=await _delete(broker, name))
            async for name in broker.time_slices.each(message.groups_names)
        ]
    )


async def _delete(broker: Broker, name: str) -> ErrorCode:
    if not name:
        return ErrorCode.INVALID_GROUP_ID
    try:
        return await broker.groups.decide(name, lambda shard, now: shard.delete_group(name))
    except NotLeaderError as refused:
        return refused.coordinator_error


async def offset_delete(
    broker: Broker, message: OffsetDeleteRequest, request: Request
) -> OffsetDeleteResponse:
    """Delete offsets of a group, with one result for each partition."""
    del request
    group = message.group_id
    named = [
        TopicPartition(topic.name, part.partition_index)
        for topic in message.topics
        for part in topic.partitions
    ]
    try:
        answers = await broker.groups.decide(
            group, lambda shard, now: shard.delete_offsets(group, named)
        )
    except NotLeaderError as refused:
        answers = refused.coordinator_error
    if isinstance(answers, ErrorCode):
        return OffsetDeleteResponse(error_code=answers)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=part.partition_index,
                        error_code=answers[TopicPartition(topic.name, part.partition_index)],
                    )
                    for part in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
