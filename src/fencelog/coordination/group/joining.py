"""JoinGroup: who is let in, who takes whose place, and what makes a group rebalance.

Version notes: below 4 a newcomer joins at once, from there on it is given an id first, so that one
who gives up and comes again leaves no dead member behind (KIP-394). A static member (version 5,
KIP-345) that comes back takes its old place. Below 9 its group's leader is not told that it leads,
since it would assign anew (KIP-814).
"""

from dataclasses import replace

from fencelog.coordination.group.group import Group
from fencelog.coordination.group.model import (
    GroupLimits,
    GroupState,
    JoinRequest,
    Member,
    Protocol,
    Step,
    SyncAnswer,
    Ticket,
    refused_join,
    size_of,
)
from fencelog.coordination.group.subscription import subscribed_topics
from fencelog.errors import ErrorCode


def refused_form(request: JoinRequest, limits: GroupLimits) -> ErrorCode:
    """What is wrong with a join whatever the group; NONE where nothing is."""
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
    """Answer a join, or let it wait for the rebalance. ``fresh_id`` is used for a newcomer."""
    asked = request.member_id
    if _is_too_much(group, request, limits):
        step.reply(ticket, refused_join(ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif not group.supports(request.protocol_type, request.protocols):
        step.reply(ticket, refused_join(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, asked))
    elif not asked:
        _join_new(group, step, request, ticket, fresh_id)
    elif asked in group.pending and request.instance_id is None:
        _enter(group, step, request, ticket, asked)
    else:
        error = group.refusal(asked, request.instance_id)
        if error is ErrorCode.NONE:
            _join_again(group, step, request, ticket)
        else:
            step.reply(ticket, refused_join(error, asked))


def _is_too_much(group: Group, request: JoinRequest, limits: GroupLimits) -> bool:
    is_newcomer = not request.member_id and request.instance_id not in group.instances
    if is_newcomer and len(group.members) + len(group.pending) >= limits.members_max:
        return True
    others = sum(
        each.size for each in group.members.values() if each.member_id != request.member_id
    )
    return others + size_of(request.protocols) > limits.subscriptions_bytes_max


def _join_new(
    group: Group, step: Step, request: JoinRequest, ticket: Ticket, fresh_id: str
) -> None:
    if request.instance_id is not None:
        old_id = group.instances.get(request.instance_id)
        if old_id is None:
            _enter(group, step, request, ticket, fresh_id)
        else:
            _take_place(group, step, request, ticket, (old_id, fresh_id))
    elif request.knows_member_id_required:
        group.expect(fresh_id, request.session_timeout_ms, step.now)
        step.reply(ticket, refused_join(ErrorCode.MEMBER_ID_REQUIRED, fresh_id))
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
    group.add(step, member, request.protocol_type)
    group.rebalance(step)


def _take_place(
    group: Group, step: Step, request: JoinRequest, ticket: Ticket, ids: tuple[str, str]
) -> None:
    """A static member is back. Nobody has to move if it wants what it wanted."""
    old_leader = group.leader
    before = group.members[ids[0]].protocols
    member = group.replace(step, *ids)
    _update(member, request)
    group.heard(member, step.now)
    is_same = group.state is GroupState.STABLE and _reads_the_same(group, before, request)
    if not is_same:
        member.joining = ticket
        group.rebalance(step)
        return
    group.store(step)
    answer = group.joined(member)
    if answer.leader != member.member_id:
        step.reply(ticket, answer)
    elif request.knows_skip_assignment:
        step.reply(ticket, replace(answer, skip_assignment=True))
    else:
        # It leads, but must not know: it would assign, and everybody would have to move.
        assert old_leader is not None
        step.reply(ticket, replace(answer, leader=old_leader, members=()))


def _reads_the_same(group: Group, before: tuple[Protocol, ...], request: JoinRequest) -> bool:
    """Whether the group would choose the protocol that it has, over the same topics.

    What else a subscription holds (which partitions it owned, say) differs after every restart.
    """
    if group.choice() != group.protocol:
        return False
    was = next((each.metadata for each in before if each.name == group.protocol), b"")
    now = next((each.metadata for each in request.protocols if each.name == group.protocol), b"")
    return was == now or (
        (topics := subscribed_topics(now)) is not None and topics == subscribed_topics(was)
    )


def _join_again(group: Group, step: Step, request: JoinRequest, ticket: Ticket) -> None:
    member = group.members[request.member_id]
    changed = member.protocols != request.protocols
    if group.state is GroupState.COMPLETING and not changed:
        # The first answer was lost; the generation has begun.
        step.reply(ticket, group.joined(member))
        return
    if group.state is GroupState.STABLE and not changed and member.member_id != group.leader:
        group.heard(member, step.now)
        step.reply(ticket, group.joined(member))
        return
    # The one before it, of a connection that is given up, must not wait for ever.
    superseded = ErrorCode.REBALANCE_IN_PROGRESS
    step.reply(member.joining, refused_join(superseded, member.member_id))
    step.reply(member.syncing, SyncAnswer(error=superseded))
    member.syncing = None
    _update(member, request)
    member.joining = ticket
    group.heard(member, step.now)
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
