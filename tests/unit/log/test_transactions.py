"""Open, decided and aborted transactions: LSO, markers, what a reader leaves out (E10, E17, V6)."""

import pytest

from fencelog.errors import ErrorCode
from fencelog.log.producers import ProducerState
from fencelog.log.transactions import aborted_between
from fencelog.log.validation import changes_something
from fencelog.log.values import Appended, Isolation, OpenTransaction, Rejected
from tests.support.log import NOW_MS, Driver, abort, commit, flush_and_commit, make_batch, marker

TRANSACTIONAL = Isolation.TRANSACTIONAL


def error_of(outcome: object) -> ErrorCode:
    assert isinstance(outcome, Rejected), outcome
    return outcome.error


def test_an_open_transaction_takes_offsets_and_holds_the_lso_back() -> None:  # E10
    partition = Driver()
    partition.produce()
    partition.produce_in_transaction(7, count=3)
    partition.produce()
    partition.flush()
    assert (partition.log.high_watermark, partition.log.last_stable_offset) == (5, 1)
    assert partition.log.open_transactions() == [OpenTransaction(7, 0, 1, -1)]


def test_the_lso_moves_only_when_the_marker_is_below_the_high_watermark() -> None:  # E10, E16
    partition = Driver()
    partition.produce_in_transaction(7)
    partition.flush()
    assert partition.mark(commit(7)) == Appended(1, 2)
    assert partition.log.open_transactions() == []
    assert partition.log.last_stable_offset == 0, "a power cut may still take the marker"
    partition.flush()
    assert partition.log.last_stable_offset == 2


def test_a_marker_that_is_not_durable_holds_the_lso_back() -> None:  # E10, E16
    partition = Driver()
    partition.produce_in_transaction(7)
    data_end = partition.write()
    partition.mark(commit(7))
    marker_end = partition.write()
    flush_and_commit(partition.log, data_end)
    assert (partition.log.high_watermark, partition.log.last_stable_offset) == (1, 0)
    flush_and_commit(partition.log, marker_end)
    assert (partition.log.high_watermark, partition.log.last_stable_offset) == (2, 2)


def test_the_lso_is_the_first_offset_of_the_earliest_open_transaction() -> None:  # E10
    partition = Driver()
    for producer_id in (7, 8, 9):
        partition.produce_in_transaction(producer_id)
    for producer_id, stable in ((8, 0), (7, 2), (9, 6)):
        partition.mark(commit(producer_id))
        partition.flush()
        assert partition.log.last_stable_offset == stable


def test_the_lso_never_goes_back() -> None:
    partition = Driver()
    partition.produce()
    partition.flush()
    partition.produce_in_transaction(7)
    assert partition.log.last_stable_offset == 1
    partition.flush()
    assert partition.log.last_stable_offset == 1


def test_a_transactional_reader_gets_nothing_of_an_aborted_transaction() -> None:  # E10
    partition = Driver()
    partition.produce_in_transaction(7)  # 0
    partition.produce_in_transaction(8)  # 1
    partition.produce_in_transaction(7, sequence=1)  # 2
    partition.mark(abort(7))  # 3
    partition.produce_in_transaction(7, sequence=2)  # 4
    partition.mark(commit(8))  # 5
    partition.mark(commit(7))  # 6
    partition.flush()
    assert partition.visible(TRANSACTIONAL) == [1, 4]
    assert partition.visible(Isolation.REPLICATED) == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("fetch", "end", "found"),
    [
        (0, 3, [7]),
        (0, 1, [7]),
        (3, 4, [7]),
        (4, 5, []),
        (0, 9, [7, 8]),
        (5, 9, [8]),
        (7, 9, [8]),
        (8, 9, []),
    ],
)
def test_aborted_transactions_are_those_that_overlap_the_data(  # E10
    fetch: int, end: int, found: list[int]
) -> None:
    partition = Driver()
    partition.produce_in_transaction(7, count=3)  # 0-2
    partition.mark(abort(7))  # 3
    partition.produce()  # 4
    partition.produce_in_transaction(8, count=2)  # 5-6
    partition.mark(abort(8))  # 7
    partition.produce()  # 8
    aborted = aborted_between(partition.log.aborted, fetch, end)
    assert [entry.producer_id for entry in aborted] == found


