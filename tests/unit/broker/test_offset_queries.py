"""Where a partition begins and ends, by isolation, time and leader epoch (F6, F7)."""

import pytest

from fencelog.errors import ErrorCode
from fencelog.wire import hot
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.node import FETCH, Peer, World, batch
from tests.support.transactions import Producer

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
REPLICATED, TRANSACTIONAL = 0, 1
NOW_MS = 1_700_000_000_000


async def asked(
    peer: Peer, timestamp: int, *, isolation: int = REPLICATED, epoch: int = -1, version: int = 7
) -> tuple[ErrorCode, int, int]:
    """Error, offset and timestamp."""
    part = ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name="t", partitions=[part])],
    )
    answer = await peer.ask(request, version, ListOffsetsResponse)
    found = answer.topics[0].partitions[0]
    return ErrorCode(found.error_code), found.offset, found.timestamp


def timed(*timestamps: int) -> bytearray:
    return build_batch([RecordToWrite(None, b"v", NOW_MS + each) for each in timestamps])


async def test_an_empty_partition_begins_and_ends_at_zero(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        for end in (EARLIEST, LATEST):
            assert await asked(peer, end) == (ErrorCode.NONE, 0, -1)
        for time in (MAX_TIMESTAMP, 0, NOW_MS):
            assert await asked(peer, time) == (ErrorCode.NONE, -1, -1)


async def test_a_reader_of_each_isolation_finds_its_own_end(world: World) -> None:  # E10, F6
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.produce("t", batch("a"))
        producer = Producer(peer)
        await producer.init()
        await producer.add("t", 0)
        await producer.produce("t", "open")
        assert await asked(peer, LATEST, isolation=REPLICATED) == (ErrorCode.NONE, 2, -1)
        assert await asked(peer, LATEST, isolation=TRANSACTIONAL) == (ErrorCode.NONE, 1, -1)
        world.disk.hold("t-0/")
        peer.send_produce("t", batch("not durable"), acks=1)
        await peer.produced()
        assert await asked(peer, LATEST, isolation=REPLICATED) == (ErrorCode.NONE, 2, -1)
        world.disk.release()


async def test_the_largest_timestamp_is_found_wherever_it_is(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        for timestamps in ((10, 20), (90, 30), (40, 50)):
            await peer.produce("t", timed(*timestamps))
        assert await asked(peer, MAX_TIMESTAMP) == (ErrorCode.NONE, 2, NOW_MS + 90)
        assert await asked(peer, NOW_MS + 15) == (ErrorCode.NONE, 1, NOW_MS + 20)
        assert await asked(peer, NOW_MS + 91) == (ErrorCode.NONE, -1, -1)
    async with world.node(durability="os") as node, Peer.of(node) as peer:
        assert await asked(peer, MAX_TIMESTAMP) == (ErrorCode.NONE, 2, NOW_MS + 90)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.NONE),
        (3, ErrorCode.NONE),
        (2, ErrorCode.FENCED_LEADER_EPOCH),
        (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_another_leader_epoch_is_refused(
    world: World, epoch: int, error: ErrorCode
) -> None:  # F7
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.produce("t", batch("a"))
        node.broker.logs.get("t", 0).log.leader_epoch = 3
        for timestamp in (LATEST, EARLIEST, MAX_TIMESTAMP, 0):
            assert (await asked(peer, timestamp, epoch=epoch))[0] is error
        part = hot.FetchPartition(0, epoch, 0, -1, 1 << 20)
        limits = (-1, 0, 1, 1 << 20, 0, 0, -1)
        request = hot.FetchRequest(*limits, [hot.FetchTopic("t", None, [part])])
        peer.send(FETCH, 11, hot.write_fetch_request(11, request))
        answer = hot.read_fetch_response(await peer.answer(FETCH, 11), 11)
        assert answer.topics[0].partitions[0].error is error


async def test_one_tier_begins_at_the_log_start_and_has_nothing_remote(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.produce("t", batch("a", "b"))
        for special, version, found in ((-4, 8, 0), (-5, 9, -1), (-6, 11, -1)):
            assert await asked(peer, special, version=version) == (ErrorCode.NONE, found, -1)
            older = await asked(peer, special, version=version - 1)
            assert older == (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
        never = await asked(peer, -7, version=11)
        assert never == (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
        assert await asked(peer, LATEST, version=11) == (ErrorCode.NONE, 2, -1)
