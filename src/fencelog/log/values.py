"""Arguments and results of the log package: plain, frozen values."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from fencelog.errors import ErrorCode
from fencelog.types import (
    CoordinatorEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TimestampMs,
)


class Isolation(IntEnum):
    """How far a reader may read (F6); the numbers are those of the Fetch request."""

    REPLICATED = 0
    """Up to the high watermark (the wire's READ_UNCOMMITTED)."""
    TRANSACTIONAL = 1
    """Up to the last stable offset (the wire's READ_COMMITTED)."""
    TAIL = 2
    """Up to what is written, durable or not."""


@dataclass(slots=True)
class Appended:
    """The batch is in the log at ``base_offset``; committed once HW reaches ``end_offset``.

    Never changed once made; not frozen, because that would triple the cost of making it.
    """

    base_offset: Offset
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch was stored before, at ``base_offset`` (E4).

    Answer it as a success, once HW reaches ``end_offset`` and not before.
    """

    base_offset: Offset
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class Rejected:
    """Nothing was written."""

    error: ErrorCode
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerToWrite:
    """The end of one producer's transaction on this partition."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool
    coordinator_epoch: CoordinatorEpoch
    is_bumped: bool = False
    """Whether the epoch is one above that of the data: the end of a version 2 transaction."""
    drop_state: bool = False
    """The producer id is never used again (V5): forget its state with this marker."""


@dataclass(slots=True, kw_only=True)
class SegmentWrite:
    """Bytes for one segment, in the order in which they must reach the disk.

    Never changed once made; it is not frozen because that would triple the cost of making it, at
    each flush.

    ``roll``: this segment is new, the one before it is complete, and ``snapshot`` is the content of
    ``<segment_base_offset>.snapshot``. ``index``, ``time_index`` and ``txn_index`` are bytes to
    append to the segment's side files. ``leader_epochs`` is the new content of the leader epoch
    checkpoint if it changed. A write may have no buffers (side files only).
    """

    segment_base_offset: Offset
    roll: bool
    snapshot: bytes | None
    buffers: list[memoryview]
    position: int
    size: int
    first_offset: Offset
    end_offset: Offset
    index: bytes
    time_index: bytes
    txn_index: bytes
    leader_epochs: str | None


class ReadPlan(NamedTuple):
    """Where to read: whole batches of one segment file.

    The batch that holds ``offset`` begins at ``position`` or after it. Nothing at or above
    ``upper_offset`` and no byte at or above ``end_position`` may be returned. The first batch is
    returned whole even above ``max_bytes``. Both positions come from the sparse index, so there are
    at most ``end_position - position`` bytes to read, and perhaps a little less.
    """

    segment_base_offset: Offset
    position: int
    end_position: int
    offset: Offset
    upper_offset: Offset
    max_bytes: int
    reaches_upper: bool
    """Whether this segment holds all that may be read; else a later one goes on."""
    skip_to: int
    """A batch begins here or the first one does: all before it may be returned, as far as known."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read yet."""
        return self.offset >= self.upper_offset


class AbortedTransaction(NamedTuple):
    """An entry of the transaction index: a producer's records between two offsets are aborted."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    """Offset of the abort marker."""
    last_stable_offset: Offset
    """The LSO once this transaction has ended: later entries begin at or above it."""


class OpenTransaction(NamedTuple):
    """A transaction that has records here and no marker yet."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    first_offset: Offset
    coordinator_epoch: CoordinatorEpoch


class ProducerView(NamedTuple):
    """A producer's state on this partition, as DescribeProducers shows it."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_sequence: Sequence
    last_timestamp: TimestampMs
    coordinator_epoch: CoordinatorEpoch
    open_offset: Offset | None


class EpochStart(NamedTuple):
    """The offset at which a leader epoch begins."""

    epoch: int
    offset: Offset


class SideFiles(NamedTuple):
    """The whole content of a segment's ``.index``, ``.timeindex`` and ``.txnindex``."""

    offset_index: bytes
    time_index: bytes
    txn_index: bytes
