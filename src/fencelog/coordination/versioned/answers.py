"""What a versioned shard is bounded by, and what it answers."""

from dataclasses import dataclass

from fencelog.coordination.versioned.state import Joined, Phase
from fencelog.errors import ErrorCode
from fencelog.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)


@dataclass(frozen=True, kw_only=True)
class VersionedLimits:
    """What bounds the shard; beyond a count the answer is POLICY_VIOLATION."""

    timeout_ms_max: int = 15 * 60 * 1000
    apps_max: int = 10_000
    producers_max: int = 10_000
    """In one incarnation."""
    partitions_max: int = 10_000
    """Of one producer."""
    runs_max: int = 1_000
    """Of one app. A run older than that is forgotten and would drive anew; the version and its
    fingerprint still keep it from committing anything twice."""
    name_bytes_max: int = 1_000
    fingerprint_bytes_max: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """What an attempt may write with; -1 beside an error."""

    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    incarnation: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AppDescription:
    """What DescribeApp answers."""

    app: str
    query_id: str
    run_id: str
    last_version: int
    open_version: int
    incarnation: int
    open_producers: tuple[Joined, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerMarker:
    """How one producer's writes on the group's partition end."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerGroup:
    """Markers that a committed decision owes one partition; they are one append (rule V6)."""

    app: str
    incarnation: int
    partition: TopicPartition
    markers: tuple[ProducerMarker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenApp:
    """A transaction that is open or being ended, as the requests about transactions show it."""

    app: str
    phase: Phase
    timeout_ms: int
    producer_ids: tuple[ProducerId, ...]
    partitions: frozenset[TopicPartition]
    """Where a marker is still to come, now or once it is decided."""
