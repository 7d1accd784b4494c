"""Who may append what: the refusals, each with the rule that it stands for.

Functions of what is known; nothing here changes anything.
"""

from fencelog.errors import ErrorCode
from fencelog.log.config import LogConfig
from fencelog.log.producers import (
    UNKNOWN_SEQUENCE,
    ProducerState,
    StoredBatch,
    judge,
    last_sequence,
)
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

_WHAT_IS_WRONG = {
    ErrorCode.INVALID_PRODUCER_EPOCH: "is fenced by a newer epoch",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "has another sequence to send first",
}


def validate_batch(config: LogConfig, header: BatchHeader, now_ms: int) -> Rejected | None:
    """Hold a client's batch against the topic's limits: size, kind, timestamps."""
    size, attributes = LENGTH_END + header.length, header.attributes
    if size > config.max_message_bytes:
        limit = f"max.message.bytes is {config.max_message_bytes}"
        return Rejected(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes; {limit}")
    if size > config.segment_bytes:
        limit = f"segment.bytes is {config.segment_bytes}"
        return Rejected(ErrorCode.RECORD_LIST_TOO_LARGE, f"a batch of {size} bytes; {limit}")
    if attributes & CONTROL:
        return Rejected(ErrorCode.INVALID_RECORD, "control batches are the broker's to write")
    if config.message_timestamp_type == "LogAppendTime":
        return None
    if attributes & LOG_APPEND_TIME:
        return Rejected(ErrorCode.INVALID_TIMESTAMP, "log append time in a topic of create time")
    return _refuse_timestamps(config, header, now_ms)


def _refuse_timestamps(config: LogConfig, header: BatchHeader, now_ms: int) -> Rejected | None:
    # Records are not opened: the base timestamp (of the first record) stands for the oldest.
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
    """Hold a client's batch against what is known of its producer; None: append it."""
    producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
    verdict = judge(state, epoch, sequence, last_sequence(sequence, header.last_offset_delta))
    if verdict is not None:
        if isinstance(verdict, StoredBatch):
            return Duplicate(verdict.base_offset, Offset(verdict.last_offset + 1))
        return _rejected(verdict, header, state)
    is_open, is_transactional = False, header.attributes & TRANSACTIONAL
    is_unknown = state is None or state.next_sequence == UNKNOWN_SEQUENCE
    if is_unknown and guards and not guards.may_begin(producer_id, epoch, sequence):  # E5, E13
        return _rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, header, state)
    if state is not None and state.open_offset >= 0:
        is_open = True
        if epoch != state.epoch or not is_transactional:
            # A plain write would be seen though the transaction is aborted, and a newer incarnation
            # must not end up inside the older one's transaction (E7, E14).
            return Rejected(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id}: its transaction of epoch {state.epoch} is open here",
            )
    if is_transactional and not is_open and not guards.permits(guard, producer_id, epoch):
        return Rejected(  # E14, V5
            ErrorCode.INVALID_TXN_STATE,
            f"producer {producer_id}: no transaction of epoch {epoch} is known to be open",
        )
    return None


def _rejected(error: ErrorCode, header: BatchHeader, state: ProducerState | None) -> Rejected:
    known = "" if state is None else f"; here: {state.epoch}, {state.next_sequence}"
    at = f"epoch {header.producer_epoch}, sequence {header.base_sequence}{known}"
    return Rejected(error, f"producer {header.producer_id} {_WHAT_IS_WRONG[error]} ({at})")


def validate_marker(state: ProducerState | None, marker: MarkerToWrite) -> Rejected | None:
    """Hold a marker against what is known of its producer; None: it may be written."""
    if state is None:
        return None
    who = f"producer {marker.producer_id}"
    if marker.coordinator_epoch < state.coordinator_epoch:  # E17
        return Rejected(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"{who}: marker of coordinator epoch {marker.coordinator_epoch}"
            f" after one of {state.coordinator_epoch}",
        )
    if state.open_offset < 0:
        return None
    # A marker of version 2 has an epoch of its own, above its data's: an equal one ends nothing
    # that is open, though it may come again once nothing is (E14, KAFKA-19999).
    is_late = marker.is_bumped and marker.producer_epoch == state.epoch
    if is_late or marker.producer_epoch < state.epoch:
        return Rejected(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"{who}: marker of epoch {marker.producer_epoch} for a transaction of {state.epoch}",
        )
    return None


def changes_something(state: ProducerState | None, marker: MarkerToWrite) -> bool:
    """Tell whether a marker says anything that the log does not say yet.

    A marker without an open transaction is still worth its bytes where it is the first to tell of
    an epoch: it fences the older one here.
    """
    if state is None:
        return not marker.drop_state
    if state.open_offset >= 0 or marker.drop_state or marker.producer_epoch > state.epoch:
        return True
    return (
        marker.producer_epoch == state.epoch and marker.coordinator_epoch > state.coordinator_epoch
    )
