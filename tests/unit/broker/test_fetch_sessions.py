"""Fetch sessions (KIP-227): which partitions a response tells, and when a session ends."""

import asyncio
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import pytest

from fencelog.broker.fetching.interest import Key
from fencelog.broker.fetching.sessions import PROTECTED_S, FetchSession, FetchSessions, next_epoch
from fencelog.errors import ErrorCode
from fencelog.log.values import ReadPlan
from fencelog.node import Node
from fencelog.settings.kinds import INT32_MAX
from fencelog.storage.partition_store import PartitionStore
from fencelog.storage.segment import Batches
from fencelog.types import Instant, TopicId
from fencelog.wire.hot import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    read_fetch_response,
    write_fetch_request,
)
from fencelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tests.support.node import FETCH, Peer, World, batch, until, visible
from tests.unit.broker.test_delete_records import delete_records
from tests.unit.broker.test_fetch_waits import open_transaction

TELLS_NOTHING: dict[int, ErrorCode] = {}


def asking(
    session_id: int,
    epoch: int,
    offsets: dict[int, int],
    forgotten: Iterable[int] = (),
    *,
    topic: str | None = "t",
    topic_id: TopicId | None = None,
    max_wait_ms: int = 0,
    max_bytes: int = 1 << 20,
    isolation: int = 0,
) -> FetchRequest:
    parts = [FetchPartition(number, -1, offset, -1, 1 << 20) for number, offset in offsets.items()]
    gone = (ForgottenTopic(topic, topic_id, tuple(forgotten)),) if forgotten else ()
    topics = [FetchTopic(topic, topic_id, parts)] if parts else []
    return FetchRequest(-1, max_wait_ms, 1, max_bytes, isolation, session_id, epoch, topics, gone)


async def fetch(peer: Peer, request: FetchRequest, version: int = 11) -> FetchResponse:
    peer.send(FETCH, version, write_fetch_request(version, request))
    return read_fetch_response(await peer.answer(FETCH, version), version)


def told(response: FetchResponse) -> dict[int, ErrorCode]:
    """The partitions of a response and their errors."""
    assert response.error is ErrorCode.NONE, response
    return {one.partition: one.error for topic in response.topics for one in topic.partitions}


def values(response: FetchResponse) -> dict[int, list[str]]:
    return {
        one.partition: [value for _, value in visible(one)]
        for topic in response.topics
        for one in topic.partitions
    }


async def begun(peer: Peer, offsets: dict[int, int], isolation: int = 0) -> int:
    """A new session, whose first response told all of its partitions."""
    first = await fetch(peer, asking(0, 0, offsets, isolation=isolation))
    assert told(first).keys() == offsets.keys()
    assert first.session_id > 0
    return first.session_id


# -- through a broker --------------------------------------------------------------------------


