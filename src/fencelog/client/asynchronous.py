"""The client for asyncio, with the names of the blocking one: topics, reads, writes, ownership.

What operators ask (groups, transactions, configs) only the blocking client has.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from fencelog.client.admin import Admin
from fencelog.client.batches import EncodedBatch
from fencelog.client.claim import Claim as ClaimCore
from fencelog.client.cluster import Cluster, ClusterOptions
from fencelog.client.grants import ClaimOptions, claim_options, wait_seconds
from fencelog.client.model import (
    Compression,
    Delivery,
    Isolation,
    OffsetSpec,
    OwnershipDescription,
    ProduceIsolation,
    Record,
    ReleasedResource,
    TopicDescription,
)
from fencelog.client.ownership import Ownership
from fencelog.client.reader import FETCH_BYTES_MAX, FetchOptions, PartitionReader, records_of
from fencelog.client.records_buffer import BATCH_BYTES, RecordsBuffer, checked_partition
from fencelog.client.sender import Sender, open_sender, owner_options, producer_options
from fencelog.client.streams.admin import StreamAdmin
from fencelog.client.streams.model import StreamDescription
from fencelog.errors import FencelogError
from fencelog.types import TopicPartition

if TYPE_CHECKING:
    from fencelog.client.streams.reader_group import ReaderGroup
    from fencelog.client.streams.synchronizer import StateSynchronizer
    from fencelog.coordination.reader_group.state import Cut
    from fencelog.coordination.synchronizer.replica import Schema

S = TypeVar("S")


class Producer:
    """Writes Python records; collects them into batches per partition."""

    def __init__(self, cluster: Cluster, sender: Sender, batch_bytes: int) -> None:
        """Made by ``Client.producer`` and ``Claim.producer``."""
        self._cluster, self._sender = cluster, sender
        self._buffer = RecordsBuffer(batch_bytes=batch_bytes, compression=sender.compression)
        self._encoded: deque[EncodedBatch] = deque()
        """What is not queued yet: nothing but where the sender has raised an error."""

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Add one record; it is sent when a batch is full, at ``flush`` and at ``commit``.

        Waits while too much is unacknowledged; a send that is cancelled has not added its record.
        Raises TypeError or ValueError for what is no record (``timestamp_ms`` is 0 or more, or -1
        for none) and if the topic has no such partition, ExplicitPartitionError if it is a
        stream, where a record's key chooses its segment, the RequestError of an earlier batch, and
        FencelogError where nothing can be written: after ``close``, outside a transaction, while it
        is being ended, and after a commit whose outcome is unknown.
        """
        partition = checked_partition(partition)
        highest = -1 if partition is None else partition
        places = self._cluster.known_places(topic, highest)
        if places is None:
            places = (await self._cluster.places([topic], highest))[topic]
        # Before the record is added, so that a send that is cancelled here has added none.
        if self._sender.is_full:
            await self._sender.room()
        self._sender.check()
        self._buffer.add(topic, places, key, value, partition, headers, timestamp_ms)
        if self._buffer.full:
            self._put()

    async def flush(self) -> list[Delivery]:
        """Send the buffered records; return what was acknowledged since the last flush."""
        self._put()
        return await self._sender.flush()

    async def begin(self) -> None:
        """Begin a transaction. Raises FencelogError without a transactional id or inside one."""
        await self._sender.begin()

    async def commit(self) -> list[Delivery]:
        """Flush, and commit the transaction; returns once the decision is durable.

        Where it is cancelled, or fails without an answer, the outcome may be unknown; then all but
        ``abort`` and ``close`` raise FencelogError.
        """
        self._put()
        return await self._sender.end(commit=True)

    async def abort(self) -> None:
        """Drop the buffered records and abort the transaction.

        After a commit whose outcome is unknown it settles the outcome: nothing can change it later.
        """
        self._buffer.clear()
        self._encoded.clear()
        await self._sender.end(commit=False)

    async def close(self) -> None:
        """Close and drop unsent records; call ``flush`` first to send them. May be called twice."""
        await self._sender.close()

    def _put(self) -> None:
        """Queue what is collected."""
        self._encoded.extend(self._buffer.take())
        self._sender.put(self._encoded)

    async def __aenter__(self) -> Self:
        """Return the producer."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush after success, then close. An open transaction is aborted."""
        try:
            if self._sender.is_closed:
                return
            if self._sender.in_transaction:
                await self.abort()
            elif kind is None:
                await self.flush()
        finally:
            await self.close()


