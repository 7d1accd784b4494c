"""Conditional appends: nothing is stored unless the sender has read all that is there (R4)."""

import pytest

from fencelog.errors import ErrorCode
from fencelog.log.values import Appended, Duplicate, Rejected
from fencelog.types import Offset
from fencelog.wire.hot.append_tags import Revision
from tests.support.log import Driver, abort, make_batch


def update(
    partition: Driver, revision: Revision, *producer: int, **more: int
) -> Appended | Duplicate | Rejected:
    return partition.append(make_batch(*producer, **more), condition=revision)


def error_of(outcome: object) -> ErrorCode:
    assert isinstance(outcome, Rejected), outcome
    return outcome.error


def test_an_update_is_stored_only_by_who_has_read_everything() -> None:  # R4
    partition = Driver()
    assert update(partition, Revision(-1, 0)) == Appended(0, 1)
    assert error_of(update(partition, Revision(-1, 0))) is ErrorCode.STALE_REVISION
    assert error_of(update(partition, Revision(0, 0))) is ErrorCode.STALE_REVISION
    assert error_of(update(partition, Revision(0, 2))) is ErrorCode.STALE_REVISION
    assert partition.log.log_end_offset == 1
    assert update(partition, Revision(0, 1)) == Appended(1, 2)


def test_a_refusal_says_where_the_sender_is_and_where_the_log_is() -> None:  # R4
    partition = Driver()
    partition.log.lead(3)
    partition.produce(count=5)
    refused = update(partition, Revision(2, 4))
    assert isinstance(refused, Rejected)
    assert "offset 4 of leader epoch 2" in refused.message
    assert "offset 5 of leader epoch 3" in refused.message


def test_an_offset_alone_is_no_revision() -> None:  # R4
    partition = Driver()
    partition.log.lead(4)
    partition.produce()
    for epoch in (-1, 3, 5):
        assert error_of(update(partition, Revision(epoch, 1))) is ErrorCode.STALE_REVISION
    assert update(partition, Revision(4, 1)) == Appended(1, 2)


def test_a_leader_that_has_appended_nothing_leaves_the_revision_as_it_is() -> None:  # R4
    partition = Driver()
    partition.log.lead(1)
    partition.produce()
    partition.log.lead(2)
    assert error_of(update(partition, Revision(2, 1))) is ErrorCode.STALE_REVISION
    assert update(partition, Revision(1, 1)) == Appended(1, 2)
    assert update(partition, Revision(2, 2)) == Appended(2, 3)


def test_a_repeated_update_is_a_duplicate_and_no_conflict() -> None:  # R4, E4
    partition = Driver()
    assert update(partition, Revision(-1, 0), 7, 0, 0) == Appended(0, 1)
    partition.produce()
    assert update(partition, Revision(-1, 0), 7, 0, 0) == Duplicate(0, 1)
    assert error_of(update(partition, Revision(-1, 0), 7, 0, 1)) is ErrorCode.STALE_REVISION
    assert error_of(update(partition, Revision(0, 2), 7, 0, 5)) is (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert update(partition, Revision(0, 2), 7, 0, 1) == Appended(2, 3)


def test_a_stale_first_update_is_not_overtaken_by_the_next_one() -> None:  # R4, E13
    partition = Driver()
    partition.produce()
    assert error_of(update(partition, Revision(-1, 0), 7, 0, 0)) is ErrorCode.STALE_REVISION
    assert error_of(partition.produce(7, 0, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert update(partition, Revision(0, 1), 7, 0, 0) == Appended(1, 2)


def test_control_batches_count_as_everything_else() -> None:  # R4
    partition = Driver()
    partition.produce_in_transaction(7)
    partition.mark(abort(7))
    assert error_of(update(partition, Revision(0, 1))) is ErrorCode.STALE_REVISION
    partition.flush()
    assert partition.revision() == Revision(0, 2)
    assert update(partition, Revision(0, 2)) == Appended(2, 3)


def emptied(*, keep: bool) -> Driver:
    """Everything was deleted; ``keep``: and the leader epochs are still known."""
    partition = Driver()
    partition.log.lead(3)
    partition.produce(count=4)
    partition.log.roll_if_due(partition.now_ms)
    partition.flush()
    partition.log.advance_start(Offset(4))
    if keep:
        return partition
    partition.log._state.epochs = type(partition.log._state.epochs)()
    return partition


@pytest.mark.parametrize("keep", [True, False])
def test_a_log_from_which_all_was_deleted_is_at_no_epoch_for_its_readers(keep: bool) -> None:  # R4
    partition = emptied(keep=keep)
    assert partition.log.log_start_offset == 4
    assert partition.revision() == Revision(-1, 4)
    assert error_of(update(partition, Revision(-1, 0))) is ErrorCode.STALE_REVISION
    assert error_of(update(partition, Revision(2, 4))) is ErrorCode.STALE_REVISION
    assert update(partition, partition.revision()) == Appended(4, 5)
    assert error_of(update(partition, Revision(-1, 5))) is ErrorCode.STALE_REVISION


def test_who_has_read_what_was_deleted_since_still_knows_the_revision() -> None:  # R4
    assert update(emptied(keep=True), Revision(3, 4)) == Appended(4, 5)


def test_an_update_that_needs_a_new_file_is_compared_before_it_begins() -> None:  # R4, D4
    partition = Driver(segment_bytes=600)
    partition.own(1)
    partition.produce(payload=400)
    assert update(partition, Revision(0, 2), payload=400) == Appended(3, 4)


def test_a_sealed_log_is_not_compared() -> None:  # R2, R4
    partition = Driver()
    partition.seal()
    assert error_of(update(partition, Revision(0, 0))) is ErrorCode.SEGMENT_SEALED
