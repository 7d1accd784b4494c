"""The ranges of a stream's segments, as a writer knows them: which segment a key belongs to (R1).

What a writer knows may be older than the stream is: then a segment answers that it is sealed, and
which segments follow. It never becomes older again, whatever a broker answers that is behind: of
each hash the segment with the highest index counts, because a successor's index is above those of
its predecessors. So the records of a key are never divided by ranges older than those before.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from fencelog.coordination.streams.model import HASH_SPACE, Stream
from fencelog.types import TopicId
from fencelog.wire.hot import Successor

NO_KEYS = -1
"""As the median of a batch's hashes: no record of it has a key."""


@dataclass(frozen=True)
class Ranges:
    """Segments whose ranges touch, in the order of their ranges.

    ``known``: every segment whose range is known, those that have ended too.
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
        added = list(segments)
        known = {**self.known, **{each.segment: each for each in added}}
        covering = _newest([*self.covering, *added])
        changed = Ranges(self.topic_id, covering, known)
        # Segments that do not fit leave a gap, as a merge with a segment that is not known yet:
        # only their own ranges are learned, and each batch goes on by its answer.
        fits = changed.covers(0, HASH_SPACE)
        return changed if fits else Ranges(self.topic_id, self.covering, known)


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
    """Return the segments that none with a higher index overlaps, in the order of their ranges."""
    kept: list[Successor] = []
    lows: list[int] = []
    for each in sorted(set(segments), reverse=True):
        at = bisect_left(lows, each.low)
        is_free_below = at == 0 or kept[at - 1].high <= each.low
        if is_free_below and (at == len(kept) or each.high <= kept[at].low):
            kept.insert(at, each)
            lows.insert(at, each.low)
    return tuple(kept)
