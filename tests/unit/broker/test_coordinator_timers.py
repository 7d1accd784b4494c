"""A shard with a deadline has a timer: what is due expires although nobody asks for anything."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.coordinators.runtime import NO_TRANSACTION, CoordinatorRuntime
from fencelog.coordination.shard import Decision, LogRecord
from fencelog.errors import ErrorCode, NotLeaderError, StorageError
from fencelog.log.values import Appended, Rejected
from fencelog.types import CoordinatorEpoch, Instant, Offset, TimestampMs, TopicPartition
from tests.support.loops import LOOPS, run_on
from tests.support.node import Peer, World, until
from tests.support.transactions import Producer, settled

UNIT_S = 0.02
"""What the deadlines of these tests are apart."""

on_every_loop = pytest.mark.parametrize("name", LOOPS)


class FakeShard:
    """Names and when each expires. A record sets one in so many units, or ends it."""

    def __init__(self, found: dict[str, float]) -> None:
        now = asyncio.get_running_loop().time()
        self.due = {name: Instant(now + units * UNIT_S) for name, units in found.items()}
        self.looked = 0

    def replay(self, record: LogRecord, offset: Offset, now: Instant) -> None:
        del offset
        if record.value is None:
            self.due.pop(record.key.decode(), None)
        else:
            self.due[record.key.decode()] = Instant(now + float(record.value) * UNIT_S)

    def next_deadline(self) -> Instant | None:
        return min(self.due.values(), default=None)

    def expire(self, now: Instant, wall_ms: TimestampMs) -> Decision[list[str]]:
        del wall_ms
        self.looked += 1
        names = [name for name, due in self.due.items() if due <= now]
        return Decision(tuple(LogRecord(name.encode(), None) for name in names), names)


class FakePartition:
    """Commits at once, until it fails."""

    name = TopicPartition("shards", 0)

    def __init__(self) -> None:
        self.log = SimpleNamespace(log_start_offset=0, log_end_offset=0)
        self.failure: StorageError | None = None

    def append_records(self, batch: memoryview, **_how: object) -> Appended | Rejected:
        del batch
        if self.failure is not None:
            return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, "failed")
        self.log.log_end_offset += 1
        return Appended(Offset(self.log.log_end_offset - 1), self.log.log_end_offset)

    def when_committed(self, end: Offset, done: Callable[[Exception | None], None]) -> None:
        del end
        done(self.failure)

    async def committed(self, end: Offset) -> None:
        del end


class Stage:
    """A runtime with one shard, and what has expired."""

    def __init__(self, found: dict[str, float]) -> None:
        self.partition = FakePartition()
        self.expired: list[str] = []
        self.runtime: CoordinatorRuntime[Any] = CoordinatorRuntime(
            "shards",
            1,
            lambda _epoch: FakeShard(found),
            open_partition=self._open,
            next_epoch=self._epoch,
            clock=SimpleNamespace(now_ms=lambda: TimestampMs(1000)),
            observer=None,
        )
        self.runtime.on_expired = self.expired.extend  # type: ignore[assignment]

    async def _open(self, topic: str, index: int) -> Any:
        del topic, index
        return self.partition

    async def _epoch(self, topic: str) -> CoordinatorEpoch:
        del topic
        return CoordinatorEpoch(1)

    @classmethod
    @asynccontextmanager
    async def of(cls, **found: float) -> AsyncIterator[tuple["Stage", Loaded[Any]]]:
        """A runtime whose shard was loaded with these deadlines, in units from now."""
        stage = cls(found)
        yield stage, await stage.runtime.load(0)
        await stage.runtime.stop()

    async def write(self, **deadlines: float | None) -> None:
        """Set deadlines, in units from now, or end them."""
        records = tuple(
            LogRecord(name.encode(), None if units is None else str(units).encode())
            for name, units in deadlines.items()
        )
        await self.runtime.decide("", lambda _shard, _now: Decision(records, None))

    async def expires(self, *names: str) -> None:
        await until(lambda: len(self.expired) >= len(names), f"{names} expire")
        assert self.expired == [*names]


@on_every_loop
def test_a_nearer_deadline_replaces_a_later_one_and_gives_way_to_it_again(name: str) -> None:
    async def scenario() -> None:
        async with Stage.of() as (stage, _):
            await stage.write(far=300)
            await stage.write(near=1)
            await stage.write(middle=2)
            await stage.expires("near", "middle")
            await stage.write(far=1)
            await stage.expires("near", "middle", "far")

    run_on(name, scenario)


@on_every_loop
def test_deadlines_less_than_a_millisecond_away_and_apart_expire_one_by_one(name: str) -> None:
    async def scenario() -> None:
        async with Stage.of() as (stage, _):
            await stage.write(**{f"n{number}": number * 0.01 for number in range(20)})
            await stage.write(last=0.3)
            await stage.expires(*(f"n{number}" for number in range(20)), "last")

    run_on(name, scenario)


@on_every_loop
def test_where_the_nearest_deadline_is_ended_the_next_one_has_the_timer(name: str) -> None:
    async def scenario() -> None:
        async with Stage.of() as (stage, _):
            await stage.write(ended=1, other=2)
            await stage.write(ended=None)
            await stage.expires("other")

    run_on(name, scenario)


@on_every_loop
def test_a_loaded_shard_expires_what_is_due_and_then_what_will_be(name: str) -> None:
    async def scenario() -> None:
        async with Stage.of(passed=-1, soon=1) as (stage, _):
            await stage.expires("passed", "soon")

    run_on(name, scenario)


@on_every_loop
def test_a_loaded_shard_in_which_nothing_is_due_has_a_timer(name: str) -> None:
    async def scenario() -> None:
        async with Stage.of(later=2) as (stage, loaded):
            await until(lambda: loaded.shard.looked, "it is looked at")
            assert loaded.timer.due == loaded.shard.next_deadline()
            await stage.expires("later")

    run_on(name, scenario)


@on_every_loop
def test_a_decision_without_records_may_move_a_deadline_nearer(name: str) -> None:
    async def scenario() -> None:
        async with Stage.of(session=300) as (stage, _):

            def rule(shard: FakeShard, now: Instant) -> Decision[None]:
                shard.due["session"] = Instant(now + UNIT_S)
                return Decision((), None, moves_deadline=True)

            await stage.runtime.decide("", rule)
            await stage.expires("session")

    run_on(name, scenario)


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
def test_an_answer_that_fails_leaves_the_timer_of_the_next_deadline(name: str) -> None:
    async def scenario() -> None:
        errors: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: errors.append(context["exception"]))
        stage = Stage({"later": 1})
        stage.runtime.on_expired = [].remove  # type: ignore[assignment]
        loaded = await stage.runtime.load(0)
        await until(lambda: not loaded.shard.due, "it expires, although the look before failed")
        assert [type(error) for error in errors] == [ValueError, ValueError]
        await stage.runtime.stop()

    run_on(name, scenario)


@on_every_loop
def test_a_shard_that_failed_has_no_timer_and_the_next_one_has(name: str) -> None:
    async def scenario() -> None:
        async with Stage.of(soon=2) as (stage, loaded):
            stage.partition.failure = StorageError("failed")
            await until(lambda: loaded.dropped, "the expiry cannot be recorded")
            assert loaded.timer.due is None
            assert stage.expired == []
            stage.partition.failure = None
            await stage.runtime.load(0)
            await stage.expires("soon")

    run_on(name, scenario)


async def test_a_shard_that_was_unloaded_decides_and_answers_nothing() -> None:
    """Its log may accept records again: the shard that is loaded instead would not know them."""
    async with Stage.of() as (stage, loaded):  # E16

        def rule(_shard: FakeShard, _now: Instant) -> Decision[None]:
            return Decision((LogRecord(b"late", b"9"),), None)

        stage.partition.failure = StorageError("failed")
        with pytest.raises(NotLeaderError):
            await stage.runtime.decide_on(loaded, rule)
        stage.partition.failure = None
        again = await stage.runtime.load(0)
        assert again is not loaded
        for late in (
            stage.runtime.decide_on(loaded, rule),
            stage.runtime.decide_in(loaded, NO_TRANSACTION, rule),
            stage.runtime.read_on(loaded, lambda shard: shard.due),
        ):
            with pytest.raises(NotLeaderError, match="was unloaded"):
                await late
        with pytest.raises(NotLeaderError, match="was unloaded"):
            stage.runtime.decide_then(loaded, rule, lambda _answer: None)
        assert stage.partition.log.log_end_offset == 0
        await stage.runtime.decide_on(again, rule)
        assert "late" in again.shard.due


@on_every_loop
def test_a_runtime_that_is_stopped_expires_nothing(name: str) -> None:
    async def scenario() -> None:
        async with Stage.of() as (stage, loaded):
            await stage.write(soon=1)
            await stage.runtime.stop()
            assert loaded.timer.due is None
            await asyncio.sleep(3 * UNIT_S)
            assert stage.expired == []

    run_on(name, scenario)


async def test_what_dead_producers_left_open_ends_one_after_the_other_although_nobody_asks(
    world: World,
) -> None:  # E12
    async with world.node(internal_partitions=1, crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=3)
        for partition, timeout_ms in enumerate((60_000, 400, 200)):  # each nearer than the last
            producer = Producer(peer, f"dead-{partition}")
            await producer.init(timeout_ms=timeout_ms)
            assert await producer.add("t", partition) is ErrorCode.NONE
            assert await producer.produce("t", "a", partition=partition) is ErrorCode.NONE
        await settled(node, "t", 2)
        await settled(node, "t", 1)
        log = node.broker.logs.get("t", 0).log
        assert log.last_stable_offset < log.log_end_offset
        late = Producer(peer, "late")
        await late.init(timeout_ms=300)
        assert await late.add("t", 1) is ErrorCode.NONE
        assert await late.produce("t", "a", partition=1) is ErrorCode.NONE
    async with world.node(internal_partitions=1) as node:
        await settled(node, "t", 1)
        log = node.broker.logs.get("t", 0).log
        assert log.last_stable_offset < log.log_end_offset
