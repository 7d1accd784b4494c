"""What an observer of a node is told: each event once, in order, with its values."""

import asyncio
from typing import Any

import pytest

from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.errors import ErrorCode, NotLeaderError, StorageError
from fencelog.node import Node
from fencelog.types import TopicPartition
from fencelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tests.support.groups import Member, committed
from tests.support.log import marker
from tests.support.node import Peer, batch
from tests.support.observing import EVENTS, Told
from tests.support.restarts import Twin
from tests.support.transactions import Producer, partition_of, settled

T = TopicPartition("t", 0)
U = TopicPartition("u", 0)
MONTH_MS = 31 * 24 * 3600 * 1000

Events = list[tuple[Any, ...]]


def grown(partition: TopicPartition, base_offset: int, end_offset: int) -> Events:
    """What is told of an append that is flushed and committed."""
    return [
        ("appended", partition, base_offset, end_offset),
        ("flushed", partition, end_offset),
        ("high_watermark_moved", partition, end_offset),
    ]


def of(partition: TopicPartition, events: Events) -> Events:
    return [event for event in events if event[1] == partition]


def shard_of(runtime: CoordinatorRuntime[Any]) -> TopicPartition:
    (loaded,) = runtime.loaded()
    return loaded.partition.name


class Run:
    """A node through everything that there is to tell, step by step."""

    def __init__(self, node: Node, peer: Peer, twin: Twin) -> None:
        self.node = node
        self.peer = peer
        self.twin = twin
        self.producer = Producer(peer)

    async def produce(
        self, topic: str, sequence: int, *, epoch: int = 0, damaged: bool = False
    ) -> ErrorCode:
        sent = batch("v", producer_id=5, epoch=epoch, sequence=sequence)
        if damaged:
            sent[-1] ^= 1
        return (await self.peer.produce(topic, sent)).error

    async def records(self) -> list[ErrorCode]:
        """Appended, repeated, damaged on the way, of a fenced epoch."""
        return [
            await self.produce("t", 0),
            await self.produce("t", 0),
            await self.produce("t", 1, damaged=True),
            await self.produce("t", 0, epoch=1),
            await self.produce("t", 1, epoch=0),
        ]

    async def roll(self) -> None:
        """A new segment for a partition that gets no appends."""
        partition = partition_of(self.node, "t")
        now_ms = self.node.broker.clock.now_ms()
        partition.roll_if_due(now_ms)
        partition.roll_if_due(now_ms + MONTH_MS)
        await self.node.flusher.drained()

    async def register(self) -> ErrorCode:
        return await self.producer.init()

    async def transaction(self, *, commits: bool) -> list[ErrorCode]:
        answers = [
            await self.producer.add("t", 0),
            await self.producer.produce("t", "a"),
            await self.producer.end(commit=commits),
        ]
        await settled(self.node, "t")
        await self.node.flusher.drained()
        for sender in self.node.marker_senders:
            await sender.drain()
        return answers

    async def marker_of_an_older_coordinator(self) -> None:
        partition = partition_of(self.node, "t")
        late = marker(self.producer.producer_id, self.producer.epoch, -1, commit=True)
        partition.append_markers([late], now_ms=self.node.broker.clock.now_ms())

    async def group(self) -> list[object]:
        return [await Member(self.peer).commit(7), await committed(self.peer)]

    async def failing_coordinator(self) -> ErrorCode:
        self.twin.disk.failing_syncs = 1
        return await Member(self.peer).commit(8)

    async def failing_partition(self) -> ErrorCode:
        self.twin.disk.failing_syncs = 1
        return await self.produce("t", 1, epoch=1)

    async def deletion(self) -> ErrorCode:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="u")])
        answer = await self.peer.ask(request, 6, DeleteTopicsResponse)
        return ErrorCode(answer.responses[0].error_code)


class Session:
    """A run and what was told in each of its steps."""

    def __init__(self, told: Told | None) -> None:
        self.told = told
        self.steps: dict[str, Events] = {}
        self.answers: dict[str, object] = {}
        self.transactions = self.groups = T

    async def play(self) -> None:
        twin = Twin()
        node = twin.node(observer=self.told)
        await node.start()
        async with Peer.of(node) as peer:
            await peer.create_topic("t")
            await peer.create_topic("u")
            run = Run(node, peer, twin)
            self.keep("start", None)
            self.keep("records", await run.records())
            self.keep("roll", await run.roll())
            self.keep("register", await run.register())
            self.transactions = shard_of(node.transactions)
            self.keep("commit", await run.transaction(commits=True))
            self.keep("abort", await run.transaction(commits=False))
            self.keep("late marker", await run.marker_of_an_older_coordinator())
            self.keep("group", await run.group())
            self.groups = shard_of(node.groups)
            self.keep("failing coordinator", await run.failing_coordinator())
            self.keep("failing partition", await run.failing_partition())
            self.keep("deletion", await run.deletion())
        await node.stop()
        self.keep("stop", None)

    def keep(self, step: str, answer: object) -> None:
        self.answers[step] = answer
        self.steps[step] = [] if self.told is None else self.told.take()


def play(told: Told | None) -> Session:
    session = Session(told)
    asyncio.run(session.play())
    return session


@pytest.fixture(scope="module")
def session() -> Session:
    return play(Told())


def test_every_event_is_told_in_some_step(session: Session) -> None:
    assert {event[0] for events in session.steps.values() for event in events} == EVENTS


