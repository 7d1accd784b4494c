"""Removes records from a stored batch, for compaction (KIP-534).

Offsets, sequences, producer and leader epoch do not change; only batches of an expired producer
lose their sequences. A batch with tombstones, or with a marker that is no longer needed, gets a
delete horizon: the time from which they may be removed. It takes the place of the base timestamp.
"""

from collections.abc import Iterator
from typing import NamedTuple

from fencelog.errors import WireError
from fencelog.types import NO_SEQUENCE, Buffer, TimestampMs
from fencelog.wire.batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    read_header,
    seal,
)
from fencelog.wire.compression import DECOMPRESSED_BYTES_MAX, compress, decompress
from fencelog.wire.primitives import UINT64_MAX, as_int64, write_varint, write_varlong

_MORE = 0x80
"""The bit of a varint's byte that is set if another byte follows."""
_SHIFT_MAX = 63
DELETE_HORIZON = 0x40
"""The attribute that is set if the base timestamp is a delete horizon."""


class ScannedRecord(NamedTuple):
    """The position of a record in its batch's records, and the fields that compaction needs."""

    start: int
    body: int
    """Where it begins after its length."""
    end: int
    timestamp_delta: int
    rest: int
    """Where its bytes continue after the timestamp delta."""
    offset_delta: int
    key: bytes | None
    has_value: bool


def timestamp_of(header: BatchHeader, record: ScannedRecord) -> TimestampMs:
    """Return a record's create time."""
    return TimestampMs(as_int64(header.base_timestamp + record.timestamp_delta))


def delete_horizon(header: BatchHeader) -> TimestampMs | None:
    """Return when the tombstones or the marker of a batch may be removed; None if not set."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def plain_records(
    header: BatchHeader, batch: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """Return the bytes of a batch's records, decompressed.

    Raises WireError if they are malformed, LimitError if they have more than ``bytes_max`` bytes.
    """
    if header.record_count == 0:
        return b""
    return bytes(decompress(header.compression, memoryview(batch)[HEADER_BYTES:], bytes_max))


def scan(header: BatchHeader, batch: Buffer) -> tuple[bytes, list[ScannedRecord]]:
    """Return the batch's records as plain bytes, and the position of each.

    Raises WireError if the batch is malformed, or too large once it is decompressed.
    """
    plain = plain_records(header, batch)
    return plain, list(walk(header, plain))


def walk(header: BatchHeader, plain: bytes) -> Iterator[ScannedRecord]:
    """Yield the position of each record of a batch in its plain bytes; may raise WireError."""
    position = number = 0
    try:
        while number < header.record_count:
            record = _scan_one(plain, position)
            position = record.end
            number += 1
            yield record
    except IndexError:
        raise WireError(f"only {number} of {header.record_count} records are complete") from None
    if position != len(plain):
        raise WireError(f"{len(plain) - position} bytes after the last record")


def _scan_one(data: bytes, start: int) -> ScannedRecord:
    """Return one record's parts; IndexError if the data ends before.

    Decoded inline for speed: it is called for every record of a compacted log, and most varints
    take one byte.
    """
    size, body = (data[start], start + 1) if data[start] < _MORE else _varint(data, start)
    size = (size >> 1) ^ -(size & 1)
    at = body + 1
    delta, rest = (data[at], at + 1) if data[at] < _MORE else _varint(data, at)
    number, at = (data[rest], rest + 1) if data[rest] < _MORE else _varint(data, rest)
    length, at = (data[at], at + 1) if data[at] < _MORE else _varint(data, at)
    length = (length >> 1) ^ -(length & 1)
    key = None
    if length >= 0:
        key = data[at : at + length]
        at += length
    value_size = data[at] if data[at] < _MORE else _varint(data, at)[0]
    end = body + size
    if not at < end <= len(data):
        raise WireError(f"a record of {size} bytes does not hold its key")
    return ScannedRecord(
        start,
        body,
        end,
        (delta >> 1) ^ -(delta & 1),
        rest,
        (number >> 1) ^ -(number & 1),
        key,
        not value_size & 1,
    )


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a varint of at most 64 bits, still in zigzag, and where it ends."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value & UINT64_MAX, position
        shift += 7
        if shift > _SHIFT_MAX:
            raise WireError(f"varint at byte {position} does not end")


def emptied(header: BatchHeader) -> bytearray:
    """Return the batch without records: its header keeps the offsets and the producer."""
    return seal(header._replace(attributes=_codec_free(header), record_count=0), b"")


def without_sequence(batch: Buffer) -> Buffer:
    """Return the batch without its producer's sequence."""
    header = read_header(batch)
    if header.base_sequence == NO_SEQUENCE:
        return batch
    return seal(header._replace(base_sequence=NO_SEQUENCE), memoryview(batch)[HEADER_BYTES:])


def with_records(
    header: BatchHeader,
    plain: Buffer,
    records: list[ScannedRecord],
    horizon: TimestampMs | None = None,
) -> bytearray:
    """Return the batch with only these records; ``horizon`` only if it has none yet."""
    if not records:
        return emptied(header)
    base, attributes = header.base_timestamp, header.attributes
    if horizon is not None:
        assert delete_horizon(header) is None, header
        base, attributes = horizon, attributes | DELETE_HORIZON
    shift = header.base_timestamp - base
    view = memoryview(plain)
    out = bytearray()
    for record in records:
        if shift:
            body = bytearray(view[record.body : record.body + 1])
            write_varlong(body, record.timestamp_delta + shift)
            body += view[record.rest : record.end]
            write_varint(out, len(body))
            out += body
        else:
            out += view[record.start : record.end]
    max_timestamp = header.max_timestamp
    if not attributes & LOG_APPEND_TIME:
        max_timestamp = max(timestamp_of(header, record) for record in records)
    return seal(
        header._replace(
            attributes=attributes,
            base_timestamp=base,
            max_timestamp=max_timestamp,
            record_count=len(records),
        ),
        compress(header.compression, out),
    )


def _codec_free(header: BatchHeader) -> int:
    return header.attributes & ~COMPRESSION_MASK
