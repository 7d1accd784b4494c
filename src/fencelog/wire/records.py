"""Single records, one by one in Python: for internal topics, the command line, and tests.

The broker's data path does not use it (it handles batches), nor does the Arrow client (it has a
compiled kernel).

A record (KIP-98) is a varint length, then: attributes 1, timestamp delta varlong, offset delta
varint, key and value each after a varint length (-1 is null), headers after a varint count.
The sum of base timestamp and delta wraps around at 64 bits, as Java's does: two timestamps may be
further apart than a delta can say, and a batch with such a delta may be in any log.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fencelog.errors import WireError
from fencelog.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Buffer,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)
from fencelog.types import Sequence as SequenceNumber
from fencelog.wire.batch import (
    HEADER_BYTES,
    PLAIN_HEADER,
    BatchHeader,
    Compression,
    TimestampType,
    attributes,
    read_header,
    seal,
)
from fencelog.wire.compression import DECOMPRESSED_BYTES_MAX, compress, decompress
from fencelog.wire.primitives import Reader, as_int64, write_varint, write_varlong

LOW_BITS = 0x7F
"""The value bits of a varint's byte; a byte above this is not the last one."""
OFFSET_MAX = 0x3FFF
"""The largest value of a varint of two bytes."""
BASE_TIMESTAMP_MAX = (1 << 63) - 1 - LOW_BITS
"""Up to this no timestamp delta of one byte leaves 64 bits."""
NULL = 1
"""The varint of -1."""
RECORD_BYTES_MIN = 7
"""Length, attributes, timestamp, offset, key length, value length, header count: a byte each."""

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """A record as it is read: its offset and its content."""

    offset: Offset
    timestamp: TimestampMs
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class RecordToWrite(NamedTuple):
    """The content of a record that has no offset yet."""

    key: Buffer | None
    value: Buffer | None
    timestamp_ms: int
    headers: Headers = ()


def build_batch(  # noqa: PLR0913 - a batch header has this many fields
    records: Sequence[RecordToWrite],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    compression: Compression = Compression.NONE,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """Return one batch of at least one record, with create time, ready to be appended."""
    assert records, "a batch has at least one record"
    base_timestamp = records[0].timestamp_ms
    encoded = bytearray()
    for delta, record in enumerate(records):
        _write_record(encoded, record, delta, base_timestamp)
    header = PLAIN_HEADER._replace(
        base_offset=Offset(base_offset),
        leader_epoch=LeaderEpoch(leader_epoch),
        attributes=attributes(
            compression=compression, transactional=transactional, control=control
        ),
        last_offset_delta=len(records) - 1,
        base_timestamp=TimestampMs(base_timestamp),
        max_timestamp=TimestampMs(max(record.timestamp_ms for record in records)),
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(producer_epoch),
        base_sequence=SequenceNumber(base_sequence),
        record_count=len(records),
    )
    return seal(header, compress(compression, encoded))


def _write_record(
    out: bytearray, record: RecordToWrite, offset_delta: int, base_timestamp: int
) -> None:
    body = bytearray(1)
    write_varlong(body, record.timestamp_ms - base_timestamp)
    write_varint(body, offset_delta)
    _write_nullable(body, record.key)
    _write_nullable(body, record.value)
    write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_nullable(body, name.encode())
        _write_nullable(body, value)
    write_varint(out, len(body))
    out += body


def _write_nullable(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        write_varint(out, -1)
        return
    write_varint(out, len(value))
    out += value


def read_records(
    batch: Buffer, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> list[Record]:
    """Return the records of one whole batch, also of a control batch.

    Raises WireError if the batch is malformed, or larger than the limit once it is decompressed.
    Does not check the CRC.
    """
    header = read_header(batch)
    if header.size != len(batch):
        raise WireError(f"batch of {header.size} bytes in a buffer of {len(batch)}")
    compressed = memoryview(batch)[HEADER_BYTES:]
    reader = Reader(decompress(header.compression, compressed, decompressed_bytes_max))
    if not 0 <= header.record_count <= reader.remaining // RECORD_BYTES_MIN:
        raise WireError(f"{header.record_count} records do not fit in {reader.remaining} bytes")
    records: list[Record] = []
    is_short = (
        header.timestamp_type is not TimestampType.LOG_APPEND_TIME
        and header.base_timestamp <= BASE_TIMESTAMP_MAX
    )
    while len(records) < header.record_count:
        if is_short:
            _read_short_records(reader, header, records)
        if len(records) < header.record_count:
            records.append(_read_record(reader, header))
    reader.expect_end()
    return records


def _read_short_records(reader: Reader, header: BatchHeader, records: list[Record]) -> None:
    """Append records while their numbers take one byte each, the offset up to two.

    Most records are such, and a loop without calls reads them in a third of the time. It stops at
    any other record, malformed or not, and leaves that to ``_read_record``.
    """
    data, position = reader.data, reader.position
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    make, append = Record._make, records.append
    try:
        for _ in range(header.record_count - len(records)):
            size, timestamp, offset = data[position], data[position + 2], data[position + 3]
            at = position + 4
            if offset > LOW_BITS:
                offset = offset & LOW_BITS | data[at] << 7
                at += 1
            key_size = data[at]
            at += 1
            key = None
            if key_size == NULL:
                key_size = 0
            else:
                key = bytes(data[at : at + (key_size >> 1)])
                at += key_size >> 1
            value_size = data[at]
            at += 1
            end = at + (value_size >> 1)
            if (
                data[end]  # headers
                or end != position + (size >> 1)
                or (size | timestamp | key_size | value_size) > LOW_BITS
                or offset > OFFSET_MAX
                or (size | timestamp | offset | key_size | value_size) & 1  # negative
            ):
                break
            value = bytes(data[at:end])
            append(
                make(
                    (base_offset + (offset >> 1), base_timestamp + (timestamp >> 1), key, value, ())
                )
            )
            position = end + 1
    except IndexError:
        pass  # the data ends within this record
    reader.position = position


def _read_record(reader: Reader, header: BatchHeader) -> Record:
    size = reader.varint()
    end = reader.position + size
    if size < 0 or end > reader.end:
        raise WireError(f"record of {size} bytes, {reader.remaining} remain")
    reader.int8()  # attributes, none of which is in use
    timestamp = as_int64(header.base_timestamp + reader.varlong())
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        timestamp = header.max_timestamp
    offset = header.base_offset + reader.varint()
    key = _read_nullable(reader)
    value = _read_nullable(reader)
    count = reader.varint()
    headers = tuple([_read_record_header(reader) for _ in range(count)]) if count else ()
    if count < 0 or reader.position != end:
        raise WireError(f"the record at offset {offset} does not match its length")
    return Record(Offset(offset), TimestampMs(timestamp), key, value, headers)


def _read_nullable(reader: Reader) -> bytes | None:
    size = reader.varint()
    return None if size == -1 else bytes(reader.view(size))


def _read_record_header(reader: Reader) -> tuple[str, bytes | None]:
    name = _read_nullable(reader)
    if name is None:
        raise WireError("record header without a key")
    try:
        return name.decode(), _read_nullable(reader)
    except UnicodeDecodeError:
        raise WireError("key of a record header is not UTF-8") from None