class Claim(ClaimCore):
    """Ownership of resources until it is released or lost. An async context manager.

    Made by ``Client.own``; entering claims. Its producers, reads and commits are the owner's. Once
    the claim is lost they raise OwnershipLostError, and it stays lost: a new claim is needed.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ClaimOptions,
        on_waiting: Callable[[int], None] | None,
        wait_s: float,
    ) -> None:
        """Nothing is sent before it is entered."""
        super().__init__(cluster, options, on_waiting)
        self._wait_s = wait_s
        self._is_entered = False

    async def __aenter__(self) -> Self:
        """Claim; returns once granted. A claim is entered once.

        Raises ClaimRefusedError if an owner is in the way or the wait is over, RequestError
        (UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION …) for all else.
        """
        if self._is_entered:
            raise FencelogError("this claim was entered before; make another one with own(…)")
        self._is_entered = True
        return await self.open(self._wait_s)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the claim."""
        await self.release()

    async def producer(
        self,
        *,
        transactional: bool = False,
        compression: Compression | None = None,
        transaction_timeout_ms: int = 60_000,
        batch_bytes: int = BATCH_BYTES,
    ) -> Producer:
        """An idempotent producer (acks=all) that writes as the owner.

        ``transactional``: with the claim's transactional id; raises FencelogError if none was asked
        for. A lost connection aborts its open transaction and fences it: open another one then.
        """
        options = owner_options(
            self.transactional_id, compression, transaction_timeout_ms, transactional=transactional
        )
        sender = await open_sender(self.connections, options)
        return Producer(self.connections, sender, batch_bytes)

    def fetch(
        self,
        partition: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        isolation: Isolation = "transactional",
        max_bytes: int = FETCH_BYTES_MAX,
    ) -> AsyncIterator[Record]:
        """Records from ``start``, read as the owner; without ``end`` it waits for more."""
        options = FetchOptions(isolation=isolation, max_bytes=max_bytes)
        return _records(self.connections, partition, start, end, options)

    async def commit_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of the claim's group as the owner. Raises FencelogError without a group.

        Returns once they are durable.
        """
        await Admin(self.connections).commit_offsets(self.group, offsets)

    async def committed_offsets(self) -> dict[TopicPartition, int]:
        """All committed offsets of the claim's group. Raises FencelogError without a group."""
        return await Admin(self.connections).committed_offsets(self.group)


