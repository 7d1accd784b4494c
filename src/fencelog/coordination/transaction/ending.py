"""EndTxn: the rules of commit and abort for clients of both transaction versions (E9, E14).

A client of version 1 keeps its epoch, so a repeated request looks like the request for its next
transaction; the state has to tell them apart. In version 2 the decision bumps the epoch: the
markers carry the new epoch, the producer gets it, and a request with the previous epoch is a retry.
The previous identity is stored (Kafka takes the epoch minus one instead), so an epoch that fenced
a producer is never given to that producer as the answer to its retry.
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

NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True)
class EndResult:
    """The producer id and epoch to use from now on; both -1 with an error, and in version 1."""

    error: ErrorCode
    producer: ProducerIdAndEpoch = NO_PRODUCER


def validate_producer(current: Transaction | None, asked: ProducerIdAndEpoch) -> ErrorCode:
    """NONE for the current producer of the transactional id (rule E2)."""
    if current is None or current.successor.producer_id != asked.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # Equality, not order: no client knows a higher epoch than the coordinator (KAFKA-9600).
    if current.successor.producer_epoch != asked.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if asked.producer_epoch == EPOCH_MAX:
        return ErrorCode.PRODUCER_FENCED  # no producer gets this epoch (E7)
    return ErrorCode.NONE


def ended_in_version_2(current: Transaction) -> bool:
    """Whether the last decision was its producer's own EndTxn, which bumped the epoch."""
    is_ended = current.state not in (TxnState.EMPTY, TxnState.ONGOING)
    return is_ended and current.client_version is ClientVersion.V2


def end_version_1(
    current: Transaction | None, asked: ProducerIdAndEpoch, *, commit: bool, wall_ms: TimestampMs
) -> Decision[EndResult]:
    """Decide for a client of version 1.

    A retry gets CONCURRENT_TRANSACTIONS while markers are outstanding, then success. A request that
    contradicts the decision, or without an open transaction, gets INVALID_TXN_STATE.
    """
    error = validate_producer(current, asked)
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
        return _refused(ErrorCode.INVALID_TXN_STATE)  # It ended under the previous epoch.
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

    A retry, which names the previous producer id and epoch, gets CONCURRENT_TRANSACTIONS while
    markers are outstanding, then success and the next identity. An abort bumps the epoch although
    nothing is open, so that delayed requests of the producer are fenced.
    """
    if current is not None and ended_in_version_2(current) and asked == current.previous:
        return _repeated(current, commit=commit)
    error = validate_producer(current, asked)
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


def aborted(
    current: Transaction, wall_ms: TimestampMs, previous: ProducerIdAndEpoch | None = None
) -> Transaction:
    """The coordinator's own abort of an open transaction: its epoch fences the producer (E12).

    ``previous``: the producer that asked for it, with the identity that it has now (KIP-360).
    """
    return replace(
        current.moved(TxnState.PREPARE_ABORT, wall_ms),
        producer=current.fenced(),
        previous=previous,
        client_version=ClientVersion.V1,
    )


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
