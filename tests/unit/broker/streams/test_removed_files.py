"""Segments that retention has emptied keep an entry in the metadata, and no files (R1)."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from fencelog.adapters.system_clock import SystemClock
from fencelog.broker.metadata.controller import Controller, TopicChange
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.partitions.reading import Fetched
from fencelog.broker.replicas.logs import OpenLogs
from fencelog.coordination.streams.model import HASH_SPACE, LogEnd
from fencelog.errors import ErrorCode, ExhaustedError, RequestError, StorageError
from fencelog.log.ownership import Owner
from fencelog.log.producers import PRODUCER_EXPIRATION_MS
from fencelog.log.values import Appended, Isolation, MarkerToWrite, Rejected
from fencelog.node import Node
from fencelog.storage.directory import DataDirectory
from fencelog.storage.topic_id import write_topic_id
from fencelog.types import (
    CoordinatorEpoch,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicId,
)
from fencelog.wire.batch import iterate
from fencelog.wire.control import Seal, read_control
from fencelog.wire.hot import SealedSegment, Successor
from tests.support.node import Peer, World, batch, until
from tests.support.streams import create_stream, resized
from tests.unit.broker.streams.test_stream_writes import write
from tests.unit.broker.test_delete_records import delete_records


def segment(node: Node) -> Partition:
    found = node.logs.get("s", 0)
    assert found is not None
    return found


def removed(node: Node) -> LogEnd | None:
    topic = node.broker.catalog.get("s")
    assert topic is not None
    assert topic.stream is not None
    return topic.stream.segments[0].removed


async def read_from(node: Node, offset: int) -> Fetched:
    return await segment(node).read(
        Offset(offset), 1 << 20, Isolation.TRANSACTIONAL, at_least_one=True, to_send=False
    )


def files(world: World) -> list[str]:
    return [name for name in world.disk.image.root.names if name.startswith("s-0")]


async def emptied(node: Node, peer: Peer) -> None:
    """A segment with three records is split, and its records are deleted."""
    await create_stream(peer)
    for sequence in range(3):
        await write(peer, sequence)
    await resized(peer, [0], at=100)
    assert await delete_records(peer, -1, "s") == (ErrorCode.NONE, 3)
    await node.broker.stream_sealer.record_emptied()


def expire(node: Node) -> None:
    """A day has passed since anybody wrote."""
    later = SystemClock().now_ms() + PRODUCER_EXPIRATION_MS
    for each in node.logs.partitions():
        each.log.expire_producers(TimestampMs(later))


async def without_files(node: Node, peer: Peer) -> None:
    await emptied(node, peer)
    expire(node)
    await node.broker.stream_sealer.record_emptied()


async def test_files_stay_while_a_producer_may_send_again_what_they_have(world: World) -> None:
    # E4, R2
    async with world.node() as node, Peer.of(node) as peer:
        await emptied(node, peer)
        await node.broker.stream_sealer.record_emptied()
        assert removed(node) is None
        assert segment(node).log.has_files
        again = await write(peer, 2)
        assert (again.error, again.base_offset) == (ErrorCode.NONE, 2), "a duplicate (E4)"
        expire(node)
        await node.broker.stream_sealer.record_emptied()
        assert removed(node) == LogEnd(Offset(4), LeaderEpoch(0))
        await until(lambda: not files(world), "its files are removed")
        assert node.logs.offline() == {}


async def test_only_the_seal_is_left_for_readers_and_writers(world: World) -> None:  # R1, R2
    async with world.node() as node, Peer.of(node) as peer:
        await without_files(node, peer)
        for offset, error in ((3, ErrorCode.NONE), (2, ErrorCode.OFFSET_OUT_OF_RANGE)):
            read = await read_from(node, offset)
            assert read.error is error
            assert (read.log_start_offset, read.high_watermark) == (3, 4)
        read = await read_from(node, 3)
        ((header, found),) = [each for part in read.parts for each in iterate(part)]
        assert read_control(found) == Seal()
        assert (header.base_offset, header.next_offset) == (3, 4)
        refused = await write(peer, 3)
        assert refused.error is ErrorCode.SEGMENT_SEALED
        assert refused.sealed == SealedSegment(
            3, -1, (Successor(1, 0, 100), Successor(2, 100, HASH_SPACE))
        )
        stock = await peer.produce("s", batch("x", producer_id=7, epoch=0, sequence=0))
        assert stock.error is ErrorCode.POLICY_VIOLATION
        assert await delete_records(peer, -1, "s") == (ErrorCode.NONE, 3)


async def test_markers_and_owners_find_nothing_to_end_and_nothing_to_own(world: World) -> None:
    # E17, O9
    async with world.node() as node, Peer.of(node) as peer:
        await without_files(node, peer)
        marker = MarkerToWrite(
            producer_id=ProducerId(9),
            producer_epoch=ProducerEpoch(0),
            commit=True,
            coordinator_epoch=CoordinatorEpoch(0),
        )
        owner = Owner("g", 5, "session", None, "holder", is_live=True)
        nothing = Appended(Offset(4), Offset(4))
        assert segment(node).append_markers([marker], now_ms=0) == nothing
        assert segment(node).set_owner(owner, now_ms=0) == nothing
        assert segment(node).log.log_end_offset == 4
        assert segment(node).owners.read_error(owner.session) is ErrorCode.NONE


async def test_a_reader_that_must_be_an_owner_still_finds_the_seal(world: World) -> None:  # O8
    async with world.node() as node, Peer.of(node) as peer:
        await without_files(node, peer)
        config = replace(segment(node).log.config, ownership_read="required")
        segment(node).reconfigure(config)
        assert segment(node).owners.read_error("any session") is ErrorCode.NONE


def live(node: Node, *, is_live: bool) -> None:
    owner = Owner("g", 5, "session", None, "holder", is_live=is_live)
    assert isinstance(segment(node).set_owner(owner, now_ms=0), Appended)


async def test_files_stay_while_somebody_owns_the_segment(world: World) -> None:  # O9
    async with world.node() as node, Peer.of(node) as peer:
        await emptied(node, peer)
        expire(node)
        live(node, is_live=True)
        await segment(node).committed(segment(node).log.log_end_offset)
        await node.broker.stream_sealer.record_emptied()
        assert removed(node) is None
        live(node, is_live=False)
        await node.broker.stream_sealer.record_emptied()
        assert removed(node) is None, "the end is not committed yet"
        end = segment(node).log.log_end_offset
        await segment(node).committed(end)
        await node.broker.stream_sealer.record_emptied()
        assert removed(node) == LogEnd(end, LeaderEpoch(0))
        assert segment(node).log.high_watermark == end > 4, "it does not go back (F8)"


@pytest.mark.parametrize("crash", [False, True])
async def test_a_start_finds_the_seal_in_the_metadata(world: World, crash: bool) -> None:
    async with world.node(crash=crash) as node, Peer.of(node) as peer:
        await without_files(node, peer)
        await until(lambda: not files(world), "its files are removed")
    async with world.node() as node, Peer.of(node) as peer:
        assert node.logs.offline() == {}
        assert not segment(node).log.has_files
        assert (await write(peer, 3)).error is ErrorCode.SEGMENT_SEALED
        assert not files(world)


@pytest.mark.parametrize("error", [StorageError, ExhaustedError])
async def test_a_disk_that_keeps_the_files_disturbs_nobody_and_the_next_start_removes_them(
    world: World, monkeypatch: pytest.MonkeyPatch, error: type[StorageError]
) -> None:
    async def broken(*_: object) -> None:
        raise error("the disk is away")

    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await emptied(node, peer)
        expire(node)
        with monkeypatch.context() as patched:
            patched.setattr(DataDirectory, "remove_partitions", broken)
            await node.broker.stream_sealer.record_emptied()
        assert removed(node) == LogEnd(Offset(4), LeaderEpoch(0))
        assert node.logs.offline() == {}
        assert (await write(peer, 3)).error is ErrorCode.SEGMENT_SEALED
        assert files(world) == ["s-0"]
    async with world.node() as node:
        assert node.logs.offline() == {}
        assert not segment(node).log.has_files
        await until(lambda: not files(world), "its files are removed")


async def test_files_that_belong_to_another_topic_are_left_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:  # D3
    async with world.node() as node, Peer.of(node) as peer:
        await without_files(node, peer)
        await until(lambda: not files(world), "its files are removed")
    await world.disk.make_directory("s-0")
    await write_topic_id(world.disk, "s-0", TopicId(b"x" * 16))
    async with world.node() as node:
        assert node.logs.offline() == {}
        assert not segment(node).log.has_files
        assert "the files of a deleted segment stay: s-0/partition.metadata" in caplog.text
        assert files(world) == ["s-0"]


async def test_a_stream_of_the_same_name_begins_at_offset_0(world: World) -> None:  # E17
    async with world.node() as node, Peer.of(node) as peer:
        await without_files(node, peer)
        await node.logs.checkpoint()
        topic = node.broker.catalog.get("s")
        assert topic is not None
        await node.broker.controller.delete_topics([topic])
        await create_stream(peer)
        assert (await write(peer, 0)).base_offset == 0
    async with world.node() as node:
        assert node.logs.offline() == {}
        assert segment(node).log.log_end_offset == 1


async def test_a_deleted_stream_leaves_no_segment_open_in_a_cluster(world: World) -> None:  # E17
    async with world.node() as node, Peer.of(node) as peer:
        await without_files(node, peer)
        topic = node.broker.catalog.get("s")
        assert topic is not None
        logs = OpenLogs(node.logs, node.broker.catalog, node.broker.settings)
        await logs.remove(topic.topic_id, "s")
        assert [each for each in node.logs.partitions() if each.name.topic == "s"] == []


async def test_offsets_of_what_has_no_files_are_not_stored(world: World) -> None:  # D3
    async with world.node() as node, Peer.of(node) as peer:
        await without_files(node, peer)
        await node.logs.checkpoint()
    content = world.disk.contents("recovery-point-offset-checkpoint").decode()
    assert [line for line in content.splitlines() if line.startswith("s ")] == ["s 1 0", "s 2 0"]


def refusing(node: Node, code: ErrorCode) -> Callable[..., Awaitable[None]]:
    """A change of a topic that is decided, and then fails."""

    async def change_topic(_: object, name: str, change: TopicChange, **how: object) -> None:
        del how
        topic = node.broker.catalog.get(name)
        assert topic is not None
        change(topic)
        raise RequestError(code, "the store is away")

    return change_topic


async def test_nothing_is_removed_where_the_metadata_could_not_say_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await emptied(node, peer)
        expire(node)

        with monkeypatch.context() as patched:
            patched.setattr(
                Controller, "change_topic", refusing(node, ErrorCode.KAFKA_STORAGE_ERROR)
            )
            await node.broker.stream_sealer.record_emptied()
        assert segment(node).log.has_files
        end = segment(node).log.log_end_offset
        for is_live in (True, False):
            live(node, is_live=is_live)
        assert segment(node).log.log_end_offset == end + 2, "owners are recorded again"
        await segment(node).committed(Offset(end + 2))
        await node.broker.stream_sealer.record_emptied()
        assert not segment(node).log.has_files


async def test_who_would_own_a_segment_whose_files_go_waits_for_that(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # O9
    async with world.node() as node, Peer.of(node) as peer:
        await emptied(node, peer)
        expire(node)

        with monkeypatch.context() as patched:
            patched.setattr(Controller, "change_topic", refusing(node, ErrorCode.REQUEST_TIMED_OUT))
            await node.broker.stream_sealer.record_emptied()
        owner = Owner("g", 5, "session", None, "holder", is_live=True)
        refused = segment(node).set_owner(owner, now_ms=0)
        assert isinstance(refused, Rejected), "a grant that is not recorded is none"
        await node.broker.stream_sealer.record_emptied()
        end = segment(node).log.log_end_offset
        assert segment(node).set_owner(owner, now_ms=0) == Appended(end, end)


async def test_only_fifty_go_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencelog.broker.coordinators.stream_sealer.FILES_REMOVED_MAX", 2)
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer, segments=3)
        for index in range(3):
            await resized(peer, [index])
        for expected in (0, 2, 3):
            await node.broker.stream_sealer.record_emptied()
            topic = node.broker.catalog.get("s")
            assert topic is not None
            assert len(topic.without_files) == expected
