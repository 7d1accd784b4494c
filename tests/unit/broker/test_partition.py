"""A partition on a simulated disk: each change takes its steps, and its role says what commits."""

import asyncio
from collections.abc import Callable

import pytest

from fencelog.broker.partitions.partition import Partition
from fencelog.broker.partitions.purgatory import failure_code
from fencelog.broker.partitions.role import Alone
from fencelog.broker.partitions.tail_cache import TailCache
from fencelog.errors import ErrorCode, NotLeaderError, StorageError
from fencelog.log.config import LogConfig
from fencelog.log.values import Appended, Isolation, Rejected
from fencelog.storage.partition_store import PartitionStore
from fencelog.types import Offset
from fencelog.wire.batch import read_header
from fencelog_sim.world.gate import NO_SPACE, Fault
from tests.support.log import NOW_MS, abort, commit, make_batch, owner
from tests.support.partition import NAME, Reading, Rig, scenario
from tests.support.storage import TOPIC_ID


class Held(Alone):
    """A role that commits no more than it is told to; a leader that waits for its followers."""

    def __init__(self) -> None:
        self.limit = 0
        self.asked: list[int] = []

    def flushed(self, end_offset: Offset) -> Offset:
        self.asked.append(end_offset)
        return min(end_offset, Offset(self.limit))


class Answers(Alone):
    """A role that answers what it is given, whatever is durable."""

    def __init__(self, *offsets: int) -> None:
        self.offsets = list(offsets)

    def flushed(self, end_offset: Offset) -> Offset:
        return Offset(self.offsets.pop(0))


# -- what is flushed ---------------------------------------------------------------------------


def _open(rig: Rig) -> None:
    rig.append_in_transaction(5)


def _ended(rig: Rig) -> None:
    _open(rig)
    rig.mark(commit(5))


def _first(rig: Rig) -> None:
    rig.append(7, 0, 0)


def _owned(rig: Rig, *, live: bool = True) -> None:
    rig.partition.set_owner(owner(1, live=live), now_ms=NOW_MS)


def _failed(rig: Rig) -> None:
    rig.append(7, 0, 0)
    rig.partition.fail(StorageError("full"))


def _removed(rig: Rig) -> None:
    rig.append(7, 0, 0)
    rig.partition.remove()


def _refuse(rig: Rig) -> None:
    rig.partition.refuse(read_header(make_batch(7, 0, 0)), ErrorCode.CORRUPT_MESSAGE)


Step = Callable[[Rig], object]
WEEK_MS = 7 * 24 * 3600 * 1000

APPENDED: dict[str, tuple[Step | None, Step]] = {
    "a batch of nobody": (None, lambda rig: rig.append()),
    "a producer's batch": (None, lambda rig: rig.append(7, 0, 0)),
    "a transaction's batch": (None, lambda rig: rig.append_in_transaction(5)),
    "a second batch": (_first, lambda rig: rig.append(7, 0, 1)),
    "a coordinator's records": (
        None,
        lambda rig: rig.partition.append_records(make_batch(), now_ms=NOW_MS),
    ),
    "a coordinator's records above the limit for clients": (
        None,
        lambda rig: rig.partition.append_records(make_batch(payload=3000), now_ms=NOW_MS),
    ),
    "a marker": (_open, lambda rig: rig.mark(commit(5))),
    "a marker of a producer that was not here": (None, lambda rig: rig.mark(commit(5))),
    "markers of which one repeats another": (_ended, lambda rig: rig.mark(commit(5), abort(6))),
    "a grant": (None, _owned),
    "the end of a grant": (_owned, lambda rig: _owned(rig, live=False)),
    "copies of owners": (_owned, lambda rig: rig.partition.keep_owners(Offset(1))),
    "a batch behind copies of owners": (
        lambda rig: (_owned(rig), rig.append(7, 0, 0, timestamp=NOW_MS - WEEK_MS - 1)),
        lambda rig: rig.append(7, 0, 1),
    ),
    "a roll": (_first, lambda rig: _roll_after(rig, WEEK_MS + 1)),
}
NOT_APPENDED: dict[str, tuple[Step | None, Step]] = {
    "a duplicate": (_first, lambda rig: rig.append(7, 0, 0)),
    "a gap": (_first, lambda rig: rig.append(7, 0, 2)),
    "a batch that is too large": (None, lambda rig: rig.append(payload=3000)),
    "a transaction's batch, no guard": (None, lambda rig: rig.append(5, 0, 0, transactional=True)),
    "a refusal": (None, _refuse),
    "a marker of an older epoch": (
        lambda rig: rig.mark(commit(5, epoch=3)),
        lambda rig: rig.mark(commit(5, epoch=2)),
    ),
    "a marker of an older coordinator": (
        _ended,
        lambda rig: rig.mark(commit(5, coordinator_epoch=0)),
    ),
    "a repeated grant": (_owned, _owned),
    "a repeated marker": (_ended, lambda rig: rig.mark(commit(5))),
    "a roll that is not due": (_first, lambda rig: _roll_after(rig, WEEK_MS - 1)),
    "a batch after a failure": (_failed, lambda rig: rig.append(7, 0, 1)),
    "records after a failure": (
        _failed,
        lambda rig: rig.partition.append_records(make_batch(), now_ms=NOW_MS),
    ),
    "a marker after a failure": (_failed, lambda rig: rig.mark(commit(5))),
    "a roll after a failure": (_failed, lambda rig: _roll_after(rig, WEEK_MS + 1)),
    "a batch after a removal": (_removed, lambda rig: rig.append(7, 0, 1)),
    "a marker after a removal": (_removed, lambda rig: rig.mark(commit(5))),
}


