"""Making, showing and resizing streams, with answers that are lost or late."""

import asyncio

import pytest

from fencelog import aio
from fencelog.client.admin import MAYBE_DONE
from fencelog.client.blocking import Client
from fencelog.coordination.streams import rules
from fencelog.coordination.streams.model import NO_END, SegmentState, Stream, with_state
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import Offset
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.messages.create_stream import CreateStreamRequest, CreateStreamResponse
from fencelog.wire.messages.describe_streams import DescribeStreamsResponse
from fencelog.wire.messages.resize_stream import ResizeStreamRequest, ResizeStreamResponse
from tests.unit.client import fake_broker
from tests.unit.client.fake_broker import FakeBroker

TOPIC_ID = b"t" * 16


def described(stream: Stream | None, error: ErrorCode = ErrorCode.NONE) -> DescribeStreamsResponse:
    """The answer for topic t."""
    found = fake_broker.described("t", TOPIC_ID, stream)
    found.error_code = error
    found.segments.reverse()
    return DescribeStreamsResponse(streams=[found])


def made(change: Stream | rules.Refused) -> Stream:
    assert isinstance(change, Stream)
    return change


ONE = made(rules.created(1))
SPLITTING = made(rules.split(ONE, 0))
SPLIT = rules.sealed(SPLITTING, 0, Offset(7))


def test_a_stream_is_created_with_its_settings_by_the_controller() -> None:
    sent: list[CreateStreamRequest] = []

    def create(version: int, body: memoryview) -> CreateStreamResponse:
        sent.append(CreateStreamRequest.read(body, version))
        return CreateStreamResponse()

    with FakeBroker() as broker, Client(broker.address) as client:
        broker.script[ApiKey.CREATE_STREAM] = [create]
        client.create_stream("t", 3, {"stream.segments.min": "2"}, replication=2)
    assert [(each.name, each.segments, each.replication_factor) for each in sent] == [("t", 3, 2)]
    assert [(each.name, each.value) for each in sent[0].settings] == [("stream.segments.min", "2")]


@pytest.mark.parametrize("error", [None, *sorted(MAYBE_DONE)])
def test_a_stream_that_exists_after_a_lost_answer_was_created(error: ErrorCode | None) -> None:
    exists = CreateStreamResponse(error_code=ErrorCode.TOPIC_ALREADY_EXISTS)
    first = None if error is None else CreateStreamResponse(error_code=error)
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.CREATE_STREAM, first, exists, exists)
        client.create_stream("t", 3)
        with pytest.raises(RequestError, match="creation of stream t") as caught:
            client.create_stream("t", 3)
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_description_has_every_segment_by_index() -> None:  # R1
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.DESCRIBE_STREAMS, described(SPLIT))
        found = client.describe_stream("t")
    assert (found.name, found.topic_id, found.stream) == ("t", TOPIC_ID, SPLIT)
    assert [each.index for each in found.stream.successors(0)] == [1, 2]


def test_the_asynchronous_client_has_the_same_calls() -> None:
    async def calls(address: str) -> list[object]:
        async with await aio.connect(address) as client:
            await client.create_stream("t", 1)
            return [
                await client.split_segment("t", 0),
                await client.merge_segments("t", [1, 2]),
                (await client.describe_stream("t")).stream,
                len(await client.describe_streams()),
            ]

    with FakeBroker() as broker:
        broker.next(ApiKey.CREATE_STREAM, CreateStreamResponse())
        resized = [ResizeStreamResponse(successors=[1, 2]), ResizeStreamResponse(successors=[3])]
        broker.next(ApiKey.RESIZE_STREAM, *resized)
        broker.next(ApiKey.DESCRIBE_STREAMS, *[described(SPLIT)] * 2)
        assert asyncio.run(calls(broker.address)) == [[1, 2], [3], SPLIT, 1]


