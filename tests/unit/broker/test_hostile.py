"""Requests that no good client sends: a typed error or a closed connection; others go on."""

import asyncio
import gc
import warnings
from contextlib import suppress
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.broker.network.connection import Connection
from fencelog.errors import ErrorCode, StorageError
from fencelog.types import TimestampMs
from fencelog.wire import hot
from fencelog.wire.api_versions import SUPPORTED
from fencelog.wire.batch import PLAIN_HEADER, Compression, attributes, seal
from fencelog.wire.framing import frame
from fencelog.wire.headers import RequestHeader, request_header
from fencelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from fencelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from fencelog.wire.primitives import ERROR_MESSAGE_BYTES_MAX
from tests.support.node import Peer, World, batch, until


@pytest.mark.parametrize("codec", Compression)
async def test_records_that_make_no_sense_are_an_error_of_their_partition(
    world: World, codec: Compression
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        header = PLAIN_HEADER._replace(
            attributes=attributes(compression=codec), max_timestamp=TimestampMs(1000)
        )
        sent = await peer.produce("t", seal(header, b"\xff" * 50))
        assert sent.error is ErrorCode.NONE
        asked = ListOffsetsPartition(partition_index=0, timestamp=500)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])]
        )
        answer = await peer.ask(request, 7, ListOffsetsResponse)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE
        assert (await peer.produce("t", batch("a"))).error is ErrorCode.NONE


async def test_a_producer_id_that_cannot_be_reserved_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # E7
    async with world.node() as node, Peer.of(node) as peer:

        async def put(key: str, value: bytes, *, expected_version: int) -> int | None:
            raise StorageError("metadata.sqlite: database or disk is full")

        monkeypatch.setattr(node._ports.metadata, "put", put)
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        answer = await peer.ask(request, 4, InitProducerIdResponse)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        monkeypatch.undo()
        answer = await peer.ask(request, 4, InitProducerIdResponse)
        assert answer.error_code == ErrorCode.NONE


async def test_a_request_with_thousands_of_names_yields_to_other_connections(world: World) -> None:
    async with world.node() as node, Peer.of(node) as greedy, Peer.of(node) as modest:
        await modest.create_topic("t")
        parts = [hot.FetchPartition(number, -1, 0, -1, 1) for number in range(20_000)]
        asked = hot.FetchTopic("t", None, parts)
        fetch = hot.FetchRequest(-1, 0, 0, 1, 0, 0, -1, [asked])
        greedy.send(1, 11, hot.write_fetch_request(11, fetch))
        answered = asyncio.create_task(greedy.answer(1, 11))
        await until(lambda: any(c.busy for c in node.server._connections), "it has begun")
        await modest.ask(ApiVersionsRequest(), 3, ApiVersionsResponse)
        assert not answered.done()
        await answered


def test_only_records_make_a_frame_large(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            peer.send(3, 9, bytes(2 * 1024 * 1024))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await peer.answer(3, 9)

    asyncio.run(scenario())
    assert "METADATA request of 2097" in caplog.text


@pytest.mark.parametrize("version", [10, 11, 12])
async def test_a_topic_id_that_is_not_known_is_refused_in_every_version(
    world: World, version: int
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=bytes(16))])
        answer = await peer.ask(asked, version, MetadataResponse)
        expected = ErrorCode.UNKNOWN_TOPIC_ID if version == 12 else ErrorCode.INVALID_REQUEST
        assert answer.topics[0].error_code == expected


REQUESTS = [
    (int(key), version)
    for key, spoken in SUPPORTED.items()
    for version in range(spoken.minimum - 1, spoken.maximum + 2)
]


@settings(max_examples=15, deadline=None)
@given(requests=st.lists(st.tuples(st.sampled_from(REQUESTS), st.binary(max_size=80)), min_size=40))
def test_bytes_that_mean_nothing_are_answered_or_end_their_connection(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[tuple[int, int], bytes]]
) -> None:
    async def scenario() -> None:
        world = World(tmp_path_factory.mktemp("world"))
        async with world.node(durability="os") as node, Peer.of(node) as bystander:
            for (key, version), body in requests:
                async with Peer.of(node) as peer:
                    peer.send(key, version, body)
                    # A fetch of random bytes may ask to wait for weeks.
                    with suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
                        async with asyncio.timeout(0.2):
                            await peer.answer(key, version)
                await bystander.ask(ApiVersionsRequest(), 3, ApiVersionsResponse)
            await until(lambda: len(node.server._connections) == 1, "the others are gone")
            assert node.server._queued_bytes == 0
            assert node.failure() is None

    asyncio.run(scenario())


async def test_acks_0_gets_no_response_in_an_unsupported_version(
    world: World,
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        # An answer would be taken for that of the next request.
        peer.send_produce("t", batch("a"), acks=0, version=2)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await peer.answer(0, 2)


def test_a_connection_that_ends_before_its_request_begins_leaves_nothing_behind(
    world: World,
) -> None:
    async def scenario() -> None:
        async with world.node() as node:
            loop = asyncio.get_running_loop()
            transport = Mock(spec=asyncio.Transport)
            transport.get_extra_info.return_value = None
            connection = Connection(node.server, loop)
            connection.connection_made(transport)
            request = frame([request_header(RequestHeader(3, 9, 1, "test")), bytes(5)])
            data = b"".join(bytes(part) for part in request)
            connection.get_buffer(-1)[: len(data)] = data
            connection.buffer_updated(len(data))
            # The end is noticed in the same iteration, as a reset behind a request may be.
            connection.connection_lost(None)
            await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(scenario())
        gc.collect()
    assert not [str(each.message) for each in warned if "never awaited" in str(each.message)]


async def test_a_name_as_long_as_a_string_may_be_costs_no_other_topic_its_answer(
    world: World,
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        names = ["first", "n" * 32_767, "last"]
        topics = [
            CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names
        ]
        for version in (4, 7):
            answer = await peer.ask(
                CreateTopicsRequest(topics=topics), version, CreateTopicsResponse
            )
            assert [one.name for one in answer.topics] == names
            if version == 4:
                codes = [one.error_code for one in answer.topics]
                assert codes == [0, ErrorCode.INVALID_TOPIC_EXCEPTION, 0]
            long = answer.topics[1].error_message or ""
            assert long.endswith("…")
            assert len(long.encode()) <= ERROR_MESSAGE_BYTES_MAX
