"""When transactional ids are looked at, and which are forgotten; the rest is a transcript."""

import pytest

from fencelog.coordination.shard import LogRecord
from fencelog.coordination.transaction.records import write_key
from fencelog.coordination.transaction.retention import IDS_PER_CHECK, Retention
from fencelog.coordination.transaction.state import ProducerIdAndEpoch, Transaction, TxnState
from fencelog.types import Instant, ProducerEpoch, ProducerId, TimestampMs

WEEK_MS = 604_800_000
NOW_MS = TimestampMs(1_700_000_000_000)
OLD_MS = TimestampMs(NOW_MS - WEEK_MS)


def transaction(name: str, state: TxnState, updated_ms: TimestampMs = OLD_MS) -> Transaction:
    return Transaction(
        transactional_id=name,
        producer=ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0)),
        previous=None,
        timeout_ms=60_000,
        state=state,
        partitions=frozenset(),
        updated_ms=updated_ms,
        started_ms=TimestampMs(-1),
    )


@pytest.mark.parametrize(
    "state", [TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT]
)
def test_an_id_at_rest_is_forgotten_after_its_time_and_not_before(state: TxnState) -> None:
    young = TimestampMs(OLD_MS + 1)
    known = [transaction("old", state), transaction("young", state, young)]
    found = Retention(WEEK_MS, 3600).expired(known, Instant(0), NOW_MS)
    assert found == (LogRecord(write_key("old"), None),)


@pytest.mark.parametrize(
    "state", [TxnState.ONGOING, TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT]
)
def test_an_id_with_something_under_way_is_never_too_old(state: TxnState) -> None:
    ancient = transaction("busy", state, TimestampMs(0))
    assert Retention(WEEK_MS, 3600).expired([ancient], Instant(0), NOW_MS) == ()


def test_ids_are_looked_at_from_time_to_time_only() -> None:
    retention = Retention(WEEK_MS, 3600)
    assert retention.next_check is None
    assert retention.expired([], Instant(10), NOW_MS) == ()
    assert retention.next_check == Instant(3610)
    known = [transaction("old", TxnState.EMPTY)]
    assert retention.expired(known, Instant(3609), NOW_MS) == ()
    assert len(retention.expired(known, Instant(3610), NOW_MS)) == 1


def test_a_look_forgets_so_many_and_the_next_one_comes_soon() -> None:
    retention = Retention(WEEK_MS, 3600)
    known = [transaction(str(number), TxnState.EMPTY) for number in range(IDS_PER_CHECK + 1)]
    assert len(retention.expired(known, Instant(10), NOW_MS)) == IDS_PER_CHECK
    assert retention.next_check is not None
    assert retention.next_check < Instant(11)
    assert len(retention.expired(known[IDS_PER_CHECK:], retention.next_check, NOW_MS)) == 1
    assert retention.next_check > Instant(3600)