def test_the_search_for_aborted_transactions_goes_on_past_one_that_began_later() -> None:  # E10
    partition = Driver()
    partition.produce_in_transaction(7)  # 0: aborted last, though it began first
    partition.produce_in_transaction(8)  # 1
    partition.mark(abort(8))  # 2
    partition.mark(abort(7))  # 3
    found = aborted_between(partition.log.aborted, 0, 1)
    assert [(entry.producer_id, entry.last_stable_offset) for entry in found] == [(7, 4)]


def test_markers_of_one_group_are_one_append_and_move_the_lso_once() -> None:  # V6
    partition = Driver()
    for producer_id in range(10, 14):
        partition.produce_in_transaction(producer_id)
    partition.flush()
    markers = [commit(10), commit(11), abort(12), commit(13)]
    assert partition.mark(*markers) == Appended(4, 8)
    assert partition.log.last_stable_offset == 0
    (write,) = partition.log.take_unflushed()
    assert (write.first_offset, write.end_offset, len(write.buffers)) == (4, 8, 4)
    flush_and_commit(partition.log, write.end_offset)
    assert partition.log.last_stable_offset == 8


def test_a_group_of_markers_is_written_whole_or_not_at_all() -> None:  # V6
    partition = Driver()
    partition.produce_in_transaction(10)
    partition.produce_in_transaction(11)
    partition.mark(commit(11, coordinator_epoch=9))
    end = partition.log.log_end_offset
    outcome = partition.mark(commit(10), commit(11, coordinator_epoch=1))
    assert error_of(outcome) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert partition.log.log_end_offset == end
    assert [entry.producer_id for entry in partition.log.open_transactions()] == [10]


@pytest.mark.parametrize(("producers", "bases"), [([7], [0]), ([7, 8], [0, (1 << 31) - 1])])
def test_a_group_of_markers_rolls_where_its_last_offset_would_not_fit(  # V6
    producers: list[int], bases: list[int]
) -> None:
    partition = Driver()
    partition.produce(count=(1 << 31) - 1)
    partition.mark(*map(commit, producers))
    assert partition.log.segment_base_offsets == bases


def test_a_group_of_markers_stays_in_one_segment() -> None:  # V6
    partition = Driver(segment_bytes=1024)
    for producer_id in range(10, 16):
        partition.produce_in_transaction(producer_id, payload=60)
    partition.flush()
    assert partition.log.segment_base_offsets == [0]
    partition.mark(*[commit(producer_id) for producer_id in range(10, 16)])
    writes = partition.log.take_unflushed()
    assert [(write.segment_base_offset, len(write.buffers)) for write in writes] == [(0, 0), (6, 6)]


def test_a_marker_of_a_lower_coordinator_epoch_is_refused() -> None:  # E17
    partition = Driver()
    partition.produce_in_transaction(7)
    partition.mark(commit(7, coordinator_epoch=5))
    partition.produce_in_transaction(7, sequence=1)
    outcome = partition.mark(abort(7, coordinator_epoch=4))
    assert error_of(outcome) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert len(partition.log.open_transactions()) == 1
    assert isinstance(partition.mark(commit(7, coordinator_epoch=5)), Appended)


def test_a_marker_of_an_older_epoch_never_ends_a_newer_transaction() -> None:  # E14
    partition = Driver()
    partition.produce_in_transaction(7, epoch=1)
    assert error_of(partition.mark(commit(7, epoch=0))) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(partition.log.open_transactions()) == 1


