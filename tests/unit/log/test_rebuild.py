"""Recovery: the state that the stored batches make is the state that was lost (E15, D3)."""

import pytest

from fencelog.errors import CorruptionError
from fencelog.log.config import LogConfig
from fencelog.log.rebuild import LogBuilder
from fencelog.log.values import Appended, Isolation, SideFiles
from fencelog.wire.batch import BatchHeader, assign, iterate, read_header
from fencelog.wire.control import read_control
from tests.support.log import (
    NOW_MS,
    Driver,
    abort,
    commit,
    complete_indexes,
    flush_and_commit,
    make_batch,
    marker,
    snapshot_of,
    state_of,
)


def lived_in() -> Driver:
    """A partition with a bit of everything, over several segments."""
    partition = Driver(segment_bytes=600, index_interval_bytes=300)
    for sequence in range(8):
        partition.produce(5, 0, sequence, timestamp=NOW_MS + sequence)
    partition.log.leader_epoch = 2
    partition.produce_in_transaction(7, count=2)
    partition.produce_in_transaction(8)
    partition.produce_in_transaction(9, sequence=4)
    partition.mark(abort(8), commit(7))
    partition.produce_in_transaction(7, sequence=2)
    partition.mark(abort(7, epoch=1))
    partition.produce_in_transaction(6)
    partition.mark(marker(6, drop_state=True))
    partition.produce(5, 1, 0)
    partition.flush()
    return partition


def header_at(offset: int, *, epoch: int = 0, count: int = 1) -> BatchHeader:
    batch = make_batch(count=count)
    assign(batch, offset, epoch)
    return read_header(batch)


def test_the_rebuilt_log_is_the_log_that_was_lost() -> None:  # E15
    partition = lived_in()
    assert len(partition.files) > 2
    assert state_of(partition.rebuilt()) == state_of(partition.log)


def test_the_rebuilt_log_goes_on_like_the_one_that_was_lost() -> None:  # E15
    partition = lived_in()
    again = partition.restarted()
    for driver in (partition, again):
        assert isinstance(driver.produce(5, 1, 1), Appended)
        assert isinstance(driver.mark(commit(9)), Appended)
    assert again.log.open_transactions() == partition.log.open_transactions() == []
    again.flush()
    partition.files = again.files
    partition.log.take_unflushed()
    flush_and_commit(partition.log, partition.log.log_end_offset)
    assert state_of(again.log) == state_of(partition.log)


def test_a_rebuilt_log_has_everything_committed() -> None:  # D2
    log = lived_in().rebuilt()
    assert log.high_watermark == log.log_end_offset
    assert log.take_unflushed() == []


def test_side_files_made_anew_are_those_that_were_written() -> None:  # E15
    partition = lived_in()
    builder = partition.builder()
    bases = sorted(partition.files)
    for base in bases:
        files, made = partition.files[base], builder.side_files(base)
        assert files.txn_index == made.txn_index
        assert files.index == made.offset_index
        assert files.time_index == made.time_index
    assert builder.leader_epochs == ((0, 0), (2, 8))
    assert builder.snapshot() == snapshot_of(partition.log)


def test_snapshots_at_a_roll_hold_what_came_before() -> None:  # E15
    partition = lived_in()
    for base, files in sorted(partition.files.items())[1:]:
        builder = LogBuilder(partition.config)
        for earlier in sorted(b for b in partition.files if b < base):
            builder.open_segment(earlier)
            for header, batch in iterate(partition.files[earlier].log):
                builder.replay(header, read_control(batch))
        assert files.snapshot == builder.snapshot()


def test_after_a_clean_stop_side_files_and_snapshot_are_enough() -> None:
    partition = lived_in()
    complete_indexes(partition.log)
    partition.flush()
    builder = LogBuilder(partition.config)
    builder.restore_leader_epochs(partition.log._state.epochs.entries)
    ends = [*sorted(partition.files)[1:], partition.log.log_end_offset]
    for (base, files), end in zip(sorted(partition.files.items()), ends, strict=True):
        builder.load_segment(
            base,
            size=len(files.log),
            end_offset=end,
            side_files=SideFiles(
                bytes(files.index), bytes(files.time_index), bytes(files.txn_index)
            ),
            first_timestamp=read_header(files.log).max_timestamp,
        )
    builder.restore_snapshot(snapshot_of(partition.log))
    loaded, live = state_of(builder.finish()), state_of(partition.log)
    for key in ("producers", "open", "aborted", "epochs", "offsets", "highest_producer_id"):
        assert loaded[key] == live[key], key
    again = Driver(builder.finish())
    again.files = partition.files
    assert again.visible(Isolation.TRANSACTIONAL) == partition.visible(Isolation.TRANSACTIONAL)


