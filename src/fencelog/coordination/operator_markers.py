"""Validates the markers of a WriteTxnMarkers request, which come from an operator (ADR 10).

Such a marker may end a hanging transaction, as a start of the broker does, and nothing else. A
transaction that its coordinator lists is ended by its coordinator; where a decision is recorded,
the marker has to agree with it. So no client can commit, abort or fence a live transaction.
"""

from dataclasses import replace

from fencelog.coordination.outcome import TransactionOutcome
from fencelog.errors import ErrorCode
from fencelog.log.values import MarkerToWrite, ProducerView
from fencelog.types import CoordinatorEpoch


def validate_operator_marker(
    marker: MarkerToWrite, outcome: TransactionOutcome, state: ProducerView | None
) -> MarkerToWrite | ErrorCode | None:
    """Return the marker to write, an error, or None where no transaction is open.

    ``outcome``: what the coordinators answer; ``state``: what the partition knows of the producer.
    The marker must name the epoch of the open transaction: a higher one would fence a producer that
    is alive elsewhere (E2).
    """
    is_committed = outcome is TransactionOutcome.COMMIT
    if outcome is TransactionOutcome.LISTED or marker.commit != is_committed:
        return ErrorCode.INVALID_TXN_STATE
    if state is None:
        return None
    error = _validate_epochs(marker, state)
    if error is not None or state.open_offset is None:
        return error
    # The coordinator epoch that the client gave could fence the coordinator itself (E17).
    known = max(state.coordinator_epoch, CoordinatorEpoch(0))
    return replace(marker, coordinator_epoch=known)


def _validate_epochs(marker: MarkerToWrite, state: ProducerView) -> ErrorCode | None:
    is_newer = marker.producer_epoch > state.producer_epoch and state.open_offset is not None
    if marker.producer_epoch < state.producer_epoch or is_newer:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if marker.coordinator_epoch < state.coordinator_epoch:
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED  # E17
    return None
