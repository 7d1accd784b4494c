"""A broker of a cluster serves requests until its lease may have ended, and answers none later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fencelog.errors import ErrorCode
from fencelog.node import Node
from fencelog.types import Instant
from tests.support.node import Peer, World, batch, until


class Lease:
    """One that ends when a test says so, before any timer has noticed."""

    def __init__(self) -> None:
        self.deadline = Instant(float("inf"))

    def end(self) -> None:
        self.deadline = Instant(asyncio.get_running_loop().time())


@asynccontextmanager
async def leased(world: World) -> AsyncIterator[tuple[Node, Peer, Lease, Peer]]:
    """A node with the topic ``t``, a client of before its lease, the lease, and a client."""
    async with world.node() as node, Peer.of(node) as before:
        await before.create_topic("t")
        lease = node.server.lease = Lease()
        async with Peer.of(node) as peer:
            yield node, before, lease, peer


async def test_no_request_is_begun(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:  # F7
    async with leased(World(tmp_path)) as (node, _, lease, peer):
        assert (await peer.produce("t", batch("a"))).error is ErrorCode.NONE
        lease.end()
        peer.send_produce("t", batch("b"))
        with pytest.raises(asyncio.IncompleteReadError):
            await peer.produced()
        partition = node.broker.logs.get("t", 0)
        assert partition is not None
        assert partition.log.log_end_offset == 1
        # The client has done nothing wrong.
        assert "bad request" not in caplog.text


async def test_a_clean_end_says_nothing_of_those_that_wait_for_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with leased(World(tmp_path)) as (_, _, lease, peer):
        assert (await peer.produce("t", batch("a"))).error is ErrorCode.NONE
        lease.end()
    assert "closing connection" not in caplog.text


async def test_a_write_that_has_waited_is_not_acknowledged(tmp_path: Path) -> None:  # F7
    world = World(tmp_path)
    async with leased(world) as (_, _, lease, peer):
        world.disk.hold("t-0")
        peer.send_produce("t", batch("a"))
        await until(lambda: world.disk.waiting, "it syncs")
        lease.end()
        world.disk.release()
        with pytest.raises(asyncio.IncompleteReadError):
            await peer.produced()


async def test_a_read_that_has_waited_shows_nothing(tmp_path: Path) -> None:  # F7, F8
    async with leased(World(tmp_path)) as (node, before, lease, peer):
        partition = node.broker.logs.get("t", 0)
        assert partition is not None
        reading = asyncio.ensure_future(peer.fetch("t", max_wait_ms=60_000))
        await until(lambda: partition._purgatory._readers, "it waits")
        lease.end()
        assert (await before.produce("t", batch("a"))).error is ErrorCode.NONE
        with pytest.raises(asyncio.IncompleteReadError):
            await reading
