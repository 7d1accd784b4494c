"""Which records a round of compaction keeps, and what it leaves in their place (D4)."""

import pytest

from fencelog.log.compaction_round import grouped
from fencelog.log.config import LogConfig
from fencelog.log.layout import decode_aborted
from fencelog.log.segment import Segment
from fencelog.log.state import LogState
from fencelog.log.transactions import aborted_between
from fencelog.log.values import Appended, Duplicate, Isolation
from fencelog.wire.batch import Compression, read_header
from fencelog.wire.filtering import delete_horizon
from fencelog.wire.records import read_records
from tests.support.log import make_batch
from tests.unit.log.files import COMPACT, DAY_MS, NOW_MS, Files


def test_the_newest_record_of_each_key_survives_with_its_offset() -> None:  # D4
    files = Files.of()
    files.write(("a", "1"), ("b", "1"), ("a", "2"))
    files.write(("c", "1"), ("b", "2"))
    files.roll()
    files.write(("a", "3"))
    files.compact()
    assert files.records() == {2: ("a", "2"), 3: ("c", "1"), 4: ("b", "2"), 5: ("a", "3")}
    assert files.offsets() == [(0, 2), (3, 4), (5, 5)], "batches keep the offsets they had"


def test_the_active_segment_is_not_touched() -> None:  # D4
    files = Files.of()
    files.write(("a", "1"))
    files.write(("a", "2"))
    assert files.compact() == []
    assert len(files.records()) == 2


def test_records_without_a_key_go() -> None:
    files = Files.of()
    files.write((None, "1"), ("a", "1"), (None, "2"))
    files.roll()
    files.compact()
    assert files.records() == {1: ("a", "1")}


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_that_shrinks_keeps_codec_timestamps_and_everything_of_its_producer(
    compression: Compression,
) -> None:
    files = Files.of()
    who = {"producer_id": 7, "sequence": 40, "epoch": 3}
    files.write(("a", "1"), ("b", "1"), ("c", "1"), compression=compression, **who)
    files.write(("b", "2"), ("c", "2"))
    files.roll()
    (before, old), *_ = files.batches()
    times = {record.offset: record.timestamp for record in read_records(old)}
    files.compact()
    (after, batch), *_ = files.batches()
    assert after.record_count == 1
    assert after.compression is compression
    assert {r.offset: r.timestamp for r in read_records(batch)} == {0: times[0]}
    assert after.max_timestamp == times[0]
    unchanged = ("base_offset", "last_offset_delta", "producer_id", "producer_epoch")
    for name in (*unchanged, "base_sequence", "leader_epoch", "base_timestamp"):
        assert getattr(after, name) == getattr(before, name), name


def test_no_index_leads_to_the_timestamp_of_a_batch_that_was_emptied() -> None:
    files = Files.of()
    files.write(("a", "1"), producer_id=7, sequence=0, timestamp=NOW_MS + 9)
    files.write(("b", "1"), timestamp=NOW_MS + 3)
    files.write(("a", "2"), timestamp=NOW_MS)
    files.roll()
    files.compact()
    (emptied, _), *_ = files.batches()
    assert (emptied.record_count, emptied.max_timestamp) == (0, NOW_MS + 9)
    for log in (files.log, files.rebuilt()):
        segment = log._state.segments[0]
        assert (segment.max_timestamp, segment.max_timestamp_offset) == (NOW_MS + 3, 1)
        assert segment.newest_timestamp == NOW_MS + 9, "it is no older for it"


# Tombstones


def test_a_tombstone_stays_until_its_horizon_and_then_goes() -> None:  # D4
    files = Files.of(delete_retention_ms=1000)
    files.write(("a", "1"), ("b", "1"))
    files.write(("a", None))
    files.write(("z", "last of its file"))
    files.roll()
    files.compact(NOW_MS + 5)
    assert files.records() == {1: ("b", "1"), 2: ("a", None), 3: ("z", "last of its file")}
    horizons = [delete_horizon(header) for header, _ in files.batches()]
    assert horizons == [None, NOW_MS + 1005, None]
    stamped = [r.timestamp for _, batch in files.batches() for r in read_records(batch)]
    assert stamped == [NOW_MS + 1, NOW_MS, NOW_MS], "timestamps survive the horizon beside them"
    files.compact(NOW_MS + 1004)
    assert 2 in files.records()
    files.compact(NOW_MS + 1005)
    assert files.records() == {1: ("b", "1"), 3: ("z", "last of its file")}


