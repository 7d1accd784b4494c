"""Logs of deleted segments: when they end for good, and what is left without their files (R1)."""

from collections.abc import Callable

import pytest

from fencelog.errors import ErrorCode
from fencelog.log.config import LogConfig
from fencelog.log.partition_log import PartitionLog
from fencelog.log.values import Appended, EpochStart, Isolation, ReadPlan, Rejected
from fencelog.types import LeaderEpoch, Offset
from fencelog.wire.batch import read_header
from fencelog.wire.control import last_seal
from tests.support.log import NOW_MS, Driver, commit, make_batch, owner

DAY_MS = 86_400_000
NOTHING = Appended(Offset(4), Offset(4))


def emptied() -> Driver:
    """Offsets 0 to 2 of producer 7 are deleted; the seal is at 3; nobody remembers the producer."""
    partition = Driver()
    for sequence in range(3):
        partition.produce(7, 1, sequence)
    partition.seal()
    partition.flush()
    for base in partition.log.advance_start(Offset(3)):
        del partition.files[base]
    partition.log.expire_producers(NOW_MS + 2 * DAY_MS)
    return partition


def test_a_log_that_nobody_needs_takes_nothing_more() -> None:  # R1
    partition = emptied()
    assert partition.log.finish()
    assert partition.mark(commit(30)) == NOTHING
    owned = partition.own(1, "g")
    assert isinstance(owned, Rejected), "it is not recorded, so it is none"
    assert owned.error is ErrorCode.SEGMENT_SEALED
    assert partition.log.keep_owners(Offset(3)) == 0
    assert not partition.log.roll_if_due(NOW_MS + 400 * DAY_MS)
    for refused in (partition.produce(7, 1, 3), partition.append(make_batch(), internal=True)):
        assert isinstance(refused, Rejected)
        assert refused.error is ErrorCode.SEGMENT_SEALED
    assert partition.log.log_end_offset == 4
    assert partition.log.take_unflushed() == []


def _producer(partition: Driver) -> None:
    before = Driver()
    before.produce(8, 0, 0)
    partition.log._state.producers.update(before.log._state.producers)


def _owned(partition: Driver) -> None:
    partition.own(1, "g")
    partition.flush()


def _uncommitted(partition: Driver) -> None:
    partition.mark(commit(30))


def _follows(partition: Driver) -> None:
    partition.log.follow(LeaderEpoch(5))


@pytest.mark.parametrize("need", [_producer, _owned, _uncommitted, _follows])
def test_a_log_does_not_end_while_something_of_it_is_needed(
    need: Callable[[Driver], None],
) -> None:  # E4, E16, O9, F7
    partition = emptied()
    need(partition)
    assert not partition.log.finish()
    assert not partition.log.is_finished


def test_records_that_are_left_keep_the_log() -> None:  # D4
    partition = Driver()
    partition.produce()
    partition.seal()
    partition.flush()
    assert not partition.log.finish()
    other = Driver()
    other.flush()
    assert not other.log.finish(), "it has no seal"


def test_an_owner_that_has_ended_keeps_no_log() -> None:  # O9
    partition = emptied()
    partition.own(1, "g")
    partition.own(1, "g", live=False)
    assert not partition.log.finish(), "the end is not committed"
    partition.flush()
    assert partition.log.finish()


def test_a_log_that_takes_nothing_now_does_not_end() -> None:  # D2
    partition = emptied()
    partition.log.refuse_appends("no room")
    assert not partition.log.finish()
    assert isinstance(partition.own(1, "g"), Rejected), "it still has no room"
    partition.log.accept_appends()
    assert partition.log.finish()
    partition.log.refuse_appends("no room")
    partition.log.go_on()
    refused = partition.own(1, "g")
    assert isinstance(refused, Rejected)
    assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    partition.log.accept_appends()
    assert partition.own(1, "g") == Appended(Offset(4), Offset(5))


def test_a_later_leadership_takes_it_back() -> None:  # F8
    partition = emptied()
    assert partition.log.finish()
    partition.log.follow(LeaderEpoch(1))
    assert not partition.log.is_finished
    partition.log.lead(LeaderEpoch(2))
    assert partition.own(1, "g") == Appended(Offset(4), Offset(5)), "owners are recorded again"


def only_seal() -> PartitionLog:
    batch = bytes(last_seal(Offset(3), Offset(6), LeaderEpoch(2)))
    return PartitionLog.of_seal(LogConfig(), batch)


def test_what_is_left_without_files_begins_at_the_seal_and_ends_where_the_log_did() -> None:  # R1
    log = only_seal()
    assert (log.log_start_offset, log.sealed_at, log.log_end_offset) == (3, 3, 6)
    assert (log.high_watermark, log.last_stable_offset) == (6, 6)
    assert (log.last_epoch, log.leader_epoch) == (2, 2)
    assert (log.has_files, log.is_finished, log.is_emptied) == (False, True, True)
    assert log.start_limit == 3
    assert log.advance_start(Offset(6)) == []
    assert log.log_start_offset == 3
    for offset in (3, 4, 5):
        plan = log.read(Offset(offset), 1 << 20, Isolation.TRANSACTIONAL)
        assert isinstance(plan, ReadPlan)
        assert not plan.is_empty
    at_end = log.read(Offset(6), 1 << 20, Isolation.TRANSACTIONAL)
    assert isinstance(at_end, ReadPlan)
    assert at_end.is_empty
    assert log.read(Offset(2), 1 << 20, Isolation.TRANSACTIONAL) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.offset_for_timestamp(0) is None


def test_roles_change_nothing_of_it() -> None:  # F7
    log = only_seal()
    log.follow(LeaderEpoch(4))
    batch = make_batch()
    refused = log.append_replicated(memoryview(batch), read_header(batch))
    assert isinstance(refused, Rejected)
    log.lead(LeaderEpoch(5))
    assert log.set_owner(owner(1), now_ms=0) == Appended(Offset(6), Offset(6))
    assert log.append_markers([commit(30)], now_ms=0) == Appended(Offset(6), Offset(6))
    assert log.log_end_offset == 6
    for epoch in (0, 2, 3, 5):
        assert log.end_of_epoch(epoch) == EpochStart(epoch, Offset(6)), "nobody is to cut anything"
    assert log.end_of_epoch(6) is None
    log.go_on()
    assert log.is_finished
