"""Fetches without a session that are sent again: nothing is looked at but what has changed."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from fencelog.broker.fetching.interest import Interest
from fencelog.broker.fetching.sessions import FINAL_EPOCH, FetchSessions, RepeatedFetch
from fencelog.errors import ErrorCode
from fencelog.node import Node
from fencelog.types import Instant
from fencelog.wire.hot import FetchedPartition
from tests.support.log import commit
from tests.support.node import Peer, World, batch, until, visible
from tests.unit.broker.test_delete_records import delete_records
from tests.unit.broker.test_fetch_sessions import asking, delete_topic, fetch, told, values
from tests.unit.broker.test_fetch_waits import open_transaction, partition_of, waiting


@asynccontextmanager
async def idle(world: World) -> AsyncIterator[tuple[Node, Peer, Peer]]:
    """A broker with a topic and one batch, a reader that has been at its end, a writer."""
    async with world.node() as node, Peer.of(node) as reader, Peer.of(node) as writer:
        await writer.create_topic("t")
        await writer.produce("t", batch("a"))
        for _ in range(2):
            assert (await reader.fetch("t", 1)).error is ErrorCode.NONE
        yield node, reader, writer


def ends(fetched: FetchedPartition) -> tuple[int, int, int]:
    return fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset


async def test_a_repeated_fetch_looks_at_nothing_and_tells_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with idle(world) as (_, reader, _writer):
        looked: list[str] = []
        for name in ("measure", "tell"):
            original = getattr(Interest, name)

            def counted(
                interest: Interest, *given: Any, original: Any = original, name: str = name
            ) -> Any:
                looked.append(name)
                return original(interest, *given)

            monkeypatch.setattr(Interest, name, counted)
        for max_wait_ms in (0, 5, 5, 5):
            looked.clear()
            found = await reader.fetch("t", 1, max_wait_ms=max_wait_ms)
            assert (found.error, ends(found), found.records) == (ErrorCode.NONE, (1, 1, 0), ())
        assert looked == []
        # The bytes of these two versions are equal.
        await reader.fetch("t", 1, version=9)
        looked.clear()
        await reader.fetch("t", 1, version=10)
        assert looked == ["tell"]


async def test_what_came_between_two_equal_fetches_is_found(world: World) -> None:
    async with idle(world) as (_, reader, writer):
        await writer.produce("t", batch("b"))
        assert visible(await reader.fetch("t", 1)) == [(1, "b")]
        assert visible(await reader.fetch("t", 1)) == [(1, "b")]


async def test_what_comes_while_an_equal_fetch_waits_ends_its_wait(world: World) -> None:
    async with idle(world) as (node, reader, writer):
        await reader.fetch("t", 1, max_wait_ms=60_000, min_bytes=0)
        task = await waiting(node, reader, offset=1, min_bytes=1)
        await writer.produce("t", batch("b"))
        assert visible(await task) == [(1, "b")]


async def test_an_equal_fetch_tells_how_far_others_may_read(world: World) -> None:  # E10
    async with idle(world) as (node, reader, _):
        partition = partition_of(node)
        await open_transaction(partition)
        await until(lambda: partition.log.high_watermark == 2, "it is committed")
        for _ in range(3):
            found = await reader.fetch("t", 1)
            assert (ends(found), found.records) == ((2, 1, 0), ())
        partition.append_markers([commit(5)], now_ms=1)
        await until(lambda: partition.log.last_stable_offset == 3, "it is stable")
        assert visible(await reader.fetch("t", 1)) == [(1, "in it")]


async def test_an_equal_fetch_is_told_that_its_offset_is_gone(world: World) -> None:  # D4
    async with idle(world) as (_, reader, writer):
        await writer.produce("t", batch("b", "c"))
        await delete_records(writer, 2)
        found = await reader.fetch("t", 1)
        assert (found.error, found.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)


async def test_an_equal_fetch_is_told_that_the_topic_was_deleted(world: World) -> None:
    async with idle(world) as (_, reader, writer):
        await delete_topic(writer)
        assert (await reader.fetch("t", 1)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await writer.create_topic("t")
        assert (await reader.fetch("t", 1)).error is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_another_fetch_of_the_connection_gets_its_own_answer(world: World) -> None:
    async with idle(world) as (node, reader, _):
        assert visible(await reader.fetch("t", 0)) == [(0, "a")]
        assert not partition_of(node)._purgatory._readers
        for version in (11, 12, 11):
            assert ends(await reader.fetch("t", 1, version=version)) == (1, 1, 0)
        assert (await reader.fetch("t", 2)).error is ErrorCode.OFFSET_OUT_OF_RANGE
        session = (await fetch(reader, asking(0, 0, {0: 1}))).session_id
        assert told(await fetch(reader, asking(session, 1, {}))) == {}


@pytest.mark.parametrize("waits", [True, False])
async def test_nothing_is_kept_once_the_connection_is_gone(world: World, *, waits: bool) -> None:
    async with idle(world) as (node, reader, _):
        assert node.broker.fetch_sessions._repeated_size == 1
        assert partition_of(node)._purgatory._readers
        if waits:
            (await waiting(node, reader, offset=1)).cancel()
        reader._writer.transport.abort()  # type: ignore[attr-defined]
        await until(lambda: not partition_of(node)._purgatory._readers, "it listens no more")
        assert node.broker.fetch_sessions._repeated_size == 0


async def test_more_than_the_limit_is_not_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencelog.broker.fetching.sessions.REPEATED_INTERESTS_MAX", 3)
    async with world.node() as node, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(Peer.of(node)) for _ in range(3)]
        await peers[0].create_topic("t", 2)
        for _ in range(3):
            for peer in peers:
                assert told(await fetch(peer, asking(0, FINAL_EPOCH, {0: 0, 1: 0}))).keys() == {
                    0,
                    1,
                }
        assert node.broker.fetch_sessions._repeated_size == 2
        await peers[0].produce("t", batch("a"), partition=1)
        for peer in peers:
            found = await fetch(peer, asking(0, FINAL_EPOCH, {0: 0, 1: 0}))
            assert values(found) == {0: [], 1: ["a"]}
        assert node.broker.fetch_sessions._repeated_size == 0


async def test_a_fetch_that_names_no_or_one_partition_many_times_keeps_little(
    world: World,
) -> None:
    async with idle(world) as (node, reader, _):
        await fetch(reader, asking(0, FINAL_EPOCH, {}))
        assert node.broker.fetch_sessions._repeated_size == 0
        request = asking(0, FINAL_EPOCH, {0: 1})
        assert told(await fetch(reader, request._replace(topics=request.topics * 100))) == {0: 0}
        (connection,) = (each for each in node.server._connections if each.kept is not None)
        assert isinstance(connection.kept, RepeatedFetch)
        assert connection.kept.message.topics == []
        assert node.broker.fetch_sessions._repeated_size == 1


def test_a_fetch_that_begins_or_ends_a_session_is_not_kept() -> None:
    cache = FetchSessions(2, lambda size: bytes(size - 1) + b"\1")
    for session_id, epoch in ((0, 0), (1, FINAL_EPOCH)):
        request = asking(session_id, epoch, {0: 0})
        session = cache.open(request, by_id=False, now=Instant(0))
        assert not isinstance(session, ErrorCode)
        session.changed.clear()
        assert cache.keep(session, request, b"", 11) is None