def test_a_repeated_marker_changes_nothing_and_waits_for_the_first() -> None:
    partition = Driver()
    partition.produce_in_transaction(7)
    assert partition.mark(commit(7)) == Appended(1, 2)
    assert partition.mark(commit(7)) == Appended(2, 2)
    assert partition.mark(abort(7)) == Appended(2, 2)
    assert aborted_between(partition.log.aborted, 0, 10) == []
    assert partition.log.log_end_offset == 2


@pytest.mark.parametrize(
    ("open_offset", "coordinator_epoch", "epoch", "changes"),
    [(-1, 1, 0, False), (0, 1, 0, True), (-1, 0, 0, True), (-1, 1, 1, True), (-1, 0, -1, False)],
)
def test_a_marker_is_written_where_it_ends_or_fences_something(  # E12, E17
    open_offset: int, coordinator_epoch: int, epoch: int, changes: bool
) -> None:
    state = ProducerState(0)
    state.open_offset, state.coordinator_epoch = open_offset, coordinator_epoch
    assert changes_something(state, marker(7, epoch=epoch)) is changes


def test_a_marker_with_a_raised_epoch_fences_the_older_incarnation() -> None:  # E2, E12
    partition = Driver()
    partition.produce_in_transaction(7, epoch=0)
    partition.mark(abort(7, epoch=1))
    late = partition.produce_in_transaction(7, epoch=0, sequence=1)
    assert error_of(late) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert isinstance(partition.produce_in_transaction(7, epoch=1, sequence=0), Appended)


def test_after_a_raised_epoch_only_sequence_zero_begins() -> None:  # E6
    partition = Driver()
    for sequence in range(2):
        partition.produce_in_transaction(7, epoch=0, sequence=sequence)
    partition.mark(abort(7, epoch=1))
    for sequence in (1, 2):
        outcome = partition.produce_in_transaction(7, epoch=1, sequence=sequence)
        assert error_of(outcome) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert isinstance(partition.produce_in_transaction(7, epoch=1, sequence=0), Appended)


def test_a_repetition_by_a_newer_coordinator_is_written_and_fences_the_older() -> None:  # E17
    partition = Driver()
    partition.produce_in_transaction(7)
    partition.mark(commit(7, coordinator_epoch=1))
    assert partition.mark(commit(7, coordinator_epoch=2)) == Appended(2, 3)
    late = partition.mark(commit(7, coordinator_epoch=1))
    assert error_of(late) is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_marker_fences_where_its_producer_never_wrote() -> None:  # E2
    partition = Driver()
    assert partition.mark(abort(7, epoch=1)) == Appended(0, 1)
    late = partition.produce_in_transaction(7, epoch=0)
    assert error_of(late) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_marker_for_an_unknown_producer_does_not_forbid_it_to_go_on() -> None:  # E5
    partition = Driver()
    partition.produce_in_transaction(7)
    partition.mark(commit(7))
    partition.log.expire_producers(partition.now_ms + 1000, 1000)
    partition.mark(commit(7))  # the next transaction named this partition and wrote nothing here
    assert isinstance(partition.produce_in_transaction(7, sequence=1), Appended)


def test_sequences_go_on_over_the_transactions_of_one_epoch() -> None:
    partition = Driver()
    partition.produce_in_transaction(7, sequence=0)
    partition.mark(commit(7))
    outcome = partition.produce_in_transaction(7, sequence=2)
    assert error_of(outcome) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert isinstance(partition.produce_in_transaction(7, sequence=1), Appended)


def test_a_plain_write_during_the_producers_own_transaction_is_refused() -> None:
    partition = Driver()
    partition.produce_in_transaction(7)
    assert error_of(partition.produce(7, 0, 1, 1)) is ErrorCode.INVALID_TXN_STATE
    partition.mark(commit(7))
    assert isinstance(partition.produce(7, 0, 1, 1), Appended)


