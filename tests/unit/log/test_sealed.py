"""A sealed log: what it still takes, what it refuses, and that the seal is never lost (R2)."""

import pytest

from fencelog.errors import ErrorCode
from fencelog.log.rebuild import LogBuilder
from fencelog.log.snapshot import Snapshot, decode_snapshot, encode_snapshot
from fencelog.log.values import Appended, Duplicate, Isolation, Rejected
from fencelog.types import Offset
from fencelog.wire.batch import iterate, read_header
from fencelog.wire.control import Seal, read_control
from tests.support.log import NOW_MS, Driver, commit, make_batch, owner, snapshot_of, state_of
from tests.unit.log.files import Files

DAY_MS = 86_400_000


def error_of(outcome: object) -> ErrorCode:
    assert isinstance(outcome, Rejected), outcome
    return outcome.error


def sealed(**config: object) -> Driver:
    """Offset 0 to 2 of producer 7, the seal at 3."""
    partition = Driver(**config)
    for sequence in range(3):
        partition.produce(7, 1, sequence)
    assert partition.seal() == Appended(3, 4)
    return partition


def test_a_seal_takes_one_offset_and_a_repeated_one_none() -> None:  # R2
    partition = sealed()
    assert partition.seal() == Appended(3, 4)
    assert (partition.log.sealed_at, partition.log.log_end_offset) == (3, 4)
    partition.flush()
    assert partition.restarted().seal() == Appended(3, 4)
    assert Driver().log.sealed_at is None


@pytest.mark.parametrize("internal", [False, True])
def test_nothing_of_a_producer_follows_a_seal(internal: bool) -> None:  # R2
    partition = sealed()
    end = partition.log.log_end_offset
    batches = [
        make_batch(),
        make_batch(7, 1, 3),
        make_batch(7, 2, 0),
        make_batch(7, 1, 9),
        make_batch(8, 0, 0),
        make_batch(9, 0, 0, transactional=True),
        make_batch(20, 0, transactional=True),
    ]
    for batch in batches:
        refused = partition.append(batch, internal=internal)
        assert error_of(refused) is ErrorCode.SEGMENT_SEALED
        assert "sealed at offset 3" in refused.message
    assert partition.log.log_end_offset == end


def test_a_batch_that_a_sealed_log_has_is_a_duplicate_with_its_first_offset() -> None:  # E4, R2
    partition = sealed()
    partition.flush()
    assert partition.produce(7, 1, 1) == Duplicate(1, 2)
    assert partition.restarted().produce(7, 1, 2) == Duplicate(2, 3)
    assert error_of(partition.produce(7, 1, 1, 2)) is ErrorCode.SEGMENT_SEALED


