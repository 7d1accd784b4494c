"""Changes of streams, alone or in a cluster: each is one write of the topic's key (R1).

The rules are in ``coordination/streams``. A write compares the version that it was decided on, and
is decided again on what is stored if that is another: so of two resizes of one segment one is
refused, and an end that is recorded late or twice changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from fencelog.broker.metadata.catalog import Catalog, Topic
from fencelog.broker.metadata.topic_changes import TopicChanges
from fencelog.broker.metadata.topic_rules import check_partition_total
from fencelog.coordination.streams import rules
from fencelog.coordination.streams.model import NO_END, LogEnd, SegmentState, Stream
from fencelog.coordination.streams.settings import StreamSettings
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import Offset, TopicId

log = logging.getLogger(__name__)


def stream_of(topic: Topic) -> Stream:
    """Return a topic's segments. Raises RequestError if it is no stream."""
    if topic.stream is None:
        raise RequestError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {topic.name} is no stream; a stream is made by `fencelog stream create`",
        )
    return topic.stream


class Streams:
    """Resizes streams, and lets requests wait until that is done."""

    def __init__(self, topics: TopicChanges, catalog: Catalog, partitions_max: int) -> None:
        """``topics`` stores the changes; the catalog tells of each (``changed``)."""
        self._topics = topics
        self._catalog = catalog
        self._partitions_max = partitions_max
        self._waiting: list[asyncio.Future[None]] = []
        self._is_closed = False

    def close(self) -> None:
        """Answer the requests that wait: the broker stops, and their resizes go on without it."""
        self._is_closed = True
        self._wake()

    def changed(self, topic_id: TopicId) -> None:
        """A stream was made, changed or deleted, in this step."""
        del topic_id
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    # -- resizes -------------------------------------------------------------------------------

    def check_resize(self, topic: Topic, segments: Sequence[int], split_at: int | None) -> Topic:
        """Return the topic in which the resize is under way. Raises RequestError."""
        stream = stream_of(topic)
        limits = StreamSettings.of_topic_config(topic.settings).limits
        if len(segments) == 1:
            resized = rules.split(stream, segments[0], split_at, limits)
        else:
            resized = rules.merge(stream, segments, limits)
        if isinstance(resized, rules.Refused):
            raise RequestError(resized.error, f"stream {topic.name}: {resized.reason}")
        count = len(resized.segments)
        more = count - topic.partitions
        check_partition_total(self._catalog, topic.name, more, self._partitions_max)
        return replace(topic, partitions=count, stream=resized)

    async def resize(
        self, name: str, segments: Sequence[int], split_at: int | None = None
    ) -> tuple[Topic, tuple[int, ...]]:
        """Store that one segment splits, or that several merge; return their successors, too.

        What follows is done by the segments' leaders (``StreamSealer``); ``opened`` waits for it.
        Raises RequestError; nothing is stored then.
        """
        topic = await self._topics.change_topic(
            name, lambda stored: self.check_resize(stored, segments, split_at)
        )
        successors = stream_of(topic).successors(segments[0])
        return topic, tuple(each.index for each in successors)

    async def opened(self, topic_id: TopicId, indexes: Collection[int]) -> None:
        """Return when these segments are open, or have been. Raises RequestError."""
        while not self._are_open(topic_id, indexes):
            if self._is_closed:
                raise RequestError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    "the broker stops; the resize goes on by itself: describe the stream to see it",
                )
            news = asyncio.get_running_loop().create_future()
            self._waiting.append(news)
            await news

    def _are_open(self, topic_id: TopicId, indexes: Collection[int]) -> bool:
        topic = self._catalog.by_id(topic_id)
        if topic is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the stream was deleted")
        stream = stream_of(topic)
        found = [stream.get(index) for index in indexes]
        return all(each is not None and each.state is not SegmentState.OPENING for each in found)

    # -- what the leaders of segments record ---------------------------------------------------

    async def open_successors(self, topic: Topic, index: int) -> bool:
        """Make the files of a segment's successors, where they could not be made yet.

        False if that has failed again: the segment is not sealed then, and is written on.
        """
        successors = [each.index for each in stream_of(topic).successors(index)]
        return await self._topics.open_partitions(topic.topic_id, successors)

    async def segment_sealed(self, topic_id: TopicId, index: int, end: Offset) -> None:
        """Store that a segment's seal is committed at ``end``.

        With the last predecessor of a resize the same write opens its successors. Nothing changes
        if that is known, or another topic has the name. Raises RequestError.
        """

        def sealed(stream: Stream) -> Stream:
            segment = stream.get(index)
            if segment is None:
                return stream
            if segment.end not in (NO_END, end):
                log.error("segment %d ends at %d, not at %d", index, segment.end, end)
                return stream
            return rules.sealed(stream, index, end)

        await self._change(topic_id, sealed)

    async def end_corrected(self, topic_id: TopicId, index: int, end: Offset) -> None:
        """Store where a segment ends whose log was cut below its seal, and has a new one.

        Nothing is stored once another broker leads it. Raises RequestError.
        """
        await self._change(topic_id, lambda s: rules.corrected(s, index, end), led=[index])

    async def segments_emptied(self, topic_id: TopicId, indexes: Collection[int]) -> None:
        """Store that retention has removed all records of sealed segments. Raises RequestError."""

        def emptied(stream: Stream) -> Stream:
            for index in indexes:
                stream = rules.emptied(stream, index)
            return stream

        await self._change(topic_id, emptied)

    async def files_removed(
        self, topic_id: TopicId, indexes: Collection[int], end_of: Callable[[int], LogEnd | None]
    ) -> list[int]:
        """Store that the files of deleted segments go; return of which.

        ``end_of`` returns where the log of a segment that is led here has ended for good, None
        where it has not. Nothing is stored once another broker leads one that has. Raises
        RequestError.
        """
        found: list[int] = []

        def removed(stream: Stream) -> Stream:
            ends = {index: end_of(index) for index in indexes}
            found[:] = [index for index, end in ends.items() if end is not None]
            for index, end in ends.items():
                stream = stream if end is None else rules.removed(stream, index, end)
            return stream

        await self._change(topic_id, removed, led=found)
        return found

    async def _change(
        self,
        topic_id: TopicId,
        change: Callable[[Stream], Stream],
        led: Collection[int] = (),
    ) -> None:
        topic = self._catalog.by_id(topic_id)
        if topic is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the stream was deleted")

        def changed(stored: Topic) -> Topic:
            if stored.topic_id != topic_id or stored.stream is None:
                return stored
            stream = change(stored.stream)
            return stored if stream is stored.stream else replace(stored, stream=stream)

        await self._topics.change_topic(topic.name, changed, led=led)
