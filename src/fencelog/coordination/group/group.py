"""One group in service: its members, its generation and the rebalance between two generations.

All of this is soft. It changes when a request or a deadline is decided, lives as long as its shard,
and what must outlast that is stored at the end of each rebalance. A load makes the group from the
record again, and its members have one session timeout to be heard (``Group.restored``).

Kafka's classic protocol: members join, the coordinator names a leader, the leader assigns, all get
their share by a sync. Every finished join is a new generation, the third of the counters that fence
a zombie (rule E8). It is stored when it begins and again with the assignment; Kafka stores the
latter only, and may after a crash give its number once more.
"""

from fencelog.coordination.group import protocols
from fencelog.coordination.group.metadata import StoredGroup, StoredMember
from fencelog.coordination.group.model import (
    JOIN,
    NEW_MEMBER_TIMEOUT_S,
    SESSION,
    SYNC,
    TRANSITIONS,
    Alarm,
    Caller,
    GroupLimits,
    GroupState,
    GroupView,
    JoinAnswer,
    JoinedMember,
    Leaver,
    Left,
    Member,
    Protocol,
    Step,
    SyncAnswer,
    SyncRequest,
    Ticket,
    refused_join,
)
from fencelog.coordination.group.timers import Timers
from fencelog.errors import ErrorCode
from fencelog.types import Instant, TimestampMs


