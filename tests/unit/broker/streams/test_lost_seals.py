"""A sealed segment whose log was cut below its seal has an end that its readers come to (R2)."""

import asyncio
from contextlib import suppress

import pytest

from fencelog.broker.metadata.streams import Streams
from fencelog.log.layout import PARTITION_METADATA
from fencelog.node import Node
from fencelog.types import Offset
from tests.support.node import Peer, World, batch, until
from tests.support.streams import create_stream, resized, segments_of

LOG = "s-0/00000000000000000000.log"


async def fill(world: World, node: Node, count: int) -> list[int]:
    """Append records to the first segment, one at a time; return the sizes of its file."""
    partition = node.logs.get("s", 0)
    assert partition is not None
    sizes = [0]
    for number in range(count):
        partition.append_records(memoryview(batch(f"record {number}")), now_ms=0)
        await partition.committed(Offset(number + 1))
        sizes.append(len(world.disk.contents(LOG)))
    return sizes


async def ends(peer: Peer) -> list[int]:
    return [each.end_offset for each in await segments_of(peer)]


async def until_ends_are(node: Node, expected: list[int]) -> None:
    def is_so() -> bool:
        topic = node.broker.catalog.get("s")
        assert topic is not None
        assert topic.stream is not None
        known = [each.end for each in topic.stream.segments]
        return (known, sealed_at(node)) == (expected, expected[0])

    await until(is_so, f"the segments end at {expected}")


def sealed_at(node: Node, index: int = 0) -> int | None:
    partition = node.logs.get("s", index)
    return None if partition is None else partition.log.sealed_at


async def cut(world: World, *, keep: int) -> None:
    """Split a segment of three records at a seal at 3, and leave the first records of its log."""
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await create_stream(peer)
        sizes = await fill(world, node, 3)
        await resized(peer, [0])
        assert await ends(peer) == [3, -1, -1]
    await salvaged(world, sizes[keep])


async def salvaged(world: World, size: int) -> None:
    """Leave what ``fencelog partition salvage`` does of a log that is damaged at this position."""
    for name in await world.disk.list("s-0"):
        if f"s-0/{name}" not in {LOG, f"s-0/{PARTITION_METADATA}"}:
            world.disk.lose(f"s-0/{name}")
    world.disk.overwrite(LOG, world.disk.contents(LOG)[:size])


@pytest.mark.parametrize("keep", [0, 2, 3])
async def test_a_sealed_segment_without_its_seal_is_sealed_where_its_log_ends(
    world: World, keep: int, caplog: pytest.LogCaptureFixture
) -> None:  # R2
    await cut(world, keep=keep)
    for _ in range(2):
        async with world.node() as node, Peer.of(node) as peer:
            await until_ends_are(node, [keep, -1, -1])
            assert [each.state for each in await segments_of(peer)] == ["sealed", "open", "open"]
    assert caplog.text.count(f"s-0: the seal at 3 is not here any more; sealed at {keep}") == 1


async def test_a_broker_that_is_killed_before_the_new_end_is_stored_goes_on_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # R2
    await cut(world, keep=1)
    reached = asyncio.Event()

    async def hang(*_: object) -> None:
        reached.set()
        await asyncio.get_running_loop().create_future()

    with monkeypatch.context() as patched:
        patched.setattr(Streams, "end_corrected", hang)
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            async with asyncio.timeout(10):
                await reached.wait()
            assert (sealed_at(node), await ends(peer)) == (1, [3, -1, -1])
    async with world.node() as node, Peer.of(node) as peer:
        await until_ends_are(node, [1, -1, -1])


async def test_a_merge_goes_on_whose_first_seal_was_lost(world: World) -> None:  # R2
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await create_stream(peer, segments=2)
        sizes = await fill(world, node, 3)
        world.disk.hold("s-1")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await resized(peer, [0, 1])
        async with Peer.of(node) as other:
            assert await ends(other) == [3, -1, -1]
        world.disk.release()
    await salvaged(world, sizes[2])
    async with world.node() as node, Peer.of(node) as peer:
        await until_ends_are(node, [2, 0, -1])
        assert [each.state for each in await segments_of(peer)] == ["sealed", "sealed", "open"]
