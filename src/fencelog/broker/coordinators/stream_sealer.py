"""Seals the segments that a resize replaces, where this broker leads them (R2).

The work is what the metadata say: a segment that is SEALING and has no end. Its leader appends the
seal, waits until it is committed, and records its offset. Each step may be repeated, by this leader
or another, so what a crash interrupts goes on at the next start or with the next leader.

A log may end below the seal that the metadata have: a backup was restored, damage was cut off, or a
replica was elected that lacks records. It gets a seal at its end, and the metadata that offset:
readers would wait for the other one for ever.

In the end the leader stores that retention has removed a segment's records, and that its files may
go.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from fencelog.broker.metadata.catalog import Catalog, Topic
from fencelog.broker.metadata.streams import Streams, stream_of
from fencelog.broker.network.limited_log import LimitedLog
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.streams.model import ENDED, NO_END, LogEnd, SegmentState, Stream
from fencelog.coordination.streams.rules import unsealed, with_seals
from fencelog.errors import ErrorCode, FencelogError, RequestError
from fencelog.log.values import Rejected
from fencelog.ports import WallClock
from fencelog.types import Instant, TopicId, TopicPartition

log = logging.getLogger(__name__)

RETRY_S = 0.5
RETRY_S_MAX = 10.0
"""A step that fails again and again is tried after twice as long each time, up to this."""
FILES_REMOVED_MAX = 50
"""Segments whose files are removed by one write, which names each in a cluster."""
Key = tuple[TopicId, int]
FindLed = Callable[[TopicId, int], Partition | None]
"""Returns an open partition that this broker leads, by its topic's id: names are used again."""


