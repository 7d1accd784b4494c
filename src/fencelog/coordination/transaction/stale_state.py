"""Stale coordinator state: a power cut in ``os`` mode may lose records of the transaction log only.

The coordinator would then give out epochs that partition logs have already seen. New records would
be taken for duplicates of a lost transaction, and be lost though acknowledged, or they would be
fenced, and markers would be refused for ever. So the coordinator gives out no more epochs of such a
producer id, as for one whose epochs are exhausted (rule E7).
"""

from collections.abc import Mapping
from dataclasses import replace

from fencelog.coordination.transaction.state import (
    EPOCH_MAX,
    ClientVersion,
    ProducerIdAndEpoch,
    Transaction,
    TxnState,
)
from fencelog.types import ProducerEpoch, ProducerId, TimestampMs


def is_later(current: Transaction, producer: ProducerIdAndEpoch) -> bool:
    """Whether records of this producer are later than the transaction that was decided last.

    Known in version 2 only, where each transaction has an epoch of its own.
    """
    return (
        current.client_version is ClientVersion.V2
        and current.state not in (TxnState.EMPTY, TxnState.ONGOING)
        and current.previous is not None
        and current.previous != producer
    )


def retired(
    current: Transaction, seen: Mapping[ProducerId, ProducerEpoch], wall_ms: TimestampMs
) -> Transaction | None:
    """The transactional id at its last epoch, if a log has ``seen`` a later one than it; else None.

    An open transaction is aborted, a decision stays: a marker of the last epoch is never refused.
    """
    producer_id, epoch = current.producer
    if seen.get(producer_id, epoch) <= epoch:
        return None
    last = replace(
        current,
        producer=ProducerIdAndEpoch(producer_id, EPOCH_MAX),
        previous=None,
        client_version=ClientVersion.V1,
        updated_ms=wall_ms,
    )
    is_open = current.state is TxnState.ONGOING
    return last.moved(TxnState.PREPARE_ABORT, wall_ms) if is_open else last
