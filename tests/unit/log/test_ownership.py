"""The owners of a partition as its log has them: which record counts, and that none is lost."""

import pytest

from fencelog.errors import ErrorCode
from fencelog.log.ownership import GROUPS_MAX, Owner, Owners
from fencelog.log.snapshot import Snapshot, decode_snapshot, encode_snapshot
from fencelog.log.values import Appended, Isolation, Rejected
from fencelog.types import Offset
from fencelog.wire.batch import iterate
from fencelog.wire.control import OwnershipRecord, read_control
from tests.support.log import NOW_MS, Driver, commit, flush_and_commit, owner
from tests.unit.log.files import Files

HOUR_MS = 3_600_000


def records_of(partition: Driver, base_offset: int) -> list[OwnershipRecord]:
    """The ownership records that a segment begins with."""
    found = []
    for _, batch in iterate(partition.files[base_offset].log):
        record = read_control(batch)
        if not isinstance(record, OwnershipRecord):
            break
        found.append(record)
    return found


def error_of(outcome: object) -> ErrorCode:
    assert isinstance(outcome, Rejected), outcome
    return outcome.error


def test_a_grant_takes_one_offset_and_a_repeated_one_none() -> None:  # O9
    partition = Driver()
    partition.produce()
    assert partition.own(3) == Appended(1, 2)
    assert partition.own(3) == Appended(1, 2)
    assert partition.log.log_end_offset == 2
    assert partition.log.owner(None) == owner(3)
    assert partition.log.owner("g") is None


def test_a_lower_epoch_and_a_grant_after_its_end_are_fenced() -> None:  # O8, O9
    partition = Driver()
    partition.own(3)
    assert error_of(partition.own(2)) is ErrorCode.OWNER_FENCED
    assert error_of(partition.own(2, live=False)) is ErrorCode.OWNER_FENCED
    assert partition.own(3, live=False) == Appended(1, 2)
    assert partition.own(3, live=False) == Appended(1, 2)
    assert error_of(partition.own(3)) is ErrorCode.OWNER_FENCED
    assert error_of(partition.own(3, session="another")) is ErrorCode.OWNER_FENCED
    assert partition.own(4) == Appended(2, 3)
    assert partition.own(1, "g") == Appended(3, 4), "epochs are counted by group"


def test_an_end_whose_grant_never_came_fences_it() -> None:  # O9
    partition = Driver()
    assert partition.own(3, live=False) == Appended(0, 1)
    assert error_of(partition.own(3)) is ErrorCode.OWNER_FENCED


