"""A shard that knows less than the logs: a power cut in ``os`` mode may set it back behind them.

Its next epochs would be ones that the logs have seen. New records would pass for duplicates of a
lost transaction's and be gone though acknowledged, or be fenced, and markers be refused for ever.
So nothing more is given out under such a producer id, as nothing is under one whose epochs are used
up (rule E7).
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
    """Whether records of this producer are none of the transaction that was decided last.

    Version 2 tells, for each of its transactions has an epoch; in version 1 it may be the same.
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
    """The same with the last epoch of its producer id, where a log has seen a later one than it.

    What is open is aborted, what is decided stays so: a marker of the last epoch is never refused.
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
