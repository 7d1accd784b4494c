"""A follower's log: the leader's batches as they are, and the state that follows from them (F7)."""

import pytest

from fencelog.errors import ErrorCode
from fencelog.log.partition_log import PartitionLog
from fencelog.log.rebuild import LogBuilder
from fencelog.log.values import Appended, EpochStart, Isolation, Rejected
from fencelog.wire.batch import iterate, read_header
from fencelog.wire.control import read_control
from tests.support.log import NOW_MS, Driver, abort, commit, make_batch
from tests.support.log import state_of as all_of

IDLE_MS = 1000


def batches_of(leader: Driver, start: int = 0) -> list[bytes]:
    """Every batch of the leader's files from an offset on."""
    found = (each for _, files in sorted(leader.files.items()) for each in iterate(files.log))
    return [bytes(batch) for header, batch in found if header.next_offset > start]


def copy(follower: Driver, batches: list[bytes]) -> list[Appended | Rejected]:
    views = [memoryview(bytearray(each)) for each in batches]
    return [follower.log.append_replicated(view, read_header(view)) for view in views]


def follower_of(leader: Driver, **config: object) -> Driver:
    follower = Driver(**config)
    follower.log.follow(leader.log.leader_epoch)
    return follower


def busy_leader() -> Driver:
    """Producers, transactions of every kind of end, owners, segments and three leader epochs."""
    leader = Driver(segment_bytes=600)
    for epoch in (0, 2, 5):
        leader.log.lead(epoch)
        for number in range(4):
            leader.produce(7, 0, epoch * 4 + number if epoch < 5 else 12 + number)
            leader.produce_in_transaction(10 + number, epoch, 0)
            leader.produce_in_transaction(10 + number, epoch, 1)
            guard = leader.log.begin_verification(20, epoch, -1)
            offsets = make_batch(20, epoch, transactional=True)  # as a coordinator writes them
            assert isinstance(leader.append(offsets, guard, internal=True), Appended)
            if number % 2:
                leader.mark(abort(20, epoch, epoch))
            leader.own(epoch + 1, "a" if number % 2 else None)
            if number != epoch % 3:
                end = commit if number % 2 else abort
                leader.mark(end(10 + number, epoch, epoch))
    leader.flush()
    return leader


def state_of(log: PartitionLog) -> dict[str, object]:
    """All but the segments, which are each replica's own."""
    return {key: value for key, value in all_of(log).items() if key != "segments"}


@pytest.mark.parametrize("segment_bytes", [300, 600, 1 << 20])
def test_a_follower_has_the_leaders_bytes_and_its_state(segment_bytes: int) -> None:
    leader = busy_leader()
    follower = follower_of(leader, segment_bytes=segment_bytes)
    for outcome in copy(follower, batches_of(leader)):
        assert isinstance(outcome, Appended), outcome
    follower.flush()
    assert batches_of(follower) == batches_of(leader)
    assert state_of(follower.log) == state_of(leader.log)
    assert follower.log.last_stable_offset == leader.log.last_stable_offset
    assert state_of(follower.rebuilt()) == state_of(leader.log)
    assert (len(follower.files) > 1) == (segment_bytes < 1 << 20)


def test_a_batch_that_cannot_be_the_next_one_is_refused_and_changes_nothing() -> None:
    leader = Driver()
    for epoch in (1, 2):
        leader.log.lead(epoch)
        leader.produce(7, 0, epoch - 1)
    leader.flush()
    first, second = batches_of(leader)
    follower = follower_of(leader)
    for batches in ([second], [first, first], [first, second, first]):
        follower = follower_of(leader)
        *good, bad = copy(follower, batches)
        assert all(isinstance(each, Appended) for each in good)
        assert isinstance(bad, Rejected)
        assert bad.error is ErrorCode.CORRUPT_MESSAGE
        assert follower.log.log_end_offset == len(good)
    follower.log.follow(1)
    refused = copy(follower_of_epoch(1), [first, second])[1]
    assert isinstance(refused, Rejected)
    assert "leader epoch 2 is above 1" in refused.message


def follower_of_epoch(epoch: int) -> Driver:
    follower = Driver()
    follower.log.follow(epoch)
    return follower


def test_a_leader_epoch_below_the_one_before_is_refused() -> None:
    older, newer = Driver(), Driver()
    older.log.lead(1)
    older.produce(7, 0, 0)
    older.produce(7, 0, 1)
    newer.log.lead(2)
    newer.produce(7, 0, 0)
    older.flush()
    newer.flush()
    follower = follower_of_epoch(3)
    good, bad = copy(follower, [batches_of(newer)[0], batches_of(older)[1]])
    assert isinstance(good, Appended)
    assert isinstance(bad, Rejected)
    assert "leader epoch 1 after epoch 2" in bad.message


def test_a_gap_is_taken_where_compaction_made_it() -> None:
    leader = Driver()
    for sequence in range(3):
        leader.produce(7, 0, sequence)
    leader.flush()
    first, _, third = batches_of(leader)
    assert isinstance(copy(follower_of(leader), [first, third])[1], Rejected)
    follower = follower_of(leader, cleanup_policy=frozenset({"compact"}))
    assert copy(follower, [first, third])[1] == Appended(2, 3)
    follower.flush()
    assert follower.rebuilt().log_end_offset == 3


def test_a_follower_appends_nothing_of_its_own() -> None:
    follower = follower_of(Driver())
    outcomes = [
        follower.produce(7, 0, 0),
        follower.mark(commit(7)),
        follower.own(1),
    ]
    for outcome in outcomes:
        assert isinstance(outcome, Rejected)
        assert outcome.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    follower.log.refuse_appends("no room")
    leader = Driver()
    leader.produce(7, 0, 0)
    leader.flush()
    assert copy(follower, batches_of(leader))[0].error is ErrorCode.KAFKA_STORAGE_ERROR
    follower.log.accept_appends()
    assert follower.produce(7, 0, 0).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert isinstance(copy(follower, batches_of(leader))[0], Appended)
    follower.log.lead(1)
    assert isinstance(follower.produce(7, 0, 1), Appended)


