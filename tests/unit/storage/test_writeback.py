"""Which partition's recovery checkpoint is stored next (ADR 16)."""

import pytest

from fencelog.storage.writeback import BATCH_COST_BYTES, Writeback, WritebackLimits

LIMITS = WritebackLimits(each=1000, total=3000, least=100, at_once=2, unsynced=5000)


class Store:
    """A partition that notes what it is asked."""

    def __init__(self, *, is_ahead: bool = False) -> None:
        self.is_ahead = is_ahead
        """Whether the log has more than the files."""
        self.begun = 0

    def begin_checkpoint(self) -> bool:
        self.begun += not self.is_ahead
        return not self.is_ahead


@pytest.fixture
def writeback() -> Writeback:
    return Writeback(LIMITS)


def test_a_partition_gets_a_checkpoint_at_its_limit_and_again_after_as_much(writeback) -> None:
    store = Store()
    writeback.wrote(store, 999, 0)
    assert store.begun == 0
    writeback.wrote(store, 1, 0)
    assert store.begun == 1
    writeback.wrote(store, 5000, 0)
    assert store.begun == 1, "one at a time"
    writeback.ended(store, is_stored=True)
    assert store.begun == 2, "what was written meanwhile is above the limit again"
    writeback.ended(store, is_stored=True)
    writeback.wrote(store, 999, 0)
    assert store.begun == 2


def test_a_batch_counts_more_than_its_bytes(writeback) -> None:
    store = Store()
    writeback.wrote(store, 1, 1)
    assert store.begun == (LIMITS.each <= BATCH_COST_BYTES)
    assert writeback._total == 1 + BATCH_COST_BYTES


def test_all_together_have_a_limit_and_the_farthest_one_is_not_forgotten(writeback) -> None:
    idle, near, writer = Store(), Store(), Store()
    writeback.moved(idle, 900)
    writeback.moved(near, 50)
    others = [Store() for _ in range(3)]
    for each in others:
        writeback.moved(each, 600)
    assert not any(each.begun for each in (idle, near, *others))
    writeback.wrote(writer, 250, 0)
    assert writer.begun == 1, "all have 3000 together"
    writeback.ended(writer, is_stored=True)
    assert idle.begun == 0, "they have less by now"
    writeback.wrote(others[0], 350, 0)
    assert others[0].begun == 1
    writeback.ended(others[0], is_stored=False)
    assert idle.begun == 1, "the farthest, though nobody writes to it"
    assert near.begun == 0, "not worth it"


def test_so_many_are_under_way_and_the_next_follow(writeback) -> None:
    stores = [Store() for _ in range(4)]
    for each in stores:
        writeback.moved(each, 1000)
    assert [each.begun for each in stores] == [1, 1, 0, 0]
    writeback.ended(stores[0], is_stored=True)
    assert [each.begun for each in stores] == [1, 1, 1, 0]


def test_one_that_is_ahead_of_its_files_is_asked_again_with_its_next_write(writeback) -> None:
    store, other = Store(is_ahead=True), Store()
    writeback.wrote(store, 1000, 0)
    writeback.moved(other, 1000)
    assert other.begun == 1, "it keeps no place"
    store.is_ahead = False
    writeback.wrote(store, 1, 0)
    assert store.begun == 1


def test_a_failure_is_tried_again_by_the_next_write_only(writeback) -> None:
    store = Store()
    writeback.wrote(store, 1000, 0)
    writeback.failed(store)
    assert store.begun == 1
    writeback.wrote(store, 1, 0)
    assert store.begun == 2


def test_a_closed_partition_counts_no_more(writeback) -> None:
    store = Store()
    writeback.wrote(store, 2000, 0)
    writeback.closed(store)
    writeback.ended(store, is_stored=True)
    assert (writeback._total, store.begun) == (0, 1)


def test_who_wrote_much_is_synced_before_more_once_all_have_too_much(writeback) -> None:
    first, second, little = Store(), Store(), Store()
    writeback.wrote(first, LIMITS.unsynced - 1, 0)
    assert not writeback.must_sync(first)
    writeback.wrote(second, LIMITS.least, 0)
    writeback.wrote(little, LIMITS.least - 1, 0)
    assert [writeback.must_sync(each) for each in (first, second, little)] == [True, True, False]
    size = writeback.unsynced(first)
    writeback.wrote(first, LIMITS.least, 0)
    writeback.synced(first, size)
    assert not any(writeback.must_sync(each) for each in (first, second, little))
    writeback.wrote(second, LIMITS.unsynced, 0)
    assert writeback.must_sync(first)
    writeback.closed(second)
    writeback.synced(second, LIMITS.unsynced)
    assert not writeback.must_sync(first)
