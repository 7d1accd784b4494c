"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: Kafka's classic group protocol.

Version notes: static members exist from JoinGroup 5, SyncGroup 3, Heartbeat 3 and LeaveGroup 3 on;
LeaveGroup names one member below version 3, and a list from version 3 on.
"""

from fencelog.broker.context import Broker
from fencelog.broker.network.connection import Request
from fencelog.coordination.group.model import (
    Caller,
    HeartbeatAnswer,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    Leaver,
    Protocol,
    SyncAnswer,
    SyncRequest,
)
from fencelog.errors import NotLeaderError
from fencelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from fencelog.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from fencelog.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from fencelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

MEMBER_ID_REQUIRED_FROM = 4
SKIP_ASSIGNMENT_FROM = 9
NULL_PROTOCOL_FROM = 7
SEVERAL_LEAVE_FROM = 3


async def join_group(
    broker: Broker, message: JoinGroupRequest, request: Request
) -> JoinGroupResponse:
    """Add a member to the next generation."""
    version = request.header.api_version
    requested = JoinRequest(
        group=message.group_id,
        member_id=message.member_id,
        instance_id=message.group_instance_id,
        client_id=request.header.client_id or "",
        client_host="/" + request.connection.peer.rpartition(":")[0],
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        protocol_type=message.protocol_type,
        protocols=tuple(Protocol(each.name, each.metadata) for each in message.protocols),
        knows_member_id_required=version >= MEMBER_ID_REQUIRED_FROM,
        knows_skip_assignment=version >= SKIP_ASSIGNMENT_FROM,
    )
    try:
        answer = await broker.group_requests.join(requested)
    except NotLeaderError as refused:
        answer = JoinAnswer(error=refused.coordinator_error, member_id=message.member_id)
    no_protocol = None if version >= NULL_PROTOCOL_FROM else ""
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=no_protocol if answer.protocol is None else answer.protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                metadata=each.metadata,
            )
            for each in answer.members
        ],
    )


async def sync_group(
    broker: Broker, message: SyncGroupRequest, request: Request
) -> SyncGroupResponse:
    """Give a member its assignment."""
    del request
    requested = SyncRequest(
        group=message.group_id,
        caller=Caller(message.member_id, message.generation_id, message.group_instance_id),
        protocol_type=message.protocol_type,
        protocol=message.protocol_name,
        assignments=tuple((each.member_id, each.assignment) for each in message.assignments),
    )
    try:
        answer = await broker.group_requests.sync(requested)
    except NotLeaderError as refused:
        answer = SyncAnswer(error=refused.coordinator_error)
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


async def heartbeat(
    broker: Broker, message: HeartbeatRequest, request: Request
) -> HeartbeatResponse:
    """Extend a member's session; the response tells it of a rebalance."""
    del request
    caller = Caller(message.member_id, message.generation_id, message.group_instance_id)
    try:
        answer = await broker.group_requests.heartbeat(message.group_id, caller)
    except NotLeaderError as refused:
        answer = HeartbeatAnswer(refused.coordinator_error)
    return HeartbeatResponse(error_code=answer.error)


async def leave_group(
    broker: Broker, message: LeaveGroupRequest, request: Request
) -> LeaveGroupResponse:
    """Remove members from a group."""
    names_several = request.header.api_version >= SEVERAL_LEAVE_FROM
    if names_several:
        leavers = tuple(Leaver(each.member_id, each.group_instance_id) for each in message.members)
    else:
        leavers = (Leaver(message.member_id),)
    try:
        answer = await broker.group_requests.leave(message.group_id, leavers)
    except NotLeaderError as refused:
        answer = LeaveAnswer(error=refused.coordinator_error)
    if not names_several and answer.results:
        return LeaveGroupResponse(error_code=answer.results[0].error)
    return LeaveGroupResponse(
        error_code=answer.error,
        members=[
            MemberResponse(
                member_id=left.leaver.member_id,
                group_instance_id=left.leaver.instance_id,
                error_code=left.error,
            )
            for left in answer.results
        ],
    )
