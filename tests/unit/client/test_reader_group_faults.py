"""Reader groups: exactly once with transactions, through crashes and resizes; what is refused."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import fencelog.aio
from fencelog.client.model import DataLossError
from fencelog.client.streams import synchronizer
from fencelog.client.streams.group_model import ReaderGroupError, state_topic
from fencelog.client.streams.group_reader import GroupReader
from fencelog.client.streams.group_state import Build
from fencelog.client.streams.reader_group import ReaderGroup
from fencelog.client.topic_changes import TopicChanges
from fencelog.coordination.reader_group.updates import WentOffline
from fencelog.coordination.synchronizer.records import ForeignRecordError
from fencelog.errors import ErrorCode, FencelogError, OwnershipLostError
from fencelog.testing import LocalBroker
from fencelog.types import TopicPartition
from tests.support.reader_groups import (
    LEASE_S,
    crash,
    expected,
    in_order,
    next_events,
    texts,
    until,
    write,
)

KEYS = [f"k{number}" for number in range(12)]
DAY_MS = 86_400_000
Scenario = Callable[[fencelog.aio.Client], Awaitable[None]]


def run(broker: LocalBroker, scenario: Scenario) -> None:
    async def main() -> None:
        async with await fencelog.aio.connect(broker.bootstrap) as log:
            await log.create_stream("s", 2)
            await scenario(log)

    asyncio.run(main())


async def copy(reader: GroupReader, limit: int = 1_000_000) -> None:
    """Copy events to ``out`` in transactions, until there have been so many."""
    while limit > 0:
        batch = await reader.next_batch(7)
        if batch is None:
            return
        async with reader.transaction() as transaction:
            for event in batch.events:
                await transaction.send("out", event.value, key=event.key, partition=0)
        limit -= len(batch.events)


async def fail(reader: GroupReader) -> None:
    """Fail within a transaction."""
    async with reader.transaction() as transaction:
        await transaction.send("out", b"x")
        raise ZeroDivisionError


@pytest.mark.slow
def test_each_event_is_copied_once_through_crashes_and_resizes(
    fencelog_broker: LocalBroker,
) -> None:
    # R2, R6, R9
    async def scenario(log: fencelog.aio.Client) -> None:
        await log.create_topic("out")
        group = log.reader_group("g", "s")

        def reader(name: str) -> GroupReader:
            return group.reader(name, lease_s=LEASE_S, window_s=0.1, commit_interval_s=0.05)

        await write(log, "s", KEYS, range(10))
        for round_, change in enumerate(
            [
                log.split_segment("s", 0),
                log.split_segment("s", 1),
                log.merge_segments("s", [3, 4]),
            ]
        ):
            dying, living = reader("r1"), reader("r2")
            await dying.__aenter__()
            async with living:
                both = [asyncio.create_task(copy(each)) for each in (dying, living)]
                await asyncio.sleep(0)
                await change
                await write(log, "s", KEYS, range(10 * round_ + 10, 10 * round_ + 20))
                count = 120 * round_ + 60
                await until(lambda n=count: copied(fencelog_broker) >= n, "some are copied")
                both[0].cancel()
                await asyncio.wait([both[0]])
                await crash(dying)
                await until(
                    lambda n=120 * round_ + 240: copied(fencelog_broker) >= n, "all are copied"
                )
                both[1].cancel()
                await asyncio.wait(both)
        found = texts(fencelog_broker.records("out"))
        assert sorted(found) == sorted(expected(KEYS, range(40)))
        assert in_order(found)

    run(fencelog_broker, scenario)


def copied(broker: LocalBroker) -> int:
    return len(broker.records("out"))


@pytest.mark.slow
def test_an_aborted_transaction_hands_its_events_out_again(fencelog_broker: LocalBroker) -> None:
    # R6
    async def scenario(log: fencelog.aio.Client) -> None:
        await log.create_topic("out")
        await write(log, "s", ["k"], range(6))
        async with log.reader_group("g", "s").reader("r1", commit_interval_s=0.05) as reader:
            first = await next_events(reader)
            with pytest.raises(ZeroDivisionError):
                await fail(reader)
            assert await next_events(reader) == first
            async with reader.transaction() as transaction:
                await transaction.send("out", b"y")
        assert texts(fencelog_broker.records("out")) == ["y"]
        assert await log.reader_group("g").unread_events() <= 3  # markers of claims

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_what_is_in_hands_is_not_committed(fencelog_broker: LocalBroker) -> None:
    # R6
    async def scenario(log: fencelog.aio.Client) -> None:
        await write(log, "s", ["k"], range(10))
        group = log.reader_group("g", "s")
        async with group.reader("r1", commit_interval_s=None) as reader:
            batch = await reader.next_batch(3)
            assert batch is not None
            assert (await reader.next_batch(3)) is not None
            assert reader._member is not None
            await reader._member.commit()
            await crash(reader)
        async with group.reader("r1") as reader:
            assert await next_events(reader) == [f"k:{number}" for number in range(3, 10)]

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_of_a_claim_that_is_lost_nothing_more_is_handed_out(fencelog_broker: LocalBroker) -> None:
    # R6: at once, whatever was fetched before
    async def scenario(log: fencelog.aio.Client) -> None:
        await write(log, "s", ["k"], range(10))
        async with log.reader_group("g", "s").reader("r1", commit_interval_s=None) as reader:
            assert await reader.next_batch(3) is not None
            assert reader._member is not None
            (segment,) = (each for each in reader._member.segments.values() if each.is_ready)
            assert segment._claim is not None
            error = OwnershipLostError(ErrorCode.OWNER_FENCED, "lost")
            for tell in segment._claim._on_lost:
                tell(error)
            assert (segment.is_ready, segment.is_claimed) == (False, False)
            assert segment.failure is error

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_reader_whose_state_is_out_of_date_is_cut_off(fencelog_broker: LocalBroker) -> None:
    # R6, R11
    async def scenario(log: fencelog.aio.Client) -> None:
        await log.create_topic("out")
        await write(log, "s", ["k"], range(10))
        group = log.reader_group("g", "s")
        async with group.reader("r1", commit_interval_s=None) as old:
            assert await next_events(old)
            assert old._member is not None
            await old._member._end_tasks()  # it hears of the state no more
            await group.reader_offline("r1")
            async with group.reader("r2") as reader:
                assert await next_events(reader) == [f"k:{number}" for number in range(10)]
                with pytest.raises(FencelogError):
                    async with old.transaction() as transaction:
                        await transaction.send("out", b"of the old one")
                await reader.commit()
                await write(log, "s", ["k"], range(10, 15))
                assert await next_events(reader) == [f"k:{number}" for number in range(10, 15)]
                with pytest.raises((TimeoutError, FencelogError)):
                    await asyncio.wait_for(old.next_batch(), 0.5)
        assert fencelog_broker.records("out") == []

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_single_events_have_transactions_of_their_own(fencelog_broker: LocalBroker) -> None:
    # R6
    async def scenario(log: fencelog.aio.Client) -> None:
        await log.create_topic("out")
        await write(log, "s", ["k"], range(5))
        async with log.reader_group("g", "s").reader("r1") as reader:
            async for event in reader:
                async with reader.transaction() as transaction:
                    await transaction.send("out", event.value)
                if event.value == b"k:2":
                    await crash(reader)
                    break
        async with log.reader_group("g").reader("r1") as reader:
            assert await next_events(reader) == ["k:3", "k:4"]
        assert texts(fencelog_broker.records("out")) == ["k:0", "k:1", "k:2"]

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_creating_again_is_harmless_with_the_same_settings_only(
    fencelog_broker: LocalBroker,
) -> None:
    # R4
    async def scenario(log: fencelog.aio.Client) -> None:
        group = log.reader_group("g", "s")
        await group.create()
        await group.create()
        await log.reader_group("g", "s").create()
        assert (await log.reader_group("g").get()).unassigned == {0: 0, 1: 0}
        assert await log.reader_groups() == ["g"]
        with pytest.raises(ReaderGroupError, match="exists with other settings"):
            await log.reader_group("g", "s", start="latest").create()
        await group.delete()
        with pytest.raises(ReaderGroupError, match="there is no reader group g"):
            await log.reader_group("g").get()
        with pytest.raises(ReaderGroupError, match="there is no reader group g"):
            await log.reader_group("g").reader("r1").__aenter__()
        with pytest.raises(ReaderGroupError, match="name the stream"):
            await log.reader_group("g").create()

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_group_that_is_made_again_begins_anew(fencelog_broker: LocalBroker) -> None:
    # R4
    async def scenario(log: fencelog.aio.Client) -> None:
        await write(log, "s", ["k"], range(5))
        group = log.reader_group("g", "s")
        for _ in range(2):
            async with group.reader("r1") as reader:
                assert await next_events(reader) == [f"k:{number}" for number in range(5)]
                await reader.commit()
            async with group.reader("r1") as reader:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.next_batch(), 0.5)
            await group.delete()

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_the_readers_of_a_deleted_group_end_with_an_error(fencelog_broker: LocalBroker) -> None:
    async def scenario(log: fencelog.aio.Client) -> None:
        group = log.reader_group("g", "s")
        async with group.reader("r1") as reader:
            waiting = asyncio.create_task(reader.next_batch())
            await until(lambda: len(reader._member.segments) == 2, "it reads")  # type: ignore[union-attr]
            await group.delete()
            with pytest.raises(FencelogError):
                await asyncio.wait_for(waiting, 20)

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_the_readers_of_a_deleted_stream_end_with_an_error(fencelog_broker: LocalBroker) -> None:
    async def scenario(log: fencelog.aio.Client) -> None:
        await write(log, "s", ["k"], range(5))
        async with log.reader_group("g", "s").reader("r1") as reader:
            assert await next_events(reader)
            await log.delete_topic("s")
            with pytest.raises((ReaderGroupError, DataLossError), match=r"deleted"):
                await asyncio.wait_for(reader.next_batch(), 40)

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_garbage_in_the_topic_of_the_state_is_an_error(fencelog_broker: LocalBroker) -> None:
    async def scenario(log: fencelog.aio.Client) -> None:
        group = log.reader_group("g", "s")
        async with group.reader("r1") as reader:
            waiting = asyncio.create_task(reader.next_batch())
            await until(lambda: len(reader._member.segments) == 2, "it reads")  # type: ignore[union-attr]
            async with await log.producer() as producer:
                await producer.send(state_topic("g"), b"garbage")
            with pytest.raises(ForeignRecordError, match="delete the topic"):
                await asyncio.wait_for(waiting, 20)
        with pytest.raises(ForeignRecordError, match="no update of a shared state"):
            await group.get()

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_events_that_retention_has_deleted_unread_are_data_loss(
    fencelog_broker: LocalBroker,
) -> None:
    async def scenario(log: fencelog.aio.Client) -> None:
        await write(log, "s", ["k"], range(5))
        group = log.reader_group("g", "s")
        await group.create()
        where = (await log.describe_stream("s")).stream
        ends = await log.offsets([TopicPartition("s", i) for i in (0, 1)], "latest")
        full = max(ends, key=lambda place: ends[place])
        assert where.get(full.partition) is not None
        await TopicChanges(log.cluster).delete_records({full: 3})
        async with group.reader("r1") as reader:
            with pytest.raises(DataLossError, match="now begins at offset 3"):
                await asyncio.wait_for(reader.next_batch(), 20)

    run(fencelog_broker, scenario)


@pytest.mark.parametrize("start", [{0: 0}, {0: 0, 1: 0, 7: 0}, {0: 0, 1: -1}, {}])
def test_a_cut_that_does_not_fit_is_refused(
    fencelog_broker: LocalBroker, start: dict[int, int]
) -> None:
    # R10
    async def scenario(log: fencelog.aio.Client) -> None:
        with pytest.raises(ReaderGroupError, match=r"cut|segment"):
            await log.reader_group("g", "s", start=start).create()
        group = log.reader_group("g", "s")
        await group.create()
        with pytest.raises(ReaderGroupError, match="reset of reader group g"):
            await group.reset(start)
        with pytest.raises(ReaderGroupError, match="no checkpoint c"):
            await group.reset("c")
        with pytest.raises(ReaderGroupError, match="no checkpoint c"):
            await group.checkpoint_cut("c")

    run(fencelog_broker, scenario)


def test_names_that_no_topic_may_have_are_refused(fencelog_broker: LocalBroker) -> None:
    async def scenario(log: fencelog.aio.Client) -> None:
        group: ReaderGroup = log.reader_group("g", "s")
        with pytest.raises(ValueError, match="letters"):
            log.reader_group("a/b", "s")
        with pytest.raises(ValueError, match=r"^reader '': expected .* letters"):
            group.reader("")
        with pytest.raises(ValueError, match="expected earliest, latest"):
            log.reader_group("g", "s", start="yesterday")
        with pytest.raises(FencelogError, match="not entered"):
            await group.reader("r").next_batch()

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_reset_to_the_earliest_begins_behind_what_retention_has_deleted(
    fencelog_broker: LocalBroker,
) -> None:
    # R10
    async def scenario(log: fencelog.aio.Client) -> None:
        await write(log, "s", ["k"], range(5))
        group = log.reader_group("g", "s")
        await group.create()
        ends = await log.offsets([TopicPartition("s", i) for i in (0, 1)], "latest")
        full = max(ends, key=lambda place: ends[place])
        await TopicChanges(log.cluster).delete_records({full: 3})
        await group.reset("earliest")
        async with group.reader("r1") as reader:
            assert await next_events(reader) == ["k:3", "k:4"]

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_a_reader_that_cannot_read_its_segment_ends_with_the_error(
    fencelog_broker: LocalBroker,
) -> None:
    # R9: the state names an offset that no log can have
    async def scenario(log: fencelog.aio.Client) -> None:
        await write(log, "s", ["k"], range(5))
        group = log.reader_group("g", "s")
        async with group.reader("r1") as reader:
            assert await next_events(reader)
            member = reader._member
            assert member is not None
            for beyond in ({7: 0}, {0: -1}, {0: 600}, {1: 1 << 63}):
                with pytest.raises(ReaderGroupError, match=r"positions in reader group g: "):
                    await group.reader_offline("r1", beyond)
            nowhere = {0: 1 << 63, 1: 1 << 63}
            offline = WentOffline("r1", member._incarnation, nowhere, is_exact=True)
            await group._copy.write(lambda _: offline)
        other = group.reader("r2", commit_interval_s=None)
        await other.__aenter__()
        with pytest.raises(ValueError, match=r"s-\d: 9223372036854775808 is no offset"):
            await asyncio.wait_for(other.next_batch(), 5)
        await other.close()

    run(fencelog_broker, scenario)


@pytest.mark.slow
def test_an_incarnation_that_joins_while_the_one_before_is_declared_offline_reads_on(
    fencelog_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R6, R9
    async def scenario(log: fencelog.aio.Client) -> None:
        await write(log, "s", ["k"], range(5))
        group = log.reader_group("g", "s")
        former = group.reader("r1", commit_interval_s=None)
        await former.__aenter__()
        following = log.reader_group("g", "s").reader("r1", commit_interval_s=None)
        write_update = group._copy.write

        async def write_and_join(build: Build) -> int | None:
            offset = await write_update(build)
            await following.__aenter__()
            return offset

        monkeypatch.setattr(group._copy, "write", write_and_join)
        await group.reader_offline("r1")
        assert await next_events(following) == [f"k:{number}" for number in range(5)]
        await following.check()
        await following.close()
        await former.close()

    run(fencelog_broker, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("ahead_ms", [-DAY_MS, DAY_MS])
def test_a_group_is_coordinated_whatever_time_its_readers_have(
    fencelog_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    # R11
    async def scenario(log: fencelog.aio.Client) -> None:
        await write(log, "s", ["k"], range(5))
        now_ms = synchronizer._now_ms
        monkeypatch.setattr(synchronizer, "_now_ms", lambda: now_ms() + ahead_ms)
        async with log.reader_group("g", "s").reader("r1") as reader:
            assert await next_events(reader) == [f"k:{number}" for number in range(5)]

    run(fencelog_broker, scenario)
