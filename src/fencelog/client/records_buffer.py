"""Collects Python records into batches: for the CLI and scripts, not for high volume."""

from datetime import UTC, datetime
from typing import NamedTuple

from fencelog.client.batches import EncodedBatch
from fencelog.client.model import Compression
from fencelog.client.streams.known import ExplicitPartitionError, Places
from fencelog.client.streams.ranges import NO_KEYS, Ranges, median
from fencelog.types import TopicId, TopicPartition
from fencelog.wire.batch import Compression as Codec
from fencelog.wire.batch import read_header
from fencelog.wire.records import Headers, RecordToWrite, build_batch

BATCH_BYTES = 1_000_000
MASK = 0xFFFFFFFF
RECORD_OVERHEAD = 24


def murmur2(key: bytes) -> int:
    """Return Kafka's hash of a key (org.apache.kafka.common.utils.Utils), as an unsigned number."""
    m = 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & MASK
        k = (k ^ k >> 24) * m & MASK
        h = (h * m & MASK) ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & MASK
    h = (h ^ h >> 13) * m & MASK
    return h ^ h >> 15


def key_hash(key: bytes) -> int:
    """Return the hash by which Kafka's default partitioner and the ranges of streams divide."""
    return murmur2(key) & 0x7FFFFFFF


def partition_of(key: bytes, count: int) -> int:
    """Return the partition that Kafka's default partitioner chooses for a key."""
    return key_hash(key) % count


class _OfSegment(NamedTuple):
    """Records for one segment of a stream, and the hashes of their keys."""

    records: list[RecordToWrite]
    hashes: list[int]


class RecordsBuffer:
    """Collects records per partition until a batch is full."""

    def __init__(self, *, batch_bytes: int, compression: Compression) -> None:
        """``batch_bytes`` is counted before compression."""
        self._batch_bytes = batch_bytes
        self._codec = Codec[compression.upper()]
        self._records: dict[TopicPartition, list[RecordToWrite]] = {}
        self._of_streams: dict[tuple[TopicPartition, TopicId], _OfSegment] = {}
        self._bytes = 0
        self._turn = 0

    @property
    def full(self) -> bool:
        """Whether a full batch is collected."""
        return self._bytes >= self._batch_bytes

    def add(
        self,
        topic: str,
        places: Places,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: Headers,
        timestamp_ms: int | None,
    ) -> None:
        """Add a record.

        Raises ValueError if the topic has no such partition, ExplicitPartitionError if it is a
        stream.
        """
        if timestamp_ms is None:
            timestamp_ms = int(datetime.now(UTC).timestamp() * 1000)
        record = RecordToWrite(key, value, timestamp_ms, headers)
        if not isinstance(places, int):
            self._add_to_stream(topic, places, key, record, partition)
        else:
            if partition is None:
                # Records without a key go to one partition per batch, in rotation.
                partition = self._turn % places if key is None else partition_of(key, places)
            elif not 0 <= partition < places:
                raise ValueError(
                    f"topic {topic} has no partition {partition}, only 0 to {places - 1}"
                )
            self._records.setdefault(TopicPartition(topic, partition), []).append(record)
        self._bytes += len(key or b"") + len(value or b"") + RECORD_OVERHEAD

    def _add_to_stream(
        self,
        topic: str,
        ranges: Ranges,
        key: bytes | None,
        record: RecordToWrite,
        partition: int | None,
    ) -> None:
        if partition is not None:
            raise ExplicitPartitionError(topic, partition)
        hashed = -1 if key is None else key_hash(key)
        segment = ranges.keyless(self._turn) if key is None else ranges.segment_of(hashed)
        # Lists are in the order in which they were begun. So if a segment is replaced meanwhile,
        # the batch for it is queued before those for its successors, as the records came (R2).
        at = TopicPartition(topic, segment), ranges.topic_id
        found = self._of_streams.get(at)
        if found is None:
            found = self._of_streams[at] = _OfSegment([], [])
        found.records.append(record)
        if key is not None:
            found.hashes.append(hashed)

    def take(self) -> list[EncodedBatch]:
        """Return the collected records, one batch per partition.

        Where they cannot be encoded, as without memory, all stay in the buffer.
        """
        records, of_streams = self._records, self._of_streams
        batches = [encoded(partition, rows, self._codec) for partition, rows in records.items()]
        for (partition, topic_id), (rows, hashes) in of_streams.items():
            batches.append(encoded(partition, rows, self._codec, topic_id, median(hashes)))
        self.clear()
        self._turn += 1
        return batches

    def clear(self) -> None:
        """Drop the collected records."""
        self._records, self._of_streams, self._bytes = {}, {}, 0


def encoded(
    partition: TopicPartition,
    rows: list[RecordToWrite],
    codec: Codec,
    topic_id: TopicId | None = None,
    median_hash: int = NO_KEYS,
) -> EncodedBatch:
    """Return the batch of these records, at least one."""
    batch = build_batch(rows, compression=codec)
    header = read_header(batch)
    return EncodedBatch(
        partition=partition,
        buffer=memoryview(batch),
        count=len(rows),
        compression=codec,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        topic_id=topic_id,
        median_hash=median_hash,
    )
