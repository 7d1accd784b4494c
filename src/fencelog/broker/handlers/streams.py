"""CreateStream, DescribeStreams and ResizeStream: topics whose partitions split and merge (R1, R3).

A stream is deleted as a topic is (DeleteTopics).
"""

import asyncio

from fencelog.broker.context import Broker
from fencelog.broker.handlers.topics import check_factor, check_name
from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.controller import NewTopic
from fencelog.broker.metadata.topic_rules import check_partition_total, existing_topic
from fencelog.broker.network.connection import Request
from fencelog.coordination.streams import rules
from fencelog.coordination.streams.model import StreamSegment
from fencelog.coordination.streams.settings import StreamSettings
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import NO_TOPIC_ID
from fencelog.wire.messages.create_stream import CreateStreamRequest, CreateStreamResponse
from fencelog.wire.messages.describe_streams import (
    DescribeStreamsRequest,
    DescribeStreamsResponse,
    StreamDescription,
    StreamSegmentDescription,
)
from fencelog.wire.messages.resize_stream import ResizeStreamRequest, ResizeStreamResponse

WAIT_S_MAX = 300.0
"""A request waits no longer for a resize, whatever its timeout."""
NO_SPLIT_POINT = -1


async def create_stream(
    broker: Broker, message: CreateStreamRequest, request: Request
) -> CreateStreamResponse:
    """Create a stream of open segments with equal ranges, or return why not."""
    del request
    try:
        new = _new_stream(broker, message)
        if message.validate_only:
            check_partition_total(
                broker.catalog, new.name, new.partitions, broker.config.partitions_max
            )
            broker.controller.check_new_topic(new)
        else:
            (created,) = await broker.controller.create_topics([new])
            if isinstance(created, RequestError):
                raise created
    except RequestError as error:
        return CreateStreamResponse(error_code=error.code, error_message=error.text)
    return CreateStreamResponse()


def _new_stream(broker: Broker, message: CreateStreamRequest) -> NewTopic:
    check_name(message.name, times=1)
    check_factor(broker, message.name, message.replication_factor)
    settings = {each.name: each.value for each in message.settings}
    broker.controller.valid(settings, is_stream=True)
    stream = rules.created(message.segments, StreamSettings.of_topic_config(settings).limits)
    if isinstance(stream, rules.Refused):
        raise RequestError(stream.error, f"stream {message.name}: {stream.reason}")
    count, factor = message.segments, message.replication_factor
    return NewTopic(message.name, count, settings, factor, stream=stream)


async def describe_streams(
    broker: Broker, message: DescribeStreamsRequest, request: Request
) -> DescribeStreamsResponse:
    """Return all segments of the named topics, or of all streams.

    None of a topic that is no stream; for a name that is no topic, why.
    """
    version = request.header.api_version
    if message.names is None:
        names = [each.name for each in broker.catalog.topics() if each.stream is not None]
    else:
        names = list(dict.fromkeys(message.names))
    described: list[StreamDescription] = []
    async for name in broker.time_slices.each(names):
        try:
            topic = existing_topic(broker.catalog, name)
            found = await _described(broker, topic, version)
        except RequestError as error:
            found = StreamDescription(
                error_code=error.code, error_message=error.text, name=name, topic_id=NO_TOPIC_ID
            )
        described.append(found.encoded(version))
    return DescribeStreamsResponse(streams=described)


async def _described(broker: Broker, topic: Topic, version: int) -> StreamDescription:
    segments = () if topic.stream is None else topic.stream.segments
    return StreamDescription(
        error_message=None,
        name=topic.name,
        topic_id=topic.topic_id,
        segments=[
            _segment(each).encoded(version) async for each in broker.time_slices.each(segments)
        ],
    )


def _segment(segment: StreamSegment) -> StreamSegmentDescription:
    return StreamSegmentDescription(
        index=segment.index,
        low=segment.low,
        high=segment.high,
        state=segment.state.value,
        predecessors=list(segment.predecessors),
        end_offset=segment.end,
    )


async def resize_stream(
    broker: Broker, message: ResizeStreamRequest, request: Request
) -> ResizeStreamResponse:
    """Split one segment, or merge several; answered when the successors are open.

    REQUEST_TIMED_OUT, with the successors, says that the resize goes on by itself.
    """
    del request
    timeout_s = min(max(message.timeout_ms, 0) / 1000, WAIT_S_MAX)
    successors: tuple[int, ...] = ()
    try:
        topic, successors = await broker.streams.resize(
            message.name, message.segments, _split_at(message)
        )
        async with asyncio.timeout(timeout_s):
            await broker.streams.opened(topic.topic_id, successors)
    except RequestError as error:
        return ResizeStreamResponse(
            error_code=error.code, error_message=error.text, successors=list(successors)
        )
    except TimeoutError:
        return ResizeStreamResponse(
            error_code=ErrorCode.REQUEST_TIMED_OUT,
            error_message=f"stream {message.name}: segments {', '.join(map(str, successors))} are "
            f"not open after {message.timeout_ms} ms; the resize goes on by itself: describe the "
            "stream to see it",
            successors=list(successors),
        )
    return ResizeStreamResponse(error_message=None, successors=list(successors))


def _split_at(message: ResizeStreamRequest) -> int | None:
    if message.split_at == NO_SPLIT_POINT:
        return None
    if len(message.segments) != 1:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"stream {message.name}: segments that merge are not split at {message.split_at}",
        )
    return message.split_at