def _roll_after(rig: Rig, age_ms: int) -> None:
    rig.partition.roll_if_due(NOW_MS)  # from here on its age counts
    rig.partition.roll_if_due(NOW_MS + age_ms)


def _taken(before: Step | None, step: Step) -> tuple[Rig, int, int]:
    """Take the steps on a fresh partition; log ends before and after the second one."""

    async def run() -> tuple[Rig, int, int]:
        rig = await Rig.of(max_message_bytes=1000, segment_ms=WEEK_MS)
        if before is not None:
            before(rig)
        rig.queued.clear()
        rig.observer.take()
        start = rig.partition.log.log_end_offset
        step(rig)
        return rig, start, rig.partition.log.log_end_offset

    return asyncio.run(run())


@pytest.mark.parametrize("what", APPENDED)
def test_whatever_is_appended_is_queued_for_the_flusher_once_and_told(what: str) -> None:
    rig, start, end = _taken(*APPENDED[what])
    assert rig.queued == [rig.partition]
    assert rig.observer.named("appended", "rejected") == [("appended", NAME, start, end)]


@pytest.mark.parametrize("what", NOT_APPENDED)
def test_what_appends_nothing_is_not_queued_for_the_flusher(what: str) -> None:
    rig, start, end = _taken(*NOT_APPENDED[what])
    assert rig.queued == []
    assert rig.observer.named("appended", "markers_appended", "high_watermark_moved") == []
    assert start == end


@scenario
async def test_a_batch_behind_a_refused_first_one_is_held_back() -> None:  # E13
    rig = await Rig.of()
    rig.partition.refuse(read_header(make_batch(7, 0, 0)), ErrorCode.CORRUPT_MESSAGE)
    later = rig.append(7, 0, 1)
    assert isinstance(later, Rejected)
    assert later.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert rig.append(7, 0, 0) == Appended(0, 1)
    assert rig.append(7, 0, 1) == Appended(1, 2)
    assert rig.append(8, 0, 1) == Appended(2, 3)  # of whose first one nothing was seen
    refused = [("rejected", NAME, 7, ErrorCode.CORRUPT_MESSAGE)]
    refused += [("rejected", NAME, 7, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)]
    assert rig.observer.named("rejected") == refused