def test_tombstones_and_markers_stay_for_a_replica_that_may_lack_them() -> None:  # D4, F7
    files = Files.of(delete_retention_ms=0)
    files.write(("b", "void"), producer_id=8, sequence=0, transactional=True)
    files.end(8, commit=False)
    files.log.expire_producers(NOW_MS)
    files.log.expire_producers(NOW_MS + 2 * DAY_MS)
    files.write(("a", "1"))
    files.write(("a", None))
    files.write(("z", "1"))
    files.roll()
    for _ in range(3):
        files.compact(keeps_deletions=True)
    assert (files.records(), files.markers()) == ({3: ("a", None), 4: ("z", "1")}, [1])
    files.compact()
    assert (files.records(), files.markers()) == ({4: ("z", "1")}, [])


def test_a_superseded_tombstone_is_removed_at_once() -> None:
    files = Files.of()
    files.write(("a", None))
    files.write(("a", "again"))
    files.roll()
    files.compact()
    assert files.records() == {1: ("a", "again")}


# Transactions


def test_the_side_files_of_a_cleaned_segment_are_those_of_its_batches() -> None:  # D3, E10
    files = Files.of(index_interval_bytes=64, segment_bytes=600)
    files.write(*((f"k{number}", "padding") for number in range(16)))
    files.roll()
    for number, (producer_id, commit) in enumerate([(7, False), (7, True), (8, False)]):
        files.write(
            (f"t{number}", "1"), producer_id=producer_id, sequence=number % 2, transactional=True
        )
        files.end(producer_id, commit=commit)
    files.write(("z", "1"), timestamp=NOW_MS + 9)
    files.roll()
    files.compact()
    cleaned = files.compact()[-1]
    rebuilt = files.rebuilt()._state
    (segment,) = (each for each in rebuilt.segments if each.base_offset == cleaned.replaced[0] > 0)
    segment.seal()
    assert cleaned.side_files.offset_index == segment.index.encode() != b""
    assert cleaned.side_files.time_index == segment.time_index.encode() != b""
    (aborted,) = rebuilt.transactions.aborted
    assert aborted.producer_id == 8, "nothing is left of the one that 7 aborted"
    assert decode_aborted(cleaned.side_files.txn_index) == [aborted]


def test_a_second_marker_does_not_stay_for_the_records_of_the_first() -> None:  # D4
    files = Files.of(delete_retention_ms=0)
    files.write(("a", "1"), producer_id=7, sequence=0, transactional=True)
    files.end(7, commit=True)
    files.end(7, commit=False, epoch=1)
    files.end(7, commit=False, epoch=2)
    files.write(("z", "1"))
    files.roll()
    files.compact()
    files.compact()
    assert files.markers() == [1, 3], "the one with its record, and the newest epoch"


def test_nothing_at_or_above_the_last_stable_offset_is_touched() -> None:  # D4
    files = Files.of()
    files.write(("a", "1"))
    files.write(("a", "2"))
    files.roll()
    files.write(("a", "open"), producer_id=7, sequence=0, transactional=True)
    files.write(("a", "after"))
    files.roll()
    files.write(("b", "1"))
    files.compact()
    assert files.records() == {1: ("a", "2"), 2: ("a", "open"), 3: ("a", "after"), 4: ("b", "1")}
    files.end(7, commit=False)
    files.roll()
    files.compact()
    assert files.records() == {3: ("a", "after"), 4: ("b", "1")}


def test_records_of_an_aborted_transaction_are_removed_and_supersede_nothing() -> None:  # D4, E10
    files = Files.of()
    files.write(("a", "kept"), ("b", "old"))
    files.write(("a", "void"), producer_id=7, sequence=0, transactional=True)
    files.write(("b", "new"), producer_id=8, sequence=0, transactional=True)
    files.end(7, commit=False)
    files.end(8, commit=True)
    files.roll()
    files.compact()
    assert files.records() == {0: ("a", "kept"), 3: ("b", "new")}


