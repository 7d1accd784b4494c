"""Limits and answers of a versioned shard."""

from dataclasses import dataclass

from fencelog.coordination.versioned.state import Joined, Phase, Run
from fencelog.errors import ErrorCode
from fencelog.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)


@dataclass(frozen=True, kw_only=True)
class VersionedLimits:
    """Limits of the shard; beyond a count the answer is POLICY_VIOLATION."""

    timeout_ms_max: int = 15 * 60 * 1000
    apps_max: int = 10_000
    producers_max: int = 10_000
    """In one incarnation."""
    partitions_max: int = 10_000
    """Of one producer."""
    runs_max: int = 1_000
    """Of one app. An older run is forgotten and would be taken for a new one; the version and its
    fingerprint still keep it from committing anything twice."""
    name_bytes_max: int = 1_000
    fingerprint_bytes_max: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """The producer that an attempt writes with; ids are -1 with an error."""

    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    incarnation: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AppDescription:
    """The answer to DescribeApp."""

    app: str
    query_id: str
    run_id: str
    run: Run | None
    """Of the newest run; None if it was forgotten."""
    updated_ms: TimestampMs
    last_version: int
    open_version: int
    incarnation: int
    open_producers: tuple[Joined, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerMarker:
    """The marker of one producer on the group's partition."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerGroup:
    """Outstanding markers of a committed decision on one partition: one append (rule V6)."""

    app: str
    incarnation: int
    partition: TopicPartition
    markers: tuple[ProducerMarker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenApp:
    """An open or ending transaction, as ListTransactions and DescribeTransactions show it."""

    app: str
    phase: Phase
    timeout_ms: int
    opened_ms: TimestampMs
    producer_ids: tuple[ProducerId, ...]
    partitions: frozenset[TopicPartition]
    """Where markers are outstanding, or will be once it is decided."""
