"""How a stream changes: each rule returns the next metadata, or why not (R1, R2).

What a rule returns is stored in one step. None of them takes a key away from the covering ranges.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from fencelog.coordination.streams.model import (
    COVERING,
    ENDED,
    HASH_SPACE,
    NO_END,
    LogEnd,
    SegmentState,
    Stream,
    StreamSegment,
    with_state,
)
from fencelog.errors import ErrorCode
from fencelog.settings.stream_table import SEGMENTS_MAX
from fencelog.types import Offset


class SegmentLimits(NamedTuple):
    """How many segments of a stream may be open: ``stream.segments.min`` and ``….max``."""

    least: int = 1
    most: int = SEGMENTS_MAX


NO_LIMITS = SegmentLimits()
MERGED_MAX = 100
"""Segments that one merge takes: each of their ends is a write of the whole stream."""


class Refused(NamedTuple):
    """What was asked for is not done."""

    error: ErrorCode
    reason: str


def created(count: int, limits: SegmentLimits = NO_LIMITS) -> Stream | Refused:
    """Return a new stream of so many open segments with equal ranges."""
    if not 1 <= count <= SEGMENTS_MAX:
        return Refused(
            ErrorCode.INVALID_PARTITIONS, f"a stream has 1 to {SEGMENTS_MAX} segments, not {count}"
        )
    if not limits.least <= count <= limits.most:
        return Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"{count} segments are not from stream.segments.min={limits.least} to "
            f"stream.segments.max={limits.most}",
        )
    edges = [HASH_SPACE * each // count for each in range(count + 1)]
    return Stream(
        tuple(
            StreamSegment(index=index, low=low, high=high, state=SegmentState.OPEN)
            for index, (low, high) in enumerate(pairwise(edges))
        )
    )


def split(
    stream: Stream, index: int, at: int | None = None, limits: SegmentLimits = NO_LIMITS
) -> Stream | Refused:
    """Return the stream in which an open segment is about to become two.

    ``at``: the first hash of the second one; None for the middle of the range.
    """
    segment = _open(stream, index)
    if isinstance(segment, Refused):
        return segment
    middle = (segment.low + segment.high) // 2 if at is None else at
    if not segment.low < middle < segment.high:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"segment {index} cannot be split at {middle}: its range is {segment.low} to "
            f"{segment.high} of {HASH_SPACE}, and both parts must have some of it",
        )
    if len(stream.covering) + 1 > limits.most:
        return Refused(
            ErrorCode.POLICY_VIOLATION,
            f"{len(stream.covering)} segments are open and stream.segments.max is {limits.most}",
        )
    return _resized(stream, [segment], [segment.low, middle, segment.high])


def merge(
    stream: Stream, indexes: Sequence[int], limits: SegmentLimits = NO_LIMITS
) -> Stream | Refused:
    """Return the stream in which adjacent open segments are about to become one."""
    if len(set(indexes)) != len(indexes) or len(indexes) < 2:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"one segment splits, two or more different ones merge, not {list(indexes[:10])}",
        )
    if len(indexes) > MERGED_MAX:
        return Refused(
            ErrorCode.INVALID_REQUEST, f"{MERGED_MAX} segments merge at once, not {len(indexes)}"
        )
    found: list[StreamSegment] = []
    for index in indexes:
        segment = _open(stream, index)
        if isinstance(segment, Refused):
            return segment
        found.append(segment)
    found.sort(key=lambda each: each.low)
    for left, right in pairwise(found):
        if left.high != right.low:
            return Refused(
                ErrorCode.INVALID_REQUEST,
                f"segments {left.index} and {right.index} are not adjacent: one ends at "
                f"{left.high}, the other begins at {right.low} of {HASH_SPACE}",
            )
    left_open = len(stream.covering) - len(found) + 1
    if left_open < limits.least:
        return Refused(
            ErrorCode.POLICY_VIOLATION,
            f"{left_open} segments would be open and stream.segments.min is {limits.least}",
        )
    return _resized(stream, found, [found[0].low, found[-1].high])


def sealed(stream: Stream, index: int, end: Offset) -> Stream:
    """Return the stream once a segment's seal is committed at ``end``.

    With the last predecessor of a resize all of them are sealed and the successors open. Unchanged
    if that is known already.
    """
    segment = stream.segments[index]
    if segment.state is not SegmentState.SEALING or segment.end == end:
        return stream
    assert segment.end == NO_END, (segment, end)
    stream = stream.changed([with_state(segment, SegmentState.SEALING, end)])
    successors = stream.successors(index)
    predecessors = [stream.segments[each] for each in successors[0].predecessors]
    if any(each.end == NO_END for each in predecessors):
        return stream
    return stream.changed(
        [
            *(with_state(each, SegmentState.SEALED) for each in predecessors),
            *(with_state(each, SegmentState.OPEN) for each in successors),
        ]
    )


def corrected(stream: Stream, index: int, end: Offset) -> Stream:
    """Return the stream with another end of a segment whose log had lost its seal, and has one.

    Unchanged if that is known, and where the segment is not sealed or has no log any more.
    """
    segment = stream.segments[index]
    if segment.end in {NO_END, end} or segment.removed is not None:
        return stream
    return stream.changed([replace(segment, end=end)])


def emptied(stream: Stream, index: int) -> Stream:
    """Return the stream once retention has removed all records of a sealed segment."""
    segment = stream.segments[index]
    if segment.state is not SegmentState.SEALED:
        return stream
    return stream.changed([with_state(segment, SegmentState.DELETED)])


def removed(stream: Stream, index: int, log_end: LogEnd) -> Stream:
    """Return the stream once the files of a deleted segment may go.

    Only its leader may say so: when its log has come to its end, and knows no producer. Unchanged
    if that is known already.
    """
    segment = stream.segments[index]
    if segment.state is not SegmentState.DELETED or segment.removed is not None:
        return stream
    return stream.changed([replace(segment, removed=log_end)])


def with_seals(stream: Stream) -> list[int]:
    """Return the segments whose logs have a seal, or are to have one."""
    return [
        each.index
        for each in stream.segments
        if each.removed is None and (each.state in ENDED or each.state is SegmentState.SEALING)
    ]


def unsealed(stream: Stream) -> list[int]:
    """Return the segments whose seal is not known to be committed: a resize waits for them."""
    return [
        each.index
        for each in stream.segments
        if each.state is SegmentState.SEALING and each.end == NO_END
    ]


def _open(stream: Stream, index: int) -> StreamSegment | Refused:
    segment = stream.get(index)
    if segment is None:
        last = len(stream.segments) - 1
        return Refused(ErrorCode.INVALID_REQUEST, f"there is no segment {index}, only 0 to {last}")
    if segment.state in ENDED:
        successors = ", ".join(str(each.index) for each in stream.successors(index))
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"segment {index} is sealed; its successors are {successors}",
        )
    if segment.state is not SegmentState.OPEN:
        return Refused(
            ErrorCode.RESIZE_IN_PROGRESS,
            f"segment {index} is {segment.state.value}: another resize is in progress",
        )
    return segment


def _resized(
    stream: Stream, predecessors: Sequence[StreamSegment], edges: Sequence[int]
) -> Stream | Refused:
    """Return the stream in which these segments are sealing, with successors at these edges."""
    first = len(stream.segments)
    if first + len(edges) - 1 > SEGMENTS_MAX:
        return Refused(
            ErrorCode.POLICY_VIOLATION,
            f"the stream has had {first} segments, and {SEGMENTS_MAX} are the most: create "
            "another stream",
        )
    indexes = tuple(each.index for each in predecessors)
    assert all(each.state in COVERING for each in predecessors)
    successors = [
        StreamSegment(
            index=first + place,
            low=low,
            high=high,
            state=SegmentState.OPENING,
            predecessors=indexes,
        )
        for place, (low, high) in enumerate(pairwise(edges))
    ]
    return stream.changed(
        [*(with_state(each, SegmentState.SEALING) for each in predecessors), *successors]
    )
