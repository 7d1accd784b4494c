"""Which segments of a stream a batch reads: the cut between what is read and what is not (R2, R8).

A cut has the position of each segment that is being read. Their ranges cover all hashes exactly, so
each key is at one place: what came before it is read, what comes after it is not. A segment stays
in the cut, finished, until all that its successors replaced is finished. Then the successors take
its place where the next batch begins. So no batch has records of a segment and of its successor,
and a cut never has more entries than the stream had open segments at one time.

From a cut and the stream's metadata of any later day follows what became of every segment: those
that descend from the cut's are to be read, all others are read. Segments that are to be read later,
and not from their first record on, are in the cut as well (``later``): a query may begin there, or
retention may have removed their first records before it began.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fencelog.coordination.streams.model import (
    ENDED,
    HASH_SPACE,
    SegmentState,
    Stream,
    StreamSegment,
)

Offsets = Mapping[int, int]
"""Offsets by segment."""


@dataclass(frozen=True)
class Cut:
    """How far a stream is read.

    Attributes:
        reading: for each segment that is read now the offset of its next record.
        later: where segments begin that follow; those that are not named begin at 0.
    """

    reading: Offsets
    later: Offsets

    @property
    def positions(self) -> dict[int, int]:
        """What is stored: all of it, by segment."""
        return {**self.reading, **self.later}


@dataclass(frozen=True, kw_only=True)
class Gone:
    """Offsets ``start`` to ``end`` (excluded) of a segment were deleted before they were read."""

    segment: int
    start: int
    end: int


@dataclass(frozen=True)
class Begin:
    """Where a batch begins.

    Attributes:
        unknown: segments whose log start must be known before this is final.
    """

    cut: Cut
    gone: tuple[Gone, ...] = ()
    unknown: frozenset[int] = frozenset()


class NoCutError(ValueError):
    """These positions are none of a cut through the stream; the text says what is missing."""


def cut_of(stream: Stream, positions: Offsets) -> Cut:
    """Return the cut with these positions. Raises NoCutError if they leave hashes out."""
    later = descendants(stream, positions)
    reading = {each: positions[each] for each in sorted(positions) if each not in later}
    if (problem := _uncovered(stream, reading)) is not None:
        raise NoCutError(problem)
    return Cut(reading, {each: positions[each] for each in sorted(positions) if each in later})


def first_cut(stream: Stream, positions: Offsets) -> Cut:
    """Return where a query begins that reads each segment from this position on.

    Segments without anything to read after it, and before which nothing is to be read, are left
    behind. Raises NoCutError if a segment has no position.
    """
    missing = [each.index for each in stream.segments if each.index not in positions]
    if missing:
        raise NoCutError(f"segments {missing} have no position")
    cut = _entered(stream, cut_of(stream, positions))
    return Cut(cut.reading, {each: offset for each, offset in cut.later.items() if offset > 0})


def begin(stream: Stream, cut: Cut, log_starts: Offsets) -> Begin:
    """Return where the batch after this cut begins.

    Successors are in it if all of their predecessors were finished by earlier batches, or have
    lost what they had left. Retention may have removed segments that are read: only what is missing
    at a position that is not finished is ``gone``.

    ``log_starts``: the first offsets that segments have; deleted segments need none.
    """
    gone: list[Gone] = []
    while True:
        cut = _entered(stream, cut)
        moved: dict[int, int] = {}
        unknown = set()
        for index, position in cut.reading.items():
            if finished(stream, index, position):
                continue
            segment = stream.segments[index]
            deleted = segment.state is SegmentState.DELETED
            first = segment.end if deleted else log_starts.get(index)
            if first is None:
                unknown.add(index)
            elif position < first:
                gone.append(Gone(segment=index, start=position, end=first))
                moved[index] = first
        if not moved:
            return Begin(cut, tuple(gone), frozenset(unknown))
        cut = Cut({**cut.reading, **moved}, cut.later)


def available(stream: Stream, cut: Cut, latest: Offsets, ceiling: Offsets | None = None) -> Offsets:
    """Return how far each segment of the cut can be read now; never less than its position.

    ``latest``: by isolation level, of the segments that are not finished. ``ceiling``: where a run
    ends that reads what was there when it began; segments that it lacks are not read.
    """
    found: dict[int, int] = {}
    for index, position in cut.reading.items():
        limit = latest.get(index, position)
        if ceiling is not None:
            limit = min(limit, ceiling.get(index, position))
        done = finished(stream, index, position)
        found[index] = position if done else max(position, limit)
    return found


def unread_ends(stream: Stream, cut: Cut, latest: Offsets) -> dict[int, int]:
    """Return the end of each segment that has or will have something to read, for the lag.

    ``latest`` of the open ones; the others end at their seals.
    """
    found = {**available(stream, cut, latest)}
    for index in descendants(stream, cut.reading):
        segment = stream.segments[index]
        end = segment.end if segment.state in ENDED else latest.get(index, 0)
        found[index] = max(end, cut.later.get(index, 0))
    return dict(sorted(found.items()))


def finished(stream: Stream, index: int, position: int) -> bool:
    """Whether nothing of a segment is left at this position, for ever.

    At ``transactional`` isolation no position passes the last stable offset. So one that has
    reached the seal has passed every transaction of the segment.
    """
    segment = stream.segments[index]
    return segment.state in ENDED and position >= segment.end


def implied_starts(stream: Stream, named: Collection[int]) -> dict[int, int]:
    """Return the positions of the segments that a start with these named ones need not name.

    Those before them are read, those after them are not. Raises NoCutError if some are neither.
    """
    after = descendants(stream, named)
    reading = {each: 0 for each in named if each not in after}
    if (problem := _uncovered(stream, reading)) is not None:
        raise NoCutError(problem)
    unsealed = [
        each.index
        for each in stream.segments
        if each.index not in named and each.index not in after and each.state not in ENDED
    ]
    if unsealed:
        raise NoCutError(f"segment {unsealed[0]} is not sealed yet: name it as well")
    return {
        each.index: 0 if each.index in after else each.end
        for each in stream.segments
        if each.index not in named
    }


def implied_ends(stream: Stream, named: Collection[int]) -> dict[int, int]:
    """Return where segments end that a batch read to these named ones need not name.

    Those before them end at their seals, and nothing is read of those after them. Raises NoCutError
    if some are neither.
    """
    before = _ancestors(stream, named)
    after = descendants(stream, named)
    unknown = [
        each.index
        for each in stream.segments
        if each.index not in named and each.index not in before and each.index not in after
    ]
    if unknown:
        raise NoCutError(f"segments {', '.join(map(str, unknown))} are missing")
    return {
        each.index: each.end if each.index in before else 0
        for each in stream.segments
        if each.index not in named
    }


def held_back(stream: Stream, ends: Offsets) -> set[int]:
    """Return the segments of which a read to these ends must read nothing.

    Something that is not readable yet is before them: a predecessor is not read to its end.
    """
    held: set[int] = set()
    for each in stream.segments:
        for index in each.predecessors:
            if index in held or not finished(stream, index, ends[index]):
                held.add(each.index)
    return held


def descendants(stream: Stream, indexes: Collection[int]) -> set[int]:
    """Return the segments that replaced these, or replaced those that did."""
    found: set[int] = set()
    for each in stream.segments:  # predecessors come first
        if any(index in indexes or index in found for index in each.predecessors):
            found.add(each.index)
    return found


def _ancestors(stream: Stream, indexes: Collection[int]) -> set[int]:
    found: set[int] = set()
    for each in reversed(stream.segments):
        if each.index in indexes or each.index in found:
            found.update(each.predecessors)
    return found


def _entered(stream: Stream, cut: Cut) -> Cut:
    """Return the cut in which successors have replaced predecessors that are all finished."""
    reading, later = dict(cut.reading), dict(cut.later)
    to_look_at = list(reading)
    while to_look_at:
        successors = stream.successors(to_look_at.pop())
        if not successors:
            continue
        # A resize is one step, so all of them have the same predecessors.
        predecessors = successors[0].predecessors
        if not all(
            index in reading and finished(stream, index, reading[index]) for index in predecessors
        ):
            continue
        for index in predecessors:
            del reading[index]
        for each in successors:
            reading[each.index] = later.pop(each.index, 0)
            to_look_at.append(each.index)
    return Cut(dict(sorted(reading.items())), later)


def _uncovered(stream: Stream, indexes: Collection[int]) -> str | None:
    """Return what these segments leave out of the hash space or have twice, None if nothing."""
    beyond = [each for each in indexes if stream.get(each) is None]
    if beyond:
        return f"there is no segment {beyond[0]}, only 0 to {len(stream.segments) - 1}"
    covered: list[StreamSegment] = sorted(
        (stream.segments[each] for each in indexes), key=lambda each: each.low
    )
    at = 0
    for each in covered:
        if each.low != at:
            break
        at = each.high
    if at == HASH_SPACE and sum(each.high - each.low for each in covered) == HASH_SPACE:
        return None
    named = ", ".join(str(each.index) for each in covered) or "none"
    return (
        f"segments {named} do not cover all hashes exactly (from {at} on of {HASH_SPACE}):"
        " name those that are open, or those that they replaced"
    )
