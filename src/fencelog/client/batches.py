"""Record batches in the client: which ones a reader sees, and how one is completed.

Records stay encoded here; ``arrow`` or ``reader`` decode them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fencelog.errors import WireError
from fencelog.types import (
    Buffer,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from fencelog.types import Sequence as SequenceNumber
from fencelog.wire.batch import (
    HEADER_BYTES,
    PLAIN_HEADER,
    BatchHeader,
    Compression,
    attributes,
    check_crc,
    iterate,
    seal_in_place,
)
from fencelog.wire.compression import DECOMPRESSED_BYTES_MAX, decompress
from fencelog.wire.control import Seal, read_control, read_marker


@dataclass(frozen=True, slots=True)
class VisibleBatch:
    """A visible data batch; ``start`` is the position of its records in the chunk."""

    header: BatchHeader
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Scan:
    """The visible batches of fetched bytes, and the next offset (None: no whole batch)."""

    batches: list[VisibleBatch]
    next_offset: int | None
    leader_epoch: int
    """That of the last whole batch, visible or not; -1 without one."""
    sealed_at: int | None = None
    """The offset of the seal, if one was read: the segment of a stream ends there (R2)."""


def scan(records: memoryview, aborted: Sequence[tuple[int, int]], *, transactional: bool) -> Scan:
    """Find the data batches of fetched bytes, as a read-committed consumer does (E10).

    Control batches are left out, and at ``transactional`` isolation the batches of aborted
    transactions: from a producer's listed first offset up to its abort marker. A partial batch at
    the end is left for the next fetch. Raises WireError on anything malformed.
    """
    waiting = sorted(aborted, key=lambda entry: entry[1], reverse=True)
    aborting: set[int] = set()
    batches = []
    next_offset = None
    leader_epoch = -1
    sealed_at = None
    position = 0
    for header, batch in iterate(records):
        _check(header, batch)
        next_offset, leader_epoch = header.next_offset, header.leader_epoch
        start, position = position + HEADER_BYTES, position + header.size
        while waiting and waiting[-1][1] <= header.last_offset:
            aborting.add(waiting.pop()[0])
        if header.is_control:
            if not header.is_transactional:
                if isinstance(read_control(batch), Seal):
                    sealed_at = header.base_offset
            elif not read_marker(batch).commit:
                aborting.discard(header.producer_id)
            continue
        if transactional and header.is_transactional and header.producer_id in aborting:
            continue
        if header.record_count:
            batches.append(VisibleBatch(header, start, position))
    return Scan(batches, next_offset, leader_epoch, sealed_at)


def _check(header: BatchHeader, batch: memoryview) -> None:
    if not check_crc(batch):
        raise WireError(f"the record batch at offset {header.base_offset} has a wrong CRC")
    if header.record_count < 0 or header.last_offset_delta < 0 or header.base_offset < 0:
        raise WireError(
            f"invalid record batch at offset {header.base_offset}: "
            f"{header.record_count} records, last offset delta {header.last_offset_delta}"
        )


def payload(records: memoryview, batch: VisibleBatch) -> memoryview:
    """Return a batch's records, decompressed. Raises WireError if it cannot."""
    raw = records[batch.start : batch.end]
    if not batch.header.compression:
        return raw
    return memoryview(decompress(batch.header.compression, raw, DECOMPRESSED_BYTES_MAX))


@dataclass(slots=True, kw_only=True)
class EncodedBatch:
    """A batch with encoded, compressed records, whose header has no sequence yet.

    ``buffer`` is the whole batch; its first 61 bytes are reserved for the header.

    Attributes:
        topic_id: of the stream by whose ranges it was divided; None for any other topic.
        median_hash: the hash that half of its keys do not exceed, of a stream; -1 without keys.
        is_divided_again: whether its topic was created anew, or became a stream, since it was made.
    """

    partition: TopicPartition
    buffer: memoryview
    count: int
    compression: Compression
    base_timestamp: int
    max_timestamp: int
    topic_id: TopicId | None = None
    median_hash: int = -1
    is_divided_again: bool = False

    def finish(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool
    ) -> None:
        """Write the header, in place."""
        header = PLAIN_HEADER._replace(
            attributes=attributes(compression=self.compression, transactional=transactional),
            last_offset_delta=self.count - 1,
            base_timestamp=TimestampMs(self.base_timestamp),
            max_timestamp=TimestampMs(self.max_timestamp),
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(producer_epoch),
            base_sequence=SequenceNumber(base_sequence),
            record_count=self.count,
        )
        seal_in_place(header, self.buffer)


def with_room(records: Buffer) -> memoryview:
    """Return the records after 61 bytes that are reserved for the header."""
    return memoryview(bytearray(HEADER_BYTES) + records)