def test_a_node_without_an_observer_answers_the_same(session: Session) -> None:
    assert play(None).answers == session.answers


def test_a_start_of_an_empty_node_and_a_stop_tell_nothing(session: Session) -> None:
    assert session.steps["start"] == []
    assert session.steps["stop"] == []


def test_records_are_told_as_appended_flushed_and_committed_and_refusals_with_their_error(
    session: Session,
) -> None:
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH
    damaged = ErrorCode.CORRUPT_MESSAGE
    ok = ErrorCode.NONE
    assert session.answers["records"] == [ok, ok, damaged, ok, fenced]
    assert session.steps["records"] == [
        *grown(T, 0, 1),
        ("rejected", T, 5, damaged),
        *grown(T, 1, 2),
        ("rejected", T, 5, fenced),
    ]


def test_a_roll_is_told_as_appended_and_flushed_and_commits_nothing(session: Session) -> None:
    assert session.steps["roll"] == [("appended", T, 2, 2), ("flushed", T, 2)]


def test_a_decision_is_told_between_its_append_and_its_commit_and_then_the_answer(
    session: Session,
) -> None:
    shard = session.transactions
    events = session.steps["register"]
    assert [event[0] for event in events] == [
        "producer_id_assigned",
        "shard_loaded",
        "answered",  # what had run out while the shard was not loaded
        "appended",
        "decided",
        "flushed",
        "high_watermark_moved",
        "answered",
    ]
    assigned, loaded, expired, appended, decided, flushed, moved, answered = events
    assert expired[:3] == ("answered", shard, 0)
    assert assigned == ("producer_id_assigned", 0)
    assert loaded == ("shard_loaded", shard, 0)
    assert [appended, flushed, moved] == grown(shard, 0, 1)
    assert decided[:3] == ("decided", shard, 0)
    assert len(decided[3]) == 1
    assert answered == ("answered", shard, 1, None)


@pytest.mark.parametrize(("step", "offset"), [("commit", 2), ("abort", 4)])
def test_the_end_of_a_transaction_is_told_once_its_marker_is_appended(
    session: Session, step: str, offset: int
) -> None:
    assert session.answers[step] == [ErrorCode.NONE] * 3
    events = of(T, session.steps[step])
    (ended,) = (event for event in events if event[0] == "markers_appended")
    (written,) = ended[2]
    assert (written.producer_id, written.commit) == (0, step == "commit")
    appended, flushed, moved = grown(T, offset + 1, offset + 2)
    assert events == [*grown(T, offset, offset + 1), appended, ended, flushed, moved]


@pytest.mark.parametrize("step", ["commit", "abort"])
def test_each_decision_of_a_transaction_is_told_once_in_the_order_of_offsets(
    session: Session, step: str
) -> None:
    events = of(session.transactions, session.steps[step])
    decided = [event[2] for event in events if event[0] == "decided"]
    appended = [event[2] for event in events if event[0] == "appended"]
    # Partitions added, the decision, all markers in.
    assert len(decided) == 3
    assert decided == appended == sorted(decided)
    committed_to = 0
    for name, _, *values in events:
        if name == "high_watermark_moved":
            assert values[0] > committed_to
            committed_to = values[0]
        if name == "answered":
            assert values[0] <= committed_to


def test_a_marker_that_is_refused_is_told_with_its_producer(session: Session) -> None:
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert session.steps["late marker"] == [("rejected", T, 0, fenced)]


def test_offsets_are_told_when_they_are_accepted_and_when_they_are_found(session: Session) -> None:
    shard = session.groups
    assert session.answers["group"] == [ErrorCode.NONE, 7]
    events = session.steps["group"]
    assert [event[0] for event in events] == [
        "shard_loaded",
        "answered",
        "offsets_committed",
        "appended",
        "decided",
        "flushed",
        "high_watermark_moved",
        "answered",
        "offsets_fetched",
        "answered",
    ]
    loaded, expired, stored, appended, decided, flushed, moved, told, found, read = events
    assert expired[:3] == ("answered", shard, 0)
    assert loaded == ("shard_loaded", shard, 0)
    assert stored == ("offsets_committed", "g", {T: 7})
    assert [appended, flushed, moved] == grown(shard, 0, appended[3])
    assert decided[1:3] == (shard, 0)
    assert told == read == ("answered", shard, appended[3], None)
    assert (found[1], {name: each.offset for name, each in found[2].items()}) == ("g", {T: 7})


def test_a_failed_disk_is_told_before_the_coordinator_that_it_takes_along(
    session: Session,
) -> None:
    shard = session.groups
    assert session.answers["failing coordinator"] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    events = of(shard, session.steps["failing coordinator"])
    assert [event[0] for event in events] == ["appended", "decided", "failed", "shard_unloaded"]
    assert isinstance(events[2][2], StorageError)


def test_a_failed_partition_is_told_once_with_its_reason(session: Session) -> None:
    assert session.answers["failing partition"] is ErrorCode.KAFKA_STORAGE_ERROR
    appended, failed = session.steps["failing partition"]
    assert appended == ("appended", T, 6, 7)
    assert failed[:2] == ("failed", T)
    assert isinstance(failed[2], StorageError)


def test_a_deleted_partition_is_told_as_failed(session: Session) -> None:
    assert session.answers["deletion"] is ErrorCode.NONE
    (failed,) = of(U, session.steps["deletion"])
    assert failed[:2] == ("failed", U)
    assert isinstance(failed[2], NotLeaderError)
