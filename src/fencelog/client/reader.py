"""Reads one partition: fetched bytes without the batches that are not visible.

The caller requests the next chunk while it decodes the last one, so that both overlap.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fencelog.client.batches import VisibleBatch, scan
from fencelog.client.cluster import Cluster
from fencelog.client.isolation import isolation_level
from fencelog.client.model import DataLossError, Isolation, Record
from fencelog.client.retry import retrying
from fencelog.errors import ErrorCode, RequestError, WireError
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.settings.kinds import INT64_MAX
from fencelog.types import TopicId, TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.batch import HEADER_BYTES
from fencelog.wire.hot import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from fencelog.wire.hot.fetch import TOPIC_IDS_FROM
from fencelog.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from fencelog.wire.primitives import error_code
from fencelog.wire.records import read_records

FETCH_BYTES_MAX = 8 << 20
BATCH_BYTES_MAX = 256 << 20
WAIT_MS = 500
FETCH_VERSION_MIN = 4
EPOCH_VERSION_MAX = 4
CONSUMER = -1
STALE_TOPIC = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""What a fetch gets where metadata is old, or the topic was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How a partition is read.

    With a ``topic_id`` records of another topic of that name are not read, if the broker can fetch
    by id (KIP-516; Kafka 3.1).
    """

    isolation: Isolation
    max_bytes: int
    topic_id: TopicId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Fetched bytes and the visible batches in them.

    ``leader_epoch``: that of the last batch, visible or not. ``sealed_at``: the offset of the seal,
    if there is one in them: the segment of a stream ends there (R2).
    """

    records: memoryview
    batches: list[VisibleBatch]
    next_offset: int
    leader_epoch: int
    sealed_at: int | None


def records_of(
    chunk: Chunk, partition: TopicPartition, start: int, end: int | None
) -> Iterator[Record]:
    """Unpack a chunk into Python records. Raises WireError with partition and offset."""
    for batch in chunk.batches:
        try:
            found = read_records(chunk.records[batch.start - HEADER_BYTES : batch.end])
        except WireError as error:
            raise WireError(
                f"malformed record batch in {partition} "
                f"at offset {batch.header.base_offset}: {error}"
            ) from error
        for record in found:
            if record.offset >= start and (end is None or record.offset < end):
                yield Record(
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=record.offset,
                    timestamp_ms=record.timestamp,
                    timestamp_type=int(batch.header.timestamp_type),
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                )


class PartitionReader:
    """Reads ``start`` ≤ offset < ``end`` (None: no end), one chunk per call, one call at a time."""

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        start: int,
        end: int | None,
        options: FetchOptions,
    ) -> None:
        """Nothing is sent before the first chunk is requested. Raises ValueError for no offset."""
        if not 0 <= start <= INT64_MAX:
            raise ValueError(f"{partition}: {start} is no offset; those are 0 to {INT64_MAX}")
        self._cluster = cluster
        self._partition = partition
        self._position = start
        self._end = end
        self._isolation = options.isolation
        self._max_bytes = options.max_bytes
        self._topic_id = options.topic_id
        self._is_moved = False
        """Whether the last answer named the new leader, so that it need not be looked up."""
        self._read_epoch = -1
        """The leader epoch of what was read last."""
        self._checked_epoch = -1
        """The leader epoch whose log is known to have all that was read."""

    async def next_chunk(self) -> Chunk | None:
        """Return the next fetched bytes; None once ``end`` is reached.

        Without an end it waits for records without limit. With one it raises DataLossError after
        the client's timeout without records, because records up to the end were known to exist.
        Raises DataLossError too if retention has deleted the position, or the topic is another.
        """
        deadline = self._cluster.deadline()
        while self._end is None or self._position < self._end:
            chunk = await self._poll(self._cluster.deadline())
            if chunk is not None:
                return chunk
            if self._end is not None and deadline.passed:
                raise DataLossError(
                    f"{self._partition} has no visible record from offset {self._position} on, "
                    f"but records up to {self._end} were requested (waited {deadline})"
                )
        return None

    async def _poll(self, deadline: Deadline) -> Chunk | None:
        """Return fetched bytes, or None if nothing arrived within the wait."""
        partition = self._partition

        async def attempt() -> FetchedPartition:
            return await self._fetch(deadline)

        fetched = await retrying(attempt, deadline, self._stale)
        if not fetched.records:
            return None
        records = memoryview(fetched.records[0])
        try:
            found = scan(
                records, fetched.aborted or (), transactional=self._isolation == "transactional"
            )
        except WireError as error:
            raise WireError(f"{partition} after offset {self._position}: {error}") from error
        if found.next_offset is None:
            # No whole batch: retry with a larger fetch.
            if self._max_bytes >= BATCH_BYTES_MAX:
                raise WireError(
                    f"{partition}: no whole record batch in {len(records)} bytes "
                    f"at offset {self._position}"
                )
            self._max_bytes = max(min(2 * self._max_bytes, BATCH_BYTES_MAX), 1)
            return None
        if found.next_offset <= self._position:
            raise WireError(
                f"{partition}: the response to a fetch at offset {self._position} "
                f"has only records below it, up to {found.next_offset}"
            )
        self._position = found.next_offset
        self._read_epoch = found.leader_epoch
        return Chunk(
            records=records,
            batches=found.batches,
            next_offset=found.next_offset,
            leader_epoch=found.leader_epoch,
            sealed_at=found.sealed_at,
        )

    def _stale(self) -> None:
        """Look the leader up again, unless it was named."""
        if not self._is_moved:
            self._cluster.forget(self._partition.topic)
        self._is_moved = False

    async def _fetch(self, deadline: Deadline) -> FetchedPartition:
        connection = await self._cluster.leader(self._partition, deadline, "fetches")
        leader_epoch = self._cluster.leader_epoch(self._partition)
        if self._read_epoch >= 0 and self._checked_epoch < leader_epoch != self._read_epoch:
            await self._check_read(leader_epoch, deadline)
        self._checked_epoch = leader_epoch
        low, high = connection.versions.get(ApiKey.FETCH, (1, 0))
        by_name = self._topic_id is None
        version = min(high, TOPIC_IDS_FROM - 1 if by_name else TOPIC_IDS_FROM)
        if version < max(low, FETCH_VERSION_MIN):
            raise failure(ErrorCode.UNSUPPORTED_VERSION, f"Fetch to broker {connection.address}")
        asked = FetchPartition(
            self._partition.partition, leader_epoch, self._position, -1, self._max_bytes
        )
        request = FetchRequest(
            CONSUMER,
            WAIT_MS,
            1,
            self._max_bytes,
            isolation_level(self._isolation, connection),
            0,
            -1,
            [FetchTopic(self._partition.topic, self._topic_id, [asked])],
        )
        body = await connection.call(
            ApiKey.FETCH,
            version,
            [write_fetch_request(version, request)],
            self._cluster.request_deadline(deadline),
        )
        return await self._judge(self._result(connection, body, version), connection, deadline)

    async def _check_read(self, leader_epoch: int, deadline: Deadline) -> None:
        """Check that a new leader's log has what was read (KIP-320).

        Raises DataLossError if it has not: at ``tail`` it may be without what no replica had
        acknowledged, and have other records at these offsets.
        """
        connection = await self._cluster.leader(self._partition, deadline)
        if ApiKey.OFFSET_FOR_LEADER_EPOCH not in connection.versions:
            return
        asked = OffsetForLeaderPartition(
            partition=self._partition.partition,
            current_leader_epoch=leader_epoch,
            leader_epoch=self._read_epoch,
        )
        topic = OffsetForLeaderTopic(topic=self._partition.topic, partitions=[asked])
        answer = await self._cluster.ask(
            connection,
            OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=[topic]),
            OffsetForLeaderEpochResponse,
            deadline,
            EPOCH_VERSION_MAX,
        )
        for found in (each for topic in answer.topics for each in topic.partitions):
            if found.error_code:
                what = f"leader epochs of {self._partition} at broker {connection.address}"
                raise failure(error_code(found.error_code), what)
            if 0 <= found.end_offset < self._position:
                raise DataLossError(
                    f"{self._partition}: the new leader has taken back what followed offset "
                    f"{found.end_offset}, and records up to {self._position} were read; only "
                    "records that are replicated stay"
                )

    def _result(self, connection: Connection, body: memoryview, version: int) -> FetchedPartition:
        try:
            answer = read_fetch_response(body, version)
        except WireError as error:
            connection.close(f"malformed response to Fetch: {error}")
            raise failure(
                ErrorCode.NETWORK_EXCEPTION, f"Fetch from {connection.address}", str(error)
            ) from error
        if answer.error:
            raise failure(answer.error, f"Fetch from broker {connection.address}")
        for topic in answer.topics:
            if version >= TOPIC_IDS_FROM:
                is_asked = topic.topic_id == self._topic_id
            else:
                is_asked = topic.topic == self._partition.topic
            for fetched in topic.partitions:
                if is_asked and fetched.partition == self._partition.partition:
                    leader, endpoints = fetched.current_leader, answer.endpoints
                    self._is_moved = self._cluster.learn(self._partition, leader, endpoints)
                    return fetched
        if answer.throttle_time_ms:
            # Over its quota a client gets an answer without partitions, and then the next one
            # only after this time (KIP-219).
            raise failure(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"Fetch from broker {connection.address}"
            )
        connection.close("an answer to Fetch lacks the partition")
        raise failure(
            ErrorCode.NETWORK_EXCEPTION,
            f"the response of broker {connection.address} lacks {self._partition}",
        )

    async def _judge(
        self, fetched: FetchedPartition, connection: Connection, deadline: Deadline
    ) -> FetchedPartition:
        """Return the fetched bytes. Raises RequestError, or DataLossError if records are gone."""
        what = (
            f"fetch of {self._partition} at offset {self._position} "
            f"from broker {connection.address}"
        )
        if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            # The response may lack the log start (its fields are -1 on an error).
            from fencelog.client.admin import Admin

            bounds = Admin(self._cluster)
            starts = await bounds.offsets([self._partition], "earliest", "replicated")
            start = starts[self._partition]
            if self._position < start:
                raise DataLossError(
                    f"{self._partition} now begins at offset {start}; offset {self._position} was "
                    "asked for and is deleted by retention"
                )
            ends = await bounds.offsets([self._partition], "latest", "replicated")
            raise DataLossError(
                f"{self._partition} ends at offset {ends[self._partition]}; "
                f"offset {self._position} was requested"
            )
        if fetched.error in STALE_TOPIC:
            await self._check_topic_id(deadline)
            await self._cluster.leader(self._partition, deadline)
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, what)
        if fetched.error:
            raise failure(fetched.error, what)
        return fetched

    async def _check_topic_id(self, deadline: Deadline) -> None:
        """Raise DataLossError if the topic has another id by fresh metadata."""
        view = await self._cluster.metadata([self._partition.topic], deadline)
        wanted = self._topic_id
        if wanted is not None and any(topic.topic_id != wanted for topic in view.topics):
            raise DataLossError(
                f"{self._partition}: the topic was deleted and created again; offset"
                f" {self._position} of the earlier one was requested"
            )
