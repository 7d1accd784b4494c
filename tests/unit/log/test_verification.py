"""The guard between the question to the coordinator and the append (E13, E14, V5)."""

from dataclasses import replace

import pytest

from fencelog.errors import ErrorCode
from fencelog.log import verification
from fencelog.log.values import Appended, Rejected
from tests.support.log import Driver, abort, commit, make_batch


def transactional(sequence: int = 0, *, epoch: int = 0, producer_id: int = 7) -> memoryview:
    return make_batch(producer_id, epoch, sequence, transactional=True)


def error_of(outcome: object) -> ErrorCode:
    assert isinstance(outcome, Rejected), outcome
    return outcome.error


def test_the_first_append_of_a_transaction_needs_a_guard() -> None:  # E14
    partition = Driver()
    assert error_of(partition.append(transactional())) is ErrorCode.INVALID_TXN_STATE
    assert partition.log.log_end_offset == 0


def test_with_the_guard_the_transaction_begins() -> None:  # E14
    partition = Driver()
    guard = partition.log.begin_verification(7, 0, 0)
    assert partition.append(transactional(), guard) == Appended(0, 1)


@pytest.mark.parametrize(
    ("refused", "may", "may_not"),
    [
        ([(1, 5)], (1, 5), (1, 6)),
        ([(1, 5), (1, 7)], (1, 5), (1, 6)),
        ([(1, 7), (1, 5)], (1, 5), (1, 6)),
        ([(1, 5), (0, 3)], (1, 5), (1, 6)),
        ([(0, 3), (1, 5)], (1, 5), (1, 6)),
        ([(0, 3), (1, 5)], (0, 9), (1, 9)),
    ],
)
def test_none_begins_behind_the_lowest_refused_sequence_of_the_newest_epoch(  # E13
    refused: list[tuple[int, int]], may: tuple[int, int], may_not: tuple[int, int]
) -> None:
    guards = verification.Guards()
    for epoch, sequence in refused:
        guards.refused(7, epoch, sequence)
    assert guards.may_begin(7, *may)
    assert not guards.may_begin(7, *may_not)


def test_an_open_transaction_needs_no_question() -> None:  # E14
    partition = Driver()
    partition.produce_in_transaction(7)
    assert partition.log.begin_verification(7, 0, 1) is None
    assert partition.append(transactional(1)) == Appended(1, 2)


def test_the_next_transaction_needs_a_question_of_its_own() -> None:  # E14
    partition = Driver()
    guard = partition.log.begin_verification(7, 0, 0)
    partition.append(transactional(), guard)
    partition.mark(commit(7))
    assert error_of(partition.append(transactional(1), guard)) is ErrorCode.INVALID_TXN_STATE
    assert isinstance(partition.produce_in_transaction(7, sequence=1), Appended)


@pytest.mark.parametrize("ending", [commit(7), abort(7), abort(7, epoch=1)])
def test_a_marker_between_question_and_append_voids_the_guard(ending: object) -> None:  # E14, V5
    partition = Driver()
    guard = partition.log.begin_verification(7, 0, 0)
    partition.mark(ending)
    late = partition.append(transactional(), guard)
    assert error_of(late) in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH)
    assert partition.log.open_transactions() == []


def test_the_marker_that_ends_the_epoch_before_voids_no_guard_of_the_next() -> None:  # E14
    partition = Driver()
    partition.produce_in_transaction(7)
    guard = partition.log.begin_verification(7, 1, 0, from_zero=True)
    partition.mark(replace(commit(7, epoch=1), is_bumped=True))
    assert partition.append(transactional(epoch=1), guard) == Appended(2, 3)
    late = partition.log.begin_verification(7, 2, 0, from_zero=True)
    partition.mark(replace(abort(7, epoch=3), is_bumped=True))
    assert error_of(partition.append(transactional(epoch=2), late)) is (
        ErrorCode.INVALID_PRODUCER_EPOCH
    )


def test_a_marker_that_is_not_written_again_voids_the_guard_too() -> None:  # E14
    partition = Driver()
    partition.produce_in_transaction(7)
    partition.mark(commit(7))
    guard = partition.log.begin_verification(7, 0, 1)
    assert partition.mark(commit(7)) == Appended(2, 2)
    assert error_of(partition.append(transactional(1), guard)) is ErrorCode.INVALID_TXN_STATE


def test_a_guard_serves_its_own_producer_and_epoch_only() -> None:  # E14
    partition = Driver()
    guard = partition.log.begin_verification(7, 0, 0)
    other = partition.append(transactional(producer_id=8), guard)
    newer = partition.append(transactional(epoch=1), guard)
    assert error_of(other) is error_of(newer) is ErrorCode.INVALID_TXN_STATE