class StreamSealer:
    """One task for each segment that is being sealed here; none, and no timer, otherwise."""

    def __init__(
        self, streams: Streams, catalog: Catalog, find_led: FindLed, clock: WallClock
    ) -> None:
        """Nothing is looked at before ``resume`` or a change."""
        self._streams = streams
        self._catalog = catalog
        self._find_led = find_led
        self._clock = clock
        self._sealing: dict[Key, asyncio.Task[None]] = {}
        self._limited_log = LimitedLog(log)
        self._is_stopped = False

    def resume(self) -> None:
        """Go on with what an earlier run has left."""
        for topic in self._catalog.topics():
            if topic.stream is not None:
                for index in with_seals(topic.stream):
                    self._begin(topic, index)

    def changed(self, topic_id: TopicId) -> None:
        """A stream was changed: look whether one of its segments is to be sealed here."""
        topic = self._catalog.by_id(topic_id)
        if topic is not None:
            self._look(topic)

    def led(self, name: TopicPartition) -> None:
        """This broker begins to lead a partition, perhaps a segment that is to be sealed."""
        topic = self._catalog.get(name.topic)
        if topic is not None and topic.stream is not None:
            self._begin(topic, name.partition)

    async def record_emptied(self) -> None:
        """Store which sealed segments that are led here have no records any more, or no files.

        Called now and then, after retention; what fails is left to the next time.
        """
        for topic in self._catalog.topics():
            if topic.stream is None:
                continue
            try:
                if emptied := self._emptied(topic.topic_id, topic.stream):
                    await self._streams.segments_emptied(topic.topic_id, emptied)
                    log.info("stream %s: segments %s have no records any more", topic.name, emptied)
                elif may_go := self._without_use(topic.topic_id, topic.stream):
                    gone = await self._give_up(topic.topic_id, may_go)
                    log.info("stream %s: the files of segments %s are removed", topic.name, gone)
            except FencelogError as error:
                log.warning(
                    "stream %s: which segments are empty is not stored: %s", topic.name, error
                )

    def _emptied(self, topic_id: TopicId, stream: Stream) -> list[int]:
        found = []
        for segment in stream.segments:
            if segment.state is SegmentState.SEALED:
                partition = self._find_led(topic_id, segment.index)
                if partition is not None and partition.log.log_start_offset >= segment.end:
                    found.append(segment.index)
        return found

    def _without_use(self, topic_id: TopicId, stream: Stream) -> list[int]:
        """Return deleted segments whose files nobody needs, as many as one write has room for."""
        found = (
            segment.index
            for segment in stream.segments
            if segment.state is SegmentState.DELETED
            and segment.removed is None
            and self._end_of(topic_id, segment.index) is not None
        )
        return list(islice(found, FILES_REMOVED_MAX))

    async def _give_up(self, topic_id: TopicId, indexes: Sequence[int]) -> list[int]:
        """Store that files go; return of which. Where nothing is stored owners go on."""
        try:
            ends = partial(self._end_of, topic_id)
            return await self._streams.files_removed(topic_id, indexes, ends)
        except RequestError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:  # else it may be stored
                for index in indexes:
                    if (partition := self._find_led(topic_id, index)) is not None:
                        partition.log.go_on()
            raise

    def _end_of(self, topic_id: TopicId, index: int) -> LogEnd | None:
        """Let a log end for good that is led here; None: something of it is still needed."""
        partition = self._find_led(topic_id, index)
        if partition is None or not partition.log.finish():
            return None
        return LogEnd(partition.log.log_end_offset, partition.log.last_epoch)

    async def stop(self) -> None:
        """Cancel all work: the next start or the next leader does the rest."""
        self._is_stopped = True
        tasks = list(self._sealing.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _look(self, topic: Topic) -> None:
        if topic.stream is not None:
            for index in unsealed(topic.stream):
                self._begin(topic, index)

    def _begin(self, topic: Topic, index: int) -> None:
        key = topic.topic_id, index
        if self._is_stopped or key in self._sealing or self._work(key) is None:
            return
        task = asyncio.get_running_loop().create_task(self._seal(key))
        self._sealing[key] = task
        task.add_done_callback(lambda ended: self._ended(key, ended))

    def _ended(self, key: Key, task: "asyncio.Task[None]") -> None:
        del self._sealing[key]
        topic = self._catalog.by_id(key[0])
        if topic is not None and not task.cancelled():  # it is, when the broker ends
            # A leadership may have begun while the task of an earlier one ended.
            self._begin(topic, key[1])

    def _work(self, key: Key) -> tuple[Topic, Partition] | None:
        """Return a segment that is to be sealed, and that is led here; None if it is not.

        So it is if its log has no seal, or one elsewhere than the metadata say.
        """
        topic = self._catalog.by_id(key[0])
        segment = None if topic is None or topic.stream is None else topic.stream.get(key[1])
        if topic is None or segment is None or segment.removed is not None:
            return None
        if segment.state is not SegmentState.SEALING and segment.state not in ENDED:
            return None
        partition = self._find_led(*key)
        if partition is None or partition.log.sealed_at == segment.end:
            return None
        return topic, partition

    async def _seal(self, key: Key) -> None:
        delay_s = RETRY_S
        while (work := self._work(key)) is not None:
            if await self._tried(key, *work):
                return
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_S_MAX)

    async def _tried(self, key: Key, topic: Topic, partition: Partition) -> bool:
        """Do the steps; False: do them again later, as far as they are still to be done."""
        try:
            end = stream_of(topic).segments[key[1]].end
            if end == NO_END and not await self._streams.open_successors(topic, key[1]):
                reason = "its successors cannot be created yet"
            elif isinstance(sealed := partition.seal(now_ms=self._clock.now_ms()), Rejected):
                reason = sealed.message
            else:
                await partition.committed(sealed.end_offset)
                if end == NO_END:
                    await self._streams.segment_sealed(*key, sealed.base_offset)
                    log.info("%s: sealed at %d", partition.name, sealed.base_offset)
                else:
                    await self._streams.end_corrected(*key, sealed.base_offset)
                    text = "%s: the seal at %d is not here any more; sealed at %d, at its end"
                    log.warning(text, partition.name, end, sealed.base_offset)
                return True
        except FencelogError as error:
            reason = str(error)
        except Exception:
            log.exception("%s: internal error, please report it", partition.name)
            return False
        now = Instant(asyncio.get_running_loop().time())
        text = "%s: sealing is tried again: %s"
        self._limited_log.warning(now, "failed", text, partition.name, reason)
        return False
