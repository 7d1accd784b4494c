"""The client's parameters and results: plain frozen values, no wire messages.

A caller (Spark, CLI, demo) sees these and nothing below them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fencelog.errors import FencelogError
from fencelog.types import TopicId, TopicPartition

Isolation = Literal["transactional", "replicated", "tail"]
"""Rule F6: up to the LSO without aborted data, up to HW, or up to the log end."""

ProduceIsolation = Literal["read_committed", "read_uncommitted"]
"""Rule F5: acknowledged when HW covers the write (acks=all), or at once (acks=1)."""

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

OffsetSpec = Literal["earliest", "latest"] | int
"""Which offset to look up; a number is a timestamp in milliseconds."""

WIRE_ISOLATION: Mapping[Isolation, int] = {"replicated": 0, "transactional": 1, "tail": 2}


class DataLossError(FencelogError):
    """Requested records do not exist: retention deleted them, or the log ends before them."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record. ``timestamp_type``: 0 create time, 1 log append time."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Consecutive records that one partition has acknowledged.

    ``base_offset``: of the first one; -1 if it is not known: a segment of a stream that was sealed
    meanwhile has said only that it has them, or the broker was asked for no answer.
    """

    partition: TopicPartition
    base_offset: int
    count: int


@dataclass(frozen=True, kw_only=True)
class BrokerDescription:
    """One broker and the address that it advertises."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClusterDescription:
    """The cluster's brokers, controller and id."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[BrokerDescription, ...]


@dataclass(frozen=True, kw_only=True)
class ReplicaEnds:
    """What one replica of a partition has, or why that is not known (``problem``)."""

    broker: int
    log_end_offset: int | None = None
    high_watermark: int | None = None
    """As this replica knows it: all below it is committed."""
    last_epoch: int | None = None
    """The leader epoch of its last batch."""
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class PartitionDescription:
    """One partition's leader and replicas; ``leader`` is -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TopicDescription:
    """One topic. ``configs`` is filled by ``describe_topic`` only."""

    name: str
    topic_id: TopicId
    internal: bool
    partitions: tuple[PartitionDescription, ...]
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WriterInfo:
    """What a writer says of itself as it joins a versioned transaction.

    Attributes:
        host: where its run's driver is; empty if it does not say.
        session_ms: neither this writer nor any other closes its client while the transaction is
            open; so it is aborted once all their connections have been closed for so many
            milliseconds (V7). -1: it may, and only the timeout counts.
    """

    host: str = ""
    session_ms: int = -1


ANY_WRITER = WriterInfo()


@dataclass(frozen=True, kw_only=True)
class Joined:
    """The producer of one attempt in a versioned transaction."""

    app: str
    query_id: str
    run_id: str
    version: int
    timeout_ms: int
    producer_id: int
    producer_epoch: int
    transactional_id: str
    incarnation: int
    session_ms: int = -1

    @property
    def renewal_s(self) -> float:
        """How often a writer renews (V7): a new connection has to be known within the session."""
        if self.session_ms <= 0:
            return self.timeout_ms / 3000
        return min(self.timeout_ms / 3000, self.session_ms / 2000)


@dataclass(frozen=True, kw_only=True)
class AlreadyCommitted:
    """The version is committed: a replay writes nothing (V3)."""

    app: str
    version: int


@dataclass(frozen=True, kw_only=True)
class OpenProducer:
    """One attempt that joined the open incarnation, and its partitions."""

    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, kw_only=True)
class AppDescription:
    """The state of an app; -1 if there is no such version, and for an unknown time.

    ``run_since_ms`` and ``run_host``: when its newest run came first, and where its driver is.
    ``updated_ms``: when a version was committed or aborted last, or a run came first.
    """

    app: str
    last_version: int
    query_id: str | None
    run_id: str | None
    run_since_ms: int
    run_host: str | None
    updated_ms: int
    open_version: int
    incarnation: int
    open_producers: tuple[OpenProducer, ...]


@dataclass(frozen=True, kw_only=True)
class TransactionListing:
    """One transactional id as its coordinator lists it."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, kw_only=True)
class OpenBatch:
    """An open or ending versioned transaction; -1 for a number that is not known.

    ``since_ms``: when it was opened. ``rows``: what its producers have written, attempts that the
    commit will not name included.
    """

    app: str
    state: str
    version: int
    query_id: str | None
    run_id: str | None
    run_host: str | None
    since_ms: int
    producer_ids: tuple[int, ...]
    rows: int


@dataclass(frozen=True, kw_only=True)
class TransactionDescription:
    """One transactional id in full; ``start_time_ms`` is -1 without an open transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, kw_only=True)
class ProducerDescription:
    """The state of one producer on one partition; -1 for unknown values.

    ``last_timestamp_ms`` is that of its newest record here, as the producer set it.
    """

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int | None
    """The first offset of its open transaction here; None without one."""


@dataclass(frozen=True, kw_only=True)
class GroupListing:
    """One group as its coordinator lists it."""

    group: str
    state: str
    protocol_type: str


@dataclass(frozen=True, kw_only=True)
class GroupMember:
    """One member of a group, and its partitions if they can be parsed."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, kw_only=True)
class GroupOffset:
    """A group's committed offset on a partition; None if there is none.

    ``pending``: an open transaction may still change it, so it cannot be fetched.
    """

    committed: int | None
    pending: bool = False


@dataclass(frozen=True, kw_only=True)
class GroupDescription:
    """One group: its members, and its offsets."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]
    offsets: Mapping[TopicPartition, GroupOffset]


@dataclass(frozen=True, kw_only=True)
class OwnershipDescription:
    """A resource that was ever claimed.

    Attributes:
        group: None: the owners of writes.
        state: ``free``, ``claiming`` (its grant is not complete) or ``held``.
        generation: the remembered one, of the last claim.
        epoch: of the last grant.
        holder: who holds it, from address ``host``, since ``since_ms``, with this lease; None where
            nobody does.
        fence_offset: where the last grant is in the partition; None if it is no partition.
        waiting: how many claims wait for it.
    """

    group: str | None
    resource: str
    state: str
    generation: int
    epoch: int
    holder: str | None = None
    host: str | None = None
    since_ms: int | None = None
    lease_ms: int | None = None
    fence_offset: int | None = None
    waiting: int = 0


@dataclass(frozen=True, kw_only=True)
class ReleasedResource:
    """A resource that was held and is free now, and the epoch that has ended."""

    resource: str
    epoch: int