def test_a_partition_that_accepts_nothing_takes_no_owner() -> None:  # D2
    partition = Driver()
    partition.own(1)
    partition.log.failed()
    assert error_of(partition.own(2)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert error_of(partition.log.keep_owners(Offset(5))) is ErrorCode.KAFKA_STORAGE_ERROR


def test_groups_are_bounded_and_the_one_that_ended_first_is_forgotten() -> None:  # O8
    partition = Driver(segment_bytes=100_000)
    partition.own(1, live=False)
    for number in range(GROUPS_MAX - 1):
        assert isinstance(partition.own(1, f"g{number}"), Appended)
    assert error_of(partition.own(1, "one more")) is ErrorCode.POLICY_VIOLATION
    assert error_of(partition.own(1, "one more", live=False)) is ErrorCode.POLICY_VIOLATION
    assert not partition.log.has_room_for_owner("one more")
    assert isinstance(partition.own(2, "g7"), Appended)
    partition.own(1, "g3", live=False)
    partition.own(1, "g1", live=False)
    assert partition.log.has_room_for_owner("one more")
    assert isinstance(partition.own(1, "one more"), Appended)
    partition.flush()
    for log in (partition.log, partition.restarted().log):
        assert len(log.owners()) == GROUPS_MAX
        assert log.owner("g3") is None
        assert log.owner("g1") is not None
        assert log.owner(None) is not None, "the owner of writes is not one of the groups"


@pytest.mark.parametrize("how", ["size", "markers", "time", "a grant"])
def test_each_segment_begins_with_the_newest_record_of_every_group(how: str) -> None:  # D4
    partition = Driver(segment_bytes=1200, segment_ms=HOUR_MS)
    partition.own(1)
    partition.own(5, "a")
    partition.own(2)
    partition.own(5, "a", live=False)
    partition.produce()
    while how == "size" and len(partition.log.segment_base_offsets) < 3:
        partition.produce(payload=300)
    while how == "a grant" and len(partition.log.segment_base_offsets) < 3:
        partition.own(partition.log.owner("a").epoch + 1, "a", live=False)
    producer_id = 100
    while how == "markers" and len(partition.log.segment_base_offsets) < 3:
        producer_id += 1
        partition.mark(*(commit(producer_id + n * 1000) for n in range(4)))
    if how == "time":
        partition.now_ms += HOUR_MS + 1
        partition.produce(timestamp=partition.now_ms)
    partition.flush()
    begun = partition.log.segment_base_offsets[1:]
    assert begun
    for base_offset in begun:
        first, second = records_of(partition, base_offset)[:2]
        assert (first.group, first.epoch, first.is_live, first.offset) == (None, 2, True, 2)
        assert (second.group, second.is_live) == ("a", False)
    assert partition.own(2) == Appended(2, 3), "a copy answers as the first one did"
    assert partition.restarted().own(2) == Appended(2, 3)


def test_copies_leave_room_in_their_segment() -> None:
    partition = Driver(segment_bytes=1000)
    for number in range(50):
        partition.own(1, f"g{number}")
    for _ in range(30):
        partition.produce(payload=300)
    assert len(partition.log.segment_base_offsets) < 20, "not one segment for each batch"


def test_an_idle_partition_is_rolled_once_and_not_for_ever() -> None:
    partition = Driver(segment_ms=HOUR_MS, retention_ms=HOUR_MS)
    partition.own(1)
    partition.own(2)
    partition.produce()
    partition.log.roll_if_due(NOW_MS)
    rolled = 0
    for hours in range(2, 50, 2):
        rolled += partition.log.roll_if_due(NOW_MS + hours * HOUR_MS)
        partition.flush()
        partition.log.advance_start(partition.log.retained_from(NOW_MS + hours * HOUR_MS))
    assert rolled == 1
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (3, 4)
    assert partition.log.owner(None) == owner(2)


def test_copies_have_no_time_that_a_reader_could_ask_for() -> None:
    partition = Driver(segment_ms=HOUR_MS)
    partition.own(1)
    partition.produce(timestamp=NOW_MS - 10)
    partition.log.roll_if_due(NOW_MS)
    assert partition.log.roll_if_due(NOW_MS + 2 * HOUR_MS)
    partition.flush()
    assert partition.log.max_timestamp == NOW_MS - 10
    assert partition.log.offset_for_timestamp(NOW_MS) is None
    assert partition.restarted().log.max_timestamp == NOW_MS - 10


def test_segments_hold_the_same_span_of_event_time_as_without_owners() -> None:
    plain, owned = Driver(segment_ms=HOUR_MS), Driver(segment_ms=HOUR_MS)
    owned.own(1)
    for partition in (plain, owned):
        for minutes in range(0, 600, 20):
            partition.produce(timestamp=NOW_MS - 10**9 + minutes * 60_000)
    counts = [len(partition.log.segment_base_offsets) for partition in (plain, owned)]
    assert counts[1] - counts[0] in (0, 1)  # the grant has the broker's time


def test_copies_come_before_a_log_start_that_would_pass_a_record() -> None:  # D4
    partition = Driver()
    partition.own(7)
    partition.produce()
    partition.own(1, "g")
    partition.produce()
    partition.flush()
    assert partition.log.keep_owners(Offset(0)) == 3
    assert partition.log.log_end_offset == 4, "nothing is lost by this start"
    assert partition.log.keep_owners(Offset(4)) == 6
    assert partition.log.keep_owners(Offset(4)) == 6
    assert partition.log.log_end_offset == 6
    partition.flush()
    partition.log.advance_start(Offset(4))
    again = partition.restarted()
    assert again.own(7) == Appended(0, 1)
    assert again.own(1, "g") == Appended(2, 3)


def test_readers_at_both_levels_pass_the_records() -> None:  # O9
    partition = Driver()
    partition.own(1)
    partition.produce_in_transaction(7)
    partition.own(2)
    partition.mark(commit(7))
    partition.own(2, live=False)
    partition.flush()
    assert partition.log.last_stable_offset == partition.log.log_end_offset == 5
    for isolation in (Isolation.REPLICATED, Isolation.TRANSACTIONAL):
        assert partition.visible(isolation) == [1]


def test_a_snapshot_has_the_owners() -> None:  # D4
    partition = Driver()
    partition.own(1, transactional_id="own/x~1", holder="ü" * 300)
    partition.own(4, "g", live=False)
    snapshot = partition.log._state.snapshot()
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot
    without = Snapshot(snapshot.producers, snapshot.highest_producer_id)
    assert decode_snapshot(encode_snapshot(without)) == without


def test_the_newest_record_of_a_group_in_a_round_survives_compaction() -> None:  # D4
    files = Files.of()

    def own(*args: object, **more: object) -> None:
        files.log.set_owner(owner(*args, **more), now_ms=NOW_MS)
        files._flush()

    own(1)
    files.write(("a", "1"))
    own(2)
    own(1, "g")
    files.roll()  # copies at 4 and 5
    own(3)
    files.roll()
    files.compact()
    kept = [
        (header.base_offset, record.group, record.epoch)
        for header, batch in files.batches()
        if isinstance(record := read_control(batch), OwnershipRecord)
    ]
    assert kept == [(5, "g", 1), (6, None, 3), (7, None, 3), (8, "g", 1)]
    again = files.rebuilt()
    assert (again.owner(None), again.owner("g")) == (owner(3), owner(1, "g"))
    assert again.set_owner(owner(1, "g"), now_ms=NOW_MS) == Appended(3, 4)


def test_a_lost_copy_does_not_lose_what_compaction_has_left_of_the_record() -> None:  # D4, E15
    files = Files.of()
    files.log.set_owner(owner(1), now_ms=NOW_MS)
    files.write(("a", "1"))
    files.roll()
    files.compact()
    files.segments[files.log.segment_base_offsets[-1]] = bytearray()  # not on disk yet: a crash
    assert files.rebuilt().owner(None) == owner(1)


def test_fills_tells_whether_there_is_anything_but_newest_records() -> None:
    owners = Owners()
    assert owners.fills(Offset(3), Offset(3))
    assert not owners.fills(Offset(3), Offset(4))
    owners.replay(OwnershipRecord(*Owner(None, 1, "s", None, "h", True), Offset(0)), Offset(3), 90)
    assert owners.fills(Offset(3), Offset(4))
    assert not owners.fills(Offset(3), Offset(5))
    assert (owners.lowest, owners.end, owners.size) == (3, 4, 90)


def test_what_was_committed_before_a_grant_stays_below_its_fence() -> None:  # O9
    partition = Driver()
    partition.produce()
    granted = partition.own(1)
    assert isinstance(granted, Appended)
    partition.produce()
    end = partition.write()
    assert end is not None
    flush_and_commit(partition.log, end)
    assert partition.visible(Isolation.REPLICATED) == [0, 2]
    assert granted.base_offset == 1
