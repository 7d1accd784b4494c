"""What comes at the wrong moment: deletions, cancellations and failures in the middle of things."""

import asyncio
from pathlib import Path

import pytest

from fencelog.errors import ErrorCode
from fencelog.node import Node
from fencelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.support.node import Peer, World, batch, visible


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def is_served(node: Node) -> bool:
    async with asyncio.timeout(2), Peer.of(node) as peer:
        answer = await peer.ask(ApiVersionsRequest(), 3, ApiVersionsResponse)
        return answer.error_code == 0


def test_a_reader_of_a_failed_partition_waits_and_holds_up_nobody(world: World) -> None:  # D2
    async def scenario() -> None:
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            await peer.produce("t", batch("a"))
            world.disk.failing_syncs = 1
            assert (await peer.produce("t", batch("x"))).error is ErrorCode.KAFKA_STORAGE_ERROR
            begun = asyncio.get_running_loop().time()
            waiting = asyncio.create_task(peer.fetch("t", 1, max_wait_ms=1000))
            await asyncio.sleep(0.1)
            assert await is_served(node)
            assert asyncio.get_running_loop().time() - begun < 0.9
            assert visible(await waiting) == []

    asyncio.run(scenario())
