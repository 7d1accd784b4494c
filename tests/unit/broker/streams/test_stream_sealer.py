"""What a resize has under way goes on by itself, and costs nothing when there is none (R2)."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fencelog.broker.coordinators import stream_sealer
from fencelog.broker.metadata.controller import Controller
from fencelog.broker.metadata.streams import Streams
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.streams.model import NO_END
from fencelog.errors import ErrorCode, RequestError, StorageError
from fencelog.log.values import Rejected
from fencelog.node import Node
from fencelog.types import Offset, TopicId
from fencelog_sim.world.disk import READING
from fencelog_sim.world.gate import Fault
from tests.support.node import Peer, World, batch, until
from tests.support.streams import (
    create_stream,
    resize,
    resized,
    segments_of,
    states_of,
    states_on,
)

OPENING = ["sealing", "opening", "opening"]
OPENED = ["sealed", "open", "open"]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_sealer, "RETRY_S", 0.01)


async def opened(node: Node, indexes: list[int]) -> None:
    topic = node.broker.catalog.get("s")
    assert topic is not None
    async with asyncio.timeout(10):
        await node.broker.streams.opened(topic.topic_id, indexes)


def fail_creating(world: World, name: str) -> Callable[[], None]:
    """Let creating a partition fail; return what lets it succeed."""

    def gate(verb: str, path: str, _size: int) -> Fault | None:
        return Fault(done=0) if name in path and verb not in READING else None

    world.disk.gate = gate

    def release() -> None:
        world.disk.gate = lambda *_: None

    return release


async def test_a_segment_is_not_sealed_before_its_successors_have_files(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        release = fail_creating(world, "s-2")
        answer = await resize(peer, [0], timeout_ms=100)
        assert ErrorCode(answer.error_code) is ErrorCode.REQUEST_TIMED_OUT
        assert await states_of(peer) == OPENING
        partition = node.logs.get("s", 0)
        assert partition is not None
        assert partition.log.sealed_at is None, "its range can be written"
        release()
        await opened(node, [1, 2])
        assert await states_of(peer) == OPENED
        assert not node.logs.offline()


async def test_successors_that_could_not_be_made_are_made_at_the_next_start(world: World) -> None:
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await create_stream(peer)
        release = fail_creating(world, "s-2")
        await resize(peer, [0], timeout_ms=100)
        assert await states_of(peer) == OPENING
        release()
    async with world.node() as node, Peer.of(node) as peer:
        await opened(node, [1, 2])
        assert await states_of(peer) == OPENED


STEPS = [
    (Controller, "_open_new"),
    (Streams, "open_successors"),
    (Partition, "seal"),
    (Partition, "committed"),
    (Streams, "segment_sealed"),
]


@pytest.mark.parametrize(("owner", "step"), STEPS, ids=[name for _, name in STEPS])
async def test_a_broker_that_is_killed_before_any_step_goes_on_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch, owner: type, step: str
) -> None:  # R2
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await create_stream(peer)
        reached = asyncio.Event()

        async def hang(*_: object, **__: object) -> None:
            reached.set()
            await asyncio.get_running_loop().create_future()

        def reject(*_: object, **__: object) -> Rejected:
            reached.set()
            return Rejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, "a stand-in")

        with monkeypatch.context() as patched:
            if step == "committed":  # an attribute of each partition
                partition = node.logs.get("s", 0)
                assert partition is not None
                partition.committed = hang  # type: ignore[assignment]
            else:
                patched.setattr(owner, step, reject if step == "seal" else hang)
            waiting = asyncio.create_task(resize(peer, [0]))
            await reached.wait()
            states = states_on(node)
            waiting.cancel()
            await world._drop(node)
    assert states == OPENING
    async with world.node() as node, Peer.of(node) as peer:
        await opened(node, [1, 2])
        assert await states_of(peer) == OPENED


async def test_a_step_that_fails_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        seal, record = Partition.seal, Streams.segment_sealed
        failures = [1, 1]

        def seal_later(self: Partition, *, now_ms: int) -> Any:
            if failures[0]:
                failures[0] -= 1
                return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, "no room")
            return seal(self, now_ms=now_ms)

        async def record_later(self: Streams, topic_id: TopicId, index: int, end: Offset) -> None:
            if failures[1]:
                failures[1] -= 1
                raise RequestError(ErrorCode.REQUEST_TIMED_OUT, "the store is away")
            await record(self, topic_id, index, end)

        monkeypatch.setattr(Partition, "seal", seal_later)
        monkeypatch.setattr(Streams, "segment_sealed", record_later)
        assert await resized(peer, [0]) == [1, 2]
        assert failures == [0, 0]
        partition = node.logs.get("s", 0)
        assert partition is not None
        assert partition.log.log_end_offset == 1, "there is one seal"


async def test_an_internal_error_is_logged_and_the_resize_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        seal = Partition.seal

        def fail_once(self: Partition, *, now_ms: int) -> Any:
            monkeypatch.setattr(Partition, "seal", seal)
            raise ZeroDivisionError

        monkeypatch.setattr(Partition, "seal", fail_once)
        assert await resized(peer, [0]) == [1, 2]
        assert "s-0: internal error, please report it" in caplog.text


async def test_without_a_resize_there_is_no_task(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer, segments=3)
        await resized(peer, [0, 1])
        await until(lambda: not node.broker.stream_sealer._sealing, "the tasks have ended")
        before = len(asyncio.all_tasks())
        node.broker.stream_sealer.resume()
        assert len(asyncio.all_tasks()) == before


async def test_the_end_of_a_stream_of_another_id_is_not_recorded(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        world.disk.hold("s-0")
        await resize(peer, [0], timeout_ms=0)
        with pytest.raises(RequestError, match="the stream was deleted"):
            await node.broker.streams.segment_sealed(TopicId(b"x" * 16), 0, Offset(7))
        topic = node.broker.catalog.get("s")
        assert topic is not None
        await node.broker.streams.segment_sealed(topic.topic_id, 9, Offset(7))
        assert topic is node.broker.catalog.get("s")
        world.disk.release()


async def test_an_end_is_recorded_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer, segments=2)
        world.disk.hold("s-1")
        await resize(peer, [0, 1], timeout_ms=0)
        streams, topic = node.broker.streams, node.broker.catalog.get("s")
        assert topic is not None

        def ends() -> list[int]:
            found = node.broker.catalog.get("s")
            assert found is not None
            assert found.stream is not None
            return [each.end for each in found.stream.segments]

        await until(lambda: ends() == [0, NO_END, NO_END], "the first end is recorded")
        await streams.segment_sealed(topic.topic_id, 0, Offset(5))
        assert ends() == [0, NO_END, NO_END]
        assert "segment 0 ends at 0, not at 5" in caplog.text
        world.disk.release()
        await opened(node, [2])


async def test_a_failed_disk_ends_no_resize(world: World) -> None:
    """A partition that takes no more writes is sealed after the next start."""
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await create_stream(peer)
        partition = node.logs.get("s", 0)
        assert partition is not None
        partition.fail(StorageError("a bad disk"))
        answer = await resize(peer, [0], timeout_ms=50)
        assert ErrorCode(answer.error_code) is ErrorCode.REQUEST_TIMED_OUT
    async with world.node() as node:
        await opened(node, [1, 2])


async def test_a_sealed_segment_without_records_is_known_as_deleted(world: World) -> None:
    async with world.node(upkeep_interval_s=0.01) as node, Peer.of(node) as peer:
        await create_stream(peer, segments=2)
        partitions = [node.logs.get("s", index) for index in range(2)]
        for each in partitions:
            assert each is not None
            each.append_records(memoryview(batch("a")), now_ms=0)
            await each.committed(Offset(1))
        await resized(peer, [0, 1])
        assert await states_of(peer) == ["sealed", "sealed", "open"]
        first = partitions[0]
        assert first is not None
        assert first.log.sealed_at is not None
        await node.logs.delete_records({first: first.log.sealed_at})
        await until(lambda: states_on(node) == ["deleted", "sealed", "open"], "it is empty")
        assert [each.end_offset for each in await segments_of(peer)] == [1, 1, -1]


async def test_what_cannot_be_stored_of_empty_segments_is_left_to_the_next_time(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        await resized(peer, [0])

        async def fail(*_: object) -> None:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "the store is away")

        with monkeypatch.context() as patched:
            patched.setattr(Streams, "segments_emptied", fail)
            await node.broker.stream_sealer.record_emptied()
        assert "which segments are empty is not stored: the store is away" in caplog.text
        assert states_on(node) == OPENED
        await node.broker.stream_sealer.record_emptied()
        assert states_on(node) == ["deleted", "open", "open"]
