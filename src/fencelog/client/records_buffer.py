"""Collects Python records into batches: for the CLI and scripts, not for high volume."""

from collections.abc import Sequence
from datetime import UTC, datetime
from operator import index
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
TIMESTAMP_MS_MIN = -1
"""Kafka's "no timestamp"; it refuses every other negative one."""
TIMESTAMP_MS_MAX = (1 << 63) - 1
SHOWN_MAX = 60
"""Characters of a wrong value that an error shows."""
PAIR = 2


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


def checked_partition(partition: int | None) -> int | None:
    """Return a record's partition as an int. Raises TypeError."""
    if partition is None or type(partition) is int:
        return partition
    return _whole_number("partition", partition, "a partition's number, or None")


def _checked_bytes(name: str, value: object) -> bytes:
    """Return a copy, as the caller may change what is not immutable. Raises TypeError."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{name} is {_shown(value)}: expected bytes or None")


def _checked_timestamp(timestamp_ms: object) -> int:
    """Return a record's timestamp. Raises TypeError or ValueError."""
    expected = f"milliseconds since 1970, 0 to {TIMESTAMP_MS_MAX}, or -1 for no timestamp"
    number = _whole_number("timestamp_ms", timestamp_ms, expected)
    if not TIMESTAMP_MS_MIN <= number <= TIMESTAMP_MS_MAX:
        raise ValueError(f"timestamp_ms is {_shown(timestamp_ms)}: expected {expected}")
    return number


def _whole_number(name: str, value: object, expected: str) -> int:
    """Return an int, also of a type that stands for one, as numpy's do. Raises TypeError."""
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} is {_shown(value)}: expected {expected}") from None


def _checked_headers(headers: object) -> Headers:
    """Return a record's headers. Raises TypeError or ValueError."""
    expected = "expected a tuple of pairs (str, bytes or None)"
    if not isinstance(headers, Sequence) or isinstance(headers, str | bytes):
        raise TypeError(f"headers is {_shown(headers)}: {expected}")
    checked: list[tuple[str, bytes | None]] = []
    for each in headers:
        if not isinstance(each, tuple | list) or len(each) != PAIR or not isinstance(each[0], str):
            raise TypeError(f"headers has {_shown(each)}: {expected}")
        name, value = each
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"headers has the name {name!r}, which UTF-8 cannot encode") from None
        found = None if value is None else _checked_bytes(f"the value of header {name!r}", value)
        checked.append((name, found))
    return tuple(checked)


def _shown(value: object) -> str:
    text = repr(value)
    short = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
    return f"{short} ({type(value).__name__})"


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
        stream, TypeError or ValueError if it cannot be encoded; then nothing is added.
        """
        # Here and not where a batch is encoded: its other records would be lost with this one.
        if value is not None and type(value) is not bytes:
            value = _checked_bytes("value", value)
        if key is not None and type(key) is not bytes:
            key = _checked_bytes("key", key)
        if type(headers) is not tuple or headers:
            headers = _checked_headers(headers)
        if timestamp_ms is None:
            timestamp_ms = int(datetime.now(UTC).timestamp() * 1000)
        elif type(timestamp_ms) is not int or not (
            TIMESTAMP_MS_MIN <= timestamp_ms <= TIMESTAMP_MS_MAX
        ):
            timestamp_ms = _checked_timestamp(timestamp_ms)
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
