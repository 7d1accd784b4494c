"""What a marker may do that no coordinator here has sent (WriteTxnMarkers; ADR 10).

It ends a transaction that hangs, as a start of the broker would, and nothing else: one that its
coordinator lists is its coordinator's to end, and where a decision is recorded only that one is
taken. So no client can commit, abort or fence what is alive.
"""

from dataclasses import replace

from fencelog.coordination.outcome import TransactionOutcome
from fencelog.errors import ErrorCode
from fencelog.log.values import MarkerToWrite, ProducerView
from fencelog.types import CoordinatorEpoch


def validate_operator_marker(
    marker: MarkerToWrite, outcome: TransactionOutcome, state: ProducerView | None
) -> MarkerToWrite | ErrorCode | None:
    """Return what to write, why it is refused, or None: nothing is left to end.

    ``outcome`` is what all coordinators say, ``state`` what the partition knows of the producer.
    The marker must name the epoch of the open transaction: a higher one would fence a producer that
    is alive elsewhere (E2).
    """
    is_committed = outcome is TransactionOutcome.COMMIT
    if outcome is TransactionOutcome.LISTED or marker.commit != is_committed:
        return ErrorCode.INVALID_TXN_STATE
    if state is None:
        return None
    refusal = _refusal(marker, state)
    if refusal is not None or state.open_offset is None:
        return refusal
    # The number that the client gave could shut the true coordinator out (E17).
    known = max(state.coordinator_epoch, CoordinatorEpoch(0))
    return replace(marker, coordinator_epoch=known)


def _refusal(marker: MarkerToWrite, state: ProducerView) -> ErrorCode | None:
    is_newer = marker.producer_epoch > state.producer_epoch and state.open_offset is not None
    if marker.producer_epoch < state.producer_epoch or is_newer:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if marker.coordinator_epoch < state.coordinator_epoch:
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED  # E17
    return None
