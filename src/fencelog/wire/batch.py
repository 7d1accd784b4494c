"""The record batch, version 2: 61 header bytes before the records, read and patched in place.

The broker handles batches, never records: it reads this header, checks the CRC, and writes the two
fields that lie outside the CRC (base offset and leader epoch).

Layout (big-endian): base offset 8, batch length 4 (of what follows it), leader epoch 4, magic 1,
CRC-32C 4 (of what follows it), attributes 2, last offset delta 4, base timestamp 8, max timestamp
8, producer id 8, producer epoch 2, base sequence 4, record count 4.
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from crc32c import crc32c

from fencelog.errors import ErrorCode, WireError
from fencelog.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Buffer,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TimestampMs,
)

HEADER_BYTES = 61
LENGTH_END = 12
_EXTENT = Struct(">q15xi")  # base offset, last offset delta
"""Where the length field ends; the length counts from here."""
MAGIC = 2
SEQUENCE_MODULUS = 1 << 31
"""Sequences wrap from 2^31 - 1 to 0 (E1)."""

_HEADER = Struct(">qiibIhiqqqhii")
_BASE_OFFSET = Struct(">q")
_INT32 = Struct(">i")
_INT16 = Struct(">h")
_INT64 = Struct(">q")
_UINT32 = Struct(">I")
_LEADER_EPOCH_AT = 12
_CRC_AT = 17
_CRC_FROM = 21
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35

# The attributes: the codec in the lowest three bits, then these.
COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class Compression(IntEnum):
    """The codec of a batch's records (lowest three bits of the attributes)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Who set the timestamps: the producer, or the broker on arrival."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The header's fields, in the order of the bytes."""

    base_offset: Offset
    length: int
    leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: TimestampMs
    max_timestamp: TimestampMs
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: Sequence
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return LENGTH_END + self.length

    @property
    def last_offset(self) -> Offset:
        """Offset of the batch's last record (also where compaction removed it)."""
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        """Offset that follows this batch."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the records are for brokers (markers) and not for consumers."""
        return bool(self.attributes & CONTROL)

    @property
    def is_undated(self) -> bool:
        """Whether a search for a timestamp passes it: a control batch of no producer."""
        return self.producer_id < 0 and bool(self.attributes & CONTROL)

    @property
    def compression(self) -> Compression:
        """Codec of the records."""
        return Compression(self.attributes & COMPRESSION_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        """Meaning of the timestamps."""
        return TimestampType(self.attributes & LOG_APPEND_TIME != 0)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at ``position``; the records need not be in the buffer.

    Raises WireError if there are fewer than 61 bytes, or if they are not a header of version 2.
    """
    try:
        header = BatchHeader._make(_HEADER.unpack_from(buffer, position))
    except struct_error:
        raise WireError(
            f"{len(buffer) - position} bytes are too few for a batch header of {HEADER_BYTES}"
        ) from None
    if header.magic != MAGIC:
        raise WireError(f"record batch with magic {header.magic}: only {MAGIC} is supported")
    if header.length < HEADER_BYTES - LENGTH_END:
        raise WireError(f"record batch of length {header.length}, shorter than its header")
    if header.attributes & COMPRESSION_MASK > Compression.ZSTD:
        raise WireError(f"unknown compression codec {header.attributes & COMPRESSION_MASK}")
    return header


def next_offset_of(batch: Buffer) -> Offset:
    """Return the offset that follows a sound batch; cheaper than decoding its header."""
    base_offset, last_offset_delta = _EXTENT.unpack_from(batch)
    return Offset(base_offset + last_offset_delta + 1)


def check_crc(buffer: Buffer) -> bool:
    """Tell whether one whole batch carries the checksum of its bytes (attributes to the end)."""
    view = memoryview(buffer)
    if len(view) < HEADER_BYTES:
        return False
    stored: int = _UINT32.unpack_from(view, _CRC_AT)[0]
    return crc32c(view[_CRC_FROM:]) == stored


def assign(
    batch: memoryview,
    base_offset: Offset,
    leader_epoch: LeaderEpoch,
    max_timestamp: TimestampMs | None = None,
) -> None:
    """Write offset and epoch into a whole batch, in place.

    ``max_timestamp`` makes it a batch with log append time. The CRC covers that field, so it is
    computed again.
    """
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _INT32.pack_into(batch, _LEADER_EPOCH_AT, leader_epoch)
    if max_timestamp is None:
        return
    (attributes,) = _INT16.unpack_from(batch, _ATTRIBUTES_AT)
    _INT16.pack_into(batch, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    _INT64.pack_into(batch, _MAX_TIMESTAMP_AT, max_timestamp)
    _UINT32.pack_into(batch, _CRC_AT, crc32c(batch[_CRC_FROM:]))


def iterate(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield each whole batch with a view of its bytes; a partial one at the end is skipped.

    Raises WireError at bytes that are not a batch. Does not check the CRC.
    """
    view = memoryview(buffer)
    position = 0
    end = len(view)
    while end - position >= HEADER_BYTES:
        header = read_header(view, position)
        batch_end = position + header.size
        if batch_end > end:
            return
        yield header, view[position:batch_end]
        position = batch_end


def validate_produced(batch: Buffer) -> BatchHeader | ErrorCode:
    """Validate the records field of a produce request, which must be exactly one sound batch.

    Returns its header, or INVALID_RECORD, CORRUPT_MESSAGE (the CRC) or
    UNSUPPORTED_COMPRESSION_TYPE. The caller checks whether zstd is allowed in the request's version
    (7 and later), the size limit and the producer's state.
    """
    try:
        header = BatchHeader._make(_HEADER.unpack_from(batch))
    except struct_error:
        return ErrorCode.INVALID_RECORD
    if header.magic != MAGIC or header.size != len(batch):
        return ErrorCode.INVALID_RECORD
    if not check_crc(batch):
        return ErrorCode.CORRUPT_MESSAGE
    if header.attributes & COMPRESSION_MASK > Compression.ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return header if _is_producible(header) else ErrorCode.INVALID_RECORD


def _is_producible(header: BatchHeader) -> bool:
    """Check the header by the rules of Kafka's LogValidator for clients."""
    if header.base_offset != 0 or header.is_control:
        return False
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        return False
    if header.producer_id == NO_PRODUCER_ID:
        return not header.is_transactional
    return header.producer_id >= 0 and header.producer_epoch >= 0 and header.base_sequence >= 0


PLAIN_HEADER = BatchHeader(
    base_offset=Offset(0),
    length=0,
    leader_epoch=LeaderEpoch(-1),
    magic=MAGIC,
    crc=0,
    attributes=0,
    last_offset_delta=0,
    base_timestamp=TimestampMs(-1),
    max_timestamp=TimestampMs(-1),
    producer_id=NO_PRODUCER_ID,
    producer_epoch=NO_PRODUCER_EPOCH,
    base_sequence=NO_SEQUENCE,
    record_count=1,
)
"""A header of one record without a producer, for ``seal``; use ``_replace`` to set fields."""


def attributes(
    *,
    compression: Compression = Compression.NONE,
    transactional: bool = False,
    control: bool = False,
) -> int:
    """Return the attributes field of a batch with create time."""
    return compression | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)


def seal(header: BatchHeader, records: Buffer) -> bytearray:
    """Return the batch of a header and of records that are encoded (and compressed) already.

    Length and CRC are computed; those of the header are ignored.
    """
    batch = bytearray(HEADER_BYTES)
    batch += records
    with memoryview(batch) as view:
        seal_in_place(header, view)
    return batch


def seal_in_place(header: BatchHeader, batch: memoryview) -> None:
    """Write a header as ``seal`` does, into the 61 bytes before its records."""
    header = header._replace(length=len(batch) - LENGTH_END, crc=0)
    _HEADER.pack_into(batch, 0, *header)
    _UINT32.pack_into(batch, _CRC_AT, crc32c(batch[_CRC_FROM:]))