def test_a_marker_stays_while_a_batch_of_its_transaction_is_there_and_until_its_horizon() -> None:
    files = Files.of(delete_retention_ms=1000)  # D4
    files.write(("a", "1"), producer_id=7, sequence=0, transactional=True)
    files.end(7, commit=True)
    files.write(("b", "void"), producer_id=8, sequence=0, transactional=True)
    files.end(8, commit=False)
    files.log.expire_producers(NOW_MS)
    files.log.expire_producers(NOW_MS + 2 * DAY_MS)
    assert not files.log.producers(), "a live producer would keep its last batch"
    files.roll()
    files.write(("a", "2"), ("z", "1"))
    files.compact(NOW_MS)
    assert (files.records(), files.markers()) == (
        {0: ("a", "1"), 4: ("a", "2"), 5: ("z", "1")},
        [1, 3],
    )
    files.roll()
    files.compact(NOW_MS + 10)
    assert files.markers() == [1, 3], "the batch at 0 went in this round only; 3 got a horizon"
    assert aborted_between(files.log.aborted, 0, 6) == []
    files.compact(NOW_MS + 20)
    assert files.markers() == [1, 3]
    assert [delete_horizon(h) for h, _ in files.batches() if h.is_control] == [
        NOW_MS + 1020,
        NOW_MS + 1010,
    ]
    files.compact(NOW_MS + 1010)
    assert files.markers() == [1]
    files.compact(NOW_MS + 1020)
    assert files.markers() == []


def test_what_is_left_of_a_transaction_is_never_open_or_visible_again() -> None:  # E10, E15
    files = Files.of(delete_retention_ms=10)
    for number in range(6):
        commit = number % 2 == 0
        files.write((f"k{number % 3}", "v"), producer_id=7, sequence=number, transactional=True)
        files.end(7, commit=commit)
        files.roll()
    for round_number in range(6):
        files.compact(NOW_MS + 20 * round_number)
        rebuilt = files.rebuilt()
        assert rebuilt.open_transactions() == []
        assert rebuilt.last_stable_offset == rebuilt.log_end_offset
        entries = {entry.last_offset for entry in aborted_between(rebuilt.aborted, 0, 100)}
        # An entry stays for a round longer than the batches, for readers that are under way.
        live = aborted_between(files.log.aborted, 0, 100)
        assert entries <= {entry.last_offset for entry in live}


# Producers


def test_the_last_batch_of_an_active_producer_stays_without_records() -> None:  # D4, E4
    files = Files.of()
    files.write(("a", "1"), producer_id=7, sequence=0)
    files.write(("a", "2"), ("a", "3"), producer_id=7, sequence=1)
    files.write(("a", "4"))
    files.roll()
    files.compact()
    assert files.records() == {3: ("a", "4")}
    assert files.offsets() == [(1, 2), (3, 3)]
    (producer,) = files.rebuilt().producers()
    assert (producer.producer_id, producer.last_sequence) == (7, 2)
    files.compact()
    assert files.offsets() == [(1, 2), (3, 3)]


@pytest.mark.parametrize("producer_id", [0, 7])
def test_a_forgotten_producer_continues_after_a_load_without_its_last_batch(  # E5
    producer_id: int,
) -> None:
    files = Files.of()
    files.write(("a", "1"), producer_id=producer_id, sequence=0)
    files.write(("b", "1"), producer_id=producer_id, sequence=1)
    files.write(("b", "2"))
    files.roll()
    files.log.expire_producers(NOW_MS)
    files.log.expire_producers(NOW_MS + 2 * DAY_MS)
    files.compact()
    assert files.records() == {0: ("a", "1"), 2: ("b", "2")}
    for partition in (files.log, files.rebuilt()):
        batch = make_batch(producer_id, 0, 2)
        outcome = partition.append(batch, read_header(batch), now_ms=NOW_MS)
        assert isinstance(outcome, Appended), outcome
        again = partition.append(batch, read_header(batch), now_ms=NOW_MS)
        assert isinstance(again, Duplicate), again


@pytest.mark.parametrize("producer_id", [0, 7])
def test_the_last_batch_of_a_forgotten_producer_goes(producer_id: int) -> None:
    files = Files.of()
    files.write(("a", "1"), producer_id=producer_id, sequence=0)
    files.write(("a", "2"))
    files.roll()
    files.log.expire_producers(NOW_MS)
    files.log.expire_producers(NOW_MS + 2 * DAY_MS)
    files.compact()
    assert files.offsets() == [(1, 1)]


