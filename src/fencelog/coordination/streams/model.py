"""A stream as its topic's metadata have it: segments, their ranges and their states (R1).

Keys hash to the numbers from 0 to ``HASH_SPACE`` - 1; each segment has a range of them. A resize
replaces adjacent segments by successors in three steps, each of which any start or new leader goes
on from:

1. ``rules.split`` or ``rules.merge``: the successors exist, OPENING; their predecessors are
   SEALING, which still accept writes.
2. Each predecessor's leader appends a seal to its log; once that is committed, ``rules.sealed``
   records where.
3. With the last of them the same change makes the predecessors SEALED and the successors OPEN.

So the ranges of OPEN and SEALING segments always cover the hash space exactly.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from fencelog.errors import CorruptionError
from fencelog.settings.stream_table import SEGMENTS_MAX
from fencelog.types import LeaderEpoch, Offset

HASH_SPACE = 1 << 31
"""Hashes are those of Kafka's default partitioner: murmur2 without its sign bit."""
NO_END = Offset(-1)


class SegmentState(Enum):
    """What a segment accepts; the values are those of the wire and of the stored form."""

    OPENING = "opening"
    """It exists, and accepts nothing: its predecessors are not sealed yet."""
    OPEN = "open"
    SEALING = "sealing"
    """It accepts writes until its log has the seal."""
    SEALED = "sealed"
    """Complete: nothing but markers and ownership records will follow."""
    DELETED = "deleted"
    """Sealed, and retention has removed all of its records; later its files, too."""


COVERING = frozenset({SegmentState.OPEN, SegmentState.SEALING})
"""The states whose ranges cover the hash space."""
ENDED = frozenset({SegmentState.SEALED, SegmentState.DELETED})


class LogEnd(NamedTuple):
    """Where a segment's log ended for good: its offset, and the leader epoch of its last batch."""

    offset: Offset
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSegment:
    """One segment: the partition of the same index. Indexes are never used again.

    Attributes:
        low: the first hash of its range.
        high: the hash after the last one of its range.
        predecessors: the segments that it replaced; empty for the first ones.
        end: the offset of the seal, below which all of its records are; NO_END while unknown.
        removed: where its log ended when its files were removed; None while it has files.
    """

    index: int
    low: int
    high: int
    state: SegmentState
    predecessors: tuple[int, ...] = ()
    end: Offset = NO_END
    removed: LogEnd | None = None


@dataclass(frozen=True)
class Stream:
    """All segments that a stream has and had, by index."""

    segments: tuple[StreamSegment, ...]

    def get(self, index: int) -> StreamSegment | None:
        """Return a segment, None if there is none of this index."""
        return self.segments[index] if 0 <= index < len(self.segments) else None

    @cached_property
    def covering(self) -> tuple[StreamSegment, ...]:
        """The segments whose ranges cover the hash space, in the order of their ranges."""
        found = (each for each in self.segments if each.state in COVERING)
        return tuple(sorted(found, key=lambda each: each.low))

    @cached_property
    def _lows(self) -> list[int]:
        return [each.low for each in self.covering]

    @cached_property
    def _successors(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        for each in self.segments:
            for index in each.predecessors:
                found[index] = (*found.get(index, ()), each.index)
        return found

    def successors(self, index: int) -> tuple[StreamSegment, ...]:
        """Return the segments that replaced this one, or are about to, in range order."""
        return tuple(self.segments[each] for each in self._successors.get(index, ()))

    def segment_of(self, key_hash: int) -> StreamSegment:
        """Return the segment that a key with this hash is written to."""
        return self.covering[bisect_right(self._lows, key_hash) - 1]

    def changed(self, changes: Iterable[StreamSegment]) -> "Stream":
        """Return the stream with these segments instead of those of the same index, or added."""
        segments = list(self.segments)
        for each in changes:
            if each.index == len(segments):
                segments.append(each)
            else:
                segments[each.index] = each
        return Stream(tuple(segments))

    def problem(self) -> str | None:
        """Return which invariant does not hold, None if all do (R1)."""
        at = 0
        for each in self.covering:
            if each.low != at or each.high <= each.low:
                return f"segment {each.index} covers {each.low} to {each.high}, not from {at} on"
            at = each.high
        if at != HASH_SPACE:
            return f"the open segments end at {at}, not at {HASH_SPACE}"
        problems = (_problem(index, each) for index, each in enumerate(self.segments))
        return next(filter(None, problems), None)

    def stored(self) -> list[list[object]]:
        """Return the stored form: for each segment low, high, state, predecessors, end.

        The two numbers of ``removed`` follow, if its files are removed.
        """
        return [
            [
                each.low,
                each.high,
                each.state.value,
                list(each.predecessors),
                each.end,
                *(each.removed or ()),
            ]
            for each in self.segments
        ]

    @classmethod
    def of_stored(cls, topic: str, value: object) -> "Stream":
        """Return the stream of a stored form. Raises CorruptionError naming the topic."""
        try:
            assert isinstance(value, list)
            assert len(value) <= SEGMENTS_MAX, f"more than {SEGMENTS_MAX}"
            segments = tuple(_of_stored(index, *each) for index, each in enumerate(value))
        except (AssertionError, TypeError, ValueError) as error:
            text = json.dumps(value)[:200]
            raise CorruptionError(f"topic {topic}: {text} are no segments: {error}") from error
        stream = cls(segments)
        if (problem := stream.problem()) is not None:
            raise CorruptionError(f"topic {topic}: {problem}")
        return stream


def _problem(index: int, segment: StreamSegment) -> str | None:
    state = segment.state
    if segment.index != index:
        return f"segment {segment.index} is at place {index}"
    if any(not 0 <= other < index for other in segment.predecessors):
        return f"segment {index} has predecessors {segment.predecessors}"
    if state in ENDED and segment.end < 0:
        return f"segment {index} is {state.value} and has no end"
    if segment.removed is not None and (
        state is not SegmentState.DELETED or segment.removed.offset <= segment.end
    ):
        end = segment.removed.offset
        return f"segment {index} is {state.value} and without files, with a log up to {end}"
    return None


def _of_stored(
    index: int,
    low: int,
    high: int,
    state: str,
    predecessors: Sequence[int],
    end: int,
    *removed: int,
) -> StreamSegment:
    log_end = None
    if removed:
        offset, leader_epoch = removed
        log_end = LogEnd(Offset(int(offset)), LeaderEpoch(int(leader_epoch)))
    return StreamSegment(
        index=index,
        low=int(low),
        high=int(high),
        state=SegmentState(state),
        predecessors=tuple(int(each) for each in predecessors),
        end=Offset(int(end)),
        removed=log_end,
    )


def with_state(
    segment: StreamSegment, state: SegmentState, end: Offset | None = None
) -> StreamSegment:
    """Return the segment in another state, and with this end if it is given."""
    return replace(segment, state=state, end=segment.end if end is None else end)
