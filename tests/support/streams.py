"""What tests ask of streams: create, resize and describe them over a connection."""

from collections.abc import Mapping, Sequence

from fencelog.errors import ErrorCode
from fencelog.node import Node
from fencelog.wire.messages.create_stream import (
    CreateStreamRequest,
    CreateStreamResponse,
    StreamSetting,
)
from fencelog.wire.messages.describe_streams import (
    DescribeStreamsRequest,
    DescribeStreamsResponse,
    StreamDescription,
    StreamSegmentDescription,
)
from fencelog.wire.messages.resize_stream import ResizeStreamRequest, ResizeStreamResponse
from tests.support.node import Peer

NO_SETTINGS: Mapping[str, str] = {}
Refusal = tuple[ErrorCode, str | None]


async def create_stream(
    peer: Peer,
    name: str = "s",
    segments: int = 1,
    settings: Mapping[str, str] = NO_SETTINGS,
    *,
    replication_factor: int = -1,
    validate_only: bool = False,
) -> Refusal:
    """The error and its text; NONE and None if the stream was created."""
    request = CreateStreamRequest(
        name=name,
        segments=segments,
        replication_factor=replication_factor,
        settings=[StreamSetting(name=key, value=value) for key, value in settings.items()],
        validate_only=validate_only,
    )
    answer = await peer.ask(request, 0, CreateStreamResponse)
    return ErrorCode(answer.error_code), answer.error_message


async def resize(
    peer: Peer,
    segments: Sequence[int],
    name: str = "s",
    *,
    at: int = -1,
    timeout_ms: int = 10_000,
) -> ResizeStreamResponse:
    request = ResizeStreamRequest(
        name=name, segments=list(segments), split_at=at, timeout_ms=timeout_ms
    )
    return await peer.ask(request, 0, ResizeStreamResponse)


async def resized(
    peer: Peer, segments: Sequence[int], name: str = "s", *, at: int = -1
) -> list[int]:
    """The successors of a resize, which must succeed."""
    answer = await resize(peer, segments, name, at=at)
    assert answer.error_code == 0, answer
    return answer.successors


async def describe_streams(
    peer: Peer, names: Sequence[str] | None = None
) -> list[StreamDescription]:
    request = DescribeStreamsRequest(names=None if names is None else list(names))
    answer = await peer.ask(request, 0, DescribeStreamsResponse)
    return answer.streams


async def segments_of(peer: Peer, name: str = "s") -> list[StreamSegmentDescription]:
    (described,) = await describe_streams(peer, [name])
    assert described.error_code == 0, described
    return described.segments


async def states_of(peer: Peer, name: str = "s") -> list[str]:
    return [each.state for each in await segments_of(peer, name)]


def states_on(node: Node, name: str = "s") -> list[str]:
    """The states as a broker's own copy of the metadata has them."""
    topic = node.broker.catalog.get(name)
    assert topic is not None
    assert topic.stream is not None
    return [each.state.value for each in topic.stream.segments]