def test_a_producer_with_only_a_marker_left_keeps_its_epoch() -> None:  # D4, E2
    files = Files.of(delete_retention_ms=10)
    files.write(("a", "1"), producer_id=7, sequence=0, transactional=True)
    files.end(7, commit=False, epoch=5)
    files.write(("a", "2"))
    files.roll()
    for round_number in range(4):
        files.compact(NOW_MS + 20 * round_number)
    assert files.offsets() == [(1, 1), (2, 2)]
    (producer,) = files.rebuilt().producers()
    assert (producer.producer_id, producer.producer_epoch) == (7, 5)


def test_a_marker_that_drops_its_producer_leaves_nothing_in_the_end() -> None:  # V5
    files = Files.of(delete_retention_ms=10)
    files.write(("a", "1"), producer_id=7, sequence=0, transactional=True)
    files.end(7, commit=True, drop=True)
    files.write(("a", "2"))
    files.roll()
    for round_number in range(4):
        files.compact(NOW_MS + 20 * round_number)
        assert files.rebuilt().producers() == []
    assert files.offsets() == [(2, 2)]


# Files


def test_a_file_ends_where_it_ended() -> None:  # D3
    files = Files.of()
    files.write(("a", "1"))
    files.roll()
    files.write(("b", "1"), ("a", "2"))
    files.roll()
    files.write(("b", "2"), ("a", "3"))
    files.roll()
    (cleaned,) = files.compact()
    assert cleaned.replaced == (0, 1, 3)
    files.write(("b", "3"), ("a", "4"))
    files.roll()
    files.write(("c", "1"))
    files.compact()
    assert files.log.segment_base_offsets == [0, 7]
    assert files.offsets()[-2:] == [(5, 6), (7, 7)]
    files.first_dirty = 0
    files.log.reconfigure(LogConfig(**{**COMPACT, "segment_bytes": 1024}))
    files.compact()
    assert files.rebuilt().log_end_offset == 8


def test_neighbours_are_joined_as_far_as_a_segment_goes() -> None:
    files = Files.of(segment_bytes=2048)
    for number in range(12):
        files.write((f"k{number}", "v" * 300))
        files.roll()
    files.write(("k0", "v"))
    files.compact()
    sizes = [len(files.segments[base]) for base in sorted(files.segments)]
    assert len(sizes) == 4
    assert max(sizes) <= 2048
    plan = files.log.read(7, 1, Isolation.REPLICATED)
    assert plan.segment_base_offset == 5


def test_the_last_batch_of_a_file_stays_emptied_where_nothing_else_holds_its_end() -> None:  # D4
    files = Files.of(segment_bytes=1024)
    files.write(("a", "1" * 600), ("b", "1"))
    files.roll()
    files.write(("a", "2" * 600), ("b", "2"))
    files.roll()
    files.write(("c", "1"))
    files.compact()
    assert files.offsets() == [(0, 1), (2, 3), (4, 4)]
    header, batch = next(iter(files.batches()))
    assert (header.record_count, len(batch)) == (0, 61)