def test_a_late_question_of_an_older_epoch_voids_no_guard_of_the_newer_one() -> None:  # E14
    partition = Driver()
    guard = partition.log.begin_verification(7, 1, 0)
    late = partition.log.begin_verification(7, 0, 0)
    assert guard is not late
    assert partition.append(transactional(epoch=1), guard) == Appended(0, 1)
    assert error_of(partition.append(transactional(epoch=0), late)) is (
        ErrorCode.INVALID_PRODUCER_EPOCH
    )


def test_a_marker_voids_the_guards_of_every_epoch_that_it_does_not_make_way_for() -> None:  # E14
    partition = Driver()
    older, newer = (partition.log.begin_verification(7, epoch, 0) for epoch in (0, 1))
    partition.mark(commit(7))
    assert error_of(partition.append(transactional(), older)) is ErrorCode.INVALID_TXN_STATE
    late = partition.append(transactional(epoch=1), newer)
    assert error_of(late) is ErrorCode.INVALID_TXN_STATE


def test_guards_of_a_producer_with_many_epochs_are_bounded() -> None:
    partition = Driver()
    guards = [partition.log.begin_verification(7, epoch, 0) for epoch in range(99, -1, -1)]
    first = partition.append(transactional(epoch=99), guards[0])
    assert error_of(first) is ErrorCode.INVALID_TXN_STATE
    assert isinstance(partition.append(transactional(), guards[-1]), Appended)


def test_batches_in_flight_share_one_guard() -> None:
    partition = Driver()
    first = partition.log.begin_verification(7, 0, 0)
    second = partition.log.begin_verification(7, 0, 1)
    assert first is second
    assert isinstance(partition.append(transactional(0), first), Appended)
    assert isinstance(partition.append(transactional(1), second), Appended)


def test_a_batch_verified_sooner_never_overtakes_an_earlier_one() -> None:  # E13
    partition = Driver()
    first = partition.log.begin_verification(7, 0, 0)
    second = partition.log.begin_verification(7, 0, 1)
    overtaking = partition.append(transactional(1), second)
    assert error_of(overtaking) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert isinstance(partition.append(transactional(0), first), Appended)
    assert isinstance(partition.append(transactional(1), second), Appended)


def test_the_lowest_sequence_counts_in_whatever_order_they_ask() -> None:  # E13
    partition = Driver()
    partition.log.begin_verification(7, 0, 5)
    guard = partition.log.begin_verification(7, 0, 3)
    assert error_of(partition.append(transactional(5), guard)) is (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert isinstance(partition.append(transactional(3), guard), Appended)


def test_a_newer_epoch_gets_a_guard_of_its_own() -> None:
    partition = Driver()
    old = partition.log.begin_verification(7, 0, 0)
    new = partition.log.begin_verification(7, 1, 0)
    assert error_of(partition.append(transactional(), old)) is ErrorCode.INVALID_TXN_STATE
    assert isinstance(partition.append(transactional(epoch=1), new), Appended)


def test_guards_are_bounded_and_the_oldest_must_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "GUARDS_MAX", 2)
    partition = Driver()
    guards = [partition.log.begin_verification(producer_id, 0, 0) for producer_id in (7, 8, 9)]
    forgotten = partition.append(transactional(), guards[0])
    assert error_of(forgotten) is ErrorCode.INVALID_TXN_STATE
    assert isinstance(partition.append(transactional(producer_id=9), guards[2]), Appended)


def test_where_no_sequence_is_known_an_epoch_of_one_transaction_begins_at_0() -> None:  # E5
    partition = Driver()
    guard = partition.log.begin_verification(7, 0, 3, from_zero=True)
    late = partition.append(transactional(3), guard)
    assert error_of(late) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(transactional(0), guard) == Appended(0, 1)


def test_a_marker_alone_sets_no_sequence() -> None:  # E5
    partition = Driver()
    partition.mark(abort(7, epoch=1))
    guard = partition.log.begin_verification(7, 1, 3, from_zero=True)
    late = partition.append(transactional(3, epoch=1), guard)
    assert error_of(late) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(transactional(0, epoch=1), guard) == Appended(1, 2)


def test_a_producer_whose_epoch_outlives_transactions_may_begin_anywhere() -> None:  # E5
    partition = Driver()
    guard = partition.log.begin_verification(7, 0, 3)
    assert partition.append(transactional(3), guard) == Appended(0, 1)
