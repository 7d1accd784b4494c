"""Resizes streams by their policy, from what was written to the segments that are led here (R3).

One task for each stream that has a policy and a segment led here; none, and no timer, otherwise.
Each broker splits what it leads. Two segments merge when the broker that leads the lower one finds
so: it asks the other's leader for its rate. Nothing is agreed on beyond that, because a resize is a
write that compares: who comes second is refused, and looks again after a cool-down.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from fencelog.broker.coordinators.stream_sealer import FindLed
from fencelog.broker.metadata.catalog import Catalog, Topic
from fencelog.broker.metadata.streams import Streams
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.streams.model import Stream
from fencelog.coordination.streams.policy import (
    Decision,
    Merge,
    SegmentRate,
    Split,
    decide,
    may_merge,
)
from fencelog.coordination.streams.settings import StreamSettings
from fencelog.errors import FencelogError, NotLeaderError, RequestError
from fencelog.types import Instant, TopicId

log = logging.getLogger(__name__)

WINDOWS_PER_COOLDOWN = 10
WINDOW_S_MIN = 0.1
WINDOW_S_MAX = 60.0
"""Rates are measured over a tenth of the cool-down, within these bounds."""
AskRate = Callable[[Topic, int], Awaitable[SegmentRate | None]]
"""Asks another broker for the rate of a segment that it leads; None while it has none.

Raises NotLeaderError without an answer."""


async def _alone(topic: Topic, index: int) -> None:
    del topic, index


class _Count(NamedTuple):
    """What a partition's counters were at the beginning of a window."""

    partition: Partition
    records: int
    bytes: int


@dataclass
class _Watched:
    """A stream with a policy."""

    resized_at: Instant
    counted_at: Instant
    covering: tuple[int, ...] = ()
    counts: dict[int, _Count] = field(default_factory=dict)
    rates: dict[int, SegmentRate] = field(default_factory=dict)
    """Of the segments that were led here for the whole of the last window."""
    refused: tuple[type[Decision], str] | None = None
    """The last decision that could not be carried out, and why: it is logged once."""