def test_a_log_of_nothing_starts_at_its_start_offset() -> None:
    log = LogBuilder(LogConfig(), log_start=17).finish()
    assert (log.log_start_offset, log.log_end_offset, log.segment_base_offsets) == (17, 17, [17])


def test_the_files_override_an_older_log_start_checkpoint() -> None:  # D4
    builder = LogBuilder(LogConfig(), log_start=3)
    builder.open_segment(10)
    assert builder.log_end == 10
    assert builder.finish().log_start_offset == 10


def test_a_start_inside_the_first_segment_is_kept() -> None:  # D4
    builder = LogBuilder(LogConfig(), log_start=3)
    builder.open_segment(0)
    builder.replay(header_at(0, count=5))
    assert builder.finish().log_start_offset == 3


@pytest.mark.parametrize("epoch", [4, 5])
def test_a_producer_that_expired_in_its_first_life_is_replayed_as_it_was(  # E5, E15
    epoch: int,
) -> None:
    partition = Driver()
    for sequence in range(3):
        partition.produce(7, 5, sequence)
    partition.log.expire_producers(partition.now_ms + 1000, 1000)
    partition.produce(7, epoch, 70)
    partition.flush()
    assert state_of(partition.rebuilt()) == state_of(partition.log)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (header_at(4), "base offset 4"),
        (header_at(6), "offsets 5 to 5 are missing"),
        (header_at(5, epoch=1), "leader epoch 1 after epoch 2"),
        (header_at(5, epoch=2)._replace(last_offset_delta=-1), "last offset delta"),
    ],
)
def test_a_batch_that_cannot_follow_is_damage(header: BatchHeader, problem: str) -> None:  # D3
    builder = LogBuilder(LogConfig())
    builder.open_segment(0)
    builder.replay(header_at(0, epoch=2, count=5))
    assert problem in (builder.problem(header) or "")
    with pytest.raises(CorruptionError, match=problem):
        builder.replay(header)
    builder.replay(header_at(5, epoch=2))


def test_where_compaction_may_have_been_offsets_only_increase() -> None:  # D3
    builder = LogBuilder(LogConfig(cleanup_policy=frozenset({"compact"})))
    builder.open_segment(0)
    builder.replay(header_at(3))
    builder.replay(header_at(9))
    assert builder.log_end == 10
    assert builder.problem(header_at(9)) is not None


@pytest.mark.parametrize("base_offset", [4, 6])
def test_a_segment_begins_where_the_one_before_ends(base_offset: int) -> None:  # D3
    builder = LogBuilder(LogConfig())
    builder.open_segment(0)
    builder.replay(header_at(0, count=5))
    with pytest.raises(CorruptionError):
        builder.open_segment(base_offset)
    builder.open_segment(5)


def test_a_control_batch_of_another_type_only_takes_an_offset() -> None:  # O9
    builder = LogBuilder(LogConfig())
    builder.open_segment(0)
    batch = make_batch(7, 0, -1, control=True, transactional=True)
    builder.replay(read_header(batch), None)
    assert builder.log_end == 1
    assert builder.finish().producers() == []


def test_a_dropping_marker_whose_data_was_deleted_leaves_no_producer() -> None:  # V5, D4
    partition = Driver(segment_bytes=200)
    partition.produce_in_transaction(7, payload=100)
    partition.mark(marker(7, drop_state=True))
    partition.flush()
    assert partition.log.advance_start(1) == [0]
    del partition.files[0]
    again = partition.rebuilt()
    assert again.producers() == []
    assert again.highest_producer_id == 7
    assert again._state.epochs.entries == ((0, 1),), "no batch is left that it began with"
    found, expected = state_of(again), state_of(partition.log)
    assert {**found, "epochs": ()} == {**expected, "epochs": ()}
