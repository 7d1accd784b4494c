"""Offsets, limits, segments, tail and read plans of a partition's log."""

import pytest

from fencelog.errors import ErrorCode
from fencelog.log.index import OffsetIndex, TimeIndex
from fencelog.log.values import Appended, Isolation, ReadPlan, Rejected
from fencelog.wire.batch import check_crc, iterate, read_header
from tests.support.log import (
    NOW_MS,
    Driver,
    commit,
    flush_and_commit,
    make_batch,
)

LOG_APPEND_TIME = 0x08
DAY_MS = 24 * 60 * 60 * 1000


def error_of(outcome: object) -> ErrorCode:
    assert isinstance(outcome, Rejected), outcome
    return outcome.error


def test_offsets_and_epoch_are_written_into_the_batch() -> None:
    partition = Driver()
    partition.log.leader_epoch = 4
    partition.produce(count=3)
    batch = make_batch(count=2)
    partition.append(batch)
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (3, 4, 4)
    assert check_crc(batch)


def test_the_high_watermark_is_what_is_durable() -> None:  # D1, F2
    partition = Driver()
    partition.produce(count=3)
    end_offset = partition.write()
    assert (partition.log.log_end_offset, partition.log.high_watermark) == (3, 0)
    partition.produce()
    flush_and_commit(partition.log, end_offset)
    assert (partition.log.log_end_offset, partition.log.high_watermark) == (4, 3)


def test_a_failed_log_appends_and_acknowledges_nothing() -> None:  # D2
    partition = Driver()
    partition.produce()
    partition.flush()
    partition.produce()
    end_offset = partition.write()
    partition.log.failed()
    flush_and_commit(partition.log, end_offset)
    assert partition.log.high_watermark == 1
    assert error_of(partition.produce()) is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(partition.read(0)) == 1, "what is committed can still be read"


