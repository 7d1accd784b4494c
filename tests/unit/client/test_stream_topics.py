"""A topic that is another than a writer has known: each batch is divided again, once."""

import pytest

from fencelog.client.partition_sender import ProducerIdentity
from fencelog.client.records_buffer import partition_of
from fencelog.client.sender import ProducerOptions
from fencelog.coordination.streams import rules
from fencelog.coordination.streams.model import Stream
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import ApiKey
from tests.unit.client.stream_world import TOPIC, World, Writer, story

KEYS = [b"k%d" % number for number in range(20)]
POLICY, UNKNOWN = ErrorCode.POLICY_VIOLATION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def made(change: Stream | rules.Refused) -> Stream:
    assert isinstance(change, Stream)
    return change


def ordinary(partitions: int = 1) -> World:
    world = World()
    world.create_anew(None, b"o" * 16)
    world.partitions = partitions
    return world


@story
async def test_an_ordinary_topic_is_asked_about_once_and_written_without_tags() -> None:
    world = ordinary(3)
    writer = await Writer.open(world)
    for _ in range(3):
        await writer.queue(*KEYS)
        await writer.sender.flush()
        world.cluster.forget(TOPIC)
    assert set(world.medians) == {None}
    assert world.asked.count(ApiKey.DESCRIBE_STREAMS) == 1
    for index in range(3):
        assert all(partition_of(key or b"", 3) == index for key, _ in world.rows(index))
    await writer.sender.close()


@story
async def test_a_broker_that_knows_no_streams_is_not_asked() -> None:
    world = ordinary()
    del world.line.versions[ApiKey.DESCRIBE_STREAMS]
    writer = await Writer.open(world)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    assert ApiKey.DESCRIBE_STREAMS not in world.asked
    await writer.sender.close()


@story
async def test_a_topic_that_has_become_a_stream_is_divided_by_range_once() -> None:
    world = ordinary(4)
    writer = await Writer.open(world)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    world.create_anew(made(rules.created(3)))
    await writer.queue(*KEYS)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    for key in KEYS:
        assert world.order_of(key) == [1, 2]
    assert [error for _, error in world.written].count(POLICY) <= 8
    await writer.sender.close()


@story
async def test_a_stream_that_refuses_what_is_divided_by_its_ranges_is_final() -> None:
    world = ordinary()
    writer = await Writer.open(world)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    world.create_anew(made(rules.created(1)))
    world.refuse.extend([POLICY] * 50)
    await writer.queue(*KEYS)
    with pytest.raises(RequestError, match="s-0") as caught:
        await writer.sender.flush()
    assert caught.value.code is POLICY
    assert len(world.refuse) == 48
    await writer.sender.close()


@story
async def test_a_refusal_by_a_policy_of_a_topic_that_is_no_stream_is_final() -> None:
    world = ordinary()
    writer = await Writer.open(world)
    world.refuse.extend([POLICY] * 50)
    await writer.queue(*KEYS)
    with pytest.raises(RequestError) as caught:
        await writer.sender.flush()
    assert caught.value.code is POLICY
    assert len(world.refuse) == 49
    await writer.sender.close()


@story
async def test_a_stream_that_has_become_an_ordinary_topic_is_divided_by_partitions() -> None:
    world = World(4)
    writer = await Writer.open(world)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    world.create_anew(None)
    world.partitions = 3
    await writer.queue(*KEYS)
    world.refuse.extend([UNKNOWN] * 8)  # while it is deleted
    await writer.queue(*KEYS)
    await writer.sender.flush()
    for index in range(3):
        of_partition = {(key, n) for key in KEYS for n in (1, 2) if partition_of(key, 3) == index}
        assert set(world.rows(index)) == of_partition
        assert len(world.rows(index)) == len(of_partition)
    await writer.sender.close()


@story
async def test_a_stream_that_was_created_anew_is_divided_by_its_new_ranges() -> None:  # R1
    world = World(4)
    writer = await Writer.open(world)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    world.create_anew(made(rules.created(2)))
    world.refuse.extend([UNKNOWN] * 8)  # while it is deleted
    await writer.queue(*KEYS)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    for key in KEYS:
        assert world.order_of(key) == [1, 2]
    await writer.sender.close()


@story
async def test_no_key_gets_into_the_range_of_another_of_a_stream_made_anew_between_two_writes() -> (
    None
):
    # R1
    world = World(4)
    writer = await Writer.open(world)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    world.create_anew(made(rules.created(3)))
    await writer.queue(*KEYS)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    for key in KEYS:
        assert world.order_of(key) == [1, 2]
    assert ErrorCode.UNKNOWN_TOPIC_ID in {error for _, error in world.written}
    await writer.sender.close()


@story
async def test_a_topic_that_changes_for_ever_fails_the_writer() -> None:
    world = World(1)
    writer = await Writer.open(world)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    world.refuse.extend([UNKNOWN] * 10_000)
    answer, turn = world.answer, 0

    def another(api_key: int, version: int, body: bytes) -> object:
        nonlocal turn
        turn += api_key in (ApiKey.PRODUCE, ApiKey.METADATA)
        world.topic_id = (b"%016d" % (turn // 3))[:16]  # type: ignore[assignment]
        return answer(api_key, version, body)

    world.answer = another  # type: ignore[assignment,method-assign]
    await writer.queue(*KEYS)
    with pytest.raises(RequestError):
        await writer.sender.flush()
    await writer.sender.close()


@story
async def test_a_segment_that_retention_has_removed_is_passed_over() -> None:  # R2
    world = World()
    writer = await Writer.open(world)
    await writer.add(*KEYS)  # divided by the first range
    world.split(0)
    assert world.stream is not None
    world.stream = rules.emptied(world.stream, 0)
    await writer.sender.enqueue(writer.buffer.take())
    await writer.sender.flush()
    for key in KEYS:
        assert world.order_of(key) == [0]
    await writer.sender.close()


@story
async def test_a_producer_of_the_first_transaction_version_knows_no_streams() -> None:
    world = World()
    identity = ProducerIdentity(7, 0, "x", partitions_added=True)
    writer = await Writer.open(world, ProducerOptions(identity=identity))
    world.cluster.streams.learn(TOPIC, world.topic_id, None)
    of_partition = writer.sender._create_sender(TopicPartition(TOPIC, 0), None, None)
    refused = RequestError(POLICY, "topic s is a stream")
    assert await writer.sender.places_after(of_partition, refused, None) is None
    await writer.sender.close()


@story
async def test_a_broker_that_cannot_take_tags_is_named() -> None:
    world = World()
    writer = await Writer.open(world)
    world.line.versions[ApiKey.PRODUCE] = (3, 8)
    await writer.queue(*KEYS)
    with pytest.raises(RequestError) as caught:
        await writer.sender.flush()
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    await writer.sender.close()
