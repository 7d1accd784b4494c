"""CreateStream, DescribeStreams and ResizeStream, asked of a broker that is alone (R1, R2, R3)."""

import asyncio

import pytest

from fencelog.coordination.streams.model import HASH_SPACE
from fencelog.errors import ErrorCode
from fencelog.settings.stream_table import SEGMENTS_MAX
from fencelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from fencelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.support.node import Peer, World, delete, until
from tests.support.streams import (
    create_stream,
    describe_streams,
    resize,
    resized,
    segments_of,
    states_of,
)

HALF = HASH_SPACE // 2


async def test_a_stream_begins_with_open_segments_of_equal_ranges(world: World) -> None:  # R1
    async with world.node() as node, Peer.of(node) as peer:
        assert await create_stream(peer, segments=2) == (ErrorCode.NONE, None)
        (described,) = await describe_streams(peer)
        topic = node.broker.catalog.get("s")
        assert topic is not None
        assert (described.name, described.topic_id) == ("s", topic.topic_id)
        assert [(each.low, each.high, each.state) for each in described.segments] == [
            (0, HALF, "open"),
            (HALF, HASH_SPACE, "open"),
        ]


async def test_a_split_answers_when_its_successors_are_open(world: World) -> None:  # R2
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer, segments=2)
        assert await resized(peer, [0], at=100) == [2, 3]
        segments = await segments_of(peer)
        assert [each.state for each in segments] == ["sealed", "open", "open", "open"]
        assert [each.end_offset for each in segments] == [0, -1, -1, -1]
        assert [(each.low, each.high) for each in segments[2:]] == [(0, 100), (100, HALF)]
        assert [each.predecessors for each in segments] == [[], [], [0], [0]]
        partition = node.logs.get("s", 0)
        assert partition is not None
        assert partition.log.sealed_at == 0
        assert partition.log.high_watermark == 1


async def test_a_merge_answers_when_its_successor_is_open(world: World) -> None:  # R2
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer, segments=3)
        assert await resized(peer, [2, 1]) == [3]
        assert await states_of(peer) == ["open", "sealed", "sealed", "open"]
        assert await resized(peer, [3, 0]) == [4]
        assert await resized(peer, [4]) == [5, 6]
        assert (await states_of(peer)).count("open") == 2


