"""One group in service: the rules of Kafka's classic protocol, from one generation to the next.

Members join, the coordinator names a leader, the leader assigns, and each member gets its share by
a sync. Every finished join is a new generation, the third of the counters that fence a zombie (rule
E8). It is stored when it begins and again with the assignment; Kafka stores the latter only, and
may give the same generation twice after a crash.

A rule reads the stored group (``Group.stored``: generation, protocol, leader, members with their
assignments) and decides the record that is stored next; the shard's ``replay`` alone replaces the
stored group. What a rule changes itself is ``Group.soft``.
"""

from collections.abc import Mapping
from dataclasses import replace

from fencelog.coordination.group import protocols
from fencelog.coordination.group.metadata import StoredGroup
from fencelog.coordination.group.model import (
    Alarm,
    Caller,
    GroupLimits,
    GroupState,
    GroupView,
    JoinAnswer,
    JoinedMember,
    Leaver,
    Left,
    Protocol,
    Step,
    SyncAnswer,
    SyncRequest,
    Ticket,
    join_error,
)
from fencelog.coordination.group.soft_state import SYNC_TIMEOUT_S_MIN, Member, SoftState
from fencelog.coordination.timers import Timers
from fencelog.errors import ErrorCode
from fencelog.types import Instant


class Group:
    """The rules of one group; at most one rebalance is under way."""

    def __init__(
        self,
        name: str,
        stored_groups: Mapping[str, StoredGroup],
        soft: SoftState,
        limits: GroupLimits,
    ) -> None:
        """``stored_groups``: what the log says of every group of the shard; only read here."""
        self.name = name
        self.soft = soft
        self._stored_groups = stored_groups
        self._limits = limits

    @classmethod
    def new(
        cls,
        name: str,
        stored_groups: Mapping[str, StoredGroup],
        timers: Timers[Alarm],
        limits: GroupLimits,
    ) -> "Group":
        """An empty group that was never stored."""
        return cls(name, stored_groups, SoftState(name, timers), limits)

    # -- questions -------------------------------------------------------------------------------

    @property
    def stored(self) -> StoredGroup | None:
        """What the log says of it; None while it says nothing."""
        return self._stored_groups.get(self.name)

    @property
    def generation(self) -> int:
        """The stored generation; 0 before the first."""
        return 0 if self.stored is None else self.stored.generation

    @property
    def is_void(self) -> bool:
        """Whether nothing is lost when it is forgotten: no record, no members, no pending ids."""
        return self.soft.last_record is None and not self.soft.members and not self.soft.pending

    @property
    def is_unused(self) -> bool:
        """Whether it is EMPTY and no member is joining, so that it may be forgotten when old."""
        return self.soft.state is GroupState.EMPTY and not self.soft.pending

    @property
    def had_members(self) -> bool:
        """Whether it ever had members: a group that only commits offsets has none (rule E8)."""
        return self.generation > 0 or bool(self.soft.members)

    def validate_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE for a member; FENCED_INSTANCE_ID where another process has taken its instance."""
        if instance_id is not None:
            current = self.soft.instances.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.soft.members else ErrorCode.UNKNOWN_MEMBER_ID

    def validate_caller(self, caller: Caller) -> ErrorCode:
        """NONE for a member of the current generation (rule E8)."""
        error = self.validate_member(caller.member_id, caller.instance_id)
        if error is ErrorCode.NONE and caller.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def supports(self, protocol_type: str, offered: tuple[Protocol, ...]) -> bool:
        """Whether a member with these protocols could join: all members know one of them."""
        if not protocol_type or not offered:
            return False
        if not self.soft.members:
            return True
        known = protocols.common(self.soft.members.values())
        return protocol_type == self.soft.protocol_type and any(
            each.name in known for each in offered
        )

    def preferred_protocol(self) -> str:
        """The protocol that the next generation would have."""
        return protocols.choice(self.soft.members.values())

    def subscribed(self) -> frozenset[str] | None:
        """The topics that its members read; None where that cannot be told."""
        return protocols.topics_read(self.soft.protocol_type, self.soft.members.values())

    def view(self) -> GroupView:
        """What operators see; protocol, subscriptions and assignments of a STABLE group only."""
        stored, soft = self.stored, self.soft
        view = GroupView(
            group=self.name,
            state=soft.state,
            generation=self.generation,
            protocol_type=soft.protocol_type,
        )
        if stored is not None and soft.state is GroupState.STABLE:
            return replace(view, protocol=stored.protocol or "", members=stored.members)
        return replace(
            view, members=tuple(each.as_stored(protocol=None) for each in soft.members.values())
        )

    # -- members come and go ---------------------------------------------------------------------

    def replace_member(self, step: Step, old_id: str, new_id: str) -> Member:
        """A static member is back under a new id; whoever uses the old one is fenced."""
        member = self.soft.members[old_id]
        step.reply(member.joining, join_error(ErrorCode.FENCED_INSTANCE_ID, old_id))
        step.reply(member.syncing, SyncAnswer(error=ErrorCode.FENCED_INSTANCE_ID))
        member.joining = member.syncing = None
        self.soft.rename(member, new_id)
        return member

    def leave(self, step: Step, leavers: tuple[Leaver, ...]) -> tuple[Left, ...]:
        """Remove members, static ones by their instance, and pending ids."""
        before = len(self.soft.members)
        results = tuple(Left(each, self._leave(step, each)) for each in leavers)
        if len(self.soft.members) < before:
            self.rebalance(step)
        else:
            self._complete_if_all_joined(step)
        return results

    def _leave(self, step: Step, leaver: Leaver) -> ErrorCode:
        member_id = leaver.member_id
        if leaver.instance_id is not None:
            known = self.soft.instances.get(leaver.instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if member_id and member_id != known:
                return ErrorCode.FENCED_INSTANCE_ID
            member_id = known
        if member_id in self.soft.pending:
            self.soft.remove_pending(member_id)
        elif member_id in self.soft.members:
            self._remove(step, self.soft.members[member_id])
        else:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def _remove(self, step: Step, member: Member) -> None:
        step.reply(member.joining, join_error(ErrorCode.UNKNOWN_MEMBER_ID))
        step.reply(member.syncing, SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
        self.soft.remove(member)

    # -- the rebalance ---------------------------------------------------------------------------

    def rebalance(self, step: Step) -> None:
        """Begin a rebalance, or complete the one under way if all have joined."""
        soft = self.soft
        if soft.state is GroupState.PREPARING:
            self._complete_if_all_joined(step)
            return
        if soft.state is GroupState.COMPLETING:
            for member in soft.members.values():
                step.reply(member.syncing, SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
                member.syncing = None
        soft.cancel_syncs()
        soft.is_initial = soft.state is GroupState.EMPTY
        soft.has_new_members = False
        soft.move(GroupState.PREPARING)
        if soft.is_initial:
            delay_s = self._limits.initial_delay_s
            soft.grace_s = max(soft.rebalance_timeout_s - delay_s, 0.0)
            self._wait_for_joins(step, delay_s)
        elif soft.all_joined:
            self._begin_generation(step)
        else:
            self._wait_for_joins(step, soft.rebalance_timeout_s)

    def _wait_for_joins(self, step: Step, seconds: float) -> None:
        if seconds <= 0:
            self._begin_generation(step)
        else:
            self.soft.await_joins(Instant(step.now + seconds))

    def _complete_if_all_joined(self, step: Step) -> None:
        # The first rebalance of an empty group waits for its delay: others may be on their way.
        soft = self.soft
        if soft.state is GroupState.PREPARING and not soft.is_initial and soft.all_joined:
            self._begin_generation(step)

    def join_due(self, step: Step) -> None:
        """The time to join is up: extend the initial delay, or begin with those who have joined."""
        soft = self.soft
        if soft.is_initial and soft.has_new_members and soft.grace_s > 0:
            delay_s = min(self._limits.initial_delay_s, soft.grace_s)
            soft.has_new_members = False
            soft.grace_s -= delay_s
            self._wait_for_joins(step, delay_s)
        else:
            self._begin_generation(step)

    def _begin_generation(self, step: Step) -> None:
        """Begin the next generation with those who have joined, and with the static members."""
        soft = self.soft
        soft.cancel_joins()
        for member in [*soft.members.values()]:
            if member.joining is None and member.instance_id is None:
                soft.remove(member)
        if soft.members and not soft.elect_leader():
            # No static member has joined, so no member can lead.
            self._wait_for_joins(step, max(soft.rebalance_timeout_s, SYNC_TIMEOUT_S_MIN))
            return
        soft.is_initial = False
        begun = self._next_generation(step)
        if not soft.members:
            soft.move(GroupState.EMPTY)
            self.store(step, begun)
            return
        soft.move(GroupState.COMPLETING)
        soft.await_syncs(step.now)
        for member in soft.members.values():
            soft.touch_session(member, step.now)
            member.is_new = False
            step.reply(member.joining, join_answer(begun, member.member_id))
            member.joining = None
        # Before any member is told: a crash must not let two generations have one number.
        self.store(step, begun)

    def _next_generation(self, step: Step) -> StoredGroup:
        soft = self.soft
        protocol = self.preferred_protocol() if soft.members else None
        return StoredGroup(
            group=self.name,
            protocol_type=soft.protocol_type,
            generation=self.generation + 1,
            protocol=protocol,
            leader=soft.leader,
            changed_ms=step.wall_ms,
            members=tuple(each.as_stored(protocol) for each in soft.members.values()),
        )

    def store(self, step: Step, record: StoredGroup) -> None:
        """Have the record appended; its replay makes it the stored group."""
        self.soft.last_record = record
        step.store(record)

    # -- syncs and heartbeats --------------------------------------------------------------------

    def sync(self, step: Step, request: SyncRequest, ticket: Ticket) -> None:
        """Give a member its assignment once the leader has sent it."""
        error = self._validate_sync(request)
        if error is not ErrorCode.NONE:
            step.reply(ticket, SyncAnswer(error=error))
            return
        stored = self.stored
        assert stored is not None, self.name
        member = self.soft.members[request.caller.member_id]
        self.soft.synced(member.member_id)
        if self.soft.state is GroupState.STABLE:
            self.soft.touch_session(member, step.now)
            step.reply(ticket, sync_answer(stored, stored.assignment(member.member_id)))
            return
        step.reply(member.syncing, SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.syncing = ticket
        if member.member_id == stored.leader:
            self._assign(step, stored, dict(request.assignments))

    def _validate_sync(self, request: SyncRequest) -> ErrorCode:
        error = self.validate_caller(request.caller)
        if error is not ErrorCode.NONE:
            return error
        if self.soft.state is GroupState.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        stored = self.stored
        assert stored is not None, self.name
        if request.protocol_type not in (None, stored.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol not in (None, stored.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _assign(self, step: Step, stored: StoredGroup, assignments: dict[str, bytes]) -> None:
        """Store the leader's assignment; answer all who wait once it is stored."""
        self.soft.move(GroupState.STABLE)
        members = tuple(
            replace(each, assignment=assignments.get(each.member_id, b""))
            for each in stored.members
        )
        for each in members:
            member = self.soft.members[each.member_id]
            if member.syncing is not None:
                self.soft.touch_session(member, step.now)
                step.reply(member.syncing, sync_answer(stored, each.assignment))
                member.syncing = None
        self.store(step, replace(stored, changed_ms=step.wall_ms, members=members))

    def sync_due(self, step: Step) -> None:
        """Remove the members that have joined and sent no SyncGroup in time."""
        missing = self.soft.take_unsynced()
        if missing and self.soft.state in (GroupState.COMPLETING, GroupState.STABLE):
            for member in missing:
                self.soft.remove(member)
            self.rebalance(step)

    def heartbeat(self, caller: Caller, now: Instant) -> ErrorCode:
        """Touch a member's session; REBALANCE_IN_PROGRESS tells it to join again."""
        error = self.validate_caller(caller)
        if error is not ErrorCode.NONE:
            return error
        self.soft.touch_session(self.soft.members[caller.member_id], now)
        if self.soft.state is GroupState.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def session_due(self, step: Step, member_id: str) -> None:
        """Remove a member whose session has timed out; one whose request waits here lives."""
        member = self.soft.members.get(member_id)
        if member is None:
            if member_id in self.soft.pending:
                self.soft.remove_pending(member_id)
                self._complete_if_all_joined(step)
            return
        waits = member.joining is not None or member.syncing is not None
        if waits and not member.is_new:
            self.soft.touch_session(member, step.now)
        else:
            self._remove(step, member)
            self.rebalance(step)


def join_answer(generation: StoredGroup, member_id: str) -> JoinAnswer:
    """A generation as JoinGroup tells one of its members; the leader is told of all members."""
    assert generation.leader is not None, generation.group
    members = (
        JoinedMember(each.member_id, each.instance_id, each.subscription)
        for each in generation.members
    )
    return JoinAnswer(
        member_id=member_id,
        generation=generation.generation,
        protocol_type=generation.protocol_type,
        protocol=generation.protocol,
        leader=generation.leader,
        members=tuple(members) if member_id == generation.leader else (),
    )


def sync_answer(generation: StoredGroup, assignment: bytes) -> SyncAnswer:
    """A member's assignment in a generation, as SyncGroup tells it."""
    return SyncAnswer(
        protocol_type=generation.protocol_type,
        protocol=generation.protocol,
        assignment=assignment,
    )
