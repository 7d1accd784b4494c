"""Validation of appends: each check with the rule that it enforces. Nothing here changes state."""

from fencelog.errors import ErrorCode
from fencelog.log.config import LogConfig
from fencelog.log.leader_epochs import NO_EPOCH
from fencelog.log.producers import (
    UNKNOWN_SEQUENCE,
    ProducerState,
    StoredBatch,
    last_sequence,
    validate_sequence,
)
from fencelog.log.state import LogState
from fencelog.log.values import Duplicate, MarkerToWrite, Rejected
from fencelog.log.verification import Guards, VerificationGuard
from fencelog.types import Offset
from fencelog.wire.batch import (
    CONTROL,
    LENGTH_END,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
)
from fencelog.wire.control import marker_batch
from fencelog.wire.hot.append_tags import Revision

_PROBLEMS = {
    ErrorCode.INVALID_PRODUCER_EPOCH: "is fenced by a newer epoch",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "sent a sequence that is not the next one",
}


def validate_batch(config: LogConfig, header: BatchHeader, now_ms: int) -> Rejected | None:
    """Check a client's batch against the topic's limits: size, kind, timestamps."""
    size, attributes = LENGTH_END + header.length, header.attributes
    if size > config.max_message_bytes:
        limit = f"max.message.bytes is {config.max_message_bytes}"
        return Rejected(ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {size} bytes; {limit}")
    if size > config.segment_bytes:
        limit = f"segment.bytes is {config.segment_bytes}"
        return Rejected(ErrorCode.RECORD_LIST_TOO_LARGE, f"the batch has {size} bytes; {limit}")
    if attributes & CONTROL:
        return Rejected(ErrorCode.INVALID_RECORD, "only the broker writes control batches")
    if config.message_timestamp_type == "LogAppendTime":
        return None
    if attributes & LOG_APPEND_TIME:
        return Rejected(
            ErrorCode.INVALID_TIMESTAMP,
            "the batch has log append time, but the topic's message.timestamp.type is CreateTime",
        )
    return _validate_timestamps(config, header, now_ms)


def _validate_timestamps(config: LogConfig, header: BatchHeader, now_ms: int) -> Rejected | None:
    # Records are not read: the base timestamp (of the first record) is taken for the oldest.
    base_timestamp, max_timestamp = header.base_timestamp, header.max_timestamp
    if max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        problem = f"timestamp {max_timestamp} is too far after the broker's clock, {now_ms}"
        return Rejected(ErrorCode.INVALID_TIMESTAMP, problem)
    if base_timestamp >= 0 and now_ms - base_timestamp > config.message_timestamp_before_max_ms:
        problem = f"timestamp {base_timestamp} is too far before the broker's clock, {now_ms}"
        return Rejected(ErrorCode.INVALID_TIMESTAMP, problem)
    return None


def validate_producer(
    state: ProducerState | None,
    header: BatchHeader,
    guards: Guards,
    guard: VerificationGuard | None,
) -> Duplicate | Rejected | None:
    """Check a client's batch against its producer's state; None: append it."""
    producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
    last = last_sequence(sequence, header.last_offset_delta)
    found = validate_sequence(state, epoch, sequence, last)
    if found is not None:
        if isinstance(found, StoredBatch):
            return Duplicate(found.base_offset, Offset(found.last_offset + 1))
        return _rejected(found, header, state)
    is_open, is_transactional = False, header.attributes & TRANSACTIONAL
    is_unknown = state is None or state.next_sequence == UNKNOWN_SEQUENCE
    if is_unknown and guards and not guards.may_begin(producer_id, epoch, sequence):  # E5, E13
        return _rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, header, state)
    if state is not None and state.open_offset >= 0:
        is_open = True
        if epoch != state.epoch or not is_transactional:
            # A write outside the transaction would stay visible after an abort, and a newer epoch
            # must not write into the older one's transaction (E7, E14).
            return Rejected(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has an open transaction of epoch {state.epoch} on this "
                "partition",
            )
    if is_transactional and not is_open and not guards.permits(guard, producer_id, epoch):
        return Rejected(  # E14, V5
            ErrorCode.INVALID_TXN_STATE,
            f"producer {producer_id}: no open transaction of epoch {epoch} is verified",
        )
    return None


