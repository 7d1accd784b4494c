"""When the broker resizes a stream by itself, and how (R3): decided from what was measured.

A segment above a target splits where half of what was written lies on each side. Two adjacent
segments merge if together they are below half of every target: after a split both halves are above
that, so the next decision does not undo the last one. After a resize there is none for the
cool-down, and the rates that count are those of segments that were measured for a whole window.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from fencelog.coordination.streams.model import SegmentState, Stream, StreamSegment
from fencelog.coordination.streams.settings import StreamSettings
from fencelog.types import Instant

MERGE_BELOW = 0.5
"""The share of the target below which two segments are few enough for one."""


class MedianSample(NamedTuple):
    """The median of the hashes of some records, and their number."""

    median_hash: int
    records: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentRate:
    """What was written to one segment in the last window.

    Attributes:
        events_per_s: records a second.
        kbytes_per_s: KiB a second, as stored.
        samples: medians of batches, of a part of them at least; empty if there are none.
    """

    events_per_s: float
    kbytes_per_s: float
    samples: Sequence[MedianSample] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """Split a segment; ``at`` is the first hash of its second part."""

    segment: int
    at: int
    reason: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge two adjacent segments."""

    segments: tuple[int, int]
    reason: str


Decision = Split | Merge


def decide(
    stream: Stream,
    rates: Mapping[int, SegmentRate],
    settings: StreamSettings,
    now: Instant,
    resized_at: Instant,
) -> Decision | None:
    """Return the resize that is due, None for none. A split comes before a merge.

    ``rates``: of the segments that were measured for a whole window. ``resized_at``: when the last
    resize was seen, or this broker began to look.
    """
    if not _may_resize(stream, settings, now, resized_at):
        return None
    return _split(stream.covering, rates, settings) or _merge(stream.covering, rates, settings)


def may_merge(
    stream: Stream,
    rates: Mapping[int, SegmentRate],
    settings: StreamSettings,
    now: Instant,
    resized_at: Instant,
) -> list[int]:
    """Return the segments whose unknown rates decide whether the one below them merges with them.

    They are led by other brokers; the leader of the lower segment asks, so only one does.
    """
    if not _may_resize(stream, settings, now, resized_at):
        return []
    if len(stream.covering) <= settings.segments_min:
        return []
    return [
        right.index
        for left, right in pairwise(stream.covering)
        if left.index in rates
        and right.index not in rates
        and load(rates[left.index], settings) < MERGE_BELOW
    ]


def _may_resize(
    stream: Stream, settings: StreamSettings, now: Instant, resized_at: Instant
) -> bool:
    if not settings.has_policy or now < resized_at + settings.cooldown_ms / 1000:
        return False
    # One resize at a time: what is measured now is not what will be.
    return all(each.state is SegmentState.OPEN for each in stream.covering)


def split_point(segment: StreamSegment, samples: Sequence[MedianSample]) -> int | None:
    """Return the first hash of a segment's second half, by what was written to it.

    The middle of the range without samples; None if the range cannot be split.
    """
    if segment.high - segment.low < 2:
        return None
    inside = sorted(each for each in samples if segment.low <= each.median_hash < segment.high)
    if not inside:
        return (segment.low + segment.high) // 2
    counted = list(accumulate(each.records for each in inside))
    median = inside[bisect_left(counted, counted[-1] / 2)].median_hash
    # Of one key that is all there is, the first split leaves it at an edge, the next one alone.
    return max(median, segment.low + 1)


def load(rate: SegmentRate, settings: StreamSettings) -> float:
    """Return how much of its target a segment has, by the target that it comes nearest to."""
    loads = [0.0]
    if settings.events_per_s:
        loads.append(rate.events_per_s / settings.events_per_s)
    if settings.kbytes_per_s:
        loads.append(rate.kbytes_per_s / settings.kbytes_per_s)
    return max(loads)


def _split(
    open_segments: Sequence[StreamSegment],
    rates: Mapping[int, SegmentRate],
    settings: StreamSettings,
) -> Split | None:
    if len(open_segments) >= settings.segments_max:
        return None
    measured = [each for each in open_segments if each.index in rates]
    for segment in sorted(measured, key=lambda each: -load(rates[each.index], settings)):
        rate = rates[segment.index]
        if load(rate, settings) <= 1:
            return None
        at = split_point(segment, rate.samples)
        if at is not None:
            return Split(segment.index, at, f"{_shown(rate)}; {_targets(settings)}")
    return None


def _merge(
    open_segments: Sequence[StreamSegment],
    rates: Mapping[int, SegmentRate],
    settings: StreamSettings,
) -> Merge | None:
    if len(open_segments) <= settings.segments_min:
        return None
    pairs = [
        (load(_sum(rates[left.index], rates[right.index]), settings), left, right)
        for left, right in pairwise(open_segments)
        if left.index in rates and right.index in rates
    ]
    if not pairs:
        return None
    least, left, right = min(pairs, key=lambda each: (each[0], each[1].low))
    if least >= MERGE_BELOW:
        return None
    together = _sum(rates[left.index], rates[right.index])
    return Merge((left.index, right.index), f"together {_shown(together)}; {_targets(settings)}")


def _sum(left: SegmentRate, right: SegmentRate) -> SegmentRate:
    return SegmentRate(
        events_per_s=left.events_per_s + right.events_per_s,
        kbytes_per_s=left.kbytes_per_s + right.kbytes_per_s,
    )


def _shown(rate: SegmentRate) -> str:
    return f"{rate.events_per_s:.1f} events/s, {rate.kbytes_per_s:.1f} KiB/s"


def _targets(settings: StreamSettings) -> str:
    targets = []
    if settings.events_per_s:
        targets.append(f"{settings.events_per_s} events/s")
    if settings.kbytes_per_s:
        targets.append(f"{settings.kbytes_per_s} KiB/s")
    return f"the target of a segment is {', '.join(targets)}"
