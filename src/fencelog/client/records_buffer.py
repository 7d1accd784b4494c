"""Collects Python records into batches: for the CLI and scripts, not for high volume."""

from datetime import UTC, datetime

from fencelog.client.batches import EncodedBatch
from fencelog.client.model import Compression
from fencelog.types import TopicPartition
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


def partition_of(key: bytes, count: int) -> int:
    """Return the partition that Kafka's default partitioner chooses for a key."""
    return (murmur2(key) & 0x7FFFFFFF) % count


class RecordsBuffer:
    """Collects records per partition until a batch is full."""

    def __init__(self, *, batch_bytes: int, compression: Compression) -> None:
        """``batch_bytes`` is counted before compression."""
        self._batch_bytes = batch_bytes
        self._codec = Codec[compression.upper()]
        self._records: dict[TopicPartition, list[RecordToWrite]] = {}
        self._bytes = 0
        self._turn = 0

    @property
    def full(self) -> bool:
        """Whether a full batch is collected."""
        return self._bytes >= self._batch_bytes

    def add(
        self,
        topic: str,
        partition_count: int,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: Headers,
        timestamp_ms: int | None,
    ) -> None:
        """Add a record. Raises ValueError if the topic has no such partition."""
        if partition is None:
            # Records without a key go to one partition per batch, in rotation.
            without_key = self._turn % partition_count
            chosen = without_key if key is None else partition_of(key, partition_count)
        elif 0 <= partition < partition_count:
            chosen = partition
        else:
            raise ValueError(
                f"topic {topic} has no partition {partition}, only 0 to {partition_count - 1}"
            )
        if timestamp_ms is None:
            timestamp_ms = int(datetime.now(UTC).timestamp() * 1000)
        record = RecordToWrite(key, value, timestamp_ms, headers)
        self._records.setdefault(TopicPartition(topic, chosen), []).append(record)
        self._bytes += len(key or b"") + len(value or b"") + RECORD_OVERHEAD

    def take(self) -> list[EncodedBatch]:
        """Return the collected records, one batch per partition."""
        records, self._records, self._bytes = self._records, {}, 0
        self._turn += 1
        return [self._batch(partition, rows) for partition, rows in records.items()]

    def _batch(self, partition: TopicPartition, rows: list[RecordToWrite]) -> EncodedBatch:
        batch = build_batch(rows, compression=self._codec)
        header = read_header(batch)
        return EncodedBatch(
            partition=partition,
            buffer=memoryview(batch),
            count=len(rows),
            compression=self._codec,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
        )