@pytest.mark.parametrize("transactional", [True, False])
def test_a_newer_incarnation_never_joins_the_older_ones_open_transaction(  # E7, E14
    transactional: bool,
) -> None:
    partition = Driver()
    partition.produce_in_transaction(7, epoch=0)
    guard = partition.log.begin_verification(7, 1, 0)
    batch = make_batch(7, 1, 0, transactional=transactional)
    assert error_of(partition.append(batch, guard)) is ErrorCode.INVALID_TXN_STATE
    partition.mark(abort(7, epoch=1))
    guard = partition.log.begin_verification(7, 1, 0)
    assert isinstance(partition.append(batch, guard), Appended)


@pytest.mark.parametrize("commits", [True, False])
def test_a_marker_of_version_2_ends_no_transaction_of_its_own_epoch(commits: bool) -> None:
    # E14, KAFKA-19999
    partition = Driver()
    partition.produce_in_transaction(7, epoch=0)
    ending = marker(7, 1, commit=commits, is_bumped=True)
    assert isinstance(partition.mark(ending), Appended)
    partition.produce_in_transaction(7, epoch=1)
    end = partition.log.log_end_offset
    late = partition.mark(ending)
    assert error_of(late) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.log.log_end_offset == end
    assert len(partition.log.open_transactions()) == 1


def test_a_marker_of_version_2_that_comes_again_is_taken_where_nothing_is_open() -> None:
    # E16, KAFKA-19999: a coordinator that was killed before it noted the marker sends it again.
    partition = Driver()
    partition.produce_in_transaction(7, epoch=0)
    assert partition.mark(marker(7, 1, is_bumped=True)) == Appended(1, 2)
    assert partition.mark(marker(7, 1, is_bumped=True)) == Appended(2, 2), "it changes nothing"
    assert partition.mark(marker(7, 1, coordinator_epoch=2, is_bumped=True)) == Appended(2, 3)
    assert isinstance(partition.produce_in_transaction(7, epoch=1), Appended)


def test_a_marker_of_version_1_has_the_epoch_of_its_data() -> None:  # E14
    partition = Driver()
    partition.produce_in_transaction(7, epoch=1)
    assert isinstance(partition.mark(marker(7, 1)), Appended)
    assert partition.log.open_transactions() == []


def test_a_marker_that_drops_the_state_leaves_nothing_of_the_producer() -> None:  # V5
    partition = Driver()
    partition.produce_in_transaction(7, count=2)
    partition.mark(marker(7, drop_state=True))
    assert partition.log.producers() == []
    assert partition.log.open_transactions() == []
    assert partition.log.highest_producer_id == 7, "its id is never given out again (E7)"
    end = partition.log.log_end_offset
    assert partition.mark(marker(7, drop_state=True)) == Appended(end, end)


def test_recovery_drops_what_the_marker_dropped() -> None:  # V5, E15
    partition = Driver()
    partition.produce_in_transaction(7)
    partition.produce_in_transaction(8)
    partition.mark(marker(7, drop_state=True), marker(8, drop_state=False))
    partition.flush()
    again = partition.rebuilt()
    assert [view.producer_id for view in again.producers()] == [8]
    assert again.highest_producer_id == 8


def test_a_failed_log_takes_no_markers() -> None:  # D2
    partition = Driver()
    partition.produce_in_transaction(7)
    partition.log.failed()
    assert error_of(partition.mark(commit(7))) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_transaction_at_offset_0_is_described_as_open() -> None:
    partition = Driver()
    partition.produce_in_transaction(0)
    assert partition.log.producers() == [(0, 0, 0, NOW_MS, -1, 0)]


def test_a_producer_that_is_known_from_a_marker_has_no_sequence() -> None:
    partition = Driver()
    partition.mark(commit(9, epoch=3))
    assert partition.log.producers() == [(9, 3, -1, -1, 1, None)]


def test_producers_are_described_with_their_open_transaction() -> None:
    partition = Driver()
    partition.produce(6, 2, 4, 2, timestamp=1234)
    partition.produce_in_transaction(7)
    six, seven = partition.log.producers()
    assert six == (6, 2, 5, 1234, -1, None)
    assert (seven.producer_id, seven.open_offset) == (7, 2)