def test_a_compaction_round_with_a_full_key_map_leaves_the_rest_to_the_next() -> None:
    files = Files.of()
    for number in range(6):
        files.write((f"k{number}", "1"), (f"k{number}", "2"))
    files.roll()
    files.write(("end", "1"))
    files.compact(keys_max=2)
    assert files.first_dirty == 4
    assert sorted(files.records()) == [1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    files.compact(keys_max=4)
    assert files.first_dirty == 12
    assert sorted(files.records()) == [1, 3, 5, 7, 9, 11, 12]


def test_a_batch_beyond_the_full_key_map_is_as_it_was() -> None:  # D4
    files = Files.of()
    files.write(("a", "1"))
    files.write(("b", "1"), producer_id=7, sequence=0, transactional=True)
    files.end(7, commit=False)
    files.roll()
    assert files.compact(keys_max=1) == []
    assert files.offsets() == [(0, 0), (1, 1), (2, 2)]


def test_what_a_round_kept_stays_in_the_next_where_nothing_newer_came() -> None:  # D4
    files = Files.of()
    for key in "ab":
        files.write((key, "1"))
        files.roll()
        files.compact()
    assert files.records() == {0: ("a", "1"), 1: ("b", "1")}


def segments_of(*sizes: tuple[int, int]) -> LogState:
    """A log of full segments, each of so many bytes and index entries, and an active one."""
    state = LogState(LogConfig(segment_bytes=100, segment_index_bytes=60), 0, was_compacted=False)
    for number, (size, entries) in enumerate(sizes):
        segment = Segment(number * 10)
        segment.append(size, number * 10 + 9, -1, 0, has_records=True)
        for entry in range(entries):
            segment.index.add(entry, entry)
        state.add_segment(segment)
    state.add_segment(Segment(len(sizes) * 10))
    return state


@pytest.mark.parametrize(
    ("sizes", "end", "groups"),
    [
        ([(50, 0), (50, 0), (50, 0)], 30, [[0, 10], [20]]),
        ([(50, 0), (51, 0), (49, 0)], 30, [[0], [10, 20]]),
        ([(1, 2), (1, 3), (1, 0)], 30, [[0, 10, 20]]),
        ([(1, 2), (1, 3), (1, 1)], 30, [[0, 10], [20]]),
        ([(1, 2), (1, 2), (1, 2)], 30, [[0, 10], [20]]),
        ([(1, 0), (1, 0), (1, 0)], 20, [[0, 10]]),
        ([(1, 0), (1, 0), (1, 0)], 21, [[0, 10, 20]]),
    ],
)
def test_neighbours_are_joined_as_far_as_bytes_and_indexes_of_one_segment_go(
    sizes: list[tuple[int, int]], end: int, groups: list[list[int]]
) -> None:
    found = grouped(segments_of(*sizes), end)
    assert [[each.base_offset for each in group] for group in found] == groups


def test_a_round_maps_no_segment_that_is_clean_already() -> None:
    files = Files.of()
    for key in "abc":
        files.write((key, "1"))
        files.roll()
    round_of = files.log.compaction(first_dirty=1, end=2, now_ms=NOW_MS)
    assert round_of.dirty() == [1]


def test_nothing_is_written_anew_where_nothing_would_change() -> None:
    files = Files.of(segment_bytes=1024)
    files.write(("a", "1" * 800))
    files.roll()
    files.write(("b", "1" * 800))
    files.roll()
    assert files.compact() == []


# When


def test_a_round_is_due_by_the_share_that_is_dirty() -> None:
    files = Files.of(min_cleanable_dirty_ratio=0.4, segment_bytes=1024)
    files.write(("a", "1" * 700))
    files.roll()
    files.write(("b", "1" * 700))
    files.roll()
    need = files.log.compaction_need(0, 2, NOW_MS)
    assert (need.is_due, need.end, need.dirty_ratio) == (True, 2, 1.0)
    files.compact()
    assert not files.log.compaction_need(2, 2, NOW_MS).is_due
    files.write(("c", "1" * 200))
    files.roll()
    assert not files.log.compaction_need(2, 3, NOW_MS).is_due
    files.write(("d", "1" * 700))
    files.roll()
    assert files.log.compaction_need(2, 4, NOW_MS).is_due


def test_a_compaction_round_stops_at_unsynced_or_too_recent_segments() -> None:  # D2
    files = Files.of(min_compaction_lag_ms=1000)
    for number in range(3):
        files.write(("a", "1"), timestamp=NOW_MS + 500 * number)
        files.roll()
    assert files.log.compaction_need(0, 3, NOW_MS + 900).end == 0
    assert files.log.compaction_need(0, 3, NOW_MS + 1600).end == 2
    assert files.log.compaction_need(0, 3, NOW_MS + 9000).end == 3
    assert files.log.compaction_need(0, 2, NOW_MS + 9000).end == 2


def test_a_round_is_due_when_the_oldest_dirty_record_has_waited_for_long() -> None:
    files = Files.of(max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1.0)
    files.write(("a", "1"))
    assert not files.log.roll_if_due(NOW_MS + 1000)
    assert files.log.roll_if_due(NOW_MS + 1001), "a quiet partition too"
    files._flush()
    assert not files.log.compaction_need(0, 1, NOW_MS + 1000).is_due
    assert files.log.compaction_need(0, 1, NOW_MS + 1001).is_due