@pytest.mark.parametrize(
    ("name", "segments", "settings", "error", "text"),
    [
        ("s", 0, {}, ErrorCode.INVALID_PARTITIONS, "1 to 10000 segments, not 0"),
        ("s", SEGMENTS_MAX + 1, {}, ErrorCode.INVALID_PARTITIONS, "not 10001"),
        ("s/", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION, "is not allowed"),
        ("t", 1, {}, ErrorCode.TOPIC_ALREADY_EXISTS, "topic t exists already"),
        ("__consumer_offsets", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION, "is internal"),
        ("s", 1, {"nothing": "1"}, ErrorCode.INVALID_CONFIG, "no such topic config"),
        (
            "s",
            1,
            {"cleanup.policy": "delete,compact"},
            ErrorCode.INVALID_CONFIG,
            "a stream cannot be compacted",
        ),
        (
            "s",
            1,
            {"stream.segments.min": "2"},
            ErrorCode.INVALID_PARTITIONS,
            "1 segments are not from stream.segments.min=2",
        ),
        (
            "s",
            3,
            {"stream.segments.max": "2"},
            ErrorCode.INVALID_PARTITIONS,
            "to stream.segments.max=2",
        ),
        (
            "s",
            3,
            {"stream.segments.min": "4", "stream.segments.max": "2"},
            ErrorCode.INVALID_CONFIG,
            "stream.segments.min=4: above stream.segments.max=2",
        ),
        ("s", 200, {}, ErrorCode.POLICY_VIOLATION, "fencelog.max.partitions is 100"),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_a_stream_that_cannot_be_is_refused_with_the_reason(
    world: World,
    name: str,
    segments: int,
    settings: dict[str, str],
    error: ErrorCode,
    text: str,
    *,
    validate_only: bool,
) -> None:
    async with world.node(partitions_max=100) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        code, message = await create_stream(
            peer, name, segments, settings, validate_only=validate_only
        )
        assert code is error
        assert text in str(message)
        assert await describe_streams(peer) == []


async def test_a_single_broker_has_one_replica_of_a_segment(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        code, message = await create_stream(peer, replication_factor=3)
        assert code is ErrorCode.INVALID_REPLICATION_FACTOR
        assert "must be 1, not 3" in str(message)


async def test_a_checked_stream_is_not_created(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        assert await create_stream(peer, validate_only=True) == (ErrorCode.NONE, None)
        assert await describe_streams(peer) == []


async def test_what_is_no_stream_is_described_without_segments(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await create_stream(peer)
        found = await describe_streams(peer, ["t", "nothing", "s", "t"])
        assert [(each.name, ErrorCode(each.error_code)) for each in found] == [
            ("t", ErrorCode.NONE),
            ("nothing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("s", ErrorCode.NONE),
        ]
        assert [len(each.segments) for each in found] == [0, 0, 1]
        assert found[0].topic_id != found[1].topic_id == bytes(16)
        assert [each.name for each in await describe_streams(peer)] == ["s"]


@pytest.mark.parametrize(
    ("segments", "at", "error", "text"),
    [
        ([0, 2], -1, ErrorCode.INVALID_REQUEST, "segments 0 and 2 are not adjacent"),
        ([9], -1, ErrorCode.INVALID_REQUEST, "there is no segment 9, only 0 to 4"),
        ([(1 << 31) - 1], -1, ErrorCode.INVALID_REQUEST, "there is no segment 2147483647"),
        ([-(1 << 31)], -1, ErrorCode.INVALID_REQUEST, "there is no segment -2147483648"),
        ([1], -1, ErrorCode.INVALID_REQUEST, "segment 1 is sealed; its successors are 3, 4"),
        ([0], 0, ErrorCode.INVALID_REQUEST, "both parts must have some of it"),
        ([0], -2, ErrorCode.INVALID_REQUEST, "cannot be split at -2"),
        ([0], 1 << 62, ErrorCode.INVALID_REQUEST, "cannot be split at"),
        ([0, 3], 5, ErrorCode.INVALID_REQUEST, "segments that merge are not split at 5"),
        ([], -1, ErrorCode.INVALID_REQUEST, "one segment splits"),
        ([0, 0], -1, ErrorCode.INVALID_REQUEST, "one segment splits"),
    ],
)
async def test_a_resize_that_makes_no_sense_is_refused_and_changes_nothing(
    world: World, segments: list[int], at: int, error: ErrorCode, text: str
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer, segments=3)
        await resized(peer, [1])
        before = await segments_of(peer)
        answer = await resize(peer, segments, at=at)
        assert ErrorCode(answer.error_code) is error
        assert text in str(answer.error_message)
        assert answer.successors == []
        assert await segments_of(peer) == before


@pytest.mark.parametrize(
    ("name", "error"),
    [("t", ErrorCode.INVALID_TOPIC_EXCEPTION), ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
)
async def test_what_is_no_stream_is_not_resized(world: World, name: str, error: ErrorCode) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        assert ErrorCode((await resize(peer, [0], name)).error_code) is error


async def test_a_resize_keeps_the_streams_and_the_brokers_limits(world: World) -> None:  # R3
    async with world.node(partitions_max=4) as node, Peer.of(node) as peer:
        limits = {"stream.segments.min": "2", "stream.segments.max": "2"}
        await create_stream(peer, "a", 2, limits)
        await create_stream(peer, "b", 1)
        for name, segments, text in (
            ("a", [0], "stream.segments.max is 2"),
            ("a", [0, 1], "stream.segments.min is 2"),
            ("b", [0], "fencelog.max.partitions is 4"),
        ):
            answer = await resize(peer, segments, name)
            assert ErrorCode(answer.error_code) is ErrorCode.POLICY_VIOLATION
            assert text in str(answer.error_message)


async def test_a_resize_that_takes_long_says_that_it_goes_on(world: World) -> None:  # R2
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        await create_stream(peer)
        world.disk.hold("s-0")
        answer = await resize(peer, [0], timeout_ms=20)
        assert ErrorCode(answer.error_code) is ErrorCode.REQUEST_TIMED_OUT
        assert answer.successors == [1, 2]
        assert "the resize goes on by itself" in str(answer.error_message)
        assert await states_of(peer) == ["sealing", "opening", "opening"]

        again = await resize(other, [0])
        assert ErrorCode(again.error_code) is ErrorCode.RESIZE_IN_PROGRESS
        early = await resize(other, [1, 2])
        assert ErrorCode(early.error_code) is ErrorCode.RESIZE_IN_PROGRESS

        world.disk.release()
        topic = node.broker.catalog.get("s")
        assert topic is not None
        await node.broker.streams.opened(topic.topic_id, [1, 2])
        assert await states_of(peer) == ["sealed", "open", "open"]


async def test_of_two_resizes_of_one_segment_at_once_one_is_in_progress(world: World) -> None:
    async with world.node() as node, Peer.of(node) as one, Peer.of(node) as two:
        await create_stream(one, segments=2)
        world.disk.hold("s-")
        both = [
            asyncio.create_task(resize(one, [0])),
            asyncio.create_task(resize(two, [0, 1])),
        ]
        await until(lambda: any(each.done() for each in both), "one is refused")
        world.disk.release()
        errors = sorted([(await each).error_code for each in both])
        assert errors == [ErrorCode.NONE, ErrorCode.RESIZE_IN_PROGRESS]
        open_ones = [each for each in await segments_of(one) if each.state == "open"]
        assert sum(each.high - each.low for each in open_ones) == HASH_SPACE


async def test_a_deleted_stream_ends_its_resize_and_can_be_made_again(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        await create_stream(peer)
        first = node.broker.catalog.get("s")
        world.disk.hold("s-0")
        waiting = asyncio.create_task(resize(peer, [0]))
        await until(lambda: world.disk.waiting, "the seal is being synced")
        deleting = asyncio.create_task(delete(other, "s"))
        answer = await waiting
        assert ErrorCode(answer.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.error_message == "the stream was deleted"
        world.disk.release()
        assert await deleting is ErrorCode.NONE
        assert ErrorCode((await resize(peer, [0])).error_code) is (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        assert await create_stream(peer, segments=2) == (ErrorCode.NONE, None)
        second = node.broker.catalog.get("s")
        assert first is not None
        assert second is not None
        assert first.topic_id != second.topic_id
        assert await states_of(peer) == ["open", "open"]


async def test_a_streams_partition_count_is_not_raised_by_kafkas_request(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="s", count=2)])
        answer = await peer.ask(request, 3, CreatePartitionsResponse)
        assert ErrorCode(answer.results[0].error_code) is ErrorCode.POLICY_VIOLATION
        assert "fencelog stream split" in str(answer.results[0].error_message)


async def test_stock_clients_see_every_segment_as_a_partition(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        world.disk.hold("s-0")
        await resize(peer, [0], timeout_ms=0)
        request = MetadataRequest(topics=[MetadataRequestTopic(name="s")])
        answer = await peer.ask(request, 12, MetadataResponse)
        found = answer.topics[0].partitions
        assert [(each.partition_index, each.error_code) for each in found] == [
            (0, 0),
            (1, 0),
            (2, 0),
        ]
        world.disk.release()


async def test_a_broker_that_stops_answers_a_resize_that_waits(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        world.disk.hold("s-0")
        waiting = asyncio.create_task(resize(peer, [0]))
        await until(lambda: world.disk.waiting, "the seal is being synced")
        node.broker.streams.close()
        answer = await waiting
        assert ErrorCode(answer.error_code) is ErrorCode.REQUEST_TIMED_OUT
        assert "the broker stops; the resize goes on by itself" in str(answer.error_message)
        world.disk.release()
