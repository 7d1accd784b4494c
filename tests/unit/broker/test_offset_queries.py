"""Where a partition begins and ends, by isolation, time and leader epoch (F6, F7)."""

import pytest

from fencelog.broker.metadata.catalog import GROUP_TOPIC
from fencelog.broker.network.time_slices import TimeSlices
from fencelog.errors import ErrorCode
from fencelog.storage import segment
from fencelog.types import Offset, TimestampMs
from fencelog.wire import hot
from fencelog.wire.batch import HEADER_BYTES, BatchHeader, read_header, seal
from fencelog.wire.filtering import plain_records
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.node import FETCH, Peer, World, batch, delete
from tests.support.transactions import Producer

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
REPLICATED, TRANSACTIONAL = 0, 1
NOW_MS = 1_700_000_000_000


async def asked(
    peer: Peer,
    timestamp: int,
    *,
    isolation: int = REPLICATED,
    epoch: int = -1,
    version: int = 7,
    place: tuple[str, int] = ("t", 0),
) -> tuple[ErrorCode, int, int]:
    """Error, offset and timestamp."""
    name, index = place
    part = ListOffsetsPartition(
        partition_index=index, current_leader_epoch=epoch, timestamp=timestamp
    )
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=name, partitions=[part])],
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


async def test_a_partition_of_an_internal_topic_is_empty_until_its_first_use(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await node.broker.controller.open_internal(GROUP_TOPIC, 1)
        last = node.broker.config.internal_partitions - 1
        for end in (EARLIEST, LATEST):
            for index in (0, last):
                found = await asked(peer, end, place=(GROUP_TOPIC, index))
                assert found == (ErrorCode.NONE, 0, -1)
        for time in (MAX_TIMESTAMP, 0):
            assert await asked(peer, time, place=(GROUP_TOPIC, last)) == (ErrorCode.NONE, -1, -1)
        ahead, _, _ = await asked(peer, LATEST, epoch=1, place=(GROUP_TOPIC, last))
        assert ahead is ErrorCode.UNKNOWN_LEADER_EPOCH
        for index in (-1, last + 1):
            beyond, _, _ = await asked(peer, LATEST, place=(GROUP_TOPIC, index))
            assert beyond is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


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


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The base offset of each batch that a lookup by time decompresses."""
    found: list[int] = []

    def recorded(header: BatchHeader, *rest: object) -> bytes:
        found.append(header.base_offset)
        return plain_records(header, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(segment, "plain_records", recorded)
    return found


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An entry for each time slice."""
    taken: list[None] = []
    take = TimeSlices.next

    async def recorded(self: TimeSlices) -> None:
        taken.append(None)
        await take(self)

    monkeypatch.setattr(TimeSlices, "next", recorded)
    return taken


async def test_a_batch_of_more_records_than_any_client_sends_is_not_opened(
    world: World, monkeypatch: pytest.MonkeyPatch, opened: list[int]
) -> None:
    monkeypatch.setattr(segment, "_OPENED_RECORDS_MAX", 10)
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.produce("t", timed(*range(10)))
        await peer.produce("t", timed(*range(11)))
        assert await asked(peer, NOW_MS + 9) == (ErrorCode.NONE, 9, NOW_MS + 9)
        assert await asked(peer, NOW_MS + 10) == (ErrorCode.NONE, 10, NOW_MS + 10)
    assert opened == [0]


async def test_a_lookup_opens_one_batch_though_headers_name_times_of_no_record(
    world: World, opened: list[int]
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        for _ in range(5):
            honest = timed(1, 2)
            header = read_header(honest)._replace(max_timestamp=TimestampMs(NOW_MS + 100))
            await peer.produce("t", seal(header, memoryview(honest)[HEADER_BYTES:]))
        assert await asked(peer, NOW_MS + 50) == (ErrorCode.NONE, 0, NOW_MS + 100)
    assert opened == [0]


async def test_a_lookup_through_many_records_and_batches_takes_time_slices(
    world: World, monkeypatch: pytest.MonkeyPatch, slices: list[None]
) -> None:
    monkeypatch.setattr(segment, "_RECORDS_PER_SLICE", 10)
    monkeypatch.setattr(segment, "_HEADERS_PER_SLICE", 10)
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", index_interval_bytes="100000")
        await peer.produce("t", timed(5))
        for _ in range(100):
            await peer.produce("t", timed(1))
        await peer.produce("t", timed(*range(100), 100))
        slices.clear()
        assert await asked(peer, NOW_MS + 100) == (ErrorCode.NONE, 201, NOW_MS + 100)
    assert len(slices) >= 20


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


async def test_a_lookup_in_a_partition_that_is_deleted_meanwhile_does_not_answer_the_end(
    world: World,
) -> None:
    """Offset -1 without an error would tell a consumer that no record is as young as that."""
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as admin:
        await peer.create_topic("t")
        await peer.produce("t", timed(0, 1))
        partition = node.broker.logs.get("t", 0)
        begin_read = partition._store._segments.begin_read

        async def after_a_deletion(segment):
            await delete(admin, "t")
            await begin_read(segment)

        partition._store._segments.begin_read = after_a_deletion
        found = await asked(peer, NOW_MS)
        assert found == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


@pytest.mark.parametrize("isolation", [REPLICATED, TRANSACTIONAL])
async def test_a_new_leader_lists_only_offsets_that_stay(world: World, isolation: int) -> None:
    """What the high watermark may still change waits for it, as in Kafka (KIP-207)."""
    async with world.node() as node, Peer.of(node) as peer:  # F8
        await peer.create_topic("t")
        for number in range(4):
            await peer.produce("t", timed(number))
        partition = node.broker.logs.get("t", 0)
        partition.advance_start(Offset(1))
        log = partition.log
        log.high_watermark = log.last_stable_offset = Offset(3)
        partition.read_error = ErrorCode.OFFSET_NOT_AVAILABLE
        times = (LATEST, EARLIEST, MAX_TIMESTAMP, NOW_MS, NOW_MS + 2, NOW_MS + 3, NOW_MS + 4)

        async def listed() -> list[tuple[ErrorCode, int]]:
            return [(await asked(peer, each, isolation=isolation))[:2] for each in times]

        waits = ErrorCode.OFFSET_NOT_AVAILABLE, -1
        first, third = (ErrorCode.NONE, 1), (ErrorCode.NONE, 2)
        assert await listed() == [waits, first, waits, first, third, waits, waits]
        log.high_watermark = log.last_stable_offset = Offset(4)
        partition.read_error = ErrorCode.NONE
        assert [offset for _, offset in await listed()] == [4, 1, 3, 1, 2, 3, -1]


async def test_a_lookup_that_finds_nothing_while_the_high_watermark_is_unknown_is_asked_again(
    world: World,
) -> None:  # F8
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.produce("t", timed(0))
        partition = node.broker.logs.get("t", 0)
        partition.read_error = ErrorCode.OFFSET_NOT_AVAILABLE
        find = partition._store.find_timestamp

        async def found(*how):
            nothing = await find(*how)
            partition.read_error = ErrorCode.NONE
            return nothing

        partition._store.find_timestamp = found
        assert (await asked(peer, NOW_MS + 1))[0] is ErrorCode.OFFSET_NOT_AVAILABLE
        assert await asked(peer, NOW_MS + 1) == (ErrorCode.NONE, -1, -1)
