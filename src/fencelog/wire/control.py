"""Control batches, of one record each: transaction markers, ownership records, and seals.

Key: int16 version, int16 type (0 abort, 1 commit, 10000 ownership, 10001 seal). A marker ends a
producer's transaction; its value: int16 version, int32 coordinator epoch. An ownership record
belongs to no producer and to no transaction (O9); its value: int16 version, then the fields of
``OwnershipRecord``. A seal ends a segment of a stream (R2); its value: int16 version. Each takes
one offset, carries no sequence, and stock consumers skip it.
"""

from struct import Struct
from typing import NamedTuple

from fencelog.errors import WireError
from fencelog.types import (
    Buffer,
    CoordinatorEpoch,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)
from fencelog.wire.batch import (
    HEADER_BYTES,
    PLAIN_HEADER,
    Compression,
    attributes,
    read_header,
    seal,
)
from fencelog.wire.primitives import (
    Reader,
    pack_int8,
    pack_int16,
    pack_int64,
    write_string,
)
from fencelog.wire.records import RecordToWrite, build_batch

ABORT = 0
COMMIT = 1
OWNERSHIP = 10_000
SEAL = 10_001

# length, attributes, timestamp delta, offset delta, key length 4; key; value length 6; value;
# no headers. The varints are constant because the key and the value have a fixed size.
_RECORD = Struct(">5B hh B hi B")
_DROPPING_RECORD = Struct(">5B hh B hi B B")
_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_OWNERSHIP_VERSION = 0
_OWNERSHIP_KEY = _KEY.pack(0, OWNERSHIP)
_SEAL_VERSION = 0
_SEAL_KEY = _KEY.pack(0, SEAL)


class Marker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that ended it (rule E17)."""

    commit: bool
    coordinator_epoch: CoordinatorEpoch
    drops_state: bool = False
    """The producer id is never used again: its state on the partition ends here (rule V5)."""


def marker_batch(
    producer_id: int,
    producer_epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
    drops_state: bool = False,
) -> bytearray:
    """Return the control batch that ends the producer's transaction on one partition.

    ``drops_state`` adds one byte at the end of the value, which readers of Kafka's version 0
    ignore; recovery reads it.
    """
    kind = COMMIT if commit else ABORT
    if drops_state:
        record = _DROPPING_RECORD.pack(34, 0, 0, 0, 8, 0, kind, 14, 0, coordinator_epoch, 1, 0)
    else:
        record = _RECORD.pack(32, 0, 0, 0, 8, 0, kind, 12, 0, coordinator_epoch, 0)
    header = PLAIN_HEADER._replace(
        attributes=attributes(transactional=True, control=True),
        base_timestamp=TimestampMs(timestamp_ms),
        max_timestamp=TimestampMs(timestamp_ms),
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(producer_epoch),
    )
    return seal(header, record)


def read_marker(batch: Buffer) -> Marker:
    """Return the marker in a control batch.

    Raises WireError if the batch is not a transaction marker: not a control batch, or a control
    record of another type.
    """
    return _read_marker(*_read_record(batch))


def _read_marker(kind: int, value: Reader) -> Marker:
    if kind not in (ABORT, COMMIT):
        raise WireError(f"a control record of type {kind} is not a transaction marker")
    _, coordinator_epoch = value.unpack(_VALUE)
    drops_state = value.remaining > 0 and value.int8() == 1
    return Marker(kind == COMMIT, CoordinatorEpoch(coordinator_epoch), drops_state)


class OwnershipRecord(NamedTuple):
    """An owner of a partition, or the end of its claim, as a log has it (O8, O9)."""

    group: str | None
    epoch: int
    session: str
    transactional_id: str | None
    holder: str
    is_live: bool
    offset: Offset
    """Where the record was written first; copies of it at later offsets say the same."""


def ownership_batch(record: OwnershipRecord, timestamp_ms: int) -> bytearray:
    """Return the control batch of an ownership record or of a copy of one."""
    value = bytearray(pack_int16(_OWNERSHIP_VERSION) + pack_int8(record.is_live))
    value += pack_int64(record.offset) + pack_int64(record.epoch)
    for text in (record.group, record.session, record.transactional_id, record.holder):
        write_string(value, text, flexible=True)
    to_write = RecordToWrite(_OWNERSHIP_KEY, value, timestamp_ms)
    return build_batch([to_write], control=True)


class Seal(NamedTuple):
    """No records of producers follow in this log, for ever: its segment is complete (R2)."""


def seal_batch(timestamp_ms: int) -> bytearray:
    """Return the control batch that seals a segment of a stream."""
    return build_batch(
        [RecordToWrite(_SEAL_KEY, pack_int16(_SEAL_VERSION), timestamp_ms)], control=True
    )


def last_seal(sealed_at: Offset, log_end: Offset, leader_epoch: LeaderEpoch) -> bytearray:
    """Return the batch that is left of a segment whose files are removed: its seal.

    It takes all offsets from the seal up to the end of the log, as a batch does that compaction has
    emptied: readers and replicas go on from that end.
    """
    batch = seal_batch(-1)
    header = read_header(batch)._replace(
        base_offset=sealed_at,
        leader_epoch=leader_epoch,
        last_offset_delta=log_end - 1 - sealed_at,
    )
    return seal(header, memoryview(batch)[HEADER_BYTES:])


Control = Marker | OwnershipRecord | Seal
"""What a control batch may say."""


def read_control(batch: Buffer) -> Control | None:
    """Return what a control batch says; None for one that only takes offsets."""
    try:
        kind, value = _read_record(batch)
        if kind == OWNERSHIP:
            return _read_ownership(value)
        if kind == SEAL:
            return Seal()
        return _read_marker(kind, value)
    except WireError:
        return None


def _read_ownership(value: Reader) -> OwnershipRecord:
    value.int16()  # version: later ones may append fields
    is_live = value.boolean()
    offset, epoch = Offset(value.int64()), value.int64()
    group = value.nullable_string(flexible=True)
    session = value.string(flexible=True)
    transactional_id = value.nullable_string(flexible=True)
    holder = value.string(flexible=True)
    return OwnershipRecord(group, epoch, session, transactional_id, holder, is_live, offset)


def _read_record(batch: Buffer) -> tuple[int, Reader]:
    """Return type and value of a control batch's record; raises WireError."""
    header = read_header(batch)
    if not header.is_control or header.compression is not Compression.NONE:
        raise WireError("the batch is not an uncompressed control batch")
    reader = Reader(batch, HEADER_BYTES)
    reader.varint()  # record length
    reader.int8()
    reader.varlong()
    reader.varint()
    key = Reader(reader.view(reader.varint()))
    value = Reader(reader.view(reader.varint()))
    # Later versions may append fields, which are ignored.
    _, kind = key.unpack(_KEY)
    return kind, value
