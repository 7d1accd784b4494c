"""Leader epochs and where they begin: the questions of followers and consumers (F7, KIP-320)."""

import pytest

from fencelog.log.leader_epochs import NO_EPOCH, LeaderEpochs
from fencelog.log.values import EpochStart
from fencelog.types import LeaderEpoch, Offset
from tests.support.log import Driver

LOG_END = Offset(100)


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(EpochStart(epoch, Offset(offset)) for epoch, offset in entries)


def test_the_last_epoch_ends_where_the_log_does() -> None:
    assert epochs((2, 10)).end_of(2, LOG_END) == (2, 100)


def test_an_epoch_ends_where_the_next_one_begins() -> None:
    known = epochs((1, 11), (2, 12), (3, 13))
    assert known.end_of(2, LOG_END) == (2, 13)
    assert known.end_of(1, LOG_END) == (1, 12)


def test_an_epoch_that_wrote_nothing_answers_with_the_one_before() -> None:
    known = epochs((0, 10), (2, 13), (4, 17))
    assert known.end_of(1, LOG_END) == (0, 13)
    assert known.end_of(3, LOG_END) == (2, 17)


def test_an_epoch_older_than_all_that_are_known_ended_before_them() -> None:
    assert epochs((5, 11), (6, 12)).end_of(4, LOG_END) == (4, 11)


def test_without_epochs_there_is_no_latest_one() -> None:
    known = epochs()
    assert known.latest == NO_EPOCH
    assert known.entries == ()
    known.truncate_start(Offset(7))
    assert known.entries == ()


@pytest.mark.parametrize("epoch", [-1, 1, 7])
def test_what_is_no_epoch_or_above_the_leaders_own_is_unknown(epoch: int) -> None:
    partition = Driver()
    partition.produce()
    assert partition.log.end_of_epoch(epoch) is None


def test_a_leader_that_wrote_nothing_yet_ends_at_the_logs_end() -> None:
    partition = Driver()
    partition.produce()
    partition.log.leader_epoch = LeaderEpoch(3)
    assert partition.log.end_of_epoch(3) == (3, 1)
    assert partition.log.end_of_epoch(2) == (0, 1)


def test_more_batches_of_an_epoch_do_not_move_its_start() -> None:
    partition = Driver()
    for epoch in (2, 2, 2, 5, 5):
        partition.log.leader_epoch = LeaderEpoch(epoch)
        partition.produce()
    assert partition.log._state.epochs.entries == ((2, 0), (5, 3))


def test_an_epoch_never_goes_back() -> None:
    known = epochs((5, 10))
    for epoch in (4, 5):
        with pytest.raises(AssertionError):
            known.begin(LeaderEpoch(epoch), Offset(11))


@pytest.mark.parametrize(
    ("log_start", "left"),
    [
        (0, (1, 2, 3, 4)),
        (6, (1, 2, 3, 4)),
        (8, (1, 2, 3, 4)),  # the record before is of epoch 2
        (9, (2, 3, 4)),
        (11, (2, 3, 4)),
        (12, (3, 4)),
        (20, (3, 4)),
    ],
)
def test_deleting_from_the_start_keeps_the_epoch_of_the_record_before_and_one_more(
    log_start: int, left: tuple[int, ...]
) -> None:  # F7
    whole = {1: 3, 2: 6, 3: 8, 4: 11}
    known = epochs(*whole.items())
    known.truncate_start(Offset(log_start))
    assert known.entries == tuple((each, whole[each]) for each in left)
    assert known.latest == 4


def test_epochs_outlive_a_restart() -> None:
    partition = Driver()
    for epoch in (0, 2, 3):
        partition.log.leader_epoch = LeaderEpoch(epoch)
        partition.produce()
    partition.flush()
    again = partition.restarted().log
    assert again._state.epochs.entries == ((0, 0), (2, 1), (3, 2))
    assert again.leader_epoch == 3


@pytest.mark.parametrize(
    ("epoch", "offset", "ruled_out"),
    [
        (9, 5, False),  # before anything that is known
        (2, 6, False),
        (3, 6, True),
        (1, 7, True),
        (3, 10, False),
        (4, 10, True),
        (4, 11, False),
        (9, 50, False),  # the entries may be older than the log's end
        (3, 50, True),
    ],
)
def test_a_batch_is_held_against_the_epoch_of_its_offset(
    epoch: int, offset: int, ruled_out: bool
) -> None:  # D3
    known = epochs((2, 6), (3, 8), (4, 11))
    assert known.contradicts(epoch, Offset(offset)) is ruled_out
