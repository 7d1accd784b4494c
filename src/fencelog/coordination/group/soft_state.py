"""The soft state of a group in service: who has joined, sessions, requests that wait, deadlines.

No record holds it. Rules change it while they decide, before their records are safe, which does no
harm: a shard whose append fails is dropped with all of it. A load makes it anew from the stored
group, and each member's session begins with the load. What must outlast the shard is in
``metadata.StoredGroup``, and changes in the shard's ``replay`` only.
"""

from dataclasses import dataclass

from fencelog.coordination.group.metadata import StoredGroup, StoredMember
from fencelog.coordination.group.model import (
    JOIN,
    NEW_MEMBER_TIMEOUT_S,
    SESSION,
    SYNC,
    TRANSITIONS,
    Alarm,
    GroupState,
    Protocol,
    Ticket,
    size_of,
)
from fencelog.coordination.timers import Timers
from fencelog.types import Instant

SYNC_TIMEOUT_S_MIN = 0.001


@dataclass(eq=False, kw_only=True, slots=True)
class Member:
    """A member as its latest JoinGroup describes it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    joining: Ticket | None = None
    """Its JoinGroup that waits for the rebalance."""
    syncing: Ticket | None = None
    """Its SyncGroup that waits for the leader's."""
    is_new: bool = False
    """Its first JoinGroup is unanswered: it knows no member id to send heartbeats with."""

    @property
    def size(self) -> int:
        """Bytes of its subscriptions."""
        return size_of(self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """Its subscription under a protocol; empty where it does not know the protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def as_stored(self, protocol: str | None, assignment: bytes = b"") -> StoredMember:
        """This member in a record of a generation that uses ``protocol``; None: no subscription."""
        return StoredMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )


class SoftState:
    """Members by id, in the order of their arrival, and the rebalance under way, if there is one.

    While the state is COMPLETING or STABLE the members are those of the stored generation.
    """

    def __init__(self, group: str, timers: Timers[Alarm]) -> None:
        """No members; EMPTY."""
        self.state = GroupState.EMPTY
        self.protocol_type = ""
        """Of the present members; where there are none, of the last ones."""
        self.leader: str | None = None
        """Who leads the next generation if it joins; in COMPLETING and STABLE the stored leader."""
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        """Member id of each static member."""
        self.pending: dict[str, None] = {}
        """Ids given to new members that have not joined with them yet (KIP-394)."""
        self.last_record: StoredGroup | None = None
        """The record that was decided last. The shard's ``replay`` finds this state in step with
        it, and makes the soft state anew for any other record."""
        self.is_initial = False
        """The rebalance under way is the first after EMPTY: it waits for its full delay."""
        self.has_new_members = False
        """A member has joined since the initial delay was last extended."""
        self.grace_s = 0.0
        """Seconds by which the initial delay may still be extended."""
        self._group = group
        self._timers = timers
        self._unsynced: dict[str, None] = {}

    @classmethod
    def restored(cls, stored: StoredGroup, timers: Timers[Alarm], now: Instant) -> "SoftState":
        """The soft state after a load of this record; its members' sessions begin now.

        A record without any assignment is the one of a generation that waits for its leader's.
        """
        soft = cls(stored.group, timers)
        soft.protocol_type = stored.protocol_type
        soft.leader = stored.leader
        soft.last_record = stored
        if stored.members:
            is_assigned = any(each.assignment for each in stored.members)
            soft.state = GroupState.STABLE if is_assigned else GroupState.COMPLETING
        for each in stored.members:
            member = Member(
                member_id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                session_timeout_ms=each.session_timeout_ms,
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                protocols=(Protocol(stored.protocol or "", each.subscription),),
            )
            soft.members[each.member_id] = member
            if each.instance_id is not None:
                soft.instances[each.instance_id] = each.member_id
            soft.touch_session(member, now)
        if soft.state is GroupState.COMPLETING:
            soft.await_syncs(now)
        return soft

    def close(self) -> None:
        """Cancel every deadline: the group goes out of service."""
        for member_id in (*self.members, *self.pending):
            self._timers.cancel(Alarm(SESSION, self._group, member_id))
        self.cancel_joins()
        self.cancel_syncs()

    def move(self, state: GroupState) -> None:
        """Go to another state; the table of transitions has to allow it."""
        assert state in TRANSITIONS[self.state], (self.state, state)
        self.state = state

    # -- questions -------------------------------------------------------------------------------

    @property
    def all_joined(self) -> bool:
        """Whether every member waits for the rebalance and no pending member is left."""
        return not self.pending and all(each.joining is not None for each in self.members.values())

    @property
    def rebalance_timeout_s(self) -> float:
        """The longest rebalance timeout of the members, in seconds; 0 without members."""
        longest = max((each.rebalance_timeout_ms for each in self.members.values()), default=0)
        return longest / 1000

    # -- members and sessions --------------------------------------------------------------------

    def touch_session(self, member: Member, now: Instant) -> None:
        """Begin a member's session anew."""
        due = Instant(now + member.session_timeout_ms / 1000)
        self._timers.set(Alarm(SESSION, self._group, member.member_id), due)

    def add_pending(self, member_id: str, timeout_ms: int, now: Instant) -> None:
        """Note an id that a new member has this long to join with."""
        self.pending[member_id] = None
        alarm = Alarm(SESSION, self._group, member_id)
        self._timers.set(alarm, Instant(now + timeout_ms / 1000))

    def remove_pending(self, member_id: str) -> None:
        """Forget an id that no member has joined with."""
        del self.pending[member_id]
        self._timers.cancel(Alarm(SESSION, self._group, member_id))

    def add(self, member: Member, protocol_type: str, now: Instant) -> None:
        """Add a new member, whose JoinGroup waits."""
        if not self.members:
            self.protocol_type = protocol_type
        self.pending.pop(member.member_id, None)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        member.is_new = True
        due = Instant(now + NEW_MEMBER_TIMEOUT_S)
        self._timers.set(Alarm(SESSION, self._group, member.member_id), due)
        if self.state is GroupState.PREPARING and self.is_initial:
            self.has_new_members = True

    def remove(self, member: Member) -> None:
        """Remove a member; its requests must have been answered."""
        del self.members[member.member_id]
        self._unsynced.pop(member.member_id, None)
        if member.instance_id is not None:
            del self.instances[member.instance_id]
        self._timers.cancel(Alarm(SESSION, self._group, member.member_id))
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: Member, new_id: str) -> None:
        """Give a static member a new id; it keeps its place in the order of members."""
        old_id = member.member_id
        assert member.instance_id is not None, old_id
        self._timers.cancel(Alarm(SESSION, self._group, old_id))
        member.member_id = new_id
        self.members = {each.member_id: each for each in self.members.values()}
        self.instances[member.instance_id] = new_id
        if old_id in self._unsynced:
            del self._unsynced[old_id]
            self._unsynced[new_id] = None
        if self.leader == old_id:
            self.leader = new_id

    # -- the rebalance under way -----------------------------------------------------------------

    def await_joins(self, due: Instant) -> None:
        """Set the deadline by which members have to join."""
        self._timers.set(Alarm(JOIN, self._group), due)

    def cancel_joins(self) -> None:
        """Cancel the deadline of ``await_joins``."""
        self._timers.cancel(Alarm(JOIN, self._group))

    def elect_leader(self) -> bool:
        """Keep a leader that has joined, else take the first who has; False where nobody has."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.joining is not None:
            return True
        joined = [each.member_id for each in self.members.values() if each.joining is not None]
        if joined:
            self.leader = joined[0]
        return bool(joined)

    def await_syncs(self, now: Instant) -> None:
        """Give every member the rebalance timeout to send SyncGroup."""
        self._unsynced = dict.fromkeys(self.members)
        due = Instant(now + max(self.rebalance_timeout_s, SYNC_TIMEOUT_S_MIN))
        self._timers.set(Alarm(SYNC, self._group), due)

    def cancel_syncs(self) -> None:
        """Wait for no SyncGroup any more."""
        self._timers.cancel(Alarm(SYNC, self._group))
        self._unsynced.clear()

    def synced(self, member_id: str) -> None:
        """Note that a member has sent SyncGroup."""
        self._unsynced.pop(member_id, None)

    def take_unsynced(self) -> list[Member]:
        """Return, once, the members that have not sent SyncGroup."""
        missing = [self.members[each] for each in self._unsynced if each in self.members]
        self._unsynced.clear()
        return missing
