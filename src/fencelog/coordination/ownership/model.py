"""Requests to an ownership shard, its answers, and the work that follows a decision."""

from dataclasses import dataclass
from enum import Enum

from fencelog.errors import ErrorCode
from fencelog.log.ownership import Owner
from fencelog.types import Offset, TimestampMs, TopicPartition
from fencelog.wire.own import LEASE_MS_MAX, LEASE_MS_MIN

NEXT_GENERATION = -1
"""No generation is named: the one after the remembered one is recorded (O4)."""
NO_EPOCH = -1
NO_FENCE = Offset(-1)
_NEVER = TimestampMs(-1)


@dataclass(frozen=True, kw_only=True)
class OwnershipLimits:
    """Limits of a shard; beyond one of a count the answer is POLICY_VIOLATION.

    Attributes:
        resources_max: ever claimed in one shard; their epochs are kept for ever (O3).
        waiting_max: claims that wait in one shard.
        waiting_resources_max: resources that these want, all together.
    """

    resources_max: int = 1_000_000
    waiting_max: int = 10_000
    waiting_resources_max: int = 100_000
    lease_ms_min: int = LEASE_MS_MIN
    lease_ms_max: int = LEASE_MS_MAX


class Limit(Enum):
    """A limit of a shard that a claim would pass."""

    RESOURCES = "resources_max"
    WAITING = "waiting_max"
    WAITING_RESOURCES = "waiting_resources_max"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One resource of a claim.

    Attributes:
        resource: any string; ``topic/partition`` names a partition.
        generation: the claimant's; 0 resets it (O2).
        prev_epoch: the epoch that the claimant held last, or -1 (O5).
    """

    resource: str
    generation: int = NEXT_GENERATION
    prev_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a claimant asks for.

    Attributes:
        group: None: the owners of writes.
        session: new and unique; it names the claim from now on, while it waits and once granted.
        connection: the number of the connection it came on: the claim ends with it.
        name: the name of a transactional id to derive, or None (O8).
        waits: whether it waits until its resources are free, without severing anybody.
        claim_id: names a waiting claim; a repeated one of the same connection keeps its place.
    """

    group: str | None
    wanted: tuple[Wanted, ...]
    session: str
    connection: int
    holder: str
    host: str
    lease_ms: int
    name: str | None = None
    waits: bool = False
    claim_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAnswer:
    """One resource of an answer: as granted, or, where it was refused, as its owner holds it."""

    resource: str
    error: ErrorCode
    generation: int
    epoch: int
    fence_offset: Offset = NO_FENCE
    holder: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAnswer:
    """The answer to a claim.

    ``error`` is NONE once the grant is complete (O9). CLAIM_WAITING: it waits at ``place``.
    POLICY_VIOLATION: ``limit`` is reached.
    """

    error: ErrorCode
    session: str | None = None
    lease_ms: int = -1
    transactional_id: str | None = None
    place: int = -1
    limit: Limit | None = None
    resources: tuple[ResourceAnswer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipState:
    """A resource that was ever claimed, as Describe and Watch show it."""

    group: str | None
    resource: str
    state: str
    """``free``, ``claiming`` (its grant is not complete) or ``held``."""
    generation: int
    epoch: int
    holder: str | None = None
    host: str | None = None
    since_ms: TimestampMs = _NEVER
    lease_ms: int = -1
    fence_offset: Offset = NO_FENCE
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipTask:
    """What a committed decision asks of other leaders (O9); repeating it does no harm.

    A grant (its owners live) raises epochs; an end (they do not) says that nobody holds them any
    more.

    Attributes:
        group: the claim's: who commits its offsets on these partitions is to be raised, too.
        session: the claim that was granted or has ended.
        is_live: whether it was granted; to be told with the report that the work is done.
        partitions: the owner for each partition's own log.
        producers: owners of transactional ids, by ``producers_key``; the transactions of older ones
            are aborted, markers committed, before the work counts as done.
    """

    group: str | None
    session: str
    is_live: bool
    partitions: dict[TopicPartition, Owner]
    producers: dict[str, Owner]
