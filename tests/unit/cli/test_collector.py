"""What full garbage collections visit in a process that holds many objects."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from fencelog.cli.collector import SURVIVORS_MAX, Collector
from tests.support.frozen import freeze_all


class Cycle:
    """Garbage that reference counts do not free."""

    def __init__(self) -> None:
        """Refer to itself."""
        self.itself = self


def many() -> list[list[int]]:
    """Return more objects than each full collection may visit."""
    return [[] for _ in range(SURVIVORS_MAX + 1)]


@pytest.fixture
def collector() -> Iterator[Collector]:
    """The collector of this process; objects may be frozen until they are twice as many."""
    thresholds = gc.get_threshold()
    collector = Collector(frozen_more_max=0).start()
    yield collector
    gc.callbacks.remove(collector.collected)
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    freeze_all()


def test_a_start_runs_no_full_collection(collector: Collector) -> None:
    full = gc.get_stats()[2]["collections"]
    held = [many() for _ in range(20)]
    assert gc.get_stats()[2]["collections"] == full
    collector.serve()
    # Python begins a full one once a quarter of what the last one has left is new: that was all
    # that the tests before had made.
    gc.collect()
    full = gc.get_stats()[2]["collections"]
    held += [many() for _ in range(20)]
    assert gc.get_stats()[2]["collections"] > full


def test_what_is_there_when_the_broker_serves_is_not_visited(collector: Collector) -> None:
    held = many()
    collector.serve()
    assert not any(each is held for each in gc.get_objects())


def test_what_survives_a_full_collection_is_not_visited_again(collector: Collector) -> None:
    collector.serve()
    held = many()
    gc.collect()
    assert not any(each is held for each in gc.get_objects())


def test_few_survivors_are_visited_again(collector: Collector) -> None:
    collector.serve()
    held = [Cycle()]
    gc.collect()
    assert any(each is held for each in gc.get_objects())


@pytest.mark.slow  # there are more objects the more was imported
def test_a_cycle_among_frozen_objects_is_collected_once_twice_as_many_are_frozen(
    collector: Collector,
) -> None:
    collector.serve()
    cycle = Cycle()
    gone = weakref.ref(cycle)
    held = [many()]
    gc.collect()
    del cycle
    gc.collect()
    assert gone() is not None
    at_start = gc.get_freeze_count()
    while gone() is not None:
        held.append(many())
        gc.collect()
        assert gc.get_freeze_count() < 3 * at_start
    assert not any(each is held for each in gc.get_objects())
