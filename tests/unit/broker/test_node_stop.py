"""A stop answers what was begun, flushes, and closes so that the next start trusts the files."""

import asyncio
from pathlib import Path

import pytest

from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode
from fencelog.node import Node
from tests.support.leftovers import nothing_left
from tests.support.node import Peer, batch, until, visible
from tests.support.restarts import Spy, Twin, fill


def test_every_attribute_of_a_node_is_there_before_its_start() -> None:
    async def scenario() -> None:
        node = Twin().node()
        before = set(vars(node))
        await node.start()
        assert set(vars(node)) == before
        await node.stop()
        assert set(vars(node)) == before

    asyncio.run(scenario())


def test_a_node_that_was_not_started_has_nothing_to_stop() -> None:
    async def scenario() -> None:
        async with nothing_left():
            twin = Twin()
            node = twin.node()
            await node.stop()
            assert twin.disk.open_files == 0

    asyncio.run(scenario())


def test_a_second_stop_does_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        twin = Twin()
        node = twin.node()
        await node.start()
        await fill(node)
        await node.stop()
        twin.disk.operations = []
        await node.stop()
        assert twin.disk.operations == []

    asyncio.run(scenario())


def test_a_stop_that_is_cancelled_ends_all_the_same() -> None:
    async def scenario() -> None:
        twin = Twin()
        node = twin.node()
        await node.start()
        await fill(node)
        await node.stop()
        cancelled = 0
        while True:
            async with nothing_left():
                node = twin.node()
                await node.start()
                stopping = asyncio.ensure_future(node.stop())
                for _ in range(cancelled):
                    await asyncio.sleep(0)
                if stopping.done():
                    break
                stopping.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await stopping
                await node.stop()
            await twin.serves()
            cancelled += 1
        assert cancelled > 5

    asyncio.run(scenario())


def test_what_was_answered_before_its_flush_is_there_after_a_stop() -> None:  # F5
    async def scenario() -> None:
        twin = Twin()
        node = twin.node()
        await node.start()
        async with Peer.of(node) as peer:
            await peer.create_topic("t")
            twin.disk.hold("t-0")
            assert (await peer.produce("t", batch("a"), acks=1)).error is ErrorCode.NONE
            await until(lambda: twin.disk.waiting, "the flusher syncs")
            assert (await peer.produce("t", batch("b"), acks=1)).error is ErrorCode.NONE
        stopping = asyncio.ensure_future(node.stop())
        for _ in range(50):
            await asyncio.sleep(0)
        assert not stopping.done()
        twin.disk.release()
        await stopping
        node = twin.node()
        await node.start()
        async with Peer.of(node) as peer:
            assert visible(await peer.fetch("t")) == [(0, "a"), (1, "b")]
        await node.stop()

    asyncio.run(scenario())


def test_a_checkpoint_that_is_under_way_ends_before_the_stop_and_keeps_it_clean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # D2
    spy = Spy(monkeypatch)

    async def scenario() -> None:
        twin = Twin()
        node = twin.node(durability="os", checkpoint_interval_s=0.001)
        await node.start()
        await fill(node)
        async with Peer.of(node) as peer:
            await until(lambda: not partition(node).needs_sync, "all is synced")
            twin.disk.hold("t-0")
            await peer.produce("t", batch("more"))
            await until(lambda: twin.disk.waiting, "the checkpoint syncs")
        stopping = asyncio.ensure_future(node.stop())
        for _ in range(50):
            await asyncio.sleep(0)
        assert not stopping.done()
        twin.disk.release()
        await stopping
        assert partition(node).failure is None
        spy.clean.clear()
        node = twin.node()
        await node.start()
        assert spy.clean
        assert all(spy.clean)
        await node.stop()

    asyncio.run(scenario())


def partition(node: Node) -> Partition:
    found = node.logs.get("t", 0)
    assert found is not None
    return found
