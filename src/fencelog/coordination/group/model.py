"""The values of a group with members: who asks for what, and what is answered to whom."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, NewType, TypeAlias

from fencelog.coordination.group.metadata import StoredGroup, StoredMember, write_group
from fencelog.coordination.shard import Decision
from fencelog.errors import ErrorCode
from fencelog.settings.table import default_of
from fencelog.types import Instant, TimestampMs

Ticket = NewType("Ticket", int)
"""A request that waits; the shell gave it the number and knows whose it is."""

NO_GENERATION = -1
"""What comes from no member carries this generation, and no member id."""

NEW_MEMBER_TIMEOUT_S = 300.0
"""How long a newcomer's join may wait: nothing else tells that it has gone meanwhile."""


class GroupState(Enum):
    """Kafka's states of a group; the values are its names on the wire."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    """Members are asked to join again; the rebalance begins when all have, or time is up."""
    COMPLETING = "CompletingRebalance"
    """A generation has begun; its leader's assignment is awaited."""
    STABLE = "Stable"
    DEAD = "Dead"
    """There is no such group."""


TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING}),
    GroupState.PREPARING: frozenset({GroupState.COMPLETING, GroupState.EMPTY}),
    GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.PREPARING}),
    GroupState.STABLE: frozenset({GroupState.PREPARING}),
    GroupState.DEAD: frozenset(),
}


@dataclass(frozen=True, kw_only=True)
class GroupLimits:
    """What bounds the shard; beyond a count the answer is GROUP_MAX_SIZE_REACHED."""

    groups_max: int = 100_000
    partitions_max: int = 100_000
    """Of one group."""
    members_max: int = default_of("group.max.size")
    """Of one group."""
    subscriptions_bytes_max: int = 16 * 1024 * 1024
    """What all members of a group may say of themselves together: it is held, and stored."""
    metadata_bytes_max: int = default_of("offset.metadata.max.bytes")
    session_timeout_ms_min: int = default_of("group.min.session.timeout.ms")
    session_timeout_ms_max: int = default_of("group.max.session.timeout.ms")
    initial_delay_s: float = default_of("group.initial.rebalance.delay.ms") / 1000
    """How long an empty group waits for more members before its first rebalance."""
    offsets_retention_ms: int = default_of("offsets.retention.minutes") * 60_000
    retention_check_s: float = default_of("offsets.retention.check.interval.ms") / 1000


class Alarm(NamedTuple):
    """What a deadline is about; the member is empty where it is the whole group's."""

    kind: str
    group: str
    member_id: str = ""


SESSION, JOIN, SYNC, RETENTION = "session", "join", "sync", "retention"


class Caller(NamedTuple):
    """As whom a request comes: a member of a generation, or nobody."""

    member_id: str = ""
    generation: int = NO_GENERATION
    instance_id: str | None = None

    @property
    def names_no_member(self) -> bool:
        """Whether it says neither who it is nor of which generation.

        A consumer that assigns its partitions itself is such a one, and may have an instance name.
        """
        return not self.member_id and self.generation < 0


NOBODY = Caller()


class Protocol(NamedTuple):
    """A way to assign that a member knows, and what it says of itself under it."""

    name: str
    metadata: bytes


def size_of(protocols: tuple[Protocol, ...]) -> int:
    """Bytes of what a member says of itself."""
    return sum(len(each.name) + len(each.metadata) for each in protocols)


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinRequest:
    """Who wants in, with which protocols, best first."""

    group: str
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    protocol_type: str = "consumer"
    protocols: tuple[Protocol, ...] = ()
    knows_member_id_required: bool = True
    """From version 4 on a newcomer is given its id first and joins with it (KIP-394)."""
    knows_skip_assignment: bool = True
    """From version 9 on a leader can be told to leave the assignment as it is (KIP-814)."""


class JoinedMember(NamedTuple):
    """A member as its leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinAnswer:
    """The generation that has begun, or why not; only its leader is told of the members."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncRequest:
    """A member asks for its assignment; the leader brings everybody's."""

    group: str
    caller: Caller
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncAnswer:
    """A member's assignment in the generation that it named."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Leaver(NamedTuple):
    """Who is to leave: a member, or a static one by its instance."""

    member_id: str
    instance_id: str | None = None


class Left(NamedTuple):
    """How it went for one of them."""

    leaver: Leaver
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """One result for each that was named, in that order; or none, and why."""

    results: tuple[Left, ...] = ()
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """NONE, or what the member has to do about its membership."""

    error: ErrorCode


Answer: TypeAlias = "JoinAnswer | SyncAnswer | LeaveAnswer | HeartbeatAnswer"


class Reply(NamedTuple):
    """An answer, and the request that has waited for it."""

    ticket: Ticket
    answer: Answer


Replies: TypeAlias = tuple[Reply, ...]


@dataclass(eq=False, kw_only=True, slots=True)
class Member:
    """One member of a group in service."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    joining: Ticket | None = None
    """Its join that waits for the rebalance."""
    syncing: Ticket | None = None
    """Its sync that waits for the leader's."""
    is_new: bool = False
    """It has not been through a rebalance: it knows no id to send heartbeats with."""

    @property
    def size(self) -> int:
        """Bytes that it says of itself."""
        return size_of(self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """What it says of itself under a protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupView:
    """A group as DescribeGroups and ListGroups show it."""

    group: str
    state: GroupState
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[StoredMember, ...] = ()


@dataclass(slots=True)
class Step:
    """What one event has led to so far: records to store and requests to answer after that."""

    now: Instant
    wall_ms: TimestampMs
    stores: list[StoredGroup] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)

    def reply(self, ticket: Ticket | None, answer: Answer) -> None:
        """Answer a request, where there is one."""
        if ticket is not None:
            self.replies.append(Reply(ticket, answer))

    def decision(self) -> Decision[Replies]:
        """The step as the runtime wants it."""
        records = [write_group(each) for each in self.stores]
        return Decision(tuple(records), tuple(self.replies), moves_deadline=True)


def refused_join(error: ErrorCode, member_id: str = "") -> JoinAnswer:
    """The answer to a join that leads nowhere."""
    return JoinAnswer(error=error, member_id=member_id)
