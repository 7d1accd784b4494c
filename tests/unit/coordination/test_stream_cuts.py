"""Stream cuts: which ones fit a stream, where reading begins, what is unread (R10)."""

import pytest

from fencelog.coordination.reader_group.cuts import (
    CutError,
    ahead,
    check_cut,
    check_offsets,
    check_order,
    earliest,
    newest,
    unread,
)
from fencelog.coordination.streams.model import SegmentState, Stream, with_state
from fencelog.coordination.streams.rules import created, merge, sealed, split
from fencelog.types import Offset


def stream(count: int) -> Stream:
    found = created(count)
    assert isinstance(found, Stream)
    return found


def after_split(found: Stream, index: int, end: int) -> Stream:
    changed = split(found, index)
    assert isinstance(changed, Stream)
    return sealed(changed, index, Offset(end))


def after_merge(found: Stream, *ends: tuple[int, int]) -> Stream:
    changed = merge(found, [index for index, _ in ends])
    assert isinstance(changed, Stream)
    for index, end in ends:
        changed = sealed(changed, index, Offset(end))
    return changed


def deleted(found: Stream, *indexes: int) -> Stream:
    return found.changed(
        [with_state(found.segments[each], SegmentState.DELETED) for each in indexes]
    )


def test_a_cut_covers_all_keys_exactly() -> None:
    # R10
    found = after_split(stream(2), 0, 10)
    for cut in ({0: 10, 1: 0}, {1: 5, 2: 0, 3: 7}):
        check_cut(found, cut)
    for cut, why in [
        ({}, "1 to 10000 segments"),
        ({0: 0}, "end at"),
        ({1: 0}, "leave a gap at 0"),
        ({0: 0, 1: 0, 2: 0}, "overlap"),
        ({0: 11, 1: 0}, "offset 11 of segment 0, which ends at 10"),
        ({0: -1, 1: 0}, "offset -1"),
        ({0: 0, 9: 0}, "no segment 9, only 0 to 3"),
    ]:
        with pytest.raises(CutError, match=why):
            check_cut(found, cut)


def test_the_end_comes_after_the_start() -> None:
    # R10
    found = after_split(stream(2), 0, 10)
    check_order(found, {0: 3, 1: 0}, {2: 4, 3: 5, 1: 6})
    check_order(found, {0: 3, 1: 0}, {0: 3, 1: 0})
    with pytest.raises(CutError, match="to end at 2, before 3"):
        check_order(found, {0: 3, 1: 0}, {0: 2, 1: 0})
    with pytest.raises(CutError, match="from segment 2 on never comes"):
        check_order(found, {2: 0, 3: 0, 1: 0}, {0: 10, 1: 0})


def test_reading_begins_at_what_retention_has_left() -> None:
    # R8
    assert earliest(stream(2)) == {0: 0, 1: 0}
    found = after_split(stream(2), 0, 10)
    assert earliest(found) == {0: 0, 1: 0}
    assert earliest(deleted(found, 0)) == {1: 0, 2: 0, 3: 0}
    merged = after_merge(stream(2), (0, 10), (1, 20))
    # Segment 2 waits for 1 and for 0, which is gone: its end stands for it.
    assert earliest(deleted(merged, 0)) == {0: 10, 1: 0}
    assert earliest(deleted(merged, 0, 1)) == {2: 0}


@pytest.mark.parametrize(
    ("positions", "text"),
    [
        ({4: 0}, "there is no segment 4, only 0 to 3"),
        ({0: 11}, "offset 11 of segment 0, which ends at 10"),
        ({1: 6}, "offset 6 of segment 1, which ends at 5"),
        ({2: -1}, "offset -1 of segment 2"),
        ({2: 1 << 63}, "offset 9223372036854775808 of segment 2"),
    ],
)
def test_an_offset_that_a_segment_does_not_have_is_refused(
    positions: dict[int, int], text: str
) -> None:
    # R10
    found = after_split(stream(2), 0, 10)
    check_offsets(found, {0: 10, 1: 5, 2: 0}, {1: 5})
    with pytest.raises(CutError, match=f"^{text}$"):
        check_offsets(found, positions, {1: 5})


def test_the_newest_cut_is_at_the_ends_of_what_is_written() -> None:
    found = after_split(stream(2), 0, 10)
    assert newest(found, {1: 5, 2: 6, 3: 7}) == {2: 6, 3: 7, 1: 5}


def test_unread_is_what_follows_a_cut_in_it_and_after_it() -> None:
    # R10
    found = after_split(stream(2), 0, 10)
    ends = {1: 5, 2: 6, 3: 7}
    assert unread(found, {0: 4, 1: 5}, ends) == 6 + 6 + 7
    assert unread(found, {2: 6, 3: 6, 1: 5}, ends) == 1
    assert unread(found, {0: 4, 1: 0}, ends, until={0: 10, 1: 2}) == 6 + 2
    assert ahead(found, {0: 4, 1: 5}) == {0: 4, 1: 5, 2: 0, 3: 0}
    assert ahead(found, {2: 6, 3: 6, 1: 5}) == {1: 5, 2: 6, 3: 6}
    assert ahead(found, {0: 4, 1: 0}, {0: 10, 1: 2}) == {0: 4, 1: 0}
    assert ahead(deleted(found, 0), {0: 4, 1: 5}) == {1: 5, 2: 0, 3: 0}