@scenario
async def test_markers_are_replayed_by_the_coordinator_of_the_log_in_the_same_step() -> None:
    rig = await Rig.of()
    seen: list[tuple[list[int], int]] = []
    rig.partition.markers_appended = lambda markers: seen.append(
        ([each.producer_id for each in markers], rig.partition.log.log_end_offset)
    )
    rig.append_in_transaction(5)
    assert rig.mark(commit(5), abort(6)) == Appended(1, 3)
    assert seen == [([5, 6], 3)]
    assert rig.mark(commit(5)) == Appended(3, 3)
    assert isinstance(rig.mark(commit(5, coordinator_epoch=0)), Rejected)
    assert seen == [([5, 6], 3)]


# -- what commits ------------------------------------------------------------------------------


@scenario
async def test_alone_what_is_durable_is_committed() -> None:  # F2
    rig = await Rig.of()
    rig.append(count=2)
    rig.wait(2, "both")
    assert rig.partition.log.high_watermark == 0
    assert await rig.partition.write() == 2
    assert (rig.partition.log.high_watermark, rig.waits) == (0, [])
    assert await rig.partition.sync()
    assert (rig.partition.log.high_watermark, rig.waits) == (0, [])
    rig.partition.flushed(Offset(2))
    assert (rig.partition.log.high_watermark, rig.waits) == (2, ["both"])


@scenario
async def test_a_flush_commits_all_segments_that_were_written_and_nothing_that_came_later() -> None:
    rig = await Rig.of(segment_bytes=200)
    for _ in range(5):
        rig.append()  # two fit a segment
    assert rig.partition.log.segment_base_offsets == [0, 2, 4]
    end_offset = await rig.partition.write()
    rig.append()
    rig.wait(5, "written")
    rig.wait(6, "later")
    assert end_offset == 5
    assert await rig.partition.sync()
    rig.partition.flushed(Offset(5))
    assert (rig.partition.log.high_watermark, rig.waits) == (5, ["written"])
    await rig.flush()
    assert (rig.partition.log.high_watermark, rig.waits) == (6, ["written", "later"])
    assert await rig.partition.write() is None


@scenario
async def test_a_write_without_room_begins_its_segment_when_it_is_repeated() -> None:  # D3
    rig = await Rig.of(segment_bytes=200)
    rig.append()
    assert not rig.partition.begins_segment
    await rig.flush()
    for _ in range(2):
        rig.append()
    assert rig.partition.begins_segment
    rig.disk.gate = lambda verb, path, size: Fault(NO_SPACE)
    assert await rig.partition.write() is None
    assert rig.partition.begins_segment
    rig.disk.gate = None
    await rig.flush()
    assert not rig.partition.begins_segment


@scenario
async def test_a_role_that_holds_back_holds_back_whoever_waits_for_the_commit() -> None:  # F2, F5
    role = Held()
    rig = await Rig.of(role)
    rig.append(count=2)
    rig.append(count=3)
    rig.wait(2, "first")
    rig.wait(5, "second")
    third = asyncio.ensure_future(rig.partition.committed(Offset(5)))
    await rig.flush()
    assert role.asked == [5]
    assert (rig.waits, third.done(), rig.partition.log.high_watermark) == ([], False, 0)
    role.limit = 4  # in the middle of the second batch
    rig.partition.flushed(Offset(5))
    assert (rig.waits, rig.partition.log.high_watermark) == (["first"], 4)
    role.limit = 9
    rig.partition.flushed(Offset(5))
    assert (rig.waits, rig.partition.log.high_watermark) == (["first", "second"], 5)
    await third


@scenario
async def test_a_role_that_holds_back_holds_back_readers_but_for_those_of_the_tail() -> None:  # F6
    role = Held()
    rig = await Rig.of(role)
    rig.append()
    rig.append_in_transaction(5, count=2)
    rig.mark(commit(5))
    await rig.flush()
    ends = [rig.partition.end_offset(each) for each in Isolation]
    assert ends == [0, 0, 4]
    assert [await rig.offsets(each) for each in Isolation] == [[], [], [0, 1, 3]]
    role.limit = 3  # the marker may still be lost
    rig.partition.flushed(Offset(4))
    assert [rig.partition.end_offset(each) for each in Isolation] == [3, 1, 4]
    assert [await rig.offsets(each) for each in Isolation] == [[0, 1], [0], [0, 1, 3]]
    role.limit = 4
    rig.partition.flushed(Offset(4))
    assert [rig.partition.end_offset(each) for each in Isolation] == [4, 4, 4]
    assert [await rig.offsets(each) for each in Isolation] == [[0, 1, 3]] * 3


