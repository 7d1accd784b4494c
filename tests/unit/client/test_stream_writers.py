"""What a writer does with a stream, and at a seal."""

import asyncio
from dataclasses import replace

import pytest

from fencelog.client.model import Delivery
from fencelog.client.partition_sender import RESIZE_PAUSE_S, _has_forgotten, _has_stored, _Queued
from fencelog.client.records_buffer import RecordsBuffer, key_hash
from fencelog.client.sender import WAITING_BYTES_MAX, ProducerOptions
from fencelog.client.streams.known import ExplicitPartitionError
from fencelog.client.streams.ranges import ranges_of
from fencelog.coordination.streams import rules
from fencelog.coordination.streams.model import HASH_SPACE
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.hot import SealedSegment, Successor
from tests.unit.client.stream_world import ID, TIMEOUT_S, TOPIC, World, Writer, steps, story

KEYS = [b"k%d" % number for number in range(20)]
LOW = next(key for key in KEYS if key_hash(key) < HASH_SPACE // 2)
HIGH = next(key for key in KEYS if key_hash(key) >= HASH_SPACE // 2)
OTHER_HIGH = next(key for key in KEYS if key_hash(key) >= HASH_SPACE // 2 and key != HIGH)
HALVES = [Successor(1, 0, HASH_SPACE // 2), Successor(2, HASH_SPACE // 2, HASH_SPACE)]
SEALED, RESIZING = ErrorCode.SEGMENT_SEALED, ErrorCode.RESIZE_IN_PROGRESS
NONE = ErrorCode.NONE


def place(segment: int) -> TopicPartition:
    return TopicPartition(TOPIC, segment)


@story
async def test_a_key_is_written_to_the_segment_with_its_hash() -> None:  # R1
    world = World(3)
    writer = await Writer.open(world)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    for key in KEYS:
        assert world.order_of(key) == [0]
    assert {index for index, _ in world.written} == {0, 1, 2}
    await writer.sender.close()


@story
async def test_each_batch_says_the_median_of_its_hashes_and_none_without_keys() -> None:  # R3
    world = World()
    writer = await Writer.open(world)
    await writer.queue(*KEYS[:4], None)
    await writer.queue(None, None)
    await writer.sender.flush()
    assert world.medians == [sorted(key_hash(key) for key in KEYS[:4])[1], -1]
    await writer.sender.close()


@story
async def test_records_without_a_key_take_turns_at_the_segments_by_batches() -> None:
    world = World(3)
    writer = await Writer.open(world)
    for _ in range(3):
        await writer.queue(None, None)
    await writer.sender.flush()
    assert {index: len(world.rows(index)) for index in range(3)} == {0: 2, 1: 2, 2: 2}
    await writer.sender.close()


@story
async def test_a_topic_is_asked_about_once_even_if_its_leaders_are_looked_up_again() -> None:
    world = World(2)
    writer = await Writer.open(world)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    world.cluster.forget(TOPIC)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    assert world.asked.count(ApiKey.DESCRIBE_STREAMS) == 1
    assert world.asked.count(ApiKey.METADATA) == 2
    await writer.sender.close()


@story
async def test_what_was_known_before_a_description_from_behind_is_kept() -> None:  # R1
    world = World()
    writer = await Writer.open(world)
    await writer.queue(LOW)
    world.split(0)
    await writer.queue(LOW)
    await writer.sender.flush()
    old = ranges_of(ID, world.history[0])
    world.cluster.streams.learn(TOPIC, ID, old)
    known = world.cluster.streams.ranges(TOPIC, ID)
    assert known is not None
    assert [each.segment for each in known.covering] == [1, 2]
    await writer.sender.close()


def test_a_partition_of_a_stream_cannot_be_named() -> None:  # R1
    buffer = RecordsBuffer(batch_bytes=1000, compression="none")
    stream = rules.created(2)
    assert not isinstance(stream, rules.Refused)
    ranges = ranges_of(ID, stream)
    with pytest.raises(ExplicitPartitionError, match=r"topic s is a stream.*it was 1"):
        buffer.add(TOPIC, ranges, b"k", b"v", 1, (), 0)
    assert buffer.take() == []


@story
async def test_what_a_sealed_segment_has_counts_as_stored_and_the_rest_begins_anew() -> None:  # R2
    world = World()
    world.sealed_know_duplicates = False
    writer = await Writer.open(world)
    world.is_prompt = False
    await writer.queue(LOW, HIGH, LOW)
    await steps()
    world.arrive(is_answered=False)
    world.line.close()
    await writer.queue(HIGH, LOW)
    world.split(0)
    world.is_prompt = True
    deliveries = await writer.sender.flush()
    assert (world.order_of(LOW), world.order_of(HIGH)) == ([0, 1, 2], [0, 1])
    assert deliveries[0] == Delivery(partition=place(0), base_offset=-1, count=3)
    assert {each.partition for each in deliveries[1:]} == {place(1), place(2)}
    assert all(log.batches[0].first == 0 for log in world.logs.values())
    await writer.sender.close()


async def in_doubt_where_forgotten(world: World, writer: Writer) -> None:
    """The second of two batches is in doubt, and its sealed segment has forgotten the producer."""
    await writer.queue(LOW)
    await writer.sender.flush()
    world.is_prompt = False
    await writer.queue(LOW)
    await steps()
    assert world.arrive(is_answered=False)
    world.line.close()
    world.split(0)
    world.logs[0].last.clear()
    world.logs[0].recent.clear()
    world.is_prompt = True


@story
async def test_a_batch_in_doubt_is_not_written_again_where_its_segment_has_forgotten_it() -> None:
    # R2
    world = World()
    writer = await Writer.open(world)
    await in_doubt_where_forgotten(world, writer)
    why = "sealed and knows this producer no more, .* whether these were stored before is not known"
    with pytest.raises(RequestError, match=why) as told:
        await writer.sender.flush()
    assert told.value.code is ErrorCode.UNKNOWN_PRODUCER_ID
    assert world.order_of(LOW) == [0, 1]


@story
async def test_a_transaction_that_its_sealed_segment_has_no_more_is_over() -> None:  # R2, V5
    world = World()
    writer = await Writer.open(world, ProducerOptions(transactional_id="x"))
    await writer.sender.begin()
    await in_doubt_where_forgotten(world, writer)
    with pytest.raises(RequestError, match="no transaction of this producer is open") as told:
        await writer.sender.flush()
    assert told.value.code is ErrorCode.INVALID_TXN_STATE
    assert world.order_of(LOW) == [0, 1], "nothing is written to a successor"


@story
async def test_a_batch_that_was_never_in_doubt_is_written_though_its_segment_has_forgotten() -> (
    None
):
    # R2
    world = World()
    writer = await Writer.open(world)
    await writer.queue(LOW)
    await writer.sender.flush()
    world.split(0)
    world.logs[0].last.clear()
    world.logs[0].recent.clear()
    await writer.queue(LOW)
    await writer.sender.flush()
    assert [len(world.rows(index)) for index in (0, 1)] == [1, 1]


@pytest.mark.parametrize(
    ("last", "has_forgotten"), [(-1, True), (8, True), (9, False), (12, False)]
)
def test_a_segment_has_forgotten_if_it_lacks_what_came_before(  # R2
    last: int, has_forgotten: bool
) -> None:
    class Batch:
        count = 3

    queued = _Queued(Batch(), was_sent=True, is_in_doubt=True, sequence=13)  # type: ignore[arg-type]
    assert _has_forgotten(SealedSegment(5, last, ()), queued, 9) is has_forgotten
    assert not _has_forgotten(SealedSegment(5, last, ()), queued, -1), "nothing was stored before"
    queued.is_in_doubt = False
    assert not _has_forgotten(SealedSegment(5, last, ()), queued, 9)


@story
async def test_batches_in_doubt_behind_one_that_was_not_stored_are_written_to_successors() -> None:
    # R2
    world = World()
    writer = await Writer.open(world)
    await writer.queue(LOW)
    await writer.sender.flush()
    world.is_prompt = False
    for _ in range(3):
        await writer.queue(LOW)
    await steps()
    assert len(world.line.waiting) == 3
    world.line.close()
    world.late.clear()
    world.split(0)
    world.is_prompt = True
    await writer.sender.flush()
    assert world.order_of(LOW) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("last", "is_stored"),
    [(-1, False), (9, False), (11, False), (12, True), (13, True), ((1 << 31) - 1, False)],
)
def test_a_batch_is_stored_if_its_last_sequence_is_not_above_the_one_named(  # R2
    last: int, is_stored: bool
) -> None:
    class Batch:
        count = 3

    queued = _Queued(Batch(), was_sent=True, sequence=10)  # type: ignore[arg-type]
    assert _has_stored(SealedSegment(5, last, ()), queued) is is_stored


def test_sequences_that_have_wrapped_are_compared_by_their_distance() -> None:  # E1, R2
    class Batch:
        count = 3

    wraps = _Queued(Batch(), was_sent=True, sequence=(1 << 31) - 2)  # type: ignore[arg-type]
    assert _has_stored(SealedSegment(5, 0, ()), wraps)
    assert not _has_stored(SealedSegment(5, (1 << 31) - 1, ()), wraps)


@story
async def test_newer_records_wait_behind_what_the_old_segment_has_not_settled() -> None:  # R2
    world = World()
    writer = await Writer.open(world)
    await writer.queue(LOW)
    await writer.sender.flush()
    world.is_prompt = False
    await writer.queue(LOW)
    await steps()
    world.split(0)
    world.cluster.learn_successors(TOPIC, ID, HALVES)
    await writer.queue(LOW)
    await steps()
    assert len(world.line.waiting) == 1  # the one to the old segment
    world.is_prompt = True
    world.arrive()
    await writer.sender.flush()
    assert world.order_of(LOW) == [0, 1, 2]
    assert world.written == [(0, NONE), (0, SEALED), (1, NONE), (1, NONE)]
    await writer.sender.close()


@story
async def test_what_comes_to_a_sealed_segment_late_goes_behind_what_came_before_it() -> None:  # R2
    world = World()
    writer = await Writer.open(world)
    world.is_prompt = False
    for _ in range(3):
        await writer.queue(LOW)
    await steps()
    world.split(0)
    await writer.add(LOW)  # divided by the old range
    world.arrive()  # the seal is known, and the successor has what was queued
    await steps()
    await writer.add(LOW)
    await writer.sender.enqueue(writer.buffer.take())
    world.is_prompt = True
    world.arrive()
    await writer.sender.flush()
    assert world.order_of(LOW) == [0, 1, 2, 3, 4]
    await writer.sender.close()


@story
async def test_a_segment_in_the_midst_of_sending_stops_for_what_comes_before_it() -> None:  # R2
    world = World()
    writer = await Writer.open(world)
    await writer.add(HIGH)
    late = writer.buffer.take()  # divided by the old range
    world.split(0)
    world.cluster.learn_successors(TOPIC, ID, HALVES)
    await writer.queue(LOW, OTHER_HIGH)
    await writer.sender.flush()
    world.is_prompt = False
    await writer.queue(OTHER_HIGH)
    await writer.queue(OTHER_HIGH)
    await steps()
    await writer.sender.enqueue(late)
    await steps()
    await writer.queue(HIGH)
    world.arrive()  # the first of the successor's, whose second is on its way
    await steps()
    assert len(world.line.waiting) == 2
    world.is_prompt = True
    world.arrive()
    world.arrive()
    await writer.sender.flush()
    assert (world.order_of(HIGH), world.order_of(OTHER_HIGH)) == ([0, 1], [0, 1, 2])
    await writer.sender.close()


@story
async def test_a_merge_waits_for_both_of_its_predecessors() -> None:  # R2
    world = World(2)
    writer = await Writer.open(world)
    world.is_prompt = False
    await writer.queue(LOW)
    await writer.queue(HIGH)
    await steps()
    world.merge(0, 1)
    world.arrive()  # the first predecessor's is refused
    await steps()
    await writer.queue(HIGH)
    await steps()
    assert len(world.line.waiting) == 1
    assert world.written == [(0, SEALED)]
    world.is_prompt = True
    world.arrive()
    await writer.sender.flush()
    assert (world.order_of(LOW), world.order_of(HIGH)) == ([0], [0, 1])
    await writer.sender.close()


@story
async def test_batches_that_were_made_before_a_seal_go_where_their_keys_belong_now() -> None:  # R2
    world = World()
    writer = await Writer.open(world)
    await writer.queue(LOW, HIGH)
    await writer.sender.flush()
    await writer.add(LOW, HIGH)  # divided by the old range, and not queued yet
    world.split(0)
    other = await Writer.open(world)
    await other.queue(None)
    await other.sender.flush()  # the client learns of the seal
    await writer.add(HIGH, LOW)
    await writer.sender.enqueue(writer.buffer.take())
    await writer.sender.flush()
    assert (world.order_of(LOW), world.order_of(HIGH)) == ([0, 1, 2], [0, 1, 2])
    for each in (writer, other):
        await each.sender.close()


@story
async def test_a_successor_that_is_sealed_before_it_has_anything_is_followed_on() -> None:  # R2
    world = World()
    writer = await Writer.open(world)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    world.split(0)
    world.split(1)
    world.split(3)
    world.merge(2, 4)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    for key in KEYS:
        assert world.order_of(key) == [0, 1]
    await writer.sender.close()


@story
async def test_a_producer_that_is_not_idempotent_gives_on_what_was_refused() -> None:  # R2, F5
    world = World()
    writer = await Writer.open(world, ProducerOptions(idempotent=False, acks=1))
    await writer.queue(*KEYS)
    world.split(0)
    await writer.queue(*KEYS)
    await writer.sender.flush()
    for key in KEYS:
        assert world.order_of(key) == [0, 1]
    await writer.sender.close()


@story
async def test_what_is_moved_counts_as_waiting_until_it_is_stored() -> None:
    world = World()
    writer = await Writer.open(world)
    world.split(0)
    world.cluster.streams.learn(TOPIC, ID, ranges_of(ID, world.history[0]))
    await writer.queue(*KEYS)
    world.is_prompt = False
    flushed = asyncio.ensure_future(writer.sender.flush())
    while not world.written or world.written[-1][1] is not SEALED:
        world.arrive()
        await steps(1)
    await steps()
    assert not flushed.done()
    assert 0 < writer.sender._waiting_bytes < WAITING_BYTES_MAX
    world.is_prompt = True
    while world.arrive():
        pass
    await flushed
    assert writer.sender._waiting_bytes == 0
    await writer.sender.close()


@story
async def test_a_segment_that_is_being_sealed_is_asked_again_after_a_short_pause() -> None:  # R2
    world = World()
    writer = await Writer.open(world)
    await writer.queue(LOW)
    await writer.sender.flush()
    world.refuse.extend([RESIZING] * 4)
    began = asyncio.get_running_loop().time()
    await writer.queue(LOW)
    await writer.sender.flush()
    took_s = asyncio.get_running_loop().time() - began
    assert 4 * RESIZE_PAUSE_S <= took_s < 5 * RESIZE_PAUSE_S
    await writer.sender.close()


@story
async def test_a_resize_that_never_ends_fails_the_writer_at_its_deadline() -> None:
    world = World()
    writer = await Writer.open(world)
    await writer.queue(LOW)
    await writer.sender.flush()
    world.refuse.extend([RESIZING] * 10_000)
    began = asyncio.get_running_loop().time()
    await writer.queue(LOW)
    with pytest.raises(RequestError, match=r"s-0.*given up after 20 s") as caught:
        await writer.sender.flush()
    assert caught.value.code is RESIZING
    assert asyncio.get_running_loop().time() - began < TIMEOUT_S + 1
    await writer.sender.close()


@story
async def test_successors_that_lack_a_part_of_the_range_fail_the_writer() -> None:
    world = World()
    writer = await Writer.open(world)
    world.split(0)
    assert world.stream is not None
    world.history[-1] = world.history[0]
    wrong = world.stream.changed([replace(world.stream.segments[2], low=HASH_SPACE - 5)])
    world.stream = wrong
    await writer.queue(LOW)
    with pytest.raises(RequestError, match=r"segment 0 of stream s.*its successors have 0 to"):
        await writer.sender.flush()
    await writer.sender.close()


@story
async def test_an_abort_drops_what_was_moved_and_the_next_transaction_begins_anew() -> None:  # E10
    world = World()
    writer = await Writer.open(world, ProducerOptions(transactional_id="x"))
    await writer.sender.begin()
    await writer.queue(LOW)
    await writer.sender.flush()
    world.split(0)
    world.is_prompt = False
    await writer.queue(LOW)
    await steps()
    world.arrive()
    await steps()
    await writer.sender.end(commit=False)
    world.line.close()
    world.is_prompt = True
    await writer.sender.begin()
    await writer.queue(LOW)
    await writer.sender.flush()
    await writer.sender.end(commit=True)
    world.arrive_late()  # of the aborted one: fenced by its epoch
    assert world.order_of(LOW) == [2]
    assert world.written[-1] == (1, ErrorCode.INVALID_PRODUCER_EPOCH)
    await writer.sender.close()
