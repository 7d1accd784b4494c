"""Requests, answers and limits of a group with members."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, NewType, TypeAlias

from fencelog.coordination.group.metadata import StoredGroup, StoredMember, write_group
from fencelog.coordination.shard import Decision
from fencelog.errors import ErrorCode
from fencelog.types import Instant, TimestampMs

Ticket = NewType("Ticket", int)
"""Number of a waiting request; the broker gives it and knows the client."""

NO_GENERATION = -1
"""Requests that do not come from a member carry this generation, and no member id."""

NEW_MEMBER_TIMEOUT_S = 300.0
"""How long the first JoinGroup of a member may wait: it cannot send heartbeats meanwhile."""


class GroupState(Enum):
    """Kafka's states of a group; the values are its names on the wire."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    """Members have to join again; the next generation begins when all have, or time is up."""
    COMPLETING = "CompletingRebalance"
    """A generation has begun and waits for its leader's assignment."""
    STABLE = "Stable"
    DEAD = "Dead"
    """The group does not exist."""


TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING}),
    GroupState.PREPARING: frozenset({GroupState.COMPLETING, GroupState.EMPTY}),
    GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.PREPARING}),
    GroupState.STABLE: frozenset({GroupState.PREPARING}),
    GroupState.DEAD: frozenset(),
}


@dataclass(frozen=True, kw_only=True)
class GroupLimits:
    """Limits of the shard; beyond a count the answer is GROUP_MAX_SIZE_REACHED."""

    groups_max: int = 100_000
    partitions_max: int = 100_000
    """Of one group."""
    members_max: int = 10_000
    """Of one group (Kafka's ``group.max.size``)."""
    subscriptions_bytes_max: int = 16 * 1024 * 1024
    """Of the subscriptions of all members of one group: they are held and stored."""
    metadata_bytes_max: int = 4096
    """Kafka's ``offset.metadata.max.bytes``."""
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_delay_s: float = 3.0
    """How long an empty group waits for more members before its first rebalance."""
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000
    retention_check_s: float = 600.0


class Alarm(NamedTuple):
    """What a deadline is for; without a member it is for the whole group."""

    kind: str
    group: str
    member_id: str = ""


SESSION, JOIN, SYNC, RETENTION = "session", "join", "sync", "retention"


class Caller(NamedTuple):
    """The member and generation that a request names, if it names any."""

    member_id: str = ""
    generation: int = NO_GENERATION
    instance_id: str | None = None

    @property
    def names_no_member(self) -> bool:
        """Whether it names neither a member nor a generation.

        So does a consumer that assigns its partitions itself; it may have an instance id.
        """
        return not self.member_id and self.generation < 0


NO_MEMBER = Caller()


class Protocol(NamedTuple):
    """An assignment protocol that a member supports, with its subscription in that protocol."""

    name: str
    metadata: bytes


def size_of(protocols: tuple[Protocol, ...]) -> int:
    """Bytes of a member's protocols."""
    return sum(len(each.name) + len(each.metadata) for each in protocols)


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinRequest:
    """A JoinGroup request; protocols in the order of the member's preference."""

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
    """From version 4 on a new member gets an id first and joins with it (KIP-394)."""
    knows_skip_assignment: bool = True
    """From version 9 on a leader can be told to keep the assignment (KIP-814)."""


class JoinedMember(NamedTuple):
    """A member as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinAnswer:
    """The generation that has begun, or an error; only its leader is told of the members."""

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
    """A SyncGroup request; the leader's carries the assignment of every member."""

    group: str
    caller: Caller
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncAnswer:
    """A member's assignment in the generation that it named, or an error."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Leaver(NamedTuple):
    """A member that has to leave; a static one by its instance id."""

    member_id: str
    instance_id: str | None = None


class Left(NamedTuple):
    """The result for one of them."""

    leaver: Leaver
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """One result for each that was named, in that order; or one error for all."""

    results: tuple[Left, ...] = ()
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """NONE, or why the member has to join again."""

    error: ErrorCode


Answer: TypeAlias = "JoinAnswer | SyncAnswer | LeaveAnswer | HeartbeatAnswer"


class Reply(NamedTuple):
    """An answer and the ticket of its request."""

    ticket: Ticket
    answer: Answer


Replies: TypeAlias = tuple[Reply, ...]


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
    """What one decision has led to so far: records to store, requests to answer after that."""

    now: Instant
    wall_ms: TimestampMs
    records: dict[str, StoredGroup] = field(default_factory=dict)
    """What to store, by group."""
    replies: list[Reply] = field(default_factory=list)

    def reply(self, ticket: Ticket | None, answer: Answer) -> None:
        """Answer a request, where there is one."""
        if ticket is not None:
            self.replies.append(Reply(ticket, answer))

    def store(self, record: StoredGroup) -> None:
        """Have a group stored.

        Once in a step: rules read the stored group, which changes only when the step is replayed.
        """
        assert record.group not in self.records, record.group
        self.records[record.group] = record

    def decision(self) -> Decision[Replies]:
        """The step as the runtime wants it."""
        records = [write_group(each) for each in self.records.values()]
        return Decision(tuple(records), tuple(self.replies), moves_deadline=True)


def join_error(error: ErrorCode, member_id: str = "") -> JoinAnswer:
    """The answer to a JoinGroup that failed."""
    return JoinAnswer(error=error, member_id=member_id)