class StreamPolicy:
    """Measures, decides by the rules, and asks for the resize."""

    def __init__(self, streams: Streams, catalog: Catalog, find_led: FindLed) -> None:
        """Nothing is looked at before ``resume`` or a change."""
        self._streams = streams
        self._catalog = catalog
        self._find_led = find_led
        self._watched: dict[TopicId, _Watched] = {}
        self._tasks: dict[TopicId, asyncio.Task[None]] = {}
        self._is_stopped = False
        self.ask_rate: AskRate = _alone
        """Asks the leaders on other brokers; a broker that is alone has no others."""

    def resume(self) -> None:
        """Look after all streams from now on."""
        for topic in self._catalog.topics():
            self.changed(topic.topic_id)

    def changed(self, topic_id: TopicId) -> None:
        """A stream was made or changed."""
        topic = self._catalog.by_id(topic_id)
        if self._is_stopped or topic_id in self._tasks or topic is None or topic.stream is None:
            return
        if self._settings(topic).has_policy and self._led(topic, topic.stream):
            task = asyncio.get_running_loop().create_task(self._watch(topic_id))
            self._tasks[topic_id] = task
            task.add_done_callback(lambda ended: self._ended(topic_id, ended))

    def led(self, topic_name: str) -> None:
        """This broker begins to lead a partition of a topic."""
        topic = self._catalog.get(topic_name)
        if topic is not None:
            self.changed(topic.topic_id)

    def rate(self, topic_id: TopicId, index: int) -> SegmentRate | None:
        """Return what was written to a segment in the last window; None if it is not known here."""
        watched = self._watched.get(topic_id)
        return None if watched is None else watched.rates.get(index)

    async def stop(self) -> None:
        """End all work."""
        self._is_stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, topic_id: TopicId, task: "asyncio.Task[None]") -> None:
        del self._tasks[topic_id]
        self._watched.pop(topic_id, None)
        if not task.cancelled():  # it is, when the broker ends
            self.changed(topic_id)  # what has come while it ended

    def _settings(self, topic: Topic) -> StreamSettings:
        return StreamSettings.of_topic_config(topic.settings)

    def _led(self, topic: Topic, stream: Stream) -> dict[int, Partition]:
        """The open segments that are led here."""
        found = {each.index: self._find_led(topic.topic_id, each.index) for each in stream.covering}
        return {index: each for index, each in found.items() if each is not None}

    # -- one stream ----------------------------------------------------------------------------

    async def _watch(self, topic_id: TopicId) -> None:
        loop = asyncio.get_running_loop()
        begun = Instant(loop.time())
        watched = self._watched[topic_id] = _Watched(begun, begun)
        while (topic := self._catalog.by_id(topic_id)) is not None:
            settings = self._settings(topic)
            if topic.stream is None or not settings.has_policy:
                return
            led = self._led(topic, topic.stream)
            if not led:
                return
            now = Instant(loop.time())
            self._measure(watched, topic.stream, led, now)
            try:
                decision = await self._decide(watched, topic, settings, now)
                if decision is not None:
                    await self._carry_out(watched, topic, decision)
            except FencelogError as error:
                log.warning("stream %s: its policy is tried again: %s", topic.name, error)
            except Exception:
                log.exception("stream %s: internal error, please report it", topic.name)
            window_s = settings.cooldown_ms / 1000 / WINDOWS_PER_COOLDOWN
            await asyncio.sleep(min(max(window_s, WINDOW_S_MIN), WINDOW_S_MAX))

    def _measure(
        self, watched: _Watched, stream: Stream, led: dict[int, Partition], now: Instant
    ) -> None:
        """Take the rates of the window that ends now, and begin the next one."""
        covering = tuple(each.index for each in stream.covering)
        if covering != watched.covering:
            if watched.covering:
                watched.resized_at = now
            watched.covering, watched.refused = covering, None
        seconds = now - watched.counted_at
        rates, counts = {}, {}
        for index, partition in led.items():
            load, before = partition.load, watched.counts.get(index)
            count = _Count(partition, load.records, load.bytes) if load else _Count(partition, 0, 0)
            if before is not None and before.partition is partition:
                rates[index] = SegmentRate(
                    events_per_s=(count.records - before.records) / seconds,
                    kbytes_per_s=(count.bytes - before.bytes) / 1024 / seconds,
                    samples=() if load is None else tuple(load.samples),
                )
            if load is not None:
                load.begin_sample()
            counts[index] = count
        watched.rates, watched.counts, watched.counted_at = rates, counts, now

    async def _decide(
        self, watched: _Watched, topic: Topic, settings: StreamSettings, now: Instant
    ) -> Decision | None:
        assert topic.stream is not None
        rates = dict(watched.rates)
        decision = decide(topic.stream, rates, settings, now, watched.resized_at)
        if decision is not None:
            return decision
        wanted = may_merge(topic.stream, rates, settings, now, watched.resized_at)
        if not wanted:
            return None
        for index in wanted:
            try:
                rate = await self.ask_rate(topic, index)
            except NotLeaderError:
                continue  # it is asked again after the next window
            if rate is not None:
                rates[index] = rate
        return decide(topic.stream, rates, settings, now, watched.resized_at)

    async def _carry_out(self, watched: _Watched, topic: Topic, decision: Decision) -> None:
        segments, split_at, text = _asked(decision)
        try:
            _, successors = await self._streams.resize(topic.name, segments, split_at)
        except RequestError as error:
            # Tried again after a cool-down; what is refused every time is logged once.
            watched.resized_at = Instant(asyncio.get_running_loop().time())
            if (type(decision), str(error)) != watched.refused:
                log.warning("stream %s: %s, but %s", topic.name, decision.reason, error)
            watched.refused = type(decision), str(error)
            return
        into = ", ".join(map(str, successors))
        log.info("stream %s: %s into %s: %s", topic.name, text, into, decision.reason)


def _asked(decision: Decision) -> tuple[Sequence[int], int | None, str]:
    """Return what to resize and where, and that in words."""
    match decision:
        case Split(segment, at, _):
            return [segment], at, f"segment {segment} splits at {at}"
        case Merge(segments, _):
            return segments, None, f"segments {segments[0]} and {segments[1]} merge"
        case _:
            assert_never(decision)
