"""The sender of ownership's work: what begins when, and what a failure costs."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Self

import pytest

from fencelog.broker.coordinators import ownership_sender
from fencelog.broker.coordinators.ownership_sender import OwnershipSender
from fencelog.broker.network.time_slices import TimeSlices
from fencelog.coordination.ownership.model import OwnershipTask
from fencelog.errors import NotLeaderError
from fencelog.log.ownership import Owner
from fencelog.types import Instant, Offset, TopicPartition


@dataclass
class FakeShard:
    """Work that is outstanding until it is done, in order."""

    todo: dict[str, OwnershipTask]
    fences: dict[str, Mapping[TopicPartition, Offset]] = field(default_factory=dict)
    built: int = 0

    def outstanding(self, committed: Offset) -> list[str]:
        return list(self.todo)

    def task(self, session: str) -> OwnershipTask:
        self.built += 1
        return self.todo[session]

    def is_live(self, session: str) -> bool:
        return self.todo[session].is_live

    def live(self, committed: Offset) -> list[OwnershipTask]:
        return list(self.todo.values())

    def done(self, session: str, fences: Any, *_: object, is_live: bool) -> None:
        del self.todo[session]
        self.fences[session] = fences


class FakeLeaders:
    """Answers once it is told to, or at once; each of ``failures`` fails one request."""

    def __init__(self) -> None:
        self.severed: list[str] = []
        self.asked: list[str] = []
        self.answers: dict[str, asyncio.Future[Offset | None]] = {}
        self.failures: list[Exception] = []
        self.told: list[str] = []
        self.coordinators: dict[str, list[bool | Exception]] = {}
        """What those of a claim answer, the last first, then True."""

    async def own_commits(self, group: str, owners: Mapping[TopicPartition, Owner]) -> bool:
        (session,) = {each.session for each in owners.values()}
        return self._told(f"{session}: commits of {group}", session)

    async def own_producers(self, key: str, owner: Owner) -> bool:
        return self._told(f"{owner.session}: producers of {key}", owner.session)

    def _told(self, what: str, session: str) -> bool:
        self.told.append(what)
        answers = self.coordinators.get(session)
        answer = answers.pop() if answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sever(self, session: str) -> None:
        self.severed.append(session)

    def own_partition(
        self, partition: TopicPartition, owner: Owner
    ) -> "asyncio.Future[Offset | None]":
        self.asked.append(owner.session)
        answer = self.answers.get(owner.session)
        if answer is None:
            answer = asyncio.get_running_loop().create_future()
            if self.failures:
                answer.set_exception(self.failures.pop())
            else:
                answer.set_result(Offset(0))
        return answer


def piece(session: str, *, is_live: bool = True, partitions: int = 1) -> OwnershipTask:
    owner = Owner(None, 1, session, None, "holder", is_live)
    return OwnershipTask(
        group=None,
        session=session,
        is_live=is_live,
        partitions={TopicPartition("t", number): owner for number in range(partitions)},
        producers={},
    )


def shard(*pieces: OwnershipTask) -> Any:
    """A loaded shard with this work."""
    log = SimpleNamespace(high_watermark=1)
    partition = SimpleNamespace(log=log, name="__fencelog_ownership-0")
    todo = {each.session: each for each in pieces}

    class Loaded:
        dropped = False

    loaded: Any = Loaded()
    loaded.shard, loaded.partition = FakeShard(todo), partition
    return loaded


class Stage:
    """A sender and what it talks to."""

    def __init__(self) -> None:
        self.leaders = FakeLeaders()
        runtime: Any = SimpleNamespace(decide_on=self._decide_on)
        clock: Any = SimpleNamespace(now_ms=lambda: 0)
        leaders: Any = self.leaders
        self.sender = OwnershipSender(runtime, leaders, clock, TimeSlices())

    async def _decide_on(self, loaded: Any, rule: Callable[..., None]) -> None:
        rule(loaded.shard, Instant(0.0))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.sender.stop()

    def holds(self, session: str) -> None:
        """Let the partitions of this claim not answer."""
        self.leaders.answers[session] = asyncio.get_running_loop().create_future()


async def settle() -> None:
    """Let everything run that does not wait for time to pass."""
    for _ in range(100):
        await asyncio.sleep(0)


def in_group(session: str, *, is_live: bool = True) -> OwnershipTask:
    """What a claim of a group with a name has done."""
    found = piece(session, is_live=is_live)
    (owner,) = found.partitions.values()
    return replace(found, group="g", producers={"key": owner})


@pytest.fixture(autouse=True)
def long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership_sender, "RETRY_S", 3600.0)


async def test_a_failure_waits_before_the_work_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:  # O9
    async with Stage() as stage:
        loaded = shard(piece("a"))
        stage.leaders.failures = [NotLeaderError("not now") for _ in range(50)]
        stage.sender.wake(loaded)
        await settle()
        assert stage.leaders.asked == ["a"]
        assert "work is tried again: not now" in caplog.text


async def test_work_that_fails_again_and_again_waits_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # O9
    waited: list[float] = []

    async def sleep(delay_s: float) -> None:
        waited.append(delay_s)

    async with Stage() as stage:
        monkeypatch.setattr(ownership_sender, "RETRY_S", 1.0)
        monkeypatch.setattr(ownership_sender, "RETRY_S_MAX", 3.0)
        monkeypatch.setattr(ownership_sender.asyncio, "sleep", sleep)
        loaded = shard(piece("a"))
        stage.leaders.failures = [NotLeaderError("not now") for _ in range(4)]
        stage.sender.wake(loaded)
        while loaded.shard.todo:
            await TimeSlices().next()
        assert waited == [1.0, 2.0, 3.0, 3.0]
        assert not stage.sender._delays_s


async def test_an_internal_error_is_logged_and_the_work_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Stage() as stage:
        monkeypatch.setattr(ownership_sender, "RETRY_S", 0.0)
        loaded = shard(piece("a"))
        stage.leaders.failures = [ValueError("a defect")]
        stage.sender.wake(loaded)
        await settle()
        assert loaded.shard.todo == {}
        assert "a defect" in caplog.text


async def test_a_shard_without_a_place_goes_on_when_another_ones_work_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Stage() as stage:
        monkeypatch.setattr(ownership_sender, "PIECES_MAX", 1)
        one, two = shard(piece("a")), shard(piece("b"))
        stage.holds("a")
        stage.sender.wake(one)
        stage.sender.wake(two)
        await settle()
        assert stage.leaders.asked == ["a"]
        stage.leaders.answers["a"].set_result(Offset(7))
        await settle()
        assert one.shard.fences == {"a": {TopicPartition("t", 0): 7}}
        assert two.shard.todo == {}


async def test_every_ended_claim_is_severed_though_its_work_has_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # O7
    async with Stage() as stage:
        monkeypatch.setattr(ownership_sender, "PIECES_MAX", 1)
        ended = [piece(name, is_live=False) for name in "bc"]
        stage.holds("a")
        stage.sender.wake(shard(piece("a"), *ended))
        await settle()
        stage.sender.wake(shard(piece("d", is_live=False)))
        await settle()
        assert stage.leaders.asked == ["a"]
        assert stage.leaders.severed == ["b", "c", "d"]


async def test_work_that_waits_to_be_tried_again_takes_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Stage() as stage:
        monkeypatch.setattr(ownership_sender, "PIECES_MAX", 1)
        loaded = shard(piece("a"), piece("b"))
        stage.holds("a")
        stage.leaders.answers["a"].set_result(None)
        stage.sender.wake(loaded)
        await settle()
        assert list(loaded.shard.todo) == ["a"]
        assert stage.leaders.asked == ["a", "b"]


async def test_much_work_begins_in_time_slices_after_all_is_severed() -> None:
    async with Stage() as stage:
        many = [piece(str(number), is_live=False, partitions=1000) for number in range(20)]
        loaded = shard(*many)
        stage.sender.wake(loaded)
        await asyncio.sleep(0)
        assert (len(stage.leaders.severed), loaded.shard.built) == (20, 1)
        await asyncio.sleep(0)
        assert loaded.shard.built == 2


@pytest.mark.parametrize(
    "answer", [False, NotLeaderError("not now"), ValueError("a bug")], ids=["later", "no", "bug"]
)
async def test_a_loaded_shard_tells_coordinators_its_owners_until_they_know(
    answer: bool | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:  # O8
    monkeypatch.setattr(ownership_sender, "RETRY_S", 0.0)
    async with Stage() as stage:
        stage.leaders.coordinators["a"] = [answer]
        loaded = shard(in_group("a"), piece("b"), in_group("c", is_live=False))
        stage.sender.loaded(loaded)
        while stage.sender._doing:
            await TimeSlices().next()
        a = ["a: producers of key", "a: commits of g"]
        assert stage.leaders.told == a * 2
        assert sorted(stage.leaders.asked) == ["a", "b"]


async def test_only_claims_that_were_not_told_are_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # O8
    monkeypatch.setattr(ownership_sender, "RETRY_S", 0.0)
    async with Stage() as stage:
        stage.leaders.coordinators["b"] = [False] * 3
        stage.sender.loaded(shard(in_group("a"), in_group("b")))
        while stage.sender._doing:
            await TimeSlices().next()
        assert [each[0] for each in stage.leaders.told] == [*"aabb", *"bb", *"bb"]


async def test_a_shard_that_is_gone_tells_nobody_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership_sender, "RETRY_S", 0.0)
    async with Stage() as stage:
        loaded = shard(in_group("a"))
        loaded.dropped = True
        stage.leaders.coordinators["a"] = [False] * 100
        stage.sender.loaded(loaded)
        while stage.sender._doing:
            await TimeSlices().next()
        assert len(stage.leaders.told) == 2