def test_a_topic_that_is_no_stream_is_named() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.DESCRIBE_STREAMS, described(None))
        with pytest.raises(RequestError, match="topic t is no stream") as caught:
            client.describe_stream("t")
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_stream_that_the_first_broker_has_not_heard_of_is_asked_for_once_more() -> None:
    unknown = described(None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.DESCRIBE_STREAMS, unknown, described(ONE), unknown, unknown)
        assert client.describe_stream("t").stream == ONE
        with pytest.raises(RequestError, match="stream t") as caught:
            client.describe_stream("t")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    "late", [None, ResizeStreamResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)]
)
def test_a_split_whose_answer_is_lost_or_late_is_described_until_it_is_complete(
    late: ResizeStreamResponse | None,
) -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.RESIZE_STREAM, late)
        broker.next(ApiKey.DESCRIBE_STREAMS, described(SPLITTING), described(SPLIT))
        assert client.split_segment("t", 0) == [1, 2]
        assert broker.asked.count(ApiKey.RESIZE_STREAM) == 1


def test_a_resize_that_has_not_begun_is_asked_for_again() -> None:
    asked: list[ResizeStreamRequest] = []

    def resize(version: int, body: memoryview) -> ResizeStreamResponse:
        asked.append(ResizeStreamRequest.read(body, version))
        return ResizeStreamResponse(successors=[1, 2])

    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.RESIZE_STREAM, None)
        broker.script[ApiKey.RESIZE_STREAM].append(resize)
        broker.next(ApiKey.DESCRIBE_STREAMS, described(ONE))
        assert client.split_segment("t", 0, at=5) == [1, 2]
    assert [(each.segments, each.split_at) for each in asked] == [([0], 5)]


def test_a_merge_is_done_when_its_successor_is_open() -> None:
    merging = made(rules.merge(SPLIT, [2, 1]))
    one_sealed = rules.sealed(merging, 1, Offset(3))
    merged = rules.sealed(one_sealed, 2, Offset(4))
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.RESIZE_STREAM, None)
        broker.next(ApiKey.DESCRIBE_STREAMS, described(one_sealed), described(merged))
        assert client.merge_segments("t", [2, 1]) == [3]


def test_a_split_elsewhere_is_not_taken_for_the_one_that_was_asked_for() -> None:
    refused = ResizeStreamResponse(
        error_code=ErrorCode.INVALID_REQUEST, error_message="stream t: segment 0 is sealed"
    )
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.RESIZE_STREAM, None, refused)
        broker.next(ApiKey.DESCRIBE_STREAMS, described(SPLIT))
        with pytest.raises(RequestError, match="split of segment 0: stream t: segment 0 is sealed"):
            client.split_segment("t", 0, at=5)


def test_a_resize_that_is_never_complete_ends_at_the_deadline_and_says_so() -> None:
    with (
        FakeBroker() as broker,
        Client(broker.address, request_timeout_s=5, api_timeout_s=0.3) as client,
    ):
        broker.next(ApiKey.RESIZE_STREAM, None)
        broker.next(ApiKey.DESCRIBE_STREAMS, *[described(SPLITTING)] * 20)
        with pytest.raises(
            RequestError, match=r"not complete yet.*given up after 0\.3 s"
        ) as caught:
            client.split_segment("t", 0)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_a_description_says_where_a_sealed_segment_ends() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.DESCRIBE_STREAMS, described(SPLIT))
        first, *others = client.describe_stream("t").segments
    assert first == with_state(ONE.segments[0], SegmentState.SEALED, Offset(7))
    assert {each.end for each in others} == {NO_END}


@pytest.mark.parametrize("segments", [[], [3]])
def test_a_merge_of_less_than_two_segments_is_refused_and_splits_nothing(
    segments: list[int],
) -> None:
    # R1
    with FakeBroker() as broker, Client(broker.address) as client:
        with pytest.raises(RequestError, match="two or more segments merge; to split one, use spl"):
            client.merge_segments("t", segments)
        assert broker.asked.count(ApiKey.RESIZE_STREAM) == 0