@scenario
async def test_the_tail_is_read_once_it_is_written_and_waits_for_no_sync() -> None:  # F6
    rig = await Rig.of()
    rig.append()
    assert await rig.offsets(Isolation.TAIL) == []
    await rig.partition.write()
    assert await rig.offsets(Isolation.TAIL) == [0]
    assert await rig.offsets(Isolation.REPLICATED) == []
    await rig.partition.sync()
    rig.partition.flushed(Offset(1))
    assert await rig.offsets(Isolation.REPLICATED) == [0]


@scenario
async def test_the_high_watermark_never_goes_back() -> None:  # F2
    rig = await Rig.of(Answers(3, 1, 0, 5, 5, 2))
    for _ in range(6):
        rig.append()
    seen = []
    await rig.partition.write()
    for _ in range(6):
        rig.partition.flushed(Offset(6))
        seen.append((rig.partition.log.high_watermark, rig.partition.log.last_stable_offset))
    assert seen == [(each, each) for each in (3, 3, 3, 5, 5, 5)]
    moved = [("high_watermark_moved", NAME, 3), ("high_watermark_moved", NAME, 5)]
    assert rig.observer.named("high_watermark_moved") == moved
    assert len(rig.observer.named("flushed")) == 6
    rig.wait(5, "committed before")
    assert rig.waits == ["committed before"]


@scenario
async def test_an_older_sync_that_ends_later_sets_nothing_back() -> None:
    rig = await Rig.of()
    rig.append()
    first = await rig.partition.write()
    rig.append()
    second = await rig.partition.write()
    assert (first, second) == (1, 2)
    rig.partition.flushed(Offset(2))
    rig.partition.flushed(Offset(1))
    assert rig.partition.log.high_watermark == 2
    assert await rig.offsets(Isolation.REPLICATED) == [0, 1]


@scenario
async def test_a_flush_calls_readers_while_they_want_it_and_after_the_observer() -> None:
    rig = await Rig.of()
    reader, once, other = Reading(), Reading(goes_on=False), Reading()
    rig.partition.add_reader(reader)
    rig.partition.add_reader(once)
    rig.partition.add_reader(other)
    rig.partition.remove_reader(other)
    rig.append()
    told: list[list[tuple[object, ...]]] = []
    rig.partition.when_committed(Offset(1), lambda _: told.append(rig.observer.take()))
    assert reader.calls == []
    await rig.flush()
    assert (reader.calls, once.calls, other.calls) == (["advanced"], ["advanced"], [])
    expected = [("appended", NAME, 0, 1), ("flushed", NAME, 1), ("high_watermark_moved", NAME, 1)]
    assert told == [expected]
    assert rig.observer.take() == []
    rig.append()
    await rig.flush()
    assert (reader.calls, once.calls) == (["advanced"] * 2, ["advanced"])


# -- failing and removing ----------------------------------------------------------------------


async def _still(rig: Rig) -> None:
    """Nothing happens here any more."""
    high_watermark = rig.partition.log.high_watermark
    asked = rig.observer.take()
    rig.queued.clear()
    assert isinstance(rig.append(8, 0, 0), Rejected)
    assert isinstance(rig.partition.append_records(make_batch(), now_ms=NOW_MS), Rejected)
    assert isinstance(rig.mark(commit(8)), Rejected)
    rig.partition.flushed(rig.partition.log.log_end_offset)
    assert await rig.partition.write() is None
    assert await rig.partition.sync() is False
    assert rig.partition.log.high_watermark == high_watermark
    assert rig.queued == []
    assert {name for name, *_ in rig.observer.take()} == {"rejected"}, asked