def test_a_verification_of_an_earlier_leadership_is_void() -> None:  # E14
    partition = Driver()
    guard = partition.log.begin_verification(7, 0, 0)
    partition.log.lead(2)
    refused = partition.append(make_batch(7, 0, 0, transactional=True), guard)
    assert isinstance(refused, Rejected)
    assert refused.error is ErrorCode.INVALID_TXN_STATE


def test_a_follower_rolls_an_idle_segment_without_records_of_its_own() -> None:
    leader = Driver()
    leader.own(1)
    leader.flush()
    follower = follower_of(leader, segment_ms=1000)
    copy(follower, batches_of(leader))
    assert not follower.log.roll_if_due(NOW_MS)
    assert follower.log.roll_if_due(NOW_MS + 1001)
    follower.flush()
    assert follower.log.segment_base_offsets == [0, 1]
    assert batches_of(follower) == batches_of(leader)


def test_a_producer_that_the_leader_hears_of_is_not_idle_on_a_follower() -> None:  # E4
    leader = Driver()
    leader.produce(7, 0, 0)
    leader.flush()
    follower = follower_of(leader)
    copy(follower, batches_of(leader))
    assert follower.log.expire_producers(NOW_MS, IDLE_MS) == []
    leader.produce(7, 0, 1)
    leader.flush()
    copy(follower, batches_of(leader)[1:])
    assert follower.log.expire_producers(NOW_MS + IDLE_MS, IDLE_MS) == []
    assert follower.log.expire_producers(NOW_MS + 2 * IDLE_MS, IDLE_MS) == [7]


def test_the_high_watermark_of_a_replica_is_what_it_knew() -> None:
    partition = Driver()
    partition.produce_in_transaction(7)
    partition.mark(commit(7))
    partition.produce(8, 0, 0)
    partition.flush()
    for known, high_watermark, stable in ((0, 0, 0), (1, 1, 0), (2, 2, 2), (9, 3, 3)):
        log = partition.builder().finish(known)
        assert (log.high_watermark, log.last_stable_offset) == (high_watermark, stable)
        assert log.read(0, 100, Isolation.REPLICATED).upper_offset == high_watermark
    assert partition.rebuilt().high_watermark == 3


def test_the_end_of_each_epoch_is_where_the_next_one_begins() -> None:  # F7
    leader = Driver()
    for epoch in (1, 3, 6):
        leader.log.lead(epoch)
        leader.produce(7, 0, leader.log.log_end_offset)
    leader.log.lead(8)
    ends = {epoch: leader.log.end_of_epoch(epoch) for epoch in range(10)}
    assert ends == {
        0: EpochStart(0, 0),
        1: EpochStart(1, 1),
        2: EpochStart(1, 1),
        3: EpochStart(3, 2),
        4: EpochStart(3, 2),
        5: EpochStart(3, 2),
        6: EpochStart(6, 3),
        7: EpochStart(6, 3),
        8: EpochStart(8, 3),
        9: None,
    }
    assert leader.log.last_epoch == 6


def test_a_replica_that_begins_below_the_log_start_knows_all_that_the_leader_knows() -> None:  # E4
    leader = Driver()
    leader.produce(7, 0, 0, count=2)
    leader.log.lead(1)
    leader.produce_in_transaction(8, count=3)  # from 2 on
    leader.produce(7, 0, 2, count=2)
    leader.flush()
    for start in (2, 3, 4):
        leader.log.advance_start(start)
        snapshot, epochs = leader.log.start_snapshot(2)
        assert epochs == (EpochStart(0, 0), EpochStart(1, 2))
        replica = LogBuilder(leader.config)
        replica.restore_snapshot(snapshot)
        replica.restore_leader_epochs(epochs)
        replica.open_segment(2)
        assert [view.producer_id for view in replica.finish().producers()] == [7, 8]
        assert replica.finish().open_transactions() == []
        for batch in batches_of(leader, 2):
            replica.replay(read_header(batch))
        known, expected = all_of(replica.finish()), all_of(leader.log)
        for key in ("producers", "open", "highest_producer_id"):
            assert known[key] == expected[key], (start, key)


def test_a_replica_that_begins_at_the_log_start_knows_all_that_the_leader_knows() -> None:  # E4
    whole = busy_leader()
    for start in range(whole.log.log_end_offset + 1):
        leader = whole.restarted()
        end = leader.log.keep_owners(start)
        assert isinstance(end, int)
        leader.flush()
        leader.log.advance_start(start)
        snapshot, epochs = leader.log.start_snapshot(start)
        replica = LogBuilder(leader.config, log_start=start)
        replica.restore_snapshot(snapshot)
        replica.restore_leader_epochs(epochs)
        replica.open_segment(start)
        for batch in batches_of(leader, start):
            replica.replay(read_header(batch), read_control(batch))
        log = replica.finish()
        known, expected = all_of(log), all_of(leader.log)
        for key in ("producers", "open", "owners", "highest_producer_id"):
            assert known[key] == expected[key], (start, key)
        later = {each[:3] for each in expected["aborted"] if each.first_offset >= start}
        assert later <= {each[:3] for each in known["aborted"]}
        assert all(each.first_offset <= each.last_offset for each in known["aborted"])
        assert log.last_epoch == leader.log.last_epoch
        assert log.last_stable_offset == leader.log.last_stable_offset
