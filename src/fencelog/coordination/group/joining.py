"""JoinGroup: which members may join, and when a join begins a rebalance.

Version notes: below 4 a new member joins at once; from 4 on it gets an id first, so that a client
that gives up and retries leaves no dead member behind (KIP-394). A static member (from 5 on,
KIP-345) that restarts replaces its earlier self. Below 9 a leader that restarts so is not told that
it leads, since it would assign anew (KIP-814).
"""

from dataclasses import replace

from fencelog.coordination.group.group import Group, join_answer
from fencelog.coordination.group.metadata import StoredGroup
from fencelog.coordination.group.model import (
    GroupLimits,
    GroupState,
    JoinRequest,
    Protocol,
    Step,
    SyncAnswer,
    Ticket,
    join_error,
    size_of,
)
from fencelog.coordination.group.soft_state import Member
from fencelog.coordination.group.subscription import subscribed_topics
from fencelog.errors import ErrorCode


def validate_request(request: JoinRequest, limits: GroupLimits) -> ErrorCode:
    """NONE, or what is wrong with a join whatever the state of the group."""
    timeout = request.session_timeout_ms
    if not request.group:
        return ErrorCode.INVALID_GROUP_ID
    if not limits.session_timeout_ms_min <= timeout <= limits.session_timeout_ms_max:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def join(
    group: Group,
    step: Step,
    request: JoinRequest,
    ticket: Ticket,
    *,
    fresh_id: str,
    limits: GroupLimits,
) -> None:
    """Answer a join, or let it wait for the rebalance. ``fresh_id``: the id for a new member."""
    asked = request.member_id
    if _exceeds_limits(group, request, limits):
        step.reply(ticket, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif not group.supports(request.protocol_type, request.protocols):
        step.reply(ticket, join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, asked))
    elif not asked:
        _join_new(group, step, request, ticket, fresh_id)
    elif asked in group.soft.pending and request.instance_id is None:
        _enter(group, step, request, ticket, asked)
    else:
        error = group.validate_member(asked, request.instance_id)
        if error is ErrorCode.NONE:
            _join_again(group, step, request, ticket)
        else:
            step.reply(ticket, join_error(error, asked))


def _exceeds_limits(group: Group, request: JoinRequest, limits: GroupLimits) -> bool:
    is_new = not request.member_id and request.instance_id not in group.soft.instances
    if is_new and len(group.soft.members) + len(group.soft.pending) >= limits.members_max:
        return True
    others = sum(
        each.size for each in group.soft.members.values() if each.member_id != request.member_id
    )
    return others + size_of(request.protocols) > limits.subscriptions_bytes_max


def _join_new(
    group: Group, step: Step, request: JoinRequest, ticket: Ticket, fresh_id: str
) -> None:
    if request.instance_id is not None:
        old_id = group.soft.instances.get(request.instance_id)
        if old_id is None:
            _enter(group, step, request, ticket, fresh_id)
        else:
            _replace_static(group, step, request, ticket, old_id=old_id, new_id=fresh_id)
    elif request.knows_member_id_required:
        group.soft.add_pending(fresh_id, request.session_timeout_ms, step.now)
        step.reply(ticket, join_error(ErrorCode.MEMBER_ID_REQUIRED, fresh_id))
    else:
        _enter(group, step, request, ticket, fresh_id)


def _enter(group: Group, step: Step, request: JoinRequest, ticket: Ticket, member_id: str) -> None:
    member = Member(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=_rebalance_timeout_ms(request),
        protocols=request.protocols,
        joining=ticket,
    )
    group.soft.add(member, request.protocol_type, step.now)
    group.rebalance(step)


def _replace_static(
    group: Group, step: Step, request: JoinRequest, ticket: Ticket, *, old_id: str, new_id: str
) -> None:
    """Replace a static member that is back; no rebalance where the assignment stays valid."""
    before = group.soft.members[old_id].protocols
    member = group.replace_member(step, old_id, new_id)
    _update(member, request)
    group.soft.touch_session(member, step.now)
    stored = group.stored
    if stored is None or not _keeps_assignment(group, stored, before, request):
        member.joining = ticket
        group.rebalance(step)
        return
    renamed = _renamed(stored, old_id, member)
    group.store(step, renamed)
    answer = join_answer(renamed, new_id)
    if answer.leader != new_id:
        step.reply(ticket, answer)
    elif request.knows_skip_assignment:
        step.reply(ticket, replace(answer, skip_assignment=True))
    else:
        # It leads, but must not know: it would assign, and everybody would have to move.
        assert stored.leader is not None
        step.reply(ticket, replace(answer, leader=stored.leader, members=()))


def _renamed(stored: StoredGroup, old_id: str, member: Member) -> StoredGroup:
    """The same generation with a static member under its new id."""
    return replace(
        stored,
        leader=member.member_id if stored.leader == old_id else stored.leader,
        members=tuple(
            member.as_stored(stored.protocol, each.assignment) if each.member_id == old_id else each
            for each in stored.members
        ),
    )


def _keeps_assignment(
    group: Group, stored: StoredGroup, before: tuple[Protocol, ...], request: JoinRequest
) -> bool:
    """Whether the group is stable and would choose its present protocol, over the same topics.

    The rest of a subscription (which partitions it owned, say) differs after every restart.
    """
    if group.soft.state is not GroupState.STABLE or group.preferred_protocol() != stored.protocol:
        return False
    was = next((each.metadata for each in before if each.name == stored.protocol), b"")
    now = next((each.metadata for each in request.protocols if each.name == stored.protocol), b"")
    return was == now or (
        (topics := subscribed_topics(now)) is not None and topics == subscribed_topics(was)
    )


def _join_again(group: Group, step: Step, request: JoinRequest, ticket: Ticket) -> None:
    member = group.soft.members[request.member_id]
    stored, state = group.stored, group.soft.state
    if stored is not None and member.protocols == request.protocols:
        if state is GroupState.COMPLETING:
            # The first answer was lost; the generation has begun.
            step.reply(ticket, join_answer(stored, member.member_id))
            return
        if state is GroupState.STABLE and member.member_id != stored.leader:
            group.soft.touch_session(member, step.now)
            step.reply(ticket, join_answer(stored, member.member_id))
            return
    # A previous request, of a connection that was given up, must not wait for ever.
    superseded = ErrorCode.REBALANCE_IN_PROGRESS
    step.reply(member.joining, join_error(superseded, member.member_id))
    step.reply(member.syncing, SyncAnswer(error=superseded))
    member.syncing = None
    _update(member, request)
    member.joining = ticket
    group.soft.touch_session(member, step.now)
    group.rebalance(step)


def _update(member: Member, request: JoinRequest) -> None:
    member.protocols = request.protocols
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = _rebalance_timeout_ms(request)
    member.client_id = request.client_id
    member.client_host = request.client_host


def _rebalance_timeout_ms(request: JoinRequest) -> int:
    # Version 0 knows one timeout for both.
    given = request.rebalance_timeout_ms
    return given if given > 0 else request.session_timeout_ms