@pytest.mark.parametrize("how", ["write", "sync", "fail", "remove"])
def test_after_its_end_waits_are_told_why_and_nothing_happens_any_more(how: str) -> None:  # D2
    async def run() -> None:
        rig = await Rig.of()
        rig.append()
        await rig.flush()
        reader = Reading()
        rig.append()
        rig.append()
        rig.wait(1, "committed")
        rig.wait(2, "second")
        rig.wait(3, "third")
        waiting = asyncio.ensure_future(rig.partition.committed(Offset(2)))
        await asyncio.sleep(0)
        rig.partition.add_reader(reader)
        kind: type[Exception] = StorageError
        if how == "write":
            rig.disk.gate = lambda verb, path, size: Fault() if verb == "append" else None
            assert await rig.partition.write() is None
        elif how == "sync":
            rig.disk.failing_syncs = 1
            assert await rig.partition.write() == 3
            assert await rig.partition.sync() is False
        elif how == "fail":
            rig.partition.fail(StorageError("no more"))
        else:
            rig.partition.remove()
            kind = NotLeaderError
        assert rig.waits == ["committed", f"second: {kind.__name__}", f"third: {kind.__name__}"]
        with pytest.raises(kind):
            await waiting
        with pytest.raises(kind):
            await rig.partition.committed(Offset(1))
        rig.wait(2, "later")
        assert rig.waits[3:] == [f"later: {kind.__name__}"]
        assert reader.calls == ["interrupted"]
        assert type(rig.partition.failure) is kind
        assert [event[:2] for event in rig.observer.named("failed")] == [("failed", NAME)]
        assert rig.observer.named("failed")[0][2] is rig.partition.failure
        await _still(rig)

    asyncio.run(run())


@scenario
async def test_what_was_committed_is_read_on_after_a_failure() -> None:  # D2
    rig = await Rig.of()
    rig.append()
    await rig.flush()
    rig.append()
    rig.disk.failing_syncs = 1
    await rig.flush()
    assert await rig.offsets(Isolation.REPLICATED) == [0]
    assert await rig.offsets(Isolation.TRANSACTIONAL) == [0]


@scenario
async def test_the_first_failure_is_kept() -> None:
    rig = await Rig.of()
    first = StorageError("first")
    rig.partition.fail(first)
    rig.partition.fail(StorageError("second"))
    assert rig.partition.failure is first
    assert rig.observer.named("failed") == [("failed", NAME, first)]


@scenario
async def test_a_failure_after_a_removal_changes_nothing() -> None:
    rig = await Rig.of()
    rig.partition.remove()
    rig.partition.fail(StorageError("its files are closed"))
    assert isinstance(rig.partition.failure, NotLeaderError)
    assert failure_code(rig.partition.failure) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert failure_code(StorageError("full")) is ErrorCode.KAFKA_STORAGE_ERROR


@scenario
async def test_a_sync_that_ends_after_the_removal_commits_nothing() -> None:
    rig = await Rig.of()
    rig.append()
    await rig.partition.write()
    rig.wait(1, "batch")
    rig.partition.remove()
    rig.partition.flushed(Offset(1))
    assert rig.waits == ["batch: NotLeaderError"]
    assert rig.partition.log.high_watermark == 0


@scenario
async def test_without_an_observer_a_partition_does_the_same() -> None:
    rig = await Rig.of()
    store, log = await PartitionStore.create(rig.disk, "t-1", TOPIC_ID, LogConfig(), "fsync")
    partition = Partition(
        NAME,
        log,
        store,
        role=Alone(),
        enqueue=rig.queued.append,
        observer=None,
        tails=TailCache(1 << 20),
    )
    batch = make_batch(7, 0, 0)
    assert partition.append(batch, read_header(batch), now_ms=NOW_MS) == Appended(0, 1)
    gap = make_batch(7, 0, 5)
    assert isinstance(partition.append(gap, read_header(gap), now_ms=NOW_MS), Rejected)
    partition.refuse(read_header(gap), ErrorCode.CORRUPT_MESSAGE)
    assert partition.append_markers([commit(7)], now_ms=NOW_MS) == Appended(1, 2)
    assert isinstance(
        partition.append_markers([commit(7, coordinator_epoch=0)], now_ms=NOW_MS), Rejected
    )
    assert rig.queued == [partition, partition]
    assert await partition.write() == 2
    partition.flushed(Offset(2))
    assert log.high_watermark == 2
    partition.remove()
    assert isinstance(partition.failure, NotLeaderError)