def test_a_fenced_epoch_stays_fenced_on_a_sealed_log() -> None:  # E2
    assert error_of(sealed().produce(7, 0, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_sealed_log_takes_the_markers_of_its_transactions() -> None:  # R2, E10
    partition = Driver()
    partition.produce_in_transaction(7)
    partition.produce_in_transaction(8)
    partition.seal()
    partition.flush()
    assert partition.log.last_stable_offset == 0
    assert partition.mark(commit(7), commit(8)) == Appended(3, 5)
    partition.flush()
    assert partition.log.last_stable_offset == partition.log.log_end_offset == 5
    assert partition.visible(Isolation.TRANSACTIONAL) == [0, 1]
    assert error_of(partition.produce_in_transaction(7, 0, 1)) is ErrorCode.SEGMENT_SEALED


def test_a_sealed_log_takes_owners_and_keeps_them() -> None:  # R2, O9, D4
    partition = Driver()
    partition.own(1)
    partition.own(4, "g")
    partition.produce()
    assert partition.seal() == Appended(3, 4)
    assert partition.log.log_end_offset == 6, "its file begins with the seal, then all owners"
    assert partition.own(2) == Appended(6, 7)
    partition.flush()
    partition.log.keep_owners(Offset(3))
    assert partition.log.log_end_offset == 7, "nothing is lost with what is below the seal"
    for base in partition.log.advance_start(Offset(3)):
        del partition.files[base]
    again = partition.restarted()
    assert again.log.owner("g") == owner(4, "g")
    assert again.log.owner(None) == owner(2)
    assert again.log.sealed_at == 3


def test_a_sealed_log_asks_for_no_verification() -> None:  # E14, R2
    partition = Driver()
    before = partition.log.begin_verification(5, 0, 0)
    partition.log.refused(read_header(make_batch(6, 0, 3)))
    partition.seal()
    assert partition.log.begin_verification(5, 0, 0) is None
    refused = partition.append(make_batch(5, 0, 0, transactional=True), before)
    assert error_of(refused) is ErrorCode.SEGMENT_SEALED
    assert not partition.log._guards, "none is left behind"


def test_other_reasons_to_refuse_come_before_the_seal() -> None:  # D2
    partition = sealed()
    partition.log.refuse_appends("no room")
    assert error_of(partition.produce(7, 1, 2)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert error_of(partition.seal()) is ErrorCode.KAFKA_STORAGE_ERROR
    partition.log.accept_appends()
    assert error_of(partition.produce()) is ErrorCode.SEGMENT_SEALED
    partition.log.failed()
    partition.log.accept_appends()
    assert error_of(partition.seal()) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_follower_learns_the_seal_and_refuses_once_it_leads() -> None:  # R2, F7
    leader = sealed(segment_bytes=10_000)
    leader.flush()
    follower = Driver(segment_bytes=10_000)
    follower.log.follow(leader.log.leader_epoch)
    assert error_of(follower.seal()) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    for _, files in sorted(leader.files.items()):
        for header, batch in iterate(files.log):
            follower.log.append_replicated(memoryview(bytearray(batch)), header)
    assert follower.log.sealed_at == 3
    assert follower.log.segment_base_offsets == [0, 3], "the seal begins a file here, too"
    assert error_of(follower.produce()) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    follower.log.lead(1)
    assert error_of(follower.produce()) is ErrorCode.SEGMENT_SEALED
    assert follower.produce(7, 1, 2) == Duplicate(2, 3)
    assert follower.seal() == Appended(3, 4)
    follower.flush()
    assert state_of(follower.rebuilt()) == state_of(follower.log)


def test_a_seal_that_is_cut_at_a_fork_is_gone() -> None:  # R2, F7
    partition = sealed()
    partition.flush()
    del partition.files[3]
    again = partition.restarted()
    assert again.log.sealed_at is None
    assert isinstance(again.produce(7, 1, 3), Appended)


def test_a_snapshot_has_the_seal() -> None:  # R2, E15
    partition = sealed()
    partition.own(1)
    snapshot = partition.log._state.snapshot()
    assert snapshot.sealed_at == 3
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot
    without = Snapshot(snapshot.producers, snapshot.highest_producer_id, sealed_at=Offset(0))
    assert decode_snapshot(encode_snapshot(without)) == without


def test_a_log_that_is_loaded_from_its_snapshot_is_sealed() -> None:  # R2, E15
    partition = sealed()
    builder = partition.builder()
    builder._state.sealed_at = None
    builder.restore_snapshot(snapshot_of(partition.log))
    assert error_of(Driver(builder.finish()).produce()) is ErrorCode.SEGMENT_SEALED


@pytest.mark.parametrize("first", [0, 2, 3])
def test_a_replica_that_begins_at_the_log_start_finds_the_seal(first: int) -> None:  # R2, E4
    partition = sealed()
    partition.mark(commit(30))
    partition.flush()
    snapshot, epochs = partition.log.start_snapshot(Offset(first))
    assert decode_snapshot(snapshot).sealed_at is None, "it is in the batches that follow"
    builder = LogBuilder(partition.config, log_start=Offset(first))
    builder.open_segment(Offset(first))
    builder.restore_snapshot(snapshot)
    builder.restore_leader_epochs(epochs)
    for _, files in sorted(partition.files.items()):
        for header, batch in iterate(files.log):
            if header.base_offset >= first:
                builder.replay(header, read_control(batch))
    replica = Driver(builder.finish())
    assert replica.log.sealed_at == 3
    assert replica.produce(7, 1, 2) == Duplicate(2, 3)


def test_the_log_start_never_passes_the_seal() -> None:  # R2, D4
    partition = sealed()
    partition.flush()
    assert not partition.log.is_emptied
    assert partition.log.start_limit == 3
    assert partition.log.advance_start(Offset(4)) == [0]
    assert partition.log.log_start_offset == 3
    assert partition.log.is_emptied
    partition.mark(commit(30))
    partition.flush()
    assert partition.log.advance_start(partition.log.high_watermark) == []
    assert partition.log.log_start_offset == 3


def test_a_log_is_not_emptied_by_a_seal_that_is_not_committed() -> None:  # R2, E16
    partition = Driver()
    partition.seal()
    assert not partition.log.is_emptied
    partition.flush()
    assert partition.log.is_emptied


def test_retention_empties_a_sealed_log_up_to_its_seal() -> None:  # R2, D4
    partition = sealed(retention_ms=DAY_MS)
    partition.flush()
    assert partition.log.retained_from(NOW_MS + 10) == 0
    for later in (NOW_MS + DAY_MS + 1, NOW_MS + 40 * DAY_MS):
        partition.log.roll_if_due(later)
        partition.flush()
        assert partition.log.retained_from(later) == 3
    assert partition.log.advance_start(Offset(3)) == [0]
    assert partition.log.is_emptied
    assert partition.log.segment_base_offsets[0] == 3


def test_both_levels_of_readers_pass_the_seal() -> None:  # R2
    partition = sealed()
    partition.flush()
    for isolation in (Isolation.REPLICATED, Isolation.TRANSACTIONAL):
        assert partition.visible(isolation) == [0, 1, 2]
        assert [each.next_offset for each in partition.read(3, isolation)] == [4]


def test_compaction_leaves_a_seal_where_it_is() -> None:  # R2, D4
    files = Files.of()
    files.write(("a", "1"))
    files.log.seal(now_ms=NOW_MS)
    files.log.set_owner(owner(1), now_ms=NOW_MS)
    files._flush()
    files.roll()  # a copy at 3
    files.compact()
    seals = [h.base_offset for h, batch in files.batches() if read_control(batch) == Seal()]
    assert seals == [1]
    assert files.rebuilt().sealed_at == 1
