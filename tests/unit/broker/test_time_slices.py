"""Long requests run in time slices; a request that no client sends is refused before its work."""

import asyncio
import warnings
from itertools import pairwise

import pytest

from fencelog.broker.handlers import record_keys
from fencelog.broker.network.time_slices import ITEMS_PER_SLICE, TimeSlices
from fencelog.broker.partitions.concurrency import CONCURRENCY_MAX, run_bounded
from fencelog.errors import ErrorCode
from fencelog.types import TimestampMs
from fencelog.wire import hot
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.batch import Compression, read_header
from fencelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from fencelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from fencelog.wire.primitives import REQUEST_ITEMS_MAX
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.node import Peer, World, batch


def many(count: int, key: bytes | None = b"k", value: bytes = b"", **how: object) -> bytearray:
    record = RecordToWrite(key=key, value=value, timestamp_ms=1000)
    return build_batch([record] * count, **how)  # type: ignore[arg-type]


async def test_waiting_requests_get_one_time_slice_each_iteration_in_order() -> None:
    turns, loop_turn, went = TimeSlices(), 0, []

    async def work(who: str) -> None:
        async for _ in turns.each(range(2 * ITEMS_PER_SLICE)):
            pass
        went.append((who, loop_turn))

    tasks = [asyncio.create_task(work(who)) for who in "abc"]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        loop_turn += 1
    assert [who for who, _ in went] == ["a", "b", "c"]
    assert len({at for _, at in went}) == 3


async def test_a_closed_connection_takes_no_time_slice() -> None:
    turns = TimeSlices()
    gone, here = asyncio.create_task(turns.next()), asyncio.create_task(turns.next())
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(5):
        await here
        await turns.next()


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.FETCH])
def test_a_request_of_more_items_than_any_client_has_closes_its_connection(
    world: World, key: ApiKey, caplog: pytest.LogCaptureFixture
) -> None:
    count = REQUEST_ITEMS_MAX + 1
    if key is ApiKey.METADATA:
        body = MetadataRequest(topics=[MetadataRequestTopic(name="t")] * count).write(9)
    elif key is ApiKey.PRODUCE:
        body = b"".join(hot.write_produce_request(9, None, -1, 1, [("t", [(0, b"")] * count)]))
    else:
        topic = hot.FetchTopic("t", None, [hot.FetchPartition(0, -1, 0, -1, 1)] * count)
        body = hot.write_fetch_request(9, hot.FetchRequest(-1, 0, 0, 1, 0, 0, -1, [topic]))

    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
            peer.send(key, 9, body)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await peer.answer(key, 9)
            answer = await other.ask(ApiVersionsRequest(), 3, ApiVersionsResponse)
            assert answer.error_code == 0

    asyncio.run(scenario())
    assert "too many items" in caplog.text


async def test_a_produce_over_many_partitions_is_answered_for_each_and_in_order(
    world: World,
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        one = batch("a")
        parts = [(0, one)] * (ITEMS_PER_SLICE + 5) + [(9, one)]
        peer.send(0, 9, *hot.write_produce_request(9, None, -1, 30_000, [("t", parts)]))
        peer.send_produce("t", batch("after"))
        topics, *_ = hot.read_produce_response(await peer.answer(0, 9), 9)
        offsets = [result.base_offset for result in topics[0][1]]
        assert offsets == [*range(ITEMS_PER_SLICE + 5), -1]
        assert topics[0][1][-1].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await peer.produced()).base_offset == ITEMS_PER_SLICE + 5


async def test_a_metadata_request_of_thousands_of_topics_is_answered_for_each(world: World) -> None:
    names = [f"no-topic-{number}" for number in range(5000)]
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    async with world.node() as node, Peer.of(node) as peer:
        answer = await peer.ask(asked, 9, MetadataResponse)
        assert sorted(str(topic.name) for topic in answer.topics) == sorted(names)


async def test_a_large_batch_for_a_compacted_topic_is_looked_through_whole(
    world: World,
) -> None:  # F4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("c", cleanup_policy="compact")
        count = record_keys.RECORDS_AT_ONCE + 1
        assert (await peer.produce("c", many(count))).error is ErrorCode.NONE
        peer.send_produce("c", many(count, key=None))
        peer.send_produce("c", many(1))
        refused, stored = await peer.produced(), await peer.produced()
        assert refused.error is ErrorCode.INVALID_RECORD
        assert len(refused.record_errors) == record_keys.RECORD_ERRORS_MAX
        assert f"{count} of {count}" in str(refused.error_message)
        assert (stored.error, stored.base_offset) == (ErrorCode.NONE, count)


def bomb_of(name: str) -> bytearray:
    """A batch that unpacks to too many bytes, or to too many records."""
    if name == "bytes":
        return many(40, value=bytes(1 << 20), compression=Compression.ZSTD)
    return many(record_keys.RECORDS_MAX + 1, compression=Compression.ZSTD)


@pytest.mark.parametrize("name", ["bytes", "records"])
async def test_a_batch_that_unpacks_to_more_than_any_client_sends_is_not_opened(
    world: World, name: str
) -> None:
    bomb = bomb_of(name)
    assert len(bomb) < 200_000
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("c", cleanup_policy="compact")
        assert (await peer.produce("c", bomb)).error is ErrorCode.MESSAGE_TOO_LARGE
        assert (await peer.produce("c", many(1))).base_offset == 0


async def test_a_time_in_a_batch_that_unpacks_to_very_much_is_found_at_its_begin(
    world: World,
) -> None:
    bomb = bomb_of("bytes")
    asked = ListOffsetsPartition(partition_index=0, timestamp=TimestampMs(500))
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])]
    )
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        assert (await peer.produce("t", bomb)).error is ErrorCode.NONE
        answer = await peer.ask(request, 7, ListOffsetsResponse)
        found = answer.topics[0].partitions[0]
        assert (found.error_code, found.offset) == (0, 0)
        assert found.timestamp == read_header(bomb).max_timestamp


async def test_of_much_work_so_many_pieces_are_under_way_and_begun_in_order() -> None:
    begun: list[int] = []
    go_on = asyncio.Event()

    async def piece(number: int) -> None:
        begun.append(number)
        await go_on.wait()

    work = asyncio.create_task(
        run_bounded([piece(number) for number in range(CONCURRENCY_MAX + 3)])
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert begun == list(range(CONCURRENCY_MAX))
    go_on.set()
    await work
    assert begun == list(range(CONCURRENCY_MAX + 3))


async def test_others_run_between_pieces_that_wait_for_nothing() -> None:
    begun: list[int] = []

    async def piece(number: int) -> None:
        begun.append(number)

    count = 10 * CONCURRENCY_MAX
    work = asyncio.create_task(run_bounded([piece(number) for number in range(count)]))
    seen = [0]
    while not work.done():
        await asyncio.sleep(0)
        seen.append(len(begun))
    assert seen[-1] == count
    assert max(after - before for before, after in pairwise(seen)) <= CONCURRENCY_MAX


def test_where_a_piece_of_work_raises_the_rest_is_given_up() -> None:
    async def scenario() -> None:
        async def bad() -> None:
            raise OSError("no")

        stuck = asyncio.Event()

        async def long() -> None:
            await stuck.wait()

        never = [long() for _ in range(CONCURRENCY_MAX)]
        with pytest.raises(OSError, match="no"):
            await run_bounded([bad(), *never, long()])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(scenario())
