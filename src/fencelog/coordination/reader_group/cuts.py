"""Stream cuts: where a group begins, ends, or is reset to (R10).

A cut names segments whose ranges cover all keys exactly, each with an offset. Segments that come
after those of a cut are found as these are completed.
"""

from collections.abc import Iterable, Mapping

from fencelog.coordination.reader_group.state import SEGMENTS_MAX, Cut
from fencelog.coordination.streams.model import HASH_SPACE, SegmentState, Stream

OFFSET_MAX = (1 << 63) - 1


class CutError(ValueError):
    """A stream cut does not fit the stream; the message says why."""


def check_cut(stream: Stream, cut: Cut) -> None:
    """Raise CutError if a cut does not cover all keys exactly, or an offset is impossible."""
    if not 0 < len(cut) <= SEGMENTS_MAX:
        raise CutError(f"a stream cut has 1 to {SEGMENTS_MAX} segments, not {len(cut)}")
    check_offsets(stream, cut, {})
    at = 0
    for each in sorted((stream.segments[index] for index in cut), key=lambda each: each.low):
        if each.low != at:
            what = "overlap" if each.low < at else "leave a gap"
            raise CutError(
                f"the segments of the cut {what} at {min(each.low, at)} of {HASH_SPACE}: they must "
                "cover all keys exactly"
            )
        at = each.high
    if at != HASH_SPACE:
        raise CutError(f"the segments of the cut end at {at}, not at {HASH_SPACE}")


def check_offsets(stream: Stream, positions: Cut, ends: Mapping[int, int]) -> None:
    """Raise CutError for an offset that a segment does not have, or has not yet.

    ``ends``: those of segments that are written still, where no later position is possible.
    """
    for index, offset in positions.items():
        segment = stream.get(index)
        if segment is None:
            last = len(stream.segments) - 1
            raise CutError(f"there is no segment {index}, only 0 to {last}")
        end = int(segment.end) if segment.end >= 0 else ends.get(index, OFFSET_MAX)
        if not 0 <= offset <= end:
            ends_at = "" if end == OFFSET_MAX else f", which ends at {end}"
            raise CutError(f"offset {offset} of segment {index}{ends_at}")


def check_order(stream: Stream, start: Cut, end: Cut) -> None:
    """Raise CutError if reading from one cut never comes to the other one."""
    for index in start:
        beyond = [each for each in _reached(stream, [index]) if each in end]
        if not beyond:
            raise CutError(f"reading from segment {index} on never comes to the end that is given")
        if index in end and end[index] < start[index]:
            raise CutError(f"segment {index} is to end at {end[index]}, before {start[index]}")


def earliest(stream: Stream) -> dict[int, int]:
    """Return the cut before which retention has removed everything: at 0 where records may be.

    Segments that are gone are in it, at their ends, where a merge waits for them and others.
    """
    passed: set[int] = set()
    for each in stream.segments:  # predecessors have lower indexes
        if each.state is SegmentState.DELETED and passed.issuperset(each.predecessors):
            passed.add(each.index)
    cut = {}
    for each in stream.segments:
        if each.index not in passed:
            if passed.issuperset(each.predecessors):
                cut[each.index] = 0
        elif any(
            not passed.issuperset(successor.predecessors)
            for successor in stream.successors(each.index)
        ):
            cut[each.index] = int(each.end)
    return cut


def newest(stream: Stream, ends: Mapping[int, int]) -> dict[int, int]:
    """Return the cut at the ends of the segments that are written now."""
    return {each.index: ends[each.index] for each in stream.covering}


def unread(stream: Stream, cut: Cut, ends: Mapping[int, int], until: Cut | None = None) -> int:
    """Return how many offsets are between a cut and the ends, or the cut where reading ends (R10).

    Markers and other control records take offsets too, so it is an upper bound of the events.
    """
    total = 0
    for index in _reached(stream, cut, until):
        end = int(stream.segments[index].end)
        if until is not None and index in until:
            end = until[index]
        elif end < 0:
            end = ends.get(index, 0)
        total += max(end - cut.get(index, 0), 0)
    return total


def ahead(stream: Stream, cut: Cut, until: Cut | None = None) -> dict[int, int]:
    """Return where each segment is read next, from a cut on, up to those where reading ends.

    Those whose records retention has removed have nothing.
    """
    return {
        index: cut.get(index, 0)
        for index in _reached(stream, cut, until)
        if stream.segments[index].state is not SegmentState.DELETED
    }


def _reached(stream: Stream, indexes: Iterable[int], until: Cut | None = None) -> list[int]:
    """Return these segments and all that come after them, up to those of the cut ``until``."""
    found = set(indexes)
    waiting = sorted(found)
    while waiting:
        index = waiting.pop()
        if until is not None and index in until:
            continue
        for each in stream.successors(index):
            if each.index not in found:
                found.add(each.index)
                waiting.append(each.index)
    return sorted(found)
