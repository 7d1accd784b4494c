"""Requests about streams: create, describe, split, merge (R1 to R3)."""

from collections.abc import Mapping, Sequence

from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.client.retry import retrying
from fencelog.client.streams.model import StreamDescription
from fencelog.coordination.streams.model import SegmentState, StreamSegment
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import Offset, TopicId
from fencelog.wire.messages.create_stream import (
    CreateStreamRequest,
    CreateStreamResponse,
    StreamSetting,
)
from fencelog.wire.messages.describe_streams import (
    DescribeStreamsRequest,
    DescribeStreamsResponse,
)
from fencelog.wire.messages.describe_streams import StreamDescription as DescribedStream
from fencelog.wire.messages.resize_stream import ResizeStreamRequest, ResizeStreamResponse
from fencelog.wire.primitives import error_code

MIDDLE = -1
"""As the place of a split: the middle of the segment's range."""


class StreamAdmin:
    """The requests that make, show and resize streams."""

    def __init__(self, cluster: Cluster) -> None:
        """Use the cluster's connections."""
        self._cluster = cluster

    async def create_stream(
        self, name: str, segments: int, settings: Mapping[str, str], replication: int
    ) -> None:
        """Create a stream; returns once its segments have leaders.

        Raises RequestError (TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG …).
        """
        request = CreateStreamRequest(
            name=name,
            segments=segments,
            replication_factor=replication,
            settings=[StreamSetting(name=key, value=value) for key, value in settings.items()],
            timeout_ms=self._timeout_ms(),
        )

        async def send(
            connection: Connection, deadline: Deadline
        ) -> Sequence[CreateStreamResponse]:
            return [await self._cluster.ask(connection, request, CreateStreamResponse, deadline)]

        admin = Admin(self._cluster)
        what = f"creation of stream {name}"
        await admin.carry_out(what, send, done=ErrorCode.TOPIC_ALREADY_EXISTS)
        await admin.led(name)

    async def describe_streams(self, names: Sequence[str] | None = None) -> list[StreamDescription]:
        """Return these streams, or all, sorted by name.

        Raises RequestError: UNKNOWN_TOPIC_OR_PARTITION for a topic that does not exist,
        INVALID_TOPIC_EXCEPTION for one that is no stream.
        """
        request = DescribeStreamsRequest(names=None if names is None else list(names))
        deadline = self._cluster.deadline()

        async def ask(connection: Connection) -> DescribeStreamsResponse:
            return await self._cluster.ask(connection, request, DescribeStreamsResponse, deadline)

        async def attempt() -> list[StreamDescription]:
            answer = await self._cluster.of_any_broker(ask, deadline)
            return [description(each) for each in answer.streams]

        # The broker that is asked first may not have heard of it yet.
        found = await retrying(attempt, deadline, lambda: None)
        return sorted(found, key=lambda each: each.name)

    async def describe_stream(self, name: str) -> StreamDescription:
        """Return one stream. Raises RequestError as ``describe_streams`` does."""
        (found,) = await self.describe_streams([name])
        return found

    async def streams_among(
        self, topics: Sequence[str], known: Mapping[str, tuple[TopicId, int]] | None = None
    ) -> list[StreamDescription]:
        """Return those of these topics that are streams; none where brokers know no streams.

        ``known``: for streams a topic id and a segment, which a description of that id must have:
        a broker that has not heard of it yet is asked again. Raises RequestError:
        UNKNOWN_TOPIC_OR_PARTITION for a topic that does not exist, LEADER_NOT_AVAILABLE if no
        broker hears of that segment.
        """
        request = DescribeStreamsRequest(names=list(topics))
        deadline = self._cluster.deadline()

        async def ask(connection: Connection) -> Sequence[DescribedStream]:
            if request.API_KEY not in connection.versions:
                return ()
            answer = await self._cluster.ask(connection, request, DescribeStreamsResponse, deadline)
            return answer.streams

        async def attempt() -> list[StreamDescription]:
            answer = await self._cluster.of_any_broker(ask, deadline)
            found = [description(each) for each in answer if each.error_code or each.segments]
            for each in found:
                _check_not_older(each, *(known or {}).get(each.name, (each.topic_id, 0)))
            return found

        return await retrying(attempt, deadline, lambda: None)

    async def split(self, name: str, segment: int, at: int | None = None) -> list[int]:
        """Split a segment; return its successors once they are open.

        ``at``: the first hash of the second one; None for the middle of the range. Raises
        RequestError: INVALID_REQUEST, POLICY_VIOLATION …, or REQUEST_TIMED_OUT if the resize is
        not complete yet: it goes on.
        """
        return await self._resize(name, [segment], MIDDLE if at is None else at)

    async def merge(self, name: str, segments: Sequence[int]) -> list[int]:
        """Merge adjacent segments; return their one successor once it is open.

        Raises RequestError as ``split`` does.
        """
        if len(segments) < 2:
            listed = ", ".join(map(str, segments)) or "nothing"
            text = f"two or more segments merge; to split one, use split: {listed}"
            raise failure(ErrorCode.INVALID_REQUEST, f"merge in stream {name}", text)
        return await self._resize(name, list(segments), MIDDLE)

    async def _resize(self, name: str, segments: list[int], split_at: int) -> list[int]:
        """Ask for a resize, and after an answer that is lost or late describe what became of it."""
        request = ResizeStreamRequest(
            name=name, segments=segments, split_at=split_at, timeout_ms=self._timeout_ms()
        )
        verb = "split" if len(segments) == 1 else "merge"
        work = f"{verb} of segment {', '.join(map(str, segments))}"
        what = f"{work} of stream {name}"
        deadline = self._cluster.deadline()
        may_be_done = False

        async def attempt() -> list[int]:
            nonlocal may_be_done
            if may_be_done:
                found = await self.describe_stream(name)
                begun = _successors(found, segments, split_at)
                if begun is not None:
                    return _opened(what, begun)
            connection = await self._cluster.controller(deadline)
            try:
                answer = await self._cluster.ask(
                    connection, request, ResizeStreamResponse, deadline
                )
            except RequestError:
                may_be_done = True
                raise
            if answer.error_code:
                code = error_code(answer.error_code)
                may_be_done = may_be_done or code is ErrorCode.REQUEST_TIMED_OUT
                # The message of a broker names the stream.
                raise failure(code, work if answer.error_message else what, answer.error_message)
            return list(answer.successors)

        return await retrying(attempt, deadline)

    def _timeout_ms(self) -> int:
        """Return how long a broker may wait: it is to say so before the request ends here."""
        return int(self._cluster.options.request_timeout_s * 750)