async def test_a_session_tells_only_what_has_changed(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", 3)
        session = await begun(peer, {0: 0, 1: 0, 2: 0})
        assert told(await fetch(peer, asking(session, 1, {}))) == TELLS_NOTHING
        await peer.produce("t", batch("a"), partition=1)
        assert values(await fetch(peer, asking(session, 2, {}))) == {1: ["a"]}
        # Not moved on: it is told again.
        assert values(await fetch(peer, asking(session, 3, {}))) == {1: ["a"]}
        assert told(await fetch(peer, asking(session, 4, {1: 1}))) == TELLS_NOTHING
        await peer.produce("t", batch("b"), partition=1)
        assert values(await fetch(peer, asking(session, 5, {}))) == {1: ["b"]}


async def test_a_fetch_without_a_session_tells_everything(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", 2)
        for _ in range(2):
            answer = await fetch(peer, asking(0, -1, {0: 0, 1: 0}))
            assert (answer.session_id, told(answer).keys()) == (0, {0, 1})
        await peer.produce("t", batch("a"))
        assert values(await fetch(peer, asking(0, -1, {0: 0, 1: 0}))) == {0: ["a"], 1: []}
        assert not any(p._purgatory._readers for p in node.logs.partitions())


async def test_a_forgotten_partition_is_told_no_more(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", 2)
        session = await begun(peer, {0: 0, 1: 0})
        assert told(await fetch(peer, asking(session, 1, {}, [1, 7]))) == TELLS_NOTHING
        await peer.produce("t", batch("a"), partition=1)
        await peer.produce("t", batch("b"), partition=0)
        assert values(await fetch(peer, asking(session, 2, {}))) == {0: ["b"]}
        # Without partitions a session ends.
        last = await fetch(peer, asking(session, 3, {}, [0]))
        assert (last.session_id, told(last)) == (0, TELLS_NOTHING)
        gone = await fetch(peer, asking(session, 4, {0: 0}))
        assert gone.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_an_added_partition_is_told_at_once(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", 2)
        session = await begun(peer, {0: 0})
        assert told(await fetch(peer, asking(session, 1, {1: 0}))).keys() == {1}
        assert told(await fetch(peer, asking(session, 2, {}))) == TELLS_NOTHING


async def test_other_offsets_than_the_client_knows_are_told(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", 2)
        await peer.produce("t", batch("a", "b"))
        session = await begun(peer, {0: 2, 1: 0}, isolation=1)
        assert await delete_records(peer, 1) == (ErrorCode.NONE, 1)
        answer = await fetch(peer, asking(session, 1, {}, isolation=1))
        assert told(answer) == {0: ErrorCode.NONE}
        assert answer.topics[0].partitions[0].log_start_offset == 1
        assert told(await fetch(peer, asking(session, 2, {}, isolation=1))) == TELLS_NOTHING


async def test_another_isolation_level_sees_what_the_last_one_did_not(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        session = await begun(peer, {0: 0}, isolation=1)
        partition = node.logs.get("t", 0)
        assert partition is not None
        await open_transaction(partition)
        await until(lambda: partition.log.high_watermark == 1, "it is committed")
        answer = await fetch(peer, asking(session, 1, {}, isolation=1))
        assert values(answer) == {0: []}  # the high watermark is news
        assert told(await fetch(peer, asking(session, 2, {}, isolation=1))) == TELLS_NOTHING
        assert values(await fetch(peer, asking(session, 3, {}))) == {0: ["in it"]}


async def test_an_error_is_told_until_it_is_over(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        session = await begun(peer, {0: 0, 5: 0})
        for epoch in (1, 2):
            answer = await fetch(peer, asking(session, epoch, {}, max_wait_ms=60_000))
            assert told(answer) == {5: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        answer = await fetch(peer, asking(session, 3, {0: 9}, [5]))
        assert told(answer) == {0: ErrorCode.OFFSET_OUT_OF_RANGE}


async def test_a_deleted_topic_is_told_and_its_successor_read_by_name_only(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t")
        topic_id = node.broker.catalog.get("t").topic_id  # type: ignore[union-attr]
        by_name = await begun(peer, {0: 0})
        first = await fetch(peer, asking(0, 0, {0: 0}, topic=None, topic_id=topic_id), version=16)
        waiting = asyncio.create_task(fetch(peer, asking(by_name, 1, {}, max_wait_ms=60_000)))
        await until(lambda: any(each._woken for each in sessions_of(node)), "it waits")
        await delete_topic(other)
        assert told(await waiting) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        await other.create_topic("t")
        await other.produce("t", batch("new"))
        assert values(await fetch(peer, asking(by_name, 2, {}))) == {0: ["new"]}
        by_id = asking(first.session_id, 1, {})
        assert told(await fetch(peer, by_id, version=16)) == {0: ErrorCode.UNKNOWN_TOPIC_ID}


async def delete_topic(peer: Peer) -> None:
    state = DeleteTopicState(name="t")
    request = DeleteTopicsRequest(topics=[state], topic_names=["t"], timeout_ms=10_000)
    answer = await peer.ask(request, 6, DeleteTopicsResponse)
    assert answer.responses[0].error_code == ErrorCode.NONE


def sessions_of(node: Node) -> list[FetchSession]:
    return list(node.broker.fetch_sessions._sessions.values())


async def test_epochs_and_ids_are_checked(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        session = await begun(peer, {0: 0})
        for asked, error in (
            (asking(session + 1, 1, {}), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
            (asking(0, 1, {}), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
            (asking(session, 2, {}), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
            (asking(session, -2, {}), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ):
            answer = await fetch(peer, asked)
            assert (answer.error, answer.session_id, answer.topics) == (error, 0, [])
        answer = await fetch(peer, asking(session, 1, {}), version=13)
        assert answer.error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        assert told(await fetch(peer, asking(session, 1, {}))) == TELLS_NOTHING
        repeated = await fetch(peer, asking(session, 1, {}))
        assert repeated.error is ErrorCode.INVALID_FETCH_SESSION_EPOCH


@pytest.mark.parametrize("epoch", [0, -1])
async def test_a_full_fetch_ends_the_session_that_it_names(world: World, epoch: int) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        session = await begun(peer, {0: 0})
        answer = await fetch(peer, asking(session, epoch, {0: 0}))
        assert told(answer).keys() == {0}
        assert (answer.session_id > 0, answer.session_id == session) == (epoch == 0, False)
        gone = await fetch(peer, asking(session, 1, {}))
        assert gone.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_second_fetch_of_a_session_ends_the_wait_of_the_first(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t")
        session = await begun(peer, {0: 0})
        waiting = asyncio.create_task(fetch(peer, asking(session, 1, {}, max_wait_ms=60_000)))
        await until(lambda: any(each._woken for each in sessions_of(node)), "it waits")
        second = asyncio.create_task(fetch(other, asking(session, 2, {}, max_wait_ms=60_000)))
        assert (await waiting).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        await peer.produce("t", batch("a"))
        assert values(await second) == {0: ["a"]}


@pytest.mark.parametrize("ends", ["superseded", "disconnected"])
async def test_what_an_unsent_answer_would_have_told_is_told_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t", 2)
        session = await begun(peer, {0: 0, 1: 0})
        await peer.produce("t", batch("a"))
        reached, released = asyncio.Event(), asyncio.Event()
        original = PartitionStore.read

        async def slow(store: PartitionStore, plan: ReadPlan, *, to_send: bool) -> Batches:
            reached.set()
            await released.wait()
            return await original(store, plan, to_send=to_send)

        monkeypatch.setattr(PartitionStore, "read", slow)
        monkeypatch.setattr("fencelog.broker.partitions.tail_cache.Tail.read", lambda *_: None)
        first = asyncio.create_task(fetch(peer, asking(session, 1, {})))
        await reached.wait()
        if ends == "disconnected":
            peer._writer.close()
            first.cancel()
            await until(lambda: len(node.server._connections) == 1, "it is gone")
        second = asyncio.create_task(fetch(other, asking(session, 2, {}, max_wait_ms=60_000)))
        await until(lambda: sessions_of(node)[0].epoch == 2, "the second has begun")
        released.set()
        assert values(await second) == {0: ["a"]}
        if ends == "superseded":
            assert (await first).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH


async def test_partitions_share_what_one_response_may_hold(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", 3)
        session = await begun(peer, dict.fromkeys(range(3), 0))
        for partition in range(3):
            await peer.produce("t", batch("a"), partition=partition)
        seen = []
        for epoch in range(1, 7):
            answer = await fetch(peer, asking(session, epoch, {}, max_bytes=1))
            seen += [number for number, found in values(answer).items() if found]
        assert sorted(seen[:3]) == sorted(seen[3:]) == [0, 1, 2]


async def test_without_slots_there_are_no_sessions(tmp_path: Path) -> None:
    async with World(tmp_path).node(fetch_sessions_max=0) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        answer = await fetch(peer, asking(0, 0, {0: 0}))
        assert (answer.session_id, told(answer)) == (0, {0: ErrorCode.NONE})


# -- the rules of the cache ----------------------------------------------------------------------


def sessions(slots: int) -> FetchSessions:
    numbers = count(1)
    return FetchSessions(slots, lambda size: next(numbers).to_bytes(size, "big"))


def opened(cache: FetchSessions, request: FetchRequest, now: float) -> int:
    found = cache.open(request, by_id=False, now=Instant(now))
    assert not isinstance(found, ErrorCode), found
    return found.id


def parts(number: int) -> dict[int, int]:
    return dict.fromkeys(range(number), 0)


def test_a_session_gives_way_when_it_was_idle_for_long_or_is_smaller_and_old() -> None:
    cache = sessions(2)
    small, large = (opened(cache, asking(0, 0, parts(size)), 0) for size in (2, 5))
    assert 0 not in (small, large)
    assert opened(cache, asking(0, 0, parts(9)), PROTECTED_S) == 0  # nobody is idle or old yet
    for epoch, session in ((1, large), (1, small)):
        opened(cache, asking(session, epoch, {}), PROTECTED_S)
    assert opened(cache, asking(0, 0, parts(1)), PROTECTED_S + 1) == 0  # smaller than all
    third = opened(cache, asking(0, 0, parts(2)), PROTECTED_S + 1)
    assert third > 0
    gone = cache.open(asking(small, 2, {}), by_id=False, now=Instant(PROTECTED_S + 1))
    assert gone is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    # However small, it gets the slot of the one that was used least recently.
    assert opened(cache, asking(0, 0, parts(1)), 2 * PROTECTED_S + 0.5) > 0
    gone = cache.open(asking(large, 2, {}), by_id=False, now=Instant(2 * PROTECTED_S + 1))
    assert gone is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_all_partitions_of_all_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencelog.broker.fetching.sessions.INTERESTS_MAX", 10)
    cache = sessions(5)
    session = opened(cache, asking(0, 0, parts(6)), 0)
    assert opened(cache, asking(0, 0, parts(5)), 0) == 0
    assert opened(cache, asking(0, 0, parts(4)), 0) > 0
    grown = cache.open(asking(session, 1, {9: 0}), by_id=False, now=Instant(0))
    assert grown is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert opened(cache, asking(0, 0, parts(6)), 0) > 0


def test_the_epoch_after_the_largest_is_1() -> None:
    assert (next_epoch(0), next_epoch(INT32_MAX)) == (1, 1)


def test_a_partition_named_twice_is_one() -> None:
    session = FetchSession(0, by_id=False, now=Instant(0))
    session.add(
        [FetchTopic("t", None, [FetchPartition(0, -1, offset, -1, 1) for offset in (3, 4)])]
    )
    assert [each.offset for each in session.interests.values()] == [4]
    assert list(session.interests) == [Key("t", None, 0)]
