"""The stream's offsets: the JSON that Spark keeps in its checkpoint, and arithmetic over them.

Spark compares offsets as JSON text, so keys are always written in one order; otherwise a stream
without new records would run empty batches forever. The shape is the Kafka connector's,
``{"topic": {"0": 23}}``, with four more keys that no topic can have. ``@start`` marks a start that
another look at the cluster might place elsewhere (see ``stream_reader``). ``@begin``, in an end, is
where the batch begins if its start has that mark (see ``unlimited_reader``). ``@ids`` has the ids
of the topics, ``{"topic": "Pd4KtBXxRYiEXWqgOvaKUA"}``. Offsets of a topic with another id are those
of a topic that was deleted (S9). Offsets without ids, of older checkpoints, go with any id.
``@streams`` names those topics whose offsets are a cut through a stream (see ``stream_cut``): what
comes after it is read from its first offset, 0, and not from where its log happens to begin.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fencelog.log.layout import parse_topic_id, topic_id_text
from fencelog.types import TopicId, TopicPartition

START_MARK = "@start"
BEGIN = "@begin"
TOPIC_IDS = "@ids"
STREAMS = "@streams"

TopicIds = Mapping[str, TopicId]
"""By topic name. Topics of brokers that have no ids (before Kafka 2.8) are absent."""
Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, kw_only=True)
class OffsetRange:
    """Records ``start`` (included) to ``end`` (excluded) of one partition."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: TopicId | None = None

    @property
    def size(self) -> int:
        """Offsets in the range; markers and gaps among them hold no record."""
        return self.end - self.start


def to_json(
    offsets: Offsets,
    topic_ids: TopicIds | None = None,
    *,
    streams: Collection[str] = (),
    unpinned: bool = False,
) -> dict[str, Any]:
    """The offsets as JSON for Spark's checkpoint; ``unpinned`` adds the ``@start`` mark."""
    written: dict[str, Any] = {START_MARK: True} if unpinned else {}
    topics = {each.topic for each in offsets}
    if ids := {name: topic_id_text(id_) for name, id_ in (topic_ids or {}).items()}:
        written[TOPIC_IDS] = {name: ids[name] for name in sorted(ids) if name in topics}
    if cut := sorted(topics.intersection(streams)):
        written[STREAMS] = cut
    for partition in sorted(offsets):
        written.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return written


def from_json(stored: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """The offsets of the JSON from Spark's checkpoint, without what is not a topic."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, by_partition in stored.items()
        if not topic.startswith("@")
        for partition, offset in by_partition.items()
    }


def topic_ids(stored: Mapping[str, Any]) -> dict[str, TopicId]:
    """The topic ids of the JSON; empty if an older release wrote it."""
    return {name: parse_topic_id(text) for name, text in stored.get(TOPIC_IDS, {}).items()}


def streams_in(stored: Mapping[str, Any]) -> frozenset[str]:
    """The topics whose offsets in the JSON are a cut through a stream."""
    return frozenset(stored.get(STREAMS, ()))


def newest_segments(stored: Mapping[str, Any]) -> dict[str, tuple[TopicId, int]]:
    """The id of each stream in the JSON, and the highest of its segments."""
    ids, streams = topic_ids(stored), streams_in(stored)
    highest: dict[str, int] = {}
    for each in from_json(stored):
        if each.topic in streams and each.topic in ids:
            highest[each.topic] = max(each.partition, highest.get(each.topic, 0))
    return {topic: (ids[topic], segment) for topic, segment in highest.items()}


def recreated(before: TopicIds, now: TopicIds) -> set[str]:
    """The topics that have another id now (S9)."""
    return {name for name in before.keys() & now.keys() if before[name] != now[name]}


def without(offsets: Offsets, topics: Collection[str]) -> dict[TopicPartition, int]:
    """The offsets of all other topics."""
    return {each: offset for each, offset in offsets.items() if each.topic not in topics}


def is_unpinned(stored: Mapping[str, Any]) -> bool:
    """Whether the JSON has the ``@start`` mark."""
    return START_MARK in stored


def begin_of(end: Mapping[str, Any]) -> dict[str, Any] | None:
    """The start's JSON that an end has with it, if any."""
    return end.get(BEGIN)


def with_begin(end: Mapping[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
    """The end's JSON with the start's."""
    return {BEGIN: dict(start), **end}


def admit(start: Offsets, latest: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Ends with at most ``limit`` offsets, distributed in proportion to what is available.

    Shares are rounded down; what that leaves goes one by one to the smallest shares first, and
    among equal ones the turn moves on with the offsets, so no partition starves beside others.
    """
    waiting = {each: max(0, latest[each] - start.get(each, 0)) for each in sorted(latest)}
    total = sum(waiting.values())
    if total <= limit:
        return dict(latest)
    shares = {each: size * limit // total for each, size in waiting.items()}
    left = limit - sum(shares.values())
    turn = sum(start.values()) % len(waiting)
    order = (list(waiting) * 2)[turn : turn + len(waiting)]
    for each in sorted(order, key=shares.__getitem__):
        if left > 0 and shares[each] < waiting[each]:
            shares[each] += 1
            left -= 1
    return {
        each: start.get(each, 0) + shares[each] if waiting[each] else latest[each]
        for each in waiting
    }


def cap(offsets: Offsets, ceiling: Offsets) -> dict[TopicPartition, int]:
    """The offsets, limited to those of ``ceiling``; partitions that it lacks are dropped."""
    return {
        partition: min(offset, ceiling[partition])
        for partition, offset in offsets.items()
        if partition in ceiling
    }


def ranges(start: Offsets, end: Offsets, ids: TopicIds) -> list[OffsetRange]:
    """The ranges from start to end, sorted by partition; empty ones are omitted."""
    return [
        OffsetRange(
            partition=partition,
            start=start[partition],
            end=end[partition],
            topic_id=ids.get(partition.topic),
        )
        for partition in sorted(end)
        if partition in start and start[partition] < end[partition]
    ]


def split(
    wanted: Iterable[OffsetRange], pieces_min: int = 0, size_max: int | None = None
) -> list[OffsetRange]:
    """Split ranges so that none has more than ``size_max`` offsets, then large ones so that there
    are about ``pieces_min`` ranges. None of them is empty.
    """
    whole = [
        piece
        for each in wanted
        for piece in _cut(each, 1 if size_max is None else -(-each.size // size_max))
    ]
    total = sum(each.size for each in whole)
    if total == 0 or len(whole) >= pieces_min:
        return whole
    return [
        piece
        for each in whole
        for piece in _cut(each, max(1, min(each.size, round(each.size * pieces_min / total))))
    ]


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [replace(whole, start=low, end=high) for low, high in itertools.pairwise(edges)]