def _check_not_older(found: StreamDescription, topic_id: TopicId, segment: int) -> None:
    if found.topic_id == topic_id and segment >= len(found.segments):
        what = f"segment {segment} of stream {found.name}"
        raise failure(
            ErrorCode.LEADER_NOT_AVAILABLE,
            what,
            f"it was read before, and the brokers know {len(found.segments)} segments only",
        )


def _successors(
    found: StreamDescription, segments: Sequence[int], split_at: int
) -> list[StreamSegment] | None:
    """Return what a resize has made, complete or not; None if it has not begun."""
    asked = set(segments)
    made = [each for each in found.segments if asked and set(each.predecessors) == asked]
    if len(segments) == 1 and split_at != MIDDLE and made and made[-1].low != split_at:
        return None  # it was split elsewhere: asked again, the refusal says so
    return made or None


def _opened(what: str, made: Sequence[StreamSegment]) -> list[int]:
    """Return the indexes of the successors; raises RequestError while they are not open."""
    if any(each.state is SegmentState.OPENING for each in made):
        raise failure(ErrorCode.REQUEST_TIMED_OUT, what, "it has begun and is not complete yet")
    return [each.index for each in made]


def description(described: DescribedStream) -> StreamDescription:
    """Return what a broker says of a stream.

    Raises RequestError: what the broker said, or INVALID_TOPIC_EXCEPTION for a topic that is no
    stream.
    """
    name = described.name
    if described.error_code:
        code = error_code(described.error_code)
        raise failure(code, f"description of stream {name}", described.error_message)
    if not described.segments:
        raise RequestError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name} is no stream; a stream is made by `fencelog stream create`",
        )
    return StreamDescription(
        name=name,
        topic_id=TopicId(described.topic_id),
        segments=tuple(
            StreamSegment(
                index=each.index,
                low=each.low,
                high=each.high,
                state=SegmentState(each.state),
                predecessors=tuple(each.predecessors),
                end=Offset(each.end_offset),
            )
            for each in sorted(described.segments, key=lambda each: each.index)
        ),
    )
