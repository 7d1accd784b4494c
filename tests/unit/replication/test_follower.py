"""What a follower does with an answer: append, cut at the fork, begin anew, or refuse (F7)."""

import pytest

from fencelog.errors import ErrorCode
from fencelog.log.leader_epochs import LeaderEpochs
from fencelog.log.values import EpochStart
from fencelog.replication.follower import (
    Again,
    Append,
    CopySnapshot,
    LocalEnd,
    Nothing,
    PartitionAnswer,
    Refuse,
    Retry,
    Truncate,
    continues,
    decide,
    differs,
    first_offset,
)
from fencelog.replication.session import Position
from fencelog.types import LeaderEpoch, Offset
from fencelog.wire.batch import read_header
from tests.support.storage import batch_of


def end_of_epoch(epoch: int) -> EpochStart | None:
    """Epoch 1 is below offset 6, epoch 3 ends at 10; the follower follows epoch 5."""
    epochs = LeaderEpochs([EpochStart(1, Offset(0)), EpochStart(3, Offset(6))])
    return epochs.end_of(epoch, Offset(10)) if 0 <= epoch <= 5 else None


LOCAL = LocalEnd(LeaderEpoch(5), Offset(0), Offset(10), Offset(4), 3, end_of_epoch)
ANSWER = PartitionAnswer(ErrorCode.NONE, 5, Offset(10), Offset(7), Offset(2), None)


def test_records_for_its_position_are_appended() -> None:
    assert decide(LOCAL, ANSWER) == Append(Offset(7), Offset(2))


@pytest.mark.parametrize(
    "answer", [ANSWER._replace(fetch_offset=Offset(9)), ANSWER._replace(leader_epoch=4)]
)
def test_an_answer_for_what_was_left_is_ignored(answer: PartitionAnswer) -> None:
    assert decide(LOCAL, answer) == Nothing()
    out_of_range = answer._replace(error=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert decide(LOCAL, out_of_range) == Nothing()


def test_the_leader_may_ask_for_the_position_again() -> None:
    assert decide(LOCAL, ANSWER._replace(fetch_offset=Offset(-1))) == Again()


@pytest.mark.parametrize(
    ("leaders", "cut"),
    [
        (EpochStart(3, Offset(8)), 8),  # the leader has less of its last epoch
        (EpochStart(2, Offset(5)), 5),  # it never had that epoch, and has another one before
        (EpochStart(2, Offset(9)), 6),  # it ends the earlier epoch later than this log does
        (EpochStart(1, Offset(4)), 4),
    ],
)
def test_the_log_is_cut_where_the_first_of_both_ends_the_epoch(
    leaders: EpochStart, cut: int
) -> None:
    assert decide(LOCAL, ANSWER._replace(diverging=leaders)) == Truncate(Offset(cut))


def test_nothing_committed_is_ever_cut() -> None:
    refused = decide(LOCAL, ANSWER._replace(diverging=EpochStart(1, Offset(3))))
    assert isinstance(refused, Refuse)
    assert "offset 3 on" in refused.reason
    assert "below 4" in refused.reason


@pytest.mark.parametrize(
    "garbage", [EpochStart(6, Offset(8)), EpochStart(3, Offset(-1)), EpochStart(5, Offset(10))]
)
def test_a_fork_that_cannot_be_is_asked_for_again(garbage: EpochStart) -> None:
    assert isinstance(decide(LOCAL, ANSWER._replace(diverging=garbage)), Retry)


def test_a_log_that_ends_before_the_leaders_begins_begins_anew() -> None:
    answer = ANSWER._replace(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start=Offset(11))
    assert decide(LOCAL, answer) == CopySnapshot()


def test_a_log_above_the_leaders_is_no_replica_of_it() -> None:
    answer = ANSWER._replace(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start=Offset(2))
    assert isinstance(decide(LOCAL, answer), Refuse)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_other_errors_are_tried_again(error: ErrorCode) -> None:
    assert isinstance(decide(LOCAL, ANSWER._replace(error=error, leader_epoch=-1)), Retry)


def test_a_leader_compares_the_epochs_and_their_ends() -> None:
    assert not differs(3, Offset(8), EpochStart(3, Offset(9)))
    assert not differs(3, Offset(9), EpochStart(3, Offset(9)))
    assert differs(3, Offset(10), EpochStart(3, Offset(9)))
    assert differs(3, Offset(8), EpochStart(2, Offset(9)))


FIRST = read_header(batch_of(b"a", b"b", b"c"))._replace(base_offset=Offset(18), leader_epoch=3)


def test_a_new_replica_begins_with_the_whole_batch_that_holds_the_log_start() -> None:
    assert first_offset(Offset(20), FIRST) == 18
    assert first_offset(Offset(18), FIRST) == 18
    assert first_offset(Offset(17), FIRST) == 17  # compaction removed what was there
    assert first_offset(Offset(20), None) == 20


@pytest.mark.parametrize(
    ("offset", "epoch", "goes_on"),
    [(18, 3, True), (18, 2, False), (18, -1, False), (19, 3, False), (17, 3, False)],
)
def test_who_is_below_the_log_start_goes_on_where_its_batch_begins_in_its_epoch(
    offset: int, epoch: int, goes_on: bool
) -> None:  # F7
    position = Position(LeaderEpoch(3), Offset(offset), epoch, Offset(offset), Offset(0))
    assert continues(position, FIRST) is goes_on
    assert not continues(position, None)


@pytest.mark.parametrize("log_start", range(13))
def test_whether_a_follower_that_ends_at_the_log_start_agrees_outlives_the_deletion(
    log_start: int,
) -> None:  # F7
    entries = [(1, 0), (3, 4), (4, 5), (6, 8)]
    known = LeaderEpochs(EpochStart(epoch, Offset(offset)) for epoch, offset in entries)
    start, log_end = Offset(log_start), Offset(12)
    before = {each: differs(each, start, known.end_of(each, log_end)) for each in range(7)}
    known.truncate_start(start)
    after = {each: differs(each, start, known.end_of(each, log_end)) for each in range(7)}
    assert after == before
