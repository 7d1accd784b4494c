"""The first two counters: sequence and epoch, per producer and partition (E1-E6, E13)."""

import pytest

from fencelog.errors import ErrorCode
from fencelog.log.values import Appended, Duplicate, Rejected
from fencelog.wire.batch import read_header
from tests.support.log import Driver, commit, make_batch

LAST_SEQUENCE = (1 << 31) - 1


def error_of(outcome: object) -> ErrorCode:
    assert isinstance(outcome, Rejected), outcome
    return outcome.error


def test_the_next_sequence_is_appended_and_gets_the_next_offsets() -> None:  # E3
    partition = Driver()
    assert partition.produce(7, 0, 0, 3) == Appended(0, 3)
    assert partition.produce(7, 0, 3, 2) == Appended(3, 5)


def test_sequences_run_per_producer() -> None:  # E1
    partition = Driver()
    assert partition.produce(7, 0, 0, 3) == Appended(0, 3)
    assert partition.produce(8, 0, 0, 1) == Appended(3, 4)
    assert partition.produce(7, 0, 3, 1) == Appended(4, 5)


def test_producer_0_is_a_producer_like_any_other() -> None:  # E1, E2, E4
    partition = Driver()
    assert partition.produce(0, 1, 0) == Appended(0, 1)
    assert partition.produce(0, 1, 0) == Duplicate(0, 1)
    assert error_of(partition.produce(0, 1, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert error_of(partition.produce(0, 0, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    partition.flush()
    assert partition.restarted().produce(0, 1, 0) == Duplicate(0, 1)


@pytest.mark.parametrize(
    ("first", "count", "following"),
    [
        (LAST_SEQUENCE, 1, 0),
        (LAST_SEQUENCE - 1, 2, 0),
        (LAST_SEQUENCE - 1, 5, 3),
    ],
)
def test_sequences_wrap_to_zero(first: int, count: int, following: int) -> None:  # E1
    partition = Driver()
    assert partition.produce(7, 0, first, count) == Appended(0, count)
    assert partition.produce(7, 0, first, count) == Duplicate(0, count)
    assert partition.log.producers()[0].last_sequence == (following - 1) % (1 << 31)
    gap = partition.produce(7, 0, following + 1, 1)
    assert error_of(gap) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.produce(7, 0, following, 1) == Appended(count, count + 1)


def test_a_lower_epoch_is_fenced_and_writes_nothing() -> None:  # E2
    partition = Driver()
    partition.produce(7, 3, 0, 1)
    for sequence in (0, 1):
        outcome = partition.produce(7, 2, sequence, 1)
        assert error_of(outcome) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.log.log_end_offset == 1


@pytest.mark.parametrize("back", range(5))
def test_each_of_the_last_five_batches_is_known_again(back: int) -> None:  # E4
    partition = Driver()
    for number in range(8):
        partition.produce(7, 0, number * 2, 2)
    number = 7 - back
    assert partition.produce(7, 0, number * 2, 2) == Duplicate(number * 2, number * 2 + 2)
    assert partition.log.log_end_offset == 16


@pytest.mark.parametrize(
    ("sequence", "count", "why"),
    [
        (4, 2, "older than the window"),
        (14, 1, "part of the last batch"),
        (15, 1, "the other part of it"),
        (15, 2, "overlapping the end"),
        (12, 4, "two batches in one"),
        (17, 1, "a gap"),
        (0, 1, "the beginning again"),
    ],
)
def test_what_is_no_exact_repetition_is_out_of_order(  # E4, E5
    sequence: int, count: int, why: str
) -> None:
    partition = Driver()
    for number in range(8):
        partition.produce(7, 0, number * 2, 2)
    outcome = partition.produce(7, 0, sequence, count)
    assert error_of(outcome) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, why
    assert partition.log.log_end_offset == 16


def test_a_duplicate_waits_for_the_same_high_watermark_as_the_original() -> None:  # E4
    partition = Driver()
    first = partition.produce(7, 0, 0, 3)
    again = partition.produce(7, 0, 0, 3)
    assert isinstance(first, Appended)
    assert isinstance(again, Duplicate)
    assert again.end_offset == first.end_offset == 3
    assert partition.log.high_watermark < again.end_offset, "not durable yet: not answered yet"
    partition.flush()
    assert partition.log.high_watermark >= again.end_offset


def test_an_equal_sequence_of_another_epoch_is_no_duplicate() -> None:  # E4, E6
    partition = Driver()
    partition.produce(7, 0, 0, 3)
    assert partition.produce(7, 1, 0, 3) == Appended(3, 6)


def test_a_higher_epoch_is_adopted_with_sequence_zero_only() -> None:  # E6
    partition = Driver()
    partition.produce(7, 0, 0, 3)
    assert error_of(partition.produce(7, 1, 3, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert error_of(partition.produce(7, 1, 1, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.produce(7, 0, 3, 1) == Appended(3, 4), "a refused epoch fences nobody"
    assert partition.produce(7, 1, 0, 1) == Appended(4, 5)
    assert error_of(partition.produce(7, 0, 4, 1)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_unknown_producer_may_begin_anywhere() -> None:  # E5
    partition = Driver()
    assert partition.produce(7, 4, 1234, 2) == Appended(0, 2)
    assert partition.produce(7, 4, 1236, 1) == Appended(2, 3)


def test_an_expired_producer_may_go_on_where_it_was() -> None:  # E5
    partition = Driver()
    partition.produce(7, 0, 0, 3)
    partition.now_ms += 1000
    assert partition.log.expire_producers(partition.now_ms, 1001) == []
    assert partition.log.expire_producers(partition.now_ms, 1000) == [7]
    assert partition.produce(7, 0, 3, 1) == Appended(3, 4)


def test_age_is_counted_by_the_brokers_clock_and_not_by_record_timestamps() -> None:  # E4
    partition = Driver()
    partition.produce(7, 0, 0, 1, timestamp=1)
    assert partition.log.expire_producers(partition.now_ms + 10, 1000) == []
    assert partition.produce(7, 0, 0, 1, timestamp=1) == Duplicate(0, 1)


def test_after_a_restart_age_is_counted_anew() -> None:  # E4, E15
    partition = Driver()
    partition.produce(7, 0, 0, 1, timestamp=1)
    partition.flush()
    again = partition.restarted()
    assert again.log.expire_producers(again.now_ms, 1000) == []
    assert again.log.expire_producers(again.now_ms + 999, 1000) == []
    assert again.produce(7, 0, 0, 1, timestamp=1) == Duplicate(0, 1)
    assert again.log.expire_producers(again.now_ms + 1000, 1000) == [7]


def test_an_open_transaction_keeps_its_producer_known() -> None:
    partition = Driver()
    partition.produce_in_transaction(7)
    assert partition.log.expire_producers(partition.now_ms + 10_000, 1000) == []
    partition.mark(commit(7))
    assert partition.log.expire_producers(partition.now_ms + 10_000, 1000) == [7]


def test_the_end_of_a_transaction_counts_as_use_of_its_producer() -> None:  # E5
    partition = Driver()
    partition.produce_in_transaction(7)
    partition.now_ms += 10_000
    partition.log.append_markers([commit(7)], now_ms=partition.now_ms)
    assert partition.log.expire_producers(partition.now_ms + 999, 1000) == []
    assert partition.log.expire_producers(partition.now_ms + 1000, 1000) == [7]


def test_a_lost_answer_and_a_retry_leave_one_copy() -> None:  # E13
    partition = Driver()
    for sequence in range(5):
        partition.produce(7, 0, sequence, 1)
    for sequence in range(5):
        assert partition.produce(7, 0, sequence, 1) == Duplicate(sequence, sequence + 1)
    partition.flush()
    assert [header.base_sequence for header in partition.read(0)] == [0, 1, 2, 3, 4]


def test_a_retry_after_a_restart_leaves_one_copy() -> None:  # E13, E15
    partition = Driver()
    for sequence in range(5):
        partition.produce(7, 0, sequence, 1)
    partition.flush()
    again = partition.restarted()
    for sequence in range(5):
        assert again.produce(7, 0, sequence, 1) == Duplicate(sequence, sequence + 1)


def test_a_batch_in_flight_never_overtakes_a_first_one_that_was_too_large() -> None:  # E13
    partition = Driver(max_message_bytes=200)
    too_large = partition.produce(7, 0, 0, 2, payload=500)
    assert error_of(too_large) is ErrorCode.MESSAGE_TOO_LARGE
    assert error_of(partition.produce(7, 0, 2, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.produce(7, 0, 0, 1) == Appended(0, 1)
    assert partition.produce(7, 0, 1, 1) == Appended(1, 2)


def test_a_batch_in_flight_never_overtakes_a_first_one_that_came_damaged() -> None:  # E13
    partition = Driver()
    first = make_batch(7, 0, 0, 2)
    partition.log.refused(read_header(first))
    assert error_of(partition.produce(7, 0, 2, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(first) == Appended(0, 2)
    assert partition.produce(7, 0, 2, 1) == Appended(2, 3)


def test_a_new_epoch_is_free_of_what_was_refused_in_the_old_one() -> None:  # E6, E13
    partition = Driver(max_message_bytes=200)
    partition.produce(7, 0, 5, 2, payload=500)
    assert partition.produce(7, 1, 9, 1) == Appended(0, 1)


def test_a_refused_batch_leaves_no_trace() -> None:
    partition = Driver()
    partition.produce(7, 0, 0, 1)
    batch = make_batch(7, 0, 5, 1)
    before = bytes(batch)
    partition.append(batch)
    assert bytes(batch) == before
    assert sum(write.size for write in partition.log.take_unflushed()) == len(before)


def test_batches_without_a_producer_are_not_validated_for_sequence() -> None:
    partition = Driver()
    for number in range(3):
        assert partition.produce() == Appended(number, number + 1)
    assert partition.log.producers() == []