class Client:
    """A client of one cluster for one event loop. An async context manager, made by ``connect``.

    Methods have the names, parameters and errors of the blocking ``Client``.
    """

    def __init__(self, options: ClusterOptions) -> None:
        """Connect lazily."""
        self.cluster = Cluster(options)

    async def close(self) -> None:
        """Close the connections; what is asked later raises FencelogError. Harmless twice."""
        await self.cluster.close()

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the client."""
        await self.close()

    # --- topics

    async def partitions(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """Partition numbers of each topic, sorted."""
        return await Admin(self.cluster).partitions(topics)

    async def topics(self, names: Sequence[str] | None = None) -> list[TopicDescription]:
        """These topics, or all, including internal ones, sorted by name."""
        return await Admin(self.cluster).topics(names)

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        replication: int = -1,
    ) -> None:
        """Create a topic. Raises RequestError (TOPIC_ALREADY_EXISTS, INVALID_CONFIG …)."""
        await Admin(self.cluster).create_topic(name, partitions, configs or {}, replication)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises RequestError (UNKNOWN_TOPIC_OR_PARTITION …)."""
        await Admin(self.cluster).delete_topic(name)

    # --- streams

    async def create_stream(
        self,
        name: str,
        segments: int = 1,
        settings: Mapping[str, str] | None = None,
        replication: int = -1,
    ) -> None:
        """Create a stream: a topic whose partitions, the segments, split and merge."""
        await StreamAdmin(self.cluster).create_stream(name, segments, settings or {}, replication)

    async def describe_stream(self, name: str) -> StreamDescription:
        """One stream with all of its segments."""
        return await StreamAdmin(self.cluster).describe_stream(name)

    async def describe_streams(self, names: Sequence[str] | None = None) -> list[StreamDescription]:
        """These streams, or all, sorted by name."""
        return await StreamAdmin(self.cluster).describe_streams(names)

    async def split_segment(self, name: str, segment: int, at: int | None = None) -> list[int]:
        """Split a segment of a stream; return its successors once they are open."""
        return await StreamAdmin(self.cluster).split(name, segment, at)

    async def merge_segments(self, name: str, segments: Sequence[int]) -> list[int]:
        """Merge adjacent segments of a stream; return their one successor once it is open."""
        return await StreamAdmin(self.cluster).merge(name, segments)

    def reader_group(
        self,
        name: str,
        stream: str | None = None,
        *,
        start: "str | Cut" = "earliest",
        end: "Cut | None" = None,
    ) -> "ReaderGroup":
        """A group of readers that share a stream (R4 to R11); with a stream it is created."""
        from fencelog.client.streams.reader_group import ReaderGroup

        return ReaderGroup(self.cluster, name, stream, start=start, end=end)

    async def reader_groups(self) -> list[str]:
        """The names of all reader groups, sorted."""
        from fencelog.client.streams.reader_group import reader_groups

        return await reader_groups(self.cluster)

    def synchronizer(self, topic: str, schema: "Schema[S]") -> "StateSynchronizer[S]":
        """A copy of a state that others share, over a topic with one partition (R4)."""
        from fencelog.client.streams.synchronizer import StateSynchronizer

        return StateSynchronizer(self.cluster, topic, schema)

    # --- reading and writing

    async def offsets(
        self,
        partitions: Iterable[TopicPartition],
        spec: OffsetSpec,
        isolation: Isolation = "transactional",
    ) -> dict[TopicPartition, int]:
        """Offsets of each partition: log start, end, or the first at or after a timestamp (ms)."""
        return await Admin(self.cluster).offsets(list(partitions), spec, isolation)

    def fetch(
        self,
        partition: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        isolation: Isolation = "transactional",
        max_bytes: int = FETCH_BYTES_MAX,
    ) -> AsyncIterator[Record]:
        """Records from ``start`` as Python values; without ``end`` it waits for more."""
        options = FetchOptions(isolation=isolation, max_bytes=max_bytes)
        return _records(self.cluster, partition, start, end, options)

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group, as a consumer without membership does (S6)."""
        await Admin(self.cluster).commit_offsets(group, offsets)

    async def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """All committed offsets of a group."""
        return await Admin(self.cluster).committed_offsets(group)

    async def producer(
        self,
        *,
        idempotent: bool = True,
        transactional_id: str | None = None,
        compression: Compression | None = None,
        isolation: ProduceIsolation = "read_committed",
        transaction_timeout_ms: int = 60_000,
        batch_bytes: int = BATCH_BYTES,
    ) -> Producer:
        """A producer of Python records; with a transactional id the previous one is fenced (E7)."""
        options = producer_options(
            transactional_id,
            compression,
            transaction_timeout_ms,
            idempotent=idempotent,
            isolation=isolation,
        )
        sender = await open_sender(self.cluster, options)
        return Producer(self.cluster, sender, batch_bytes)

    # --- ownership

    def own(
        self,
        resources: str | Iterable[str],
        *,
        group: str | None = None,
        generation: int | None = None,
        wait: bool | float = False,
        transactional_id: str | None = None,
        lease_s: float = 10.0,
        holder: str | None = None,
        on_waiting: Callable[[int], None] | None = None,
    ) -> Claim:
        """Return a claim of resources, all or none; ``async with`` claims and releases it."""
        options = claim_options(
            resources,
            group=group,
            generation=generation,
            transactional_id=transactional_id,
            lease_s=lease_s,
            holder=holder,
        )
        return Claim(self.cluster, options, on_waiting, wait_seconds(wait))

    async def describe_ownership(
        self, resources: Sequence[str] | None = None, *, group: str | None = None
    ) -> list[OwnershipDescription]:
        """The resources of a group that were ever claimed, by name: these, or all."""
        return await Ownership(self.cluster).describe(group, resources)

    async def describe_all_ownership(self) -> list[OwnershipDescription]:
        """Every resource that was ever claimed, by group and name."""
        return await Ownership(self.cluster).describe_all()

    def watch_ownership(
        self, resources: Sequence[str] | None = None, *, group: str | None = None
    ) -> AsyncIterator[list[OwnershipDescription]]:
        """The resources of a group as they are, then those that have changed, without end."""
        return Ownership(self.cluster).watch(group, resources)

    async def release_ownership(
        self, resources: Sequence[str], *, group: str | None = None
    ) -> list[ReleasedResource]:
        """Free resources, whoever holds them: each claim that has one of them ends as a whole."""
        return await Ownership(self.cluster).release(group, resources)


async def _records(
    cluster: Cluster,
    partition: TopicPartition,
    start: int,
    end: int | None,
    options: FetchOptions,
) -> AsyncIterator[Record]:
    reader = PartitionReader(cluster, partition, start, end, options)
    while (chunk := await reader.next_chunk()) is not None:
        for record in records_of(chunk, partition, start, end):
            yield record