@pytest.mark.parametrize(
    ("config", "batch", "error"),
    [
        ({"max_message_bytes": 100}, make_batch(payload=40), ErrorCode.MESSAGE_TOO_LARGE),
        ({"segment_bytes": 100}, make_batch(payload=40), ErrorCode.RECORD_LIST_TOO_LARGE),
        ({}, make_batch(control=True), ErrorCode.INVALID_RECORD),
        ({}, make_batch(7, 0, -1, control=True, transactional=True), ErrorCode.INVALID_RECORD),
        ({}, make_batch(timestamp=NOW_MS + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
        ({}, make_batch(flags=LOG_APPEND_TIME), ErrorCode.INVALID_TIMESTAMP),
        (
            {"message_timestamp_before_max_ms": 10},
            make_batch(timestamp=NOW_MS - 11),
            ErrorCode.INVALID_TIMESTAMP,
        ),
    ],
)
def test_what_a_client_may_not_store(
    config: dict[str, int], batch: memoryview, error: ErrorCode
) -> None:
    partition = Driver(**config)
    assert error_of(partition.append(batch)) is error
    assert partition.log.log_end_offset == 0


@pytest.mark.parametrize("payload", [38, 39])
def test_the_largest_batch_is_max_message_bytes_long(payload: int) -> None:
    partition = Driver(max_message_bytes=100)
    assert isinstance(partition.produce(payload=payload), Appended)


@pytest.mark.parametrize("timestamp", [NOW_MS + 3_600_000, NOW_MS - 10, -1])
def test_timestamps_within_the_limits_are_kept(timestamp: int) -> None:
    partition = Driver(message_timestamp_before_max_ms=10)
    batch = make_batch(timestamp=timestamp)
    assert partition.append(batch) == Appended(0, 1)
    assert read_header(batch).max_timestamp == timestamp


def test_the_brokers_own_records_are_not_held_to_the_limits() -> None:
    partition = Driver(max_message_bytes=50, segment_bytes=60)
    batch = make_batch(timestamp=NOW_MS + DAY_MS, payload=100)
    assert partition.append(batch, internal=True) == Appended(0, 1)


def test_log_append_time_replaces_the_clients_timestamps() -> None:
    partition = Driver(message_timestamp_type="LogAppendTime")
    batch = make_batch(timestamp=NOW_MS + 10 * DAY_MS)
    assert partition.append(batch) == Appended(0, 1)
    header = read_header(batch)
    assert header.max_timestamp == NOW_MS == partition.log.max_timestamp
    assert header.attributes & LOG_APPEND_TIME
    assert check_crc(batch)


# Segments


def test_a_full_segment_is_followed_by_a_new_one() -> None:
    partition = Driver(segment_bytes=300)
    for _ in range(7):
        partition.produce(payload=39)  # 100 bytes each
    assert partition.log.segment_base_offsets == [0, 3, 6]
    partition.flush()
    assert [len(files.log) for files in partition.files.values()] == [300, 300, 100]


@pytest.mark.parametrize(("age_ms", "segments"), [(100, 1), (101, 2)])
def test_a_segment_spans_so_much_record_time(age_ms: int, segments: int) -> None:
    partition = Driver(segment_ms=100)
    partition.produce(timestamp=1000)
    partition.produce(timestamp=1000 + age_ms)
    assert len(partition.log.segment_base_offsets) == segments


def test_without_record_timestamps_a_segment_ages_by_the_clock() -> None:
    partition = Driver(segment_ms=100, segment_bytes=200)
    for _ in range(3):
        partition.produce(payload=39, timestamp=-1)  # the third begins a segment
    partition.now_ms += 101
    partition.produce(payload=39, timestamp=-1)
    assert partition.log.segment_base_offsets == [0, 2, 3]


@pytest.mark.parametrize("index_bytes", [24, 31])
def test_a_segment_whose_index_is_full_is_followed_by_a_new_one(index_bytes: int) -> None:
    partition = Driver(segment_index_bytes=index_bytes, index_interval_bytes=0)
    for number in range(6):
        partition.produce(timestamp=NOW_MS - number)
    assert partition.log.segment_base_offsets == [0, 4]


@pytest.mark.parametrize("index_bytes", [24, 31])
def test_a_segment_whose_time_index_is_full_is_followed_by_a_new_one(index_bytes: int) -> None:
    partition = Driver(segment_index_bytes=index_bytes, index_interval_bytes=0)
    for number in range(5):
        partition.produce(timestamp=NOW_MS + number)
    assert partition.log.segment_base_offsets == [0, 3]


def test_offsets_in_a_segment_fit_into_the_index() -> None:
    partition = Driver()
    partition.produce(count=1)
    partition.produce(count=(1 << 31) - 1)
    partition.produce(count=1)
    assert partition.log.segment_base_offsets == [0, 1 << 31]


def test_a_roll_carries_the_snapshot_and_the_last_index_entry_of_the_old_segment() -> None:
    partition = Driver(segment_bytes=200)
    partition.produce(7, 0, 0, payload=39, timestamp=NOW_MS)
    partition.produce(7, 0, 1, payload=39, timestamp=NOW_MS + 5)
    partition.flush()
    assert partition.files[0].time_index == b""
    partition.produce(7, 0, 2, payload=39)
    old, new = partition.log.take_unflushed()
    assert (old.segment_base_offset, old.roll, old.buffers, old.position) == (0, False, [], 200)
    assert TimeIndex.decode(old.time_index).last() == (NOW_MS + 5, 1)
    assert (new.segment_base_offset, new.roll, new.position, len(new.buffers)) == (2, True, 0, 1)
    assert new.snapshot is not None
    assert old.snapshot is None


def test_the_tail_is_taken_once() -> None:
    partition = Driver()
    partition.produce(payload=39)
    assert len(partition.log.take_unflushed()) == 1
    assert partition.log.take_unflushed() == []


def test_the_files_hold_what_was_appended_in_order() -> None:
    partition = Driver(segment_bytes=300, index_interval_bytes=150)
    for number in range(20):
        partition.produce(7, 0, number, payload=39)
        if number % 3 == 0:
            partition.write()
    partition.flush()
    offsets = [
        header.base_offset
        for _, files in sorted(partition.files.items())
        for header, _ in iterate(files.log)
    ]
    assert offsets == list(range(20))
    for base_offset, files in partition.files.items():
        side_files = partition.builder().side_files(base_offset)
        assert OffsetIndex.decode(bytes(files.index)).encode() == side_files.offset_index
        assert files.txn_index == side_files.txn_index


def test_the_leader_epoch_checkpoint_comes_with_the_first_batch_of_a_later_epoch() -> None:  # F7
    partition = Driver()
    partition.produce()
    partition.flush()
    assert partition.leader_epochs is None
    partition.log.leader_epoch = 3
    partition.produce()
    (write,) = partition.log.take_unflushed()
    assert write.leader_epochs == "0\n2\n0 0\n3 1\n"


def test_the_leader_epoch_checkpoint_comes_with_the_second_segment() -> None:  # F7
    partition = Driver(segment_bytes=100)
    for _ in range(2):
        partition.produce()
        partition.flush()
    assert len(partition.log.segment_base_offsets) == 2
    assert partition.leader_epochs == "0\n1\n0 0\n"


# Reading


def test_a_reader_sees_as_far_as_its_isolation() -> None:  # F6
    partition = Driver()
    partition.produce()
    partition.produce_in_transaction(7)
    partition.flush()
    partition.produce()
    partition.write()
    partition.produce()
    seen = {isolation.name: partition.visible(isolation) for isolation in Isolation}
    assert seen == {"TRANSACTIONAL": [0], "REPLICATED": [0, 1], "TAIL": [0, 1, 2]}


def test_the_tail_is_visible_as_far_as_it_is_written() -> None:  # F6
    partition = Driver()
    ends = []
    for _ in range(2):
        partition.produce()
        (write,) = partition.log.take_unflushed()
        partition.files[0].log += write.buffers[0]
        ends.append(write.end_offset)
    for written in range(2):
        assert partition.visible(Isolation.TAIL) == list(range(written))
        partition.log.written(ends[written])
    flush_and_commit(partition.log, ends[0])
    assert partition.visible(Isolation.TAIL) == [0, 1]


@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_a_read_between_the_visible_end_and_the_log_end_returns_nothing(
    offset: int, isolation: Isolation
) -> None:
    partition = Driver()
    partition.produce()
    partition.flush()
    partition.produce(count=2)
    plan = partition.log.read(offset, 100, isolation)
    assert isinstance(plan, ReadPlan)
    assert plan.is_empty


@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("offset", [-1, 4])
def test_beyond_either_end_is_out_of_range(offset: int, isolation: Isolation) -> None:
    partition = Driver()
    partition.produce(count=3)
    assert partition.log.read(offset, 100, isolation) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_reader_of_any_offset_gets_the_batch_that_holds_it() -> None:
    partition = Driver(segment_bytes=1000, index_interval_bytes=200)
    for number in range(30):
        partition.produce(count=3, payload=number % 7)
    partition.flush()
    for offset in range(90):
        assert partition.read(offset)[0].base_offset == offset - offset % 3


def test_the_first_batch_comes_whole_and_the_rest_within_the_limit() -> None:
    partition = Driver()
    for _ in range(5):
        partition.produce(payload=39)
    partition.flush()
    assert [header.base_offset for header in partition.read(1, max_bytes=1)] == [1]
    assert [header.base_offset for header in partition.read(1, max_bytes=299)] == [1, 2]


def test_a_plan_never_reaches_into_bytes_that_are_not_durable() -> None:
    partition = Driver(segment_bytes=300)
    for _ in range(2):
        partition.produce(payload=39)
    partition.flush()
    for _ in range(3):
        partition.produce(payload=39)
    partition.write()
    plan = partition.log.read(0, 1000, Isolation.REPLICATED)
    assert isinstance(plan, ReadPlan)
    assert (plan.segment_base_offset, plan.end_position, plan.upper_offset) == (0, 200, 2)


def test_a_timestamp_leads_to_its_first_record() -> None:
    partition = Driver(segment_bytes=1000, index_interval_bytes=150)
    stamps = [NOW_MS + number * 10 for number in range(40)]
    for stamp in stamps:
        partition.produce(payload=39, timestamp=stamp)
    partition.flush()
    for wanted in range(NOW_MS - 5, NOW_MS + 391, 5):
        plan = partition.log.offset_for_timestamp(wanted)
        assert plan is not None
        found = next(h for h in partition.read_plan(plan) if h.max_timestamp >= wanted)
        assert found.max_timestamp == min(stamp for stamp in stamps if stamp >= wanted)
    assert partition.log.offset_for_timestamp(NOW_MS + 391) is None


def test_a_timestamp_is_not_sought_above_the_high_watermark() -> None:
    partition = Driver()
    partition.produce(timestamp=NOW_MS)
    assert partition.log.offset_for_timestamp(NOW_MS) is None
    partition.flush()
    assert partition.log.offset_for_timestamp(NOW_MS) is not None


# Retention


def test_the_log_start_never_passes_the_high_watermark() -> None:  # D4
    partition = Driver()
    partition.produce(count=2)
    partition.flush()
    partition.produce(count=2)
    assert partition.log.advance_start(3) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert partition.log.advance_start(2) == []
    assert partition.log.log_start_offset == 2
    assert partition.log.advance_start(1) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_lso_rises_to_the_log_start() -> None:  # D4
    partition = Driver()
    partition.produce_in_transaction(7)
    partition.produce(count=3)
    partition.flush()
    assert partition.log.last_stable_offset == 0
    partition.log.advance_start(2)
    assert partition.log.last_stable_offset == 2
    partition.mark(commit(7))
    partition.flush()
    assert partition.log.last_stable_offset == 5


def test_segments_wholly_below_the_start_are_given_up() -> None:  # D4
    partition = Driver(segment_bytes=300)
    for _ in range(7):
        partition.produce(payload=39)
    partition.flush()
    assert partition.log.advance_start(5) == [0]
    assert partition.log.segment_base_offsets == [3, 6]
    assert [header.base_offset for header in partition.read(5)] == [5]
    assert partition.log.advance_start(7) == [3], "the active segment stays"


@pytest.mark.parametrize(
    ("config", "start"),
    [
        ({"retention_ms": -1}, 0),
        ({"retention_ms": 1000}, 3),
        ({"retention_ms": -1, "retention_bytes": 700}, 0),
        ({"retention_ms": -1, "retention_bytes": 400}, 3),
        ({"retention_ms": -1, "retention_bytes": 0}, 6),
        ({"retention_ms": 1000, "cleanup_policy": frozenset({"compact"})}, 0),
    ],
)
def test_retention_gives_up_whole_segments(config: dict[str, object], start: int) -> None:  # D4
    partition = Driver(segment_bytes=300, **config)
    for number in range(7):
        partition.produce(payload=39, timestamp=NOW_MS + (0 if number < 3 else 900))
    partition.flush()
    assert partition.log.retained_from(NOW_MS + 1001) == start


@pytest.mark.parametrize(
    ("retention_bytes", "start"), [(401, 0), (400, 3), (399, 3), (101, 3), (100, 6), (99, 6)]
)
def test_retention_leaves_no_less_than_its_bytes(retention_bytes: int, start: int) -> None:  # D4
    partition = Driver(segment_bytes=300, retention_ms=-1, retention_bytes=retention_bytes)
    for _ in range(7):
        partition.produce(payload=39)
    partition.flush()
    assert partition.log.retained_from(NOW_MS) == start


def test_a_segment_is_as_old_as_its_newest_record() -> None:  # D4
    partition = Driver(segment_bytes=300, retention_ms=1000)
    for later_ms in (0, 900, 0, 5000):
        partition.produce(payload=39, timestamp=NOW_MS + later_ms)
    partition.flush()
    assert partition.log.retained_from(NOW_MS + 1900) == 0
    assert partition.log.retained_from(NOW_MS + 1901) == 3


def test_retention_never_passes_the_high_watermark() -> None:  # D4
    partition = Driver(segment_bytes=300, retention_bytes=0)
    for _ in range(7):
        partition.produce(payload=39)
    assert partition.log.retained_from(NOW_MS) == 0


def test_the_active_segment_is_rolled_once_its_records_are_due_and_then_given_up() -> None:  # D4
    partition = Driver(retention_ms=1000)
    partition.produce(count=3)
    assert not partition.log.roll_if_due(NOW_MS + 1000)
    assert partition.log.roll_if_due(NOW_MS + 1001)
    assert partition.log.retained_from(NOW_MS + 1001) == 0, "not above the high watermark"
    partition.flush()
    assert partition.log.retained_from(NOW_MS + 1001) == 3
    assert partition.log.advance_start(3) == [0]
    assert not partition.log.roll_if_due(NOW_MS + 5000), "an empty segment has nothing to give up"
    partition.produce()
    partition.flush()
    assert [header.base_offset for header in partition.read(3)] == [3]


def test_a_segment_without_a_file_is_not_the_newest_to_retention() -> None:  # D4
    partition = Driver(retention_ms=1000)
    partition.produce()
    partition.flush()
    assert partition.log.roll_if_due(NOW_MS + 1001)
    assert partition.log.retained_from(NOW_MS + 1001) == 0
    partition.flush()
    assert partition.log.retained_from(NOW_MS + 1001) == 1


def test_a_quiet_segment_is_rolled_when_its_time_is_up() -> None:
    partition = Driver(segment_ms=500, retention_ms=-1)
    partition.produce()
    assert not partition.log.roll_if_due(NOW_MS), "its age counts from the first look"
    assert not partition.log.roll_if_due(NOW_MS + 500)
    assert partition.log.roll_if_due(NOW_MS + 501)
    partition.flush()
    assert partition.log.segment_base_offsets == [0, 1]


def test_a_compacted_log_gives_up_nothing_to_retention() -> None:
    partition = Driver(retention_ms=1000, cleanup_policy=frozenset({"compact"}))
    partition.produce()
    partition.flush()
    assert not partition.log.roll_if_due(NOW_MS + 5000)


# Leader epochs


def test_an_epoch_ends_where_the_next_one_begins_and_the_last_at_the_logs_end() -> None:  # F7
    partition = Driver()
    for epoch, count in ((2, 3), (5, 4), (6, 1)):
        partition.log.leader_epoch = epoch
        partition.produce(count=count)
    partition.log.leader_epoch = 8  # leads, and has written nothing yet
    ends = {epoch: partition.log.end_of_epoch(epoch) for epoch in (0, 2, 3, 4, 5, 6, 7, 8)}
    assert ends == {
        0: (0, 0),
        2: (2, 3),
        3: (2, 3),
        4: (2, 3),
        5: (5, 7),
        6: (6, 8),
        7: (6, 8),
        8: (8, 8),
    }
    assert partition.log.end_of_epoch(9) is None
    assert partition.log.end_of_epoch(-1) is None


def test_epochs_that_ended_before_the_log_start_are_older_than_all_that_is_here() -> None:  # F7
    partition = Driver()
    for epoch in (1, 2, 3, 4):
        partition.log.leader_epoch = epoch
        partition.produce(count=2)
    partition.flush()
    partition.log.advance_start(5)
    assert partition.log.end_of_epoch(1) == (1, 2)
    assert partition.log.end_of_epoch(2) == (2, 4)
    assert partition.log.end_of_epoch(3) == (3, 6)