class Group:
    """Members by id, in the order of their arrival; at most one rebalance is under way."""

    def __init__(self, name: str, timers: Timers[Alarm], limits: GroupLimits) -> None:
        """An empty group that was never stored."""
        self.name = name
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        """Member id of each static member."""
        self.pending: dict[str, None] = {}
        """Ids that were given to newcomers who have not come back with them yet."""
        self.changed_ms = TimestampMs(-1)
        self.stored: StoredGroup | None = None
        """What the log says; None while it says nothing."""
        self._timers = timers
        self._limits = limits
        self._unsynced: dict[str, None] = {}
        self._is_initial = False
        self._has_newcomers = False
        self._grace_s = 0.0

    @classmethod
    def restored(
        cls, stored: StoredGroup, timers: Timers[Alarm], limits: GroupLimits, now: Instant
    ) -> "Group":
        """The group that a record describes; its members' sessions begin now."""
        group = cls(stored.group, timers, limits)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type
        group.protocol = stored.protocol
        group.leader = stored.leader
        group.changed_ms = stored.changed_ms
        group.stored = stored
        if stored.members:
            is_assigned = any(each.assignment for each in stored.members)
            group.state = GroupState.STABLE if is_assigned else GroupState.COMPLETING
        for each in stored.members:
            member = Member(
                member_id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                session_timeout_ms=each.session_timeout_ms,
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                protocols=(Protocol(stored.protocol or "", each.subscription),),
                assignment=each.assignment,
            )
            group.members[each.member_id] = member
            if each.instance_id is not None:
                group.instances[each.instance_id] = each.member_id
            group.heard(member, now)
        if group.state is GroupState.COMPLETING:
            group.await_syncs(now)
        return group

    def dissolve(self) -> None:
        """It goes out of service: none of its deadlines means anything any more."""
        for member_id in (*self.members, *self.pending):
            self._timers.cancel(Alarm(SESSION, self.name, member_id))
        for kind in (JOIN, SYNC):
            self._timers.cancel(Alarm(kind, self.name))

    # -- questions -------------------------------------------------------------------------------

    @property
    def is_void(self) -> bool:
        """Whether nothing would be missed if it were forgotten."""
        return self.stored is None and not self.members and not self.pending

    @property
    def had_members(self) -> bool:
        """Whether it is more than a record of progress (rule E8's exemption)."""
        return self.generation > 0 or bool(self.members)

    @property
    def all_joined(self) -> bool:
        """Whether everybody that is known waits for the rebalance."""
        return not self.pending and all(each.joining is not None for each in self.members.values())

    @property
    def rebalance_timeout_s(self) -> float:
        """The time that the slowest member asks for."""
        longest = max((each.rebalance_timeout_ms for each in self.members.values()), default=0)
        return longest / 1000

    def refusal(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE for a member; FENCED_INSTANCE_ID for one whose place another process has taken."""
        if instance_id is not None:
            current = self.instances.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def refusal_of(self, caller: Caller) -> ErrorCode:
        """NONE for a member of the present generation (rule E8)."""
        error = self.refusal(caller.member_id, caller.instance_id)
        if error is ErrorCode.NONE and caller.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def supports(self, protocol_type: str, offered: tuple[Protocol, ...]) -> bool:
        """Whether somebody with these could join: all present members know one of them."""
        if not protocol_type or not offered:
            return False
        if not self.members:
            return True
        known = protocols.common(self.members.values())
        return protocol_type == self.protocol_type and any(each.name in known for each in offered)

    def choice(self) -> str:
        """The protocol that the next generation would have."""
        return protocols.choice(self.members.values())

    def subscribed(self) -> frozenset[str] | None:
        """The topics that its members read; None where that cannot be told."""
        return protocols.topics_read(self.protocol_type, self.members.values())

    def view(self) -> GroupView:
        """What operators see; assignments exist in a stable group only."""
        is_stable = self.state is GroupState.STABLE
        return GroupView(
            group=self.name,
            state=self.state,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=(self.protocol or "") if is_stable else "",
            members=tuple(
                self._stored_member(each, with_content=is_stable) for each in self.members.values()
            ),
        )

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """What the leader is told to assign over."""
        return tuple(
            JoinedMember(each.member_id, each.instance_id, each.metadata(self.protocol))
            for each in self.members.values()
        )

    # -- members come and go ---------------------------------------------------------------------

    def heard(self, member: Member, now: Instant) -> None:
        """It lives: its session begins anew."""
        due = Instant(now + member.session_timeout_ms / 1000)
        self._timers.set(Alarm(SESSION, self.name, member.member_id), due)

    def expect(self, member_id: str, timeout_ms: int, now: Instant) -> None:
        """An id was given away: its bearer has a session timeout to come back with it."""
        self.pending[member_id] = None
        alarm = Alarm(SESSION, self.name, member_id)
        self._timers.set(alarm, Instant(now + timeout_ms / 1000))

    def add(self, step: Step, member: Member, protocol_type: str) -> None:
        """A newcomer, whose join waits."""
        if not self.members:
            self.protocol_type = protocol_type
        self.pending.pop(member.member_id, None)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        member.is_new = True
        due = Instant(step.now + NEW_MEMBER_TIMEOUT_S)
        self._timers.set(Alarm(SESSION, self.name, member.member_id), due)
        if self.state is GroupState.PREPARING and self._is_initial:
            self._has_newcomers = True

    def replace(self, step: Step, old_id: str, new_id: str) -> Member:
        """A static member has come back under a new id: whoever used the old one is fenced."""
        old = self.members[old_id]
        assert old.instance_id is not None
        step.reply(old.joining, refused_join(ErrorCode.FENCED_INSTANCE_ID, old_id))
        step.reply(old.syncing, SyncAnswer(error=ErrorCode.FENCED_INSTANCE_ID))
        old.joining = old.syncing = None
        self._timers.cancel(Alarm(SESSION, self.name, old_id))
        old.member_id = new_id
        # The new one stands where the old one stood, so the leader sees the same order.
        self.members = {each.member_id: each for each in self.members.values()}
        self.instances[old.instance_id] = new_id
        if old_id in self._unsynced:
            del self._unsynced[old_id]
            self._unsynced[new_id] = None
        if self.leader == old_id:
            self.leader = new_id
        return old

    def leave(self, step: Step, leavers: tuple[Leaver, ...]) -> tuple[Left, ...]:
        """Take out members, static ones by their instance, and ids that were not used yet."""
        before = len(self.members)
        results = tuple(Left(each, self._leave(step, each)) for each in leavers)
        if len(self.members) < before:
            self.rebalance(step)
        else:
            self._complete_if_all_joined(step)
        return results

    def _leave(self, step: Step, leaver: Leaver) -> ErrorCode:
        member_id = leaver.member_id
        if leaver.instance_id is not None:
            known = self.instances.get(leaver.instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if member_id and member_id != known:
                return ErrorCode.FENCED_INSTANCE_ID
            member_id = known
        if member_id in self.pending:
            self._give_up(member_id)
        elif member_id in self.members:
            self._remove(step, self.members[member_id])
        else:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def _give_up(self, member_id: str) -> None:
        del self.pending[member_id]
        self._timers.cancel(Alarm(SESSION, self.name, member_id))

    def _remove(self, step: Step, member: Member) -> None:
        step.reply(member.joining, refused_join(ErrorCode.UNKNOWN_MEMBER_ID))
        step.reply(member.syncing, SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
        self._drop(member)

    def _drop(self, member: Member) -> None:
        del self.members[member.member_id]
        self._unsynced.pop(member.member_id, None)
        if member.instance_id is not None:
            del self.instances[member.instance_id]
        self._timers.cancel(Alarm(SESSION, self.name, member.member_id))
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    # -- the rebalance ---------------------------------------------------------------------------

    def rebalance(self, step: Step) -> None:
        """Something has changed: begin a rebalance, or see whether the one under way can end."""
        if self.state is GroupState.PREPARING:
            self._complete_if_all_joined(step)
            return
        if self.state is GroupState.COMPLETING:
            for member in self.members.values():
                step.reply(member.syncing, SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
                member.syncing = None
                member.assignment = b""
        self._timers.cancel(Alarm(SYNC, self.name))
        self._unsynced.clear()
        self._is_initial = self.state is GroupState.EMPTY
        self._has_newcomers = False
        self._move(step, GroupState.PREPARING)
        if self._is_initial:
            delay_s = self._limits.initial_delay_s
            self._grace_s = max(self.rebalance_timeout_s - delay_s, 0.0)
            self._wait_for_joins(step, delay_s)
        elif self.all_joined:
            self._begin_generation(step)
        else:
            self._wait_for_joins(step, self.rebalance_timeout_s)

    def _wait_for_joins(self, step: Step, seconds: float) -> None:
        if seconds <= 0:
            self._begin_generation(step)
        else:
            self._timers.set(Alarm(JOIN, self.name), Instant(step.now + seconds))

    def _complete_if_all_joined(self, step: Step) -> None:
        # The first rebalance of an empty group waits for its delay: others may be on their way.
        if self.state is GroupState.PREPARING and not self._is_initial and self.all_joined:
            self._begin_generation(step)

    def join_due(self, step: Step) -> None:
        """The time to join is up: who is here makes the next generation."""
        if self._is_initial and self._has_newcomers and self._grace_s > 0:
            delay_s = min(self._limits.initial_delay_s, self._grace_s)
            self._has_newcomers = False
            self._grace_s -= delay_s
            self._wait_for_joins(step, delay_s)
        else:
            self._begin_generation(step)

    def _begin_generation(self, step: Step) -> None:
        """Go on with those who have joined. A static member may be away until its session ends."""
        self._timers.cancel(Alarm(JOIN, self.name))
        for member in [*self.members.values()]:
            if member.joining is None and member.instance_id is None:
                self._drop(member)
        if self.members and not self._elect_leader():
            # None of the static members is back: there is nobody to assign.
            self._wait_for_joins(step, max(self.rebalance_timeout_s, 0.001))
            return
        self._is_initial = False
        self.generation += 1
        if not self.members:
            self.protocol = self.leader = None
            self._move(step, GroupState.EMPTY)
            self.store(step)
            return
        self.protocol = self.choice()
        self._move(step, GroupState.COMPLETING)
        self.await_syncs(step.now)
        for member in self.members.values():
            member.assignment = b""
            self.heard(member, step.now)
            member.is_new = False
            step.reply(member.joining, self.joined(member))
            member.joining = None
        # Before anybody hears of it: a crash must not let two generations have one number.
        self.store(step)

    def await_syncs(self, now: Instant) -> None:
        """Every member has the rebalance timeout to ask for its assignment."""
        self._unsynced = dict.fromkeys(self.members)
        due = Instant(now + max(self.rebalance_timeout_s, 0.001))
        self._timers.set(Alarm(SYNC, self.name), due)

    def _elect_leader(self) -> bool:
        """Keep a leader that has joined, else take the first who has; False: nobody has."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.joining is not None:
            return True
        joined = [each.member_id for each in self.members.values() if each.joining is not None]
        if joined:
            self.leader = joined[0]
        return bool(joined)

    def joined(self, member: Member) -> JoinAnswer:
        """The present generation, as one member is told of it."""
        assert self.leader is not None
        is_leader = member.member_id == self.leader
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            members=self.joined_members() if is_leader else (),
        )

    def _move(self, step: Step, state: GroupState) -> None:
        assert state in TRANSITIONS[self.state], (self.state, state)
        self.state = state
        self.changed_ms = step.wall_ms

    # -- syncs and heartbeats --------------------------------------------------------------------

    def sync(self, step: Step, request: SyncRequest, ticket: Ticket) -> None:
        """Give a member its assignment once the leader has brought it."""
        error = self._refused_sync(request)
        if error is not ErrorCode.NONE:
            step.reply(ticket, SyncAnswer(error=error))
            return
        member = self.members[request.caller.member_id]
        self._unsynced.pop(member.member_id, None)
        if self.state is GroupState.STABLE:
            self.heard(member, step.now)
            step.reply(ticket, self._synced(member))
            return
        step.reply(member.syncing, SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.syncing = ticket
        if member.member_id == self.leader:
            self._assign(step, dict(request.assignments))

    def _refused_sync(self, request: SyncRequest) -> ErrorCode:
        error = self.refusal_of(request.caller)
        if error is not ErrorCode.NONE:
            return error
        if self.state is GroupState.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if request.protocol_type not in (None, self.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol not in (None, self.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _assign(self, step: Step, assignments: dict[str, bytes]) -> None:
        """The leader has spoken: store it, and answer all who wait once it is stored."""
        self._move(step, GroupState.STABLE)
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.syncing is not None:
                self.heard(member, step.now)
                step.reply(member.syncing, self._synced(member))
                member.syncing = None
        self.store(step)

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )

    def sync_due(self, step: Step) -> None:
        """Who has joined and never asked for its assignment is gone."""
        missing = [self.members[each] for each in self._unsynced if each in self.members]
        self._unsynced.clear()
        if missing and self.state in (GroupState.COMPLETING, GroupState.STABLE):
            for member in missing:
                self._drop(member)
            self.rebalance(step)

    def heartbeat(self, caller: Caller, now: Instant) -> ErrorCode:
        """Note that a member lives, and tell it of a rebalance."""
        error = self.refusal_of(caller)
        if error is not ErrorCode.NONE:
            return error
        self.heard(self.members[caller.member_id], now)
        if self.state is GroupState.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def session_due(self, step: Step, member_id: str) -> None:
        """A member was not heard for its session timeout. One whose request waits here lives."""
        member = self.members.get(member_id)
        if member is None:
            if member_id in self.pending:
                self._give_up(member_id)
                self._complete_if_all_joined(step)
            return
        waits = member.joining is not None or member.syncing is not None
        if waits and not member.is_new:
            self.heard(member, step.now)
        else:
            self._remove(step, member)
            self.rebalance(step)

    # -- what is stored --------------------------------------------------------------------------

    def store(self, step: Step) -> None:
        """Have the group written down as it is now."""
        self.stored = StoredGroup(
            group=self.name,
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            changed_ms=self.changed_ms,
            members=tuple(
                self._stored_member(each, with_content=True) for each in self.members.values()
            ),
        )
        step.stores.append(self.stored)

    def _stored_member(self, member: Member, *, with_content: bool) -> StoredMember:
        return StoredMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=member.session_timeout_ms,
            subscription=member.metadata(self.protocol) if with_content else b"",
            assignment=member.assignment if with_content else b"",
        )
