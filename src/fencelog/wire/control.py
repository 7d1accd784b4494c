"""Transaction markers: control batches of one record that end a producer's transaction.

Key: int16 version, int16 type (0 abort, 1 commit). Value: int16 version, int32 coordinator epoch.
A marker takes one offset, carries no sequence, and stock consumers skip it.
"""

from struct import Struct
from typing import NamedTuple

from fencelog.errors import WireError
from fencelog.types import Buffer, CoordinatorEpoch, ProducerEpoch, ProducerId, TimestampMs
from fencelog.wire.batch import (
    HEADER_BYTES,
    PLAIN_HEADER,
    Compression,
    attributes,
    read_header,
    seal,
)
from fencelog.wire.primitives import Reader

ABORT = 0
COMMIT = 1

# length, attributes, timestamp delta, offset delta, key length 4; key; value length 6; value;
# no headers. The varints are constant because the key and the value have a fixed size.
_RECORD = Struct(">5B hh B hi B")
_KEY = Struct(">hh")
_VALUE = Struct(">hi")


class Marker(NamedTuple):
    """How a transaction ended, and which coordinator said so (rule E17)."""

    commit: bool
    coordinator_epoch: CoordinatorEpoch


def marker_batch(
    producer_id: int,
    producer_epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
) -> bytearray:
    """Return the control batch that ends the producer's transaction on one partition."""
    kind = COMMIT if commit else ABORT
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
    """Return what a control batch says.

    Raises WireError where the batch is no transaction marker: no control batch, or a control
    record of another type.
    """
    header = read_header(batch)
    if not header.is_control or header.compression is not Compression.NONE:
        raise WireError("not an uncompressed control batch")
    reader = Reader(batch, HEADER_BYTES)
    reader.varint()  # record length
    reader.int8()
    reader.varlong()
    reader.varint()
    key = Reader(reader.view(reader.varint()))
    value = Reader(reader.view(reader.varint()))
    # Later versions may append fields: what is beyond the known ones is not looked at.
    _, kind = key.unpack(_KEY)
    if kind not in (ABORT, COMMIT):
        raise WireError(f"control record of type {kind} is no transaction marker")
    _, coordinator_epoch = value.unpack(_VALUE)
    return Marker(kind == COMMIT, CoordinatorEpoch(coordinator_epoch))
