"""The ranges of a stream's segments, as a writer knows them: which segment a key belongs to (R1).

What a writer knows may be older than the stream is: then a segment answers that it is sealed, and
which segments follow. It never becomes older again, whatever a broker answers that is behind: of
each hash the segment with the highest index counts, because a successor's index is above those of
its predecessors. So the records of a key are never divided by ranges older than those before.

The segments that are known may be of different times, for a sealed one names its successors only:
where one of them is known to have replaced a part of another, that other one counts for the rest.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from fencelog.coordination.streams.model import Stream
from fencelog.types import TopicId
from fencelog.wire.hot import Successor

NO_KEYS = -1
"""As the median of a batch's hashes: no record of it has a key."""


@dataclass(frozen=True)
class Ranges:
    """Ranges that touch, in their order.

    Attributes:
        covering: which segment each range belongs to: its whole range, or parts of it.
        known: every segment whose range is known, those that have ended too.
    """

    topic_id: TopicId
    covering: tuple[Successor, ...]
    known: Mapping[int, Successor]

    @cached_property
    def lows(self) -> list[int]:
        """The first hash of each range."""
        return [each.low for each in self.covering]

    def segment_of(self, key_hash: int) -> int:
        """Return the segment of a key with this hash."""
        return self.covering[bisect_right(self.lows, key_hash) - 1].segment

    def keyless(self, turn: int) -> int:
        """Return the segment of records without a key: any will do, so they take turns."""
        return self.covering[turn % len(self.covering)].segment

    def covers(self, low: int, high: int) -> bool:
        """Whether the ranges touch and have each hash from ``low`` to the one before ``high``."""
        at = low
        for each in self.covering:
            if each.low > at:
                return False
            at = max(at, each.high)
        return at >= high

    def with_newer(self, segments: Iterable[Successor]) -> "Ranges":
        """Return what is known once these segments are known to be open, or to have been."""
        added = {each.segment: each for each in segments}
        known = {**self.known, **added}
        counting = {each.segment for each in self.covering} | added.keys()
        return Ranges(self.topic_id, _newest([known[each] for each in counting]), known)


def ranges_of(topic_id: TopicId, stream: Stream) -> Ranges:
    """Return the ranges of a stream as it was described."""
    covering = tuple(Successor(each.index, each.low, each.high) for each in stream.covering)
    known = {each.index: Successor(each.index, each.low, each.high) for each in stream.segments}
    return Ranges(topic_id, covering, known)


def successors(topic_id: TopicId, segments: Iterable[Successor]) -> Ranges:
    """Return the ranges of the segments that follow one, which are a part of all hashes."""
    covering = tuple(sorted(segments, key=lambda each: each.low))
    return Ranges(topic_id, covering, {each.segment: each for each in covering})


def median(hashes: list[int]) -> int:
    """Return the hash that half of these do not exceed, NO_KEYS without any; sorts the list."""
    if not hashes:
        return NO_KEYS
    hashes.sort()
    return hashes[(len(hashes) - 1) // 2]


def _newest(segments: list[Successor]) -> tuple[Successor, ...]:
    """Return for each hash the segment with the highest index, as ranges in their order."""
    kept: list[Successor] = []
    for each in sorted(segments, reverse=True):
        free_from = each.low
        at = bisect_right(kept, free_from, key=lambda one: one.low)
        if at:
            free_from = max(free_from, kept[at - 1].high)
        while free_from < each.high:
            end = min(kept[at].low, each.high) if at < len(kept) else each.high
            if free_from < end:
                kept.insert(at, Successor(each.segment, free_from, end))
                at += 1
            free_from = kept[at].high if at < len(kept) else each.high
            at += 1
    return tuple(kept)
