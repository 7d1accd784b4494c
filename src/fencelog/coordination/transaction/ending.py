"""EndTxn: what a request to commit or abort comes to, for clients of either version (E9, E14).

A client of version 1 keeps its epoch, so its repeated request looks like one for its next
transaction; the state has to tell them apart. For version 2 the decision takes the next epoch: the
markers carry it, the producer is given it, and whoever still names the one before repeats himself.
Which identity that was is in the log (Kafka counts back from the epoch instead), so the epoch that
fenced a producer is never taken for the answer to its own request.
"""

from dataclasses import dataclass, replace

from fencelog.coordination.shard import Decision
from fencelog.coordination.transaction.records import write_transaction
from fencelog.coordination.transaction.state import (
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    ClientVersion,
    ProducerIdAndEpoch,
    Transaction,
    TxnState,
)
from fencelog.errors import ErrorCode
from fencelog.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerId, TimestampMs

NOBODY = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True)
class EndResult:
    """The identity that the producer goes on with; -1 and -1 beside an error, and in version 1."""

    error: ErrorCode
    producer: ProducerIdAndEpoch = NOBODY


def wrong_identity(current: Transaction | None, asked: ProducerIdAndEpoch) -> ErrorCode:
    """Why this is not the producer of this transactional id, or NONE (rule E2)."""
    if current is None or current.successor.producer_id != asked.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # Equality, not order: no client knows a higher epoch than the coordinator (KAFKA-9600).
    if current.successor.producer_epoch != asked.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if asked.producer_epoch == EPOCH_MAX:
        return ErrorCode.PRODUCER_FENCED  # given to nobody (E7)
    return ErrorCode.NONE


def ended_in_version_2(current: Transaction) -> bool:
    """Whether its producer's own request decided last, and took the next epoch."""
    is_ended = current.state not in (TxnState.EMPTY, TxnState.ONGOING)
    return is_ended and current.client_version is ClientVersion.V2


def end_version_1(
    current: Transaction | None, asked: ProducerIdAndEpoch, *, commit: bool, wall_ms: TimestampMs
) -> Decision[EndResult]:
    """Decide for a client of version 1.

    Repeated: CONCURRENT_TRANSACTIONS while markers are outstanding, then success. The contrary of
    what was decided, or nothing to end: INVALID_TXN_STATE.
    """
    error = wrong_identity(current, asked)
    if current is None or error is not ErrorCode.NONE:
        return _refused(error)
    if current.state is TxnState.ONGOING:
        decided = replace(
            current.moved(_prepare(commit=commit), wall_ms), client_version=ClientVersion.V1
        )
        return Decision((write_transaction(decided),), EndResult(ErrorCode.NONE))
    if current.state is TxnState.EMPTY or current.state.is_commit != commit:
        return _refused(ErrorCode.INVALID_TXN_STATE)
    if current.state.is_prepared:
        return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    if ended_in_version_2(current):
        return _refused(ErrorCode.INVALID_TXN_STATE)  # That was the epoch before this one.
    return Decision((), EndResult(ErrorCode.NONE))


def end_version_2(
    current: Transaction | None,
    asked: ProducerIdAndEpoch,
    *,
    commit: bool,
    new_producer_id: ProducerId,
    wall_ms: TimestampMs,
) -> Decision[EndResult]:
    """Decide for a client of version 2; ``new_producer_id`` is used at the last epoch only.

    Repeated, which means under the identity that it had before: CONCURRENT_TRANSACTIONS while
    markers are outstanding, then success and the identity to go on with. Nothing is open: an abort
    takes the next epoch all the same, so that whatever is still on its way is fenced.
    """
    if current is not None and ended_in_version_2(current) and asked == current.previous:
        return _repeated(current, commit=commit)
    error = wrong_identity(current, asked)
    if current is None or error is not ErrorCode.NONE:
        return _refused(error)
    if current.state.is_prepared:
        return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_open = current.state is TxnState.ONGOING
    if commit and not is_open:
        return _refused(ErrorCode.INVALID_TXN_STATE)
    is_last = current.producer.producer_epoch >= EPOCH_EXHAUSTED
    assert not is_last or new_producer_id != NO_PRODUCER_ID
    decided = replace(
        current.moved(_prepare(commit=commit), wall_ms),
        producer=current.fenced(),
        previous=asked,
        next_producer_id=new_producer_id if is_last else NO_PRODUCER_ID,
        client_version=ClientVersion.V2,
        partitions=current.partitions if is_open else frozenset(),
        started_ms=current.started_ms if is_open else wall_ms,
    )
    return Decision((write_transaction(decided),), EndResult(ErrorCode.NONE, decided.successor))


def _repeated(current: Transaction, *, commit: bool) -> Decision[EndResult]:
    if current.state.is_commit != commit:
        return _refused(ErrorCode.INVALID_TXN_STATE)
    if current.state.is_prepared:
        return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    return Decision((), EndResult(ErrorCode.NONE, current.producer))


def _prepare(*, commit: bool) -> TxnState:
    return TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT


def _refused(error: ErrorCode) -> Decision[EndResult]:
    return Decision((), EndResult(error))
