"""Reader groups on a real broker: who reads what, while readers and segments come and go."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import fencelog.aio
from fencelog.client.streams.group_model import ReaderOfflineError
from fencelog.client.streams.group_reader import GroupReader
from fencelog.client.streams.reader_group import ReaderGroup
from fencelog.errors import FencelogError
from fencelog.testing import LocalBroker
from fencelog.types import TopicPartition
from tests.support.reader_groups import (
    LEASE_S,
    Reading,
    expected,
    in_order,
    run,
    texts,
    until,
    write,
)

KEYS = [f"k{number}" for number in range(12)]


@asynccontextmanager
async def reading(
    group: ReaderGroup, *names: str, most: int = 1_000, window_s: float = 0.1
) -> AsyncIterator[list[Reading]]:
    """Readers that read until the end of the block."""
    started = []
    try:
        for name in names:
            reader = group.reader(name, lease_s=LEASE_S, window_s=window_s)
            started.append(await Reading(reader, most).start())
        yield started
    finally:
        for each in started:
            await each.stop()


async def read_for_ever(reader: GroupReader) -> None:
    while True:
        await reader.next_batch()


def has_read(readers: list[Reading], count: int) -> Callable[[], bool]:
    """A condition: they have read so many events. It raises what a reader has failed with."""

    def condition() -> bool:
        for each in readers:
            if each.error is not None:
                raise each.error
        return sum(len(each.found) for each in readers) >= count

    return condition


async def is_balanced(group: ReaderGroup, shares: list[int]) -> bool:
    found = await group.get()
    return sorted(len(each.segments) for each in found.readers) == shares and not found.unassigned


@pytest.mark.slow
def test_a_reader_that_is_added_takes_its_share_and_each_event_is_read_once(
    fencelog_broker: LocalBroker,
) -> None:
    # R6, R7
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async with reading(group, "r1") as (first,):
            await write(log, "s", KEYS, range(10))
            await until(has_read([first], 120), "the first reader has read all")
            async with reading(group, "r2") as (second,):
                await until(lambda: is_balanced(group, [2, 2]), "both have two segments")
                at = (await group.get()).readers
                await write(log, "s", KEYS, range(10, 20))
                both = [first, second]
                await until(has_read(both, 240), "both have read all")
                assert not first.segments.isdisjoint(second.segments)
                assert sorted(texts([*first.found, *second.found])) == sorted(
                    expected(KEYS, range(20))
                )
                assert in_order(texts(first.found))
                assert in_order(texts(second.found))
                # R7: nobody gives anything away once it is balanced
                assert [(e.name, set(e.segments)) for e in (await group.get()).readers] == [
                    (e.name, set(e.segments)) for e in at
                ]

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_order_per_key_is_kept_over_splits_and_merges(fencelog_broker: LocalBroker) -> None:
    # R2, R8
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async with reading(group, "r1", "r2") as readers:
            await write(log, "s", KEYS, range(5))
            await log.split_segment("s", 0)
            await write(log, "s", KEYS, range(5, 10))
            await log.merge_segments("s", [2, 3])
            await write(log, "s", KEYS, range(10, 15))
            await until(has_read(readers, 180), "all is read")
            found = [*readers[0].found, *readers[1].found]
            assert sorted(texts(found)) == sorted(expected(KEYS, range(15)))
            for key in KEYS:
                # A segment has one reader at a time, and successors come after it.
                of_key = [each for each in found if each.key == key.encode()]
                of_key.sort(key=lambda each: (each.partition, each.offset))
                assert in_order(texts(of_key))
            await until(lambda: is_balanced(group, [2, 2]), "four segments are shared")

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_the_successor_of_a_merge_waits_for_both_predecessors(
    fencelog_broker: LocalBroker,
) -> None:
    # R8
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        await write(log, "s", KEYS, range(5))
        await log.merge_segments("s", [0, 1])
        await write(log, "s", KEYS, range(5, 8))
        async with group.reader("r1", lease_s=LEASE_S) as reader:
            seen: list[int] = []
            async with asyncio.timeout(20):
                while len(seen) < 2 or seen[-1] != 2:
                    batch = await reader.next_batch(1_000)
                    assert batch is not None
                    seen.append(batch.segment)
            assert seen == [0, 1, 2]

    run(fencelog_broker, scenario, segments=2)


@pytest.mark.slow
def test_a_reader_that_is_declared_offline_is_fenced_and_others_go_on_at_once(
    fencelog_broker: LocalBroker,
) -> None:
    # R6, R9
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        await write(log, "s", KEYS, range(5))
        async with group.reader("r1", commit_interval_s=None) as zombie:
            batch = await zombie.next_batch(10)
            assert batch is not None
            async with reading(group, "r2") as (other,):
                await group.reader_offline("r1")
                # Nothing was committed: all is read again, what the zombie has in hands too.
                await until(has_read([other], 60), "the other one has read all")
                assert set(texts(other.found)) == expected(KEYS, range(5))
                with pytest.raises(FencelogError):
                    async with zombie.transaction() as transaction:
                        await transaction.send("out", b"of a zombie")
                with pytest.raises(ReaderOfflineError, match=r"offline|released|lost"):
                    await zombie.next_batch()

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_offline_with_positions_others_begin_exactly_there(fencelog_broker: LocalBroker) -> None:
    # R9
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        await write(log, "s", ["k"], range(10))
        reader = group.reader("r1", commit_interval_s=None)
        async with reader:
            batch = await reader.next_batch(10)
            assert batch is not None
            await reader.commit()
            third = batch.events[3].offset
            await group.reader_offline("r1", {0: third})
        async with reading(group, "r2") as (other,):
            await until(has_read([other], 7), "it reads from there on")
            assert texts(other.found) == [f"k:{number}" for number in range(3, 10)]

    run(fencelog_broker, scenario, segments=1)


@pytest.mark.slow
def test_the_segments_of_a_reader_that_has_died_go_on_where_it_has_committed(
    fencelog_broker: LocalBroker,
) -> None:
    # R9
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        await write(log, "s", ["k"], range(10))
        first = await Reading(group.reader("r1", lease_s=LEASE_S), most=4).start()
        await until(has_read([first], 10), "it has read all")
        await first.reader.commit()
        await first.crash()
        await write(log, "s", ["k"], range(10, 15))
        async with reading(group, "r2") as (other,):
            await until(has_read([other], 5), "the other one goes on")
            assert texts(other.found) == [f"k:{number}" for number in range(10, 15)]

    run(fencelog_broker, scenario, segments=1)


@pytest.mark.slow
def test_a_new_incarnation_of_a_name_fences_the_older_one(fencelog_broker: LocalBroker) -> None:
    # R6
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        await write(log, "s", KEYS, range(5))
        async with group.reader("r1", lease_s=LEASE_S) as older:
            assert await older.next_batch(10) is not None
            async with reading(group, "r1") as (newer,):
                with pytest.raises(ReaderOfflineError):
                    await read_for_ever(older)
                await until(has_read([newer], 1), "the newer one reads")

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_the_group_reads_on_while_its_state_is_away(fencelog_broker: LocalBroker) -> None:
    # R11
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        theirs = await fencelog.aio.connect(
            fencelog_broker.bootstrap, client_id="readers", request_timeout_s=5.0
        )
        async with theirs, reading(theirs.reader_group("g", "s"), "r1", "r2") as readers:
            await until(lambda: is_balanced(group, [2, 2]), "both have two segments")
            with fencelog_broker.hold("Produce", client_id="readers"):
                await group.checkpoint("c")  # they cannot say that they have reached it
                await write(log, "s", KEYS, range(20))
                await until(has_read(readers, 240), "they read on")
                assert (await group.get()).checkpoints == {"c": None}
            cut = await group.checkpoint_cut("c")
            assert set(cut) == {0, 1, 2, 3}

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_reset_to_a_checkpoint_reads_again_from_there(fencelog_broker: LocalBroker) -> None:
    # R10
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        async with reading(group, "r1", "r2") as readers:
            await write(log, "s", KEYS, range(5))
            await until(has_read(readers, 60), "all is read")
            await group.checkpoint("c")
            cut = await group.checkpoint_cut("c")
            await write(log, "s", KEYS, range(5, 8))
            await until(has_read(readers, 96), "the rest is read")
            for each in readers:
                await each.reader.commit()
            assert await group.unread_events() == 0
            assert await group.unread_bytes() == 0
            for each in readers:
                each.found.clear()
            await group.reset("c")
            await until(has_read(readers, 36), "it is read again")
            assert set(texts([*readers[0].found, *readers[1].found])) == expected(KEYS, range(5, 8))
            for each in readers:
                each.found.clear()
            await group.reset(cut)
            await until(has_read(readers, 36), "it is read once more")
            await group.reset("earliest")
            await until(has_read(readers, 132), "all is read again")

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_bounded_group_ends_at_its_cut_for_all_readers(fencelog_broker: LocalBroker) -> None:
    # R10
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        await write(log, "s", KEYS, range(5))
        await log.split_segment("s", 0)
        await write(log, "s", KEYS, range(5, 8))
        places = [TopicPartition("s", index) for index in (1, 2, 3)]
        ends = await log.offsets(places, "latest")
        end = {place.partition: offset for place, offset in ends.items()}
        await write(log, "s", KEYS, range(8, 10))
        bounded = log.reader_group("bounded", "s", end=end)
        await bounded.create()
        whole = log.reader_group("whole", "s")
        await whole.create()
        assert 0 < await bounded.unread_bytes() < await whole.unread_bytes()
        async with reading(bounded, "r1", "r2") as readers:
            await until(lambda: all(each.is_finished for each in readers), "both have ended")
            found = [*readers[0].found, *readers[1].found]
            assert sorted(texts(found)) == sorted(expected(KEYS, range(8)))
            assert (await bounded.get()).is_finished
            assert await bounded.unread_events() == 0
            assert await bounded.unread_bytes() == 0

    run(fencelog_broker, scenario, segments=2)


@pytest.mark.slow
def test_an_iteration_over_events_joins_and_leaves_by_itself(fencelog_broker: LocalBroker) -> None:
    async def scenario(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        await write(log, "s", ["k"], range(10))
        bounded = log.reader_group("bounded", "s", end={0: 10})
        found = [each async for each in bounded.reader("r1")]
        assert texts(found) == [f"k:{number}" for number in range(10)]
        assert (await bounded.get()).readers == ()

    run(fencelog_broker, scenario, segments=1)