def validate_condition(state: LogState, condition: Revision) -> Rejected | None:
    """Check that nothing was appended since the sender has read the log (R4); None: append it.

    A log's revision is the leader epoch of its last batch, whatever it holds, and its end: the
    header of the last batch that a reader was given tells it both. In a log from which all was
    deleted no header does, so -1 stands for its last epoch there, as in one that was never written.
    """
    epoch, end = state.epochs.latest, state.log_end
    known = condition.leader_epoch == epoch or (
        condition.leader_epoch == NO_EPOCH and state.log_start == end
    )
    if known and condition.offset == end:
        return None
    return Rejected(
        ErrorCode.STALE_REVISION,
        f"the sender has read up to offset {condition.offset} of leader epoch "
        f"{condition.leader_epoch}, but the log ends at offset {end} of leader epoch {epoch}: "
        "read on, and decide again",
    )


def validate_sealed(state: LogState, header: BatchHeader) -> Duplicate | Rejected | None:
    """Check a batch for a sealed log: a duplicate (E4), fenced (E2), or None.

    Then it is one for the segment's successors (R2).
    """
    if header.producer_id < 0:
        return None
    sequence = header.base_sequence
    last = last_sequence(sequence, header.last_offset_delta)
    producer = state.producers.get(header.producer_id)
    found = validate_sequence(producer, header.producer_epoch, sequence, last)
    if isinstance(found, StoredBatch):
        return Duplicate(found.base_offset, Offset(found.last_offset + 1))
    if found is ErrorCode.INVALID_PRODUCER_EPOCH:
        return _rejected(found, header, producer)
    return None


def refused_as_sealed(sealed_at: Offset | None) -> Rejected | None:
    """Return why a log with a seal stores no batch of a producer (R2); None without one."""
    if sealed_at is None:
        return None
    return Rejected(
        ErrorCode.SEGMENT_SEALED,
        f"the segment was sealed at offset {sealed_at}: what it does not have belongs to its "
        "successors",
    )


def _rejected(error: ErrorCode, header: BatchHeader, state: ProducerState | None) -> Rejected:
    known = ""
    if state is not None:
        known = f"; expected epoch {state.epoch}, sequence {state.next_sequence}"
    at = f"epoch {header.producer_epoch}, sequence {header.base_sequence}{known}"
    return Rejected(error, f"producer {header.producer_id} {_PROBLEMS[error]} ({at})")


def validate_marker(state: ProducerState | None, marker: MarkerToWrite) -> Rejected | None:
    """Check a marker against its producer's state; None: it may be written."""
    if state is None:
        return None
    who = f"producer {marker.producer_id}"
    if marker.coordinator_epoch < state.coordinator_epoch:  # E17
        return Rejected(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"{who}: the marker's coordinator epoch {marker.coordinator_epoch} is below"
            f" {state.coordinator_epoch}, that of an earlier marker",
        )
    if state.open_offset < 0:
        return None
    # A marker of transaction version 2 has a higher epoch than its data: one with an equal epoch
    # cannot end the open transaction; it is a repeated one, and late (E14, KAFKA-19999).
    is_late = marker.is_bumped and marker.producer_epoch == state.epoch
    if is_late or marker.producer_epoch < state.epoch:
        return Rejected(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"{who}: a marker of epoch {marker.producer_epoch} cannot end a transaction of epoch"
            f" {state.epoch}",
        )
    return None


def changes_something(state: ProducerState | None, marker: MarkerToWrite) -> bool:
    """Tell whether a marker changes the producer's state.

    A marker without an open transaction does if it is the first with its epoch: it fences the older
    one on this partition.
    """
    if state is None:
        return not marker.drop_state
    if state.open_offset >= 0 or marker.drop_state or marker.producer_epoch > state.epoch:
        return True
    return (
        marker.producer_epoch == state.epoch and marker.coordinator_epoch > state.coordinator_epoch
    )


def batch_of(marker: MarkerToWrite, now_ms: int) -> bytearray:
    """Return the control batch of a marker."""
    return marker_batch(
        marker.producer_id,
        marker.producer_epoch,
        commit=marker.commit,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp_ms=now_ms,
        drops_state=marker.drop_state,
    )
