"""Laws of a stream's rules: they hold after any sequence of resizes, seals and deletions."""

from collections.abc import Callable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fencelog.coordination.streams.model import HASH_SPACE, NO_END, SegmentState, Stream
from fencelog.coordination.streams.rules import (
    Refused,
    created,
    emptied,
    merge,
    sealed,
    split,
    unsealed,
)
from fencelog.types import Offset

Change = Callable[[Stream], Stream | Refused]


def _merge_neighbours(place: int, count: int) -> Change:
    def change(stream: Stream) -> Stream | Refused:
        covering = stream.covering
        first = place % len(covering)
        return merge(stream, [each.index for each in covering[first : first + count]])

    return change


def _seal_one(place: int, end: int) -> Change:
    def change(stream: Stream) -> Stream:
        waiting = unsealed(stream)
        return sealed(stream, waiting[place % len(waiting)], Offset(end)) if waiting else stream

    return change


def _emptied(stream: Stream, index: int) -> Stream:
    return emptied(stream, index) if stream.get(index) is not None else stream


indexes = st.integers(0, 30)
CHANGES = st.one_of(
    st.builds(
        lambda index, at: lambda stream: split(stream, index, at),
        indexes,
        st.none() | st.integers(0, HASH_SPACE),
    ),
    st.builds(lambda many: lambda stream: merge(stream, many), st.lists(indexes, max_size=4)),
    st.builds(_merge_neighbours, indexes, st.integers(2, 4)),
    st.builds(_seal_one, indexes, st.integers(0, 99)),
    st.builds(lambda index: lambda stream: _emptied(stream, index), indexes),
)


def _history(stream: Stream, changes: list[Change]) -> list[Stream]:
    """Every value that a stream has under these changes; what is refused changes nothing."""
    history = [stream]
    for change in changes:
        changed = change(history[-1])
        if isinstance(changed, Stream):
            history.append(changed)
    return history


@given(st.integers(1, 5), st.lists(CHANGES, max_size=30))
def test_open_ranges_cover_the_hash_space_exactly_after_every_change(
    count: int, changes: list[Change]
) -> None:  # R1
    first = created(count)
    assert isinstance(first, Stream)
    for stream in _history(first, changes):
        assert stream.problem() is None
        edges = [(each.low, each.high) for each in stream.covering]
        assert edges[0][0] == 0
        assert edges[-1][1] == HASH_SPACE
        assert all(left[1] == right[0] for left, right in pairwise(edges))


@given(st.integers(1, 5), st.lists(CHANGES, max_size=30))
def test_a_segment_never_becomes_another_and_never_opens_again(
    count: int, changes: list[Change]
) -> None:  # R1
    first = created(count)
    assert isinstance(first, Stream)
    order = list(SegmentState)
    for before, after in pairwise(_history(first, changes)):
        assert len(after.segments) >= len(before.segments)
        for old, new in zip(before.segments, after.segments, strict=False):
            assert (old.index, old.low, old.high) == (new.index, new.low, new.high)
            assert old.predecessors == new.predecessors
            assert order.index(old.state) <= order.index(new.state)
            assert old.end in (NO_END, new.end)


@given(st.integers(1, 5), st.lists(CHANGES, max_size=30))
def test_a_successor_is_open_only_once_all_of_its_predecessors_are_sealed(
    count: int, changes: list[Change]
) -> None:  # R2, R8
    first = created(count)
    assert isinstance(first, Stream)
    for stream in _history(first, changes):
        for segment in stream.segments:
            ends = [stream.segments[each].end for each in segment.predecessors]
            assert (segment.state is SegmentState.OPENING) == (NO_END in ends)


@given(st.integers(1, 5), st.lists(CHANGES, max_size=30))
def test_a_stored_stream_is_read_as_it_was(count: int, changes: list[Change]) -> None:
    first = created(count)
    assert isinstance(first, Stream)
    for stream in _history(first, changes):
        assert Stream.of_stored("t", stream.stored()) == stream


@given(st.integers(1, 5), st.lists(CHANGES, max_size=30))
def test_a_resize_that_is_under_way_ends_whatever_has_come_before(
    count: int, changes: list[Change]
) -> None:  # R2
    first = created(count)
    assert isinstance(first, Stream)
    stream = _history(first, changes)[-1]
    while waiting := unsealed(stream):
        stream = sealed(stream, waiting[0], Offset(100))
    assert not {each.state for each in stream.segments} & {
        SegmentState.OPENING,
        SegmentState.SEALING,
    }
