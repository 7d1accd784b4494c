"""Cases that Kafka's own unit tests of the log try; ``docs/internals/parity-log.md`` lists all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelog.errors import ErrorCode
from fencelog.log.config import LogConfig
from fencelog.log.index import OffsetIndex, TimeIndex
from fencelog.log.rebuild import LogBuilder
from fencelog.log.transactions import aborted_between
from fencelog.log.values import Appended, Duplicate, Isolation
from fencelog.types import Offset
from fencelog.wire.batch import SEQUENCE_MODULUS, read_header
from fencelog.wire.control import marker_batch, read_marker
from tests.support.log import NOW_MS, Driver, abort, commit, make_batch, state_of
from tests.unit.log.files import Files

# Producers


def test_a_batch_may_span_the_wrap_of_sequences() -> None:  # E1, E4
    partition = Driver()
    first = SEQUENCE_MODULUS - 11
    assert partition.produce(7, 15, first, 21) == Appended(0, 21)
    assert partition.produce(7, 15, first, 21) == Duplicate(0, 21)
    (producer,) = partition.log.producers()
    assert producer.last_sequence == 9
    refused = partition.produce(7, 15, 11, 1)
    assert getattr(refused, "error", None) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.produce(7, 15, 10, 1) == Appended(21, 22)


def test_after_the_highest_sequence_comes_zero_and_nothing_else() -> None:  # E1
    partition = Driver()
    partition.produce(7, 15, SEQUENCE_MODULUS - 1, 1)
    refused = partition.produce(7, 15, 1, 1)
    assert getattr(refused, "error", None) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert isinstance(partition.produce(7, 15, 0, 1), Appended)


@pytest.mark.parametrize("ended", [commit(7), abort(7)], ids=["commit", "abort"])
def test_a_marker_leaves_the_window_of_its_producer(ended: object) -> None:  # E4
    partition = Driver()
    partition.produce_in_transaction(7, sequence=0, count=3)
    partition.mark(ended)  # type: ignore[arg-type]
    (producer,) = partition.log.producers()
    assert (producer.last_sequence, producer.open_offset) == (2, None)
    late = partition.produce_in_transaction(7, sequence=0, count=3)
    assert late == Duplicate(0, 3), "a retry of what is stored, whatever became of it"


def test_a_retry_of_a_batch_is_known_again_after_its_records_were_deleted() -> None:  # E4
    partition = Driver(segment_bytes=1024)
    for sequence in range(3):
        partition.produce(7, 0, sequence, payload=600)
    partition.produce(8, 0, 0)
    partition.flush()
    assert partition.log.advance_start(Offset(3)) == [0, 1]
    assert {each.producer_id for each in partition.log.producers()} == {7, 8}
    assert partition.produce(7, 0, 2, payload=600) == Duplicate(2, 3)
    assert isinstance(partition.produce(7, 0, 3), Appended)


def test_a_log_that_begins_amid_a_producers_batches_is_taken_as_it_is() -> None:  # E5
    partition = Driver(segment_bytes=1024)
    for sequence in range(4):
        partition.produce(7, 0, sequence, payload=600)
    partition.flush()
    partition.log.advance_start(Offset(2))
    for base in (0, 1):
        del partition.files[base]
    again = partition.restarted()
    (producer,) = again.log.producers()
    assert producer.last_sequence == 3
    assert isinstance(again.produce(7, 0, 4), Appended)


def test_a_coordinator_epoch_that_goes_back_in_a_stored_log_is_no_damage() -> None:  # E15
    builder = LogBuilder(LogConfig())
    builder.open_segment(Offset(0))
    for offset, coordinator_epoch in enumerate((5, 4)):
        batch = memoryview(
            marker_batch(
                7, 0, commit=False, coordinator_epoch=coordinator_epoch, timestamp_ms=NOW_MS
            )
        )
        header = read_header(batch)._replace(base_offset=Offset(offset))
        builder.replay(header, read_marker(batch))
    (producer,) = builder.finish().producers()
    assert producer.coordinator_epoch == 4, "the newest word counts"


def test_a_marker_alone_lets_no_batch_in_flight_overtake_a_first_one_that_was_refused() -> None:
    partition = Driver()  # E13
    partition.mark(commit(7))  # its transaction named this partition and wrote nothing here
    first, second = (make_batch(7, 0, sequence, transactional=True) for sequence in (0, 1))
    partition.log.refused(read_header(first))  # it came damaged
    guard = partition.log.begin_verification(7, 0, 1)
    overtaking = partition.append(second, guard)
    assert getattr(overtaking, "error", None) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    guard = partition.log.begin_verification(7, 0, 0)
    assert partition.append(first, guard) == Appended(1, 2)
    assert partition.append(second, guard) == Appended(2, 3)


# Transactions


def test_a_marker_without_data_leaves_no_aborted_transaction() -> None:  # E10
    partition = Driver()
    partition.mark(abort(7))
    partition.mark(abort(7, epoch=1))
    partition.flush()
    assert aborted_between(partition.log.aborted, Offset(0), partition.log.log_end_offset) == []
    assert partition.log.last_stable_offset == partition.log.log_end_offset


def test_an_aborted_transaction_is_listed_in_every_segment_that_it_spans() -> None:  # E10
    partition = Driver(segment_bytes=1024)
    for sequence in range(4):
        partition.produce_in_transaction(7, sequence=sequence, payload=600)
    partition.mark(abort(7))
    partition.flush()
    assert len(partition.log.segment_base_offsets) == 4
    for log in (partition.log, partition.rebuilt()):
        for offset in range(4):
            (entry,) = aborted_between(log.aborted, Offset(offset), Offset(offset + 1))
            assert (entry.producer_id, entry.first_offset, entry.last_offset) == (7, 0, 4)
    assert partition.visible(Isolation.TRANSACTIONAL) == []
    assert partition.visible(Isolation.REPLICATED) == [0, 1, 2, 3]


def test_plain_batches_of_others_do_not_move_the_lso_past_an_open_transaction() -> None:  # E10
    partition = Driver()
    partition.produce()
    partition.produce_in_transaction(7)
    partition.produce(8, 0, 0)
    partition.produce_in_transaction(9)
    partition.flush()
    assert partition.log.last_stable_offset == 1
    partition.mark(commit(9))
    partition.flush()
    assert partition.log.last_stable_offset == 1
    partition.mark(abort(7))
    partition.flush()
    assert partition.log.last_stable_offset == partition.log.log_end_offset


# Indexes


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(0, 2000))
def test_an_index_never_leads_past_what_is_sought(steps: list[int], sought: int) -> None:
    index, entries, last = OffsetIndex(), [(-1, 0)], 0
    for number, step in enumerate(steps):
        last += step
        index.add(last, number + 1)
        entries.append((last, number + 1))
    assert index.position(sought) == max(p for offset, p in entries if offset <= sought)
    assert OffsetIndex.decode(index.encode()).position(sought) == index.position(sought)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9))), st.integers(0, 1000))
def test_a_time_index_never_leads_past_a_record_that_is_old_enough(
    steps: list[tuple[int, int]], sought: int
) -> None:
    index, timestamp, offset = TimeIndex(), 0, 0
    added: list[tuple[int, int]] = []
    for forward, more in steps:
        timestamp, offset = timestamp + forward, offset + more
        index.add(timestamp, offset)
        added.append((timestamp, offset))
    start = index.offset_before(sought)
    assert all(offset > start for timestamp, offset in added if timestamp >= sought) or start == 0
    assert TimeIndex.decode(index.encode()).offset_before(sought) == start


# Compaction


def test_a_key_that_looks_like_a_marker_is_a_key() -> None:  # D4
    files = Files.of()
    looks_like_commit = "\x00\x00\x00\x01"
    files.write((looks_like_commit, "1"))
    files.write(("a", "t"), producer_id=7, sequence=0, transactional=True)
    files.end(7, commit=True)
    files.write((looks_like_commit, "2"))
    files.roll()
    files.compact()
    assert files.records() == {1: ("a", "t"), 3: (looks_like_commit, "2")}
    assert files.markers() == [2]


def test_the_last_batch_of_a_producer_stays_though_its_transaction_was_aborted() -> None:  # D4
    files = Files.of()
    files.write(("a", "1"), producer_id=7, sequence=0, transactional=True)
    files.write(("b", "2"), producer_id=7, sequence=1, transactional=True)
    files.end(7, commit=False)
    files.write(("c", "3"))
    files.roll()
    files.compact()
    assert files.records() == {3: ("c", "3")}
    (producer,) = files.rebuilt().producers()
    assert (producer.producer_id, producer.last_sequence) == (7, 1)


def test_after_compaction_a_retry_is_still_known_again() -> None:  # D4, E4
    files = Files.of()
    for sequence in range(5):
        files.write(("a", str(sequence)), producer_id=7, sequence=sequence)
    files.roll()
    files.compact()
    retried = make_batch(7, 0, 4)
    for log in (files.log, files.rebuilt()):
        outcome = log.append(retried, read_header(retried), now_ms=NOW_MS)
        assert outcome == Duplicate(4, 5)


def test_sequences_used_again_by_a_newer_epoch_keep_the_newer_batch() -> None:  # D4, E6
    files = Files.of()
    for epoch in (0, 1):
        files.write(("a", f"{epoch}-0"), producer_id=7, sequence=0, epoch=epoch)
        files.write(("a", f"{epoch}-1"), producer_id=7, sequence=1, epoch=epoch)
    files.write(("b", "last"))
    files.roll()
    files.compact()
    assert files.records() == {3: ("a", "1-1"), 4: ("b", "last")}
    (producer,) = files.rebuilt().producers()
    assert (producer.producer_epoch, producer.last_sequence) == (1, 1)


def test_a_log_of_every_kind_of_batch_is_rebuilt_as_it_was_after_each_one() -> None:  # E15
    partition = Driver(segment_bytes=1024)
    steps = [
        lambda: partition.produce(7, 0, 0),
        lambda: partition.produce_in_transaction(8, sequence=0, payload=500),
        lambda: partition.produce(7, 1, 0, payload=500),
        lambda: partition.mark(abort(8, epoch=1)),
        lambda: partition.produce_in_transaction(8, epoch=1, payload=500),
        lambda: partition.mark(commit(8, epoch=1), commit(9)),
        lambda: partition.produce(7, 1, 1, payload=500),
    ]
    for step in steps:
        step()
        partition.flush()
        assert state_of(partition.rebuilt()) == state_of(partition.log)
