"""How a stream's segments change: each rule returns the next metadata, or why not (R1, R2)."""

import pytest

from fencelog.coordination.streams.model import (
    HASH_SPACE,
    NO_END,
    LogEnd,
    SegmentState,
    Stream,
    StreamSegment,
)
from fencelog.coordination.streams.rules import (
    MERGED_MAX,
    Refused,
    SegmentLimits,
    corrected,
    created,
    emptied,
    merge,
    removed,
    sealed,
    split,
    unsealed,
    with_seals,
)
from fencelog.errors import CorruptionError, ErrorCode
from fencelog.settings.stream_table import SEGMENTS_MAX
from fencelog.types import LeaderEpoch, Offset

HALF = HASH_SPACE // 2
QUARTER = HASH_SPACE // 4


def new(count: int) -> Stream:
    return done(created(count))


def done(outcome: Stream | Refused) -> Stream:
    assert isinstance(outcome, Stream), outcome
    return outcome


def refusal(outcome: Stream | Refused) -> Refused:
    assert isinstance(outcome, Refused), outcome
    return outcome


def states(stream: Stream) -> list[str]:
    return [each.state.value for each in stream.segments]


def ranges(stream: Stream) -> list[tuple[int, int, int]]:
    """The covering segments, each with its range."""
    return [(each.index, each.low, each.high) for each in stream.covering]


def split_and_sealed(stream: Stream, index: int) -> Stream:
    return sealed(done(split(stream, index)), index, Offset(10))


def test_a_new_stream_covers_the_hash_space_with_equal_ranges() -> None:  # R1
    assert ranges(new(4)) == [(n, n * QUARTER, (n + 1) * QUARTER) for n in range(4)]


@pytest.mark.parametrize("count", [-1, 0, SEGMENTS_MAX + 1])
def test_a_stream_of_no_or_too_many_segments_is_refused(count: int) -> None:
    refused = refusal(created(count))
    assert refused.error is ErrorCode.INVALID_PARTITIONS
    assert f"1 to {SEGMENTS_MAX} segments, not {count}" in refused.reason


@pytest.mark.parametrize("count", [2, 6])
def test_a_new_stream_keeps_its_own_limits(count: int) -> None:  # R3
    refused = refusal(created(count, SegmentLimits(3, 5)))
    assert refused.reason == (
        f"{count} segments are not from stream.segments.min=3 to stream.segments.max=5"
    )


def test_a_segment_that_splits_covers_its_range_until_its_seal_is_known() -> None:  # R1, R2
    splitting = done(split(new(2), 0, at=100))

    assert states(splitting) == ["sealing", "open", "opening", "opening"]
    assert ranges(splitting) == [(0, 0, HALF), (1, HALF, HASH_SPACE)]
    assert unsealed(splitting) == [0]

    opened = sealed(splitting, 0, Offset(7))

    assert states(opened) == ["sealed", "open", "open", "open"]
    assert ranges(opened) == [(2, 0, 100), (3, 100, HALF), (1, HALF, HASH_SPACE)]
    assert opened.segments[0].end == 7
    assert unsealed(opened) == []


def test_a_split_without_a_point_halves_the_range() -> None:
    assert ranges(split_and_sealed(new(1), 0)) == [(1, 0, HALF), (2, HALF, HASH_SPACE)]


def test_a_merge_opens_its_successor_with_its_last_predecessor_only() -> None:  # R2
    merging = done(merge(new(3), [1, 0]))
    assert unsealed(merging) == [0, 1]

    one = sealed(merging, 1, Offset(5))

    assert states(one) == ["sealing", "sealing", "open", "opening"]
    assert unsealed(one) == [0]

    both = sealed(one, 0, Offset(9))

    assert states(both) == ["sealed", "sealed", "open", "open"]
    assert [each.end for each in both.segments] == [9, 5, NO_END, NO_END]
    assert both.segments[3].predecessors == (0, 1)


def test_a_seal_that_is_recorded_twice_changes_nothing() -> None:  # R2
    merging = sealed(done(merge(new(2), [0, 1])), 0, Offset(5))
    assert sealed(merging, 0, Offset(5)) is merging

    opened = sealed(merging, 1, Offset(6))
    assert sealed(opened, 1, Offset(6)) is opened


@pytest.mark.parametrize("at", [-1, 0, HALF, HALF + 1, 1 << 40])
def test_a_split_outside_of_the_range_names_the_range(at: int) -> None:
    refused = refusal(split(new(2), 0, at=at))
    assert refused.error is ErrorCode.INVALID_REQUEST
    assert f"cannot be split at {at}: its range is 0 to {HALF} of {HASH_SPACE}" in refused.reason


@pytest.mark.parametrize("index", [-1, 2, (1 << 31) - 1])
def test_a_segment_that_is_none_is_named_with_those_that_are(index: int) -> None:
    refused = refusal(split(new(2), index))
    assert refused == (ErrorCode.INVALID_REQUEST, f"there is no segment {index}, only 0 to 1")
    assert refusal(merge(new(2), [0, index])) == refused


def test_a_sealed_segment_that_is_split_names_its_successors() -> None:
    refused = refusal(split(split_and_sealed(new(1), 0), 0))
    assert refused == (
        ErrorCode.INVALID_REQUEST,
        "segment 0 is sealed; its successors are 1, 2",
    )


def test_a_second_resize_of_a_segment_is_in_the_way_of_the_first() -> None:
    merging = done(merge(new(2), [0, 1]))
    sealing, opening = refusal(split(merging, 0)), refusal(split(merging, 2))
    assert sealing.error is opening.error is ErrorCode.RESIZE_IN_PROGRESS
    assert sealing.reason == "segment 0 is sealing: another resize is in progress"
    assert opening.reason == "segment 2 is opening: another resize is in progress"


@pytest.mark.parametrize("indexes", [[], [0], [1, 1], [0, 1, 0]])
def test_a_merge_of_fewer_than_two_segments_is_refused(indexes: list[int]) -> None:
    refused = refusal(merge(new(2), indexes))
    assert refused.error is ErrorCode.INVALID_REQUEST
    assert refused.reason.endswith(f"two or more different ones merge, not {indexes}")


def test_a_merge_of_too_many_segments_is_refused() -> None:
    refused = refusal(merge(new(MERGED_MAX + 1), range(MERGED_MAX + 1)))
    assert refused.reason == f"{MERGED_MAX} segments merge at once, not {MERGED_MAX + 1}"


def test_segments_whose_ranges_do_not_touch_do_not_merge() -> None:
    refused = refusal(merge(new(4), [0, 3, 2]))
    assert refused.error is ErrorCode.INVALID_REQUEST
    assert refused.reason == (
        f"segments 0 and 2 are not adjacent: one ends at {QUARTER}, the other begins at {HALF} of "
        f"{HASH_SPACE}"
    )


def test_no_resize_passes_the_streams_own_limits() -> None:  # R3
    limits = SegmentLimits(2, 2)
    more, fewer = refusal(split(new(2), 0, None, limits)), refusal(merge(new(2), [0, 1], limits))
    assert more.error is fewer.error is ErrorCode.POLICY_VIOLATION
    assert more.reason == "2 segments are open and stream.segments.max is 2"
    assert fewer.reason == "1 segments would be open and stream.segments.min is 2"


def test_a_stream_has_a_limit_of_segments_over_its_whole_life() -> None:
    stream = new(SEGMENTS_MAX)
    refused = refusal(merge(stream, [0, 1]))
    assert refused.error is ErrorCode.POLICY_VIOLATION
    assert refused.reason.endswith("are the most: create another stream")
    assert refusal(split(stream, 0)).error is ErrorCode.POLICY_VIOLATION


def test_only_a_sealed_segment_is_emptied() -> None:
    stream = split_and_sealed(new(1), 0)
    empty = emptied(stream, 0)
    assert states(empty) == ["deleted", "open", "open"]
    assert emptied(empty, 0) is empty
    assert emptied(stream, 1) is stream
    assert refusal(split(empty, 0)).reason == "segment 0 is sealed; its successors are 1, 2"


def test_only_a_deleted_segment_loses_its_files_and_once() -> None:  # R1
    stream, end = split_and_sealed(new(1), 0), LogEnd(Offset(12), LeaderEpoch(3))
    assert removed(stream, 0, end) is stream
    assert removed(stream, 1, end) is stream
    gone = removed(emptied(stream, 0), 0, end)
    assert states(gone) == ["deleted", "open", "open"]
    assert [each.removed for each in gone.segments] == [end, None, None]
    assert removed(gone, 0, LogEnd(Offset(13), LeaderEpoch(3))) is gone
    assert emptied(gone, 0) is gone
    assert Stream.of_stored("orders", gone.stored()) == gone


def test_only_an_end_that_is_known_is_corrected_and_none_without_a_log() -> None:  # R2
    stream = split_and_sealed(new(1), 0)
    assert corrected(stream, 0, Offset(10)) is stream
    assert corrected(stream, 1, Offset(7)) is stream
    assert [each.end for each in corrected(stream, 0, Offset(7)).segments] == [7, NO_END, NO_END]
    gone = removed(emptied(stream, 0), 0, LogEnd(Offset(12), LeaderEpoch(3)))
    assert corrected(gone, 0, Offset(7)) is gone


def test_logs_that_have_a_seal_are_those_of_replaced_segments_that_have_files() -> None:  # R2
    stream = done(split(new(1), 0))
    assert with_seals(stream) == [0]
    stream = split_and_sealed(sealed(stream, 0, Offset(10)), 1)
    assert with_seals(stream) == [0, 1]
    assert with_seals(emptied(stream, 0)) == [0, 1]
    assert with_seals(removed(emptied(stream, 0), 0, LogEnd(Offset(12), LeaderEpoch(3)))) == [1]


def test_a_hash_belongs_to_the_segment_that_covers_it() -> None:  # R1
    stream = split_and_sealed(new(2), 0)
    assert [stream.segment_of(each).index for each in (0, QUARTER - 1, QUARTER, HALF)] == [
        2,
        2,
        3,
        1,
    ]
    assert stream.segment_of(HASH_SPACE - 1).index == 1


def _segment(index: int, low: int, high: int, **fields: object) -> StreamSegment:
    state = SegmentState(fields.pop("state", "open"))
    return StreamSegment(index=index, low=low, high=high, state=state, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("segments", "problem"),
    [
        ([_segment(0, 1, HASH_SPACE)], "segment 0 covers 1 to 2147483648, not from 0 on"),
        ([_segment(0, 0, 0)], "segment 0 covers 0 to 0, not from 0 on"),
        ([_segment(0, 0, HALF)], "the open segments end at 1073741824, not at 2147483648"),
        ([_segment(1, 0, HASH_SPACE)], "segment 1 is at place 0"),
        ([_segment(0, 0, HASH_SPACE, predecessors=(0,))], "segment 0 has predecessors (0,)"),
        (
            [_segment(0, 0, HASH_SPACE), _segment(1, 0, HASH_SPACE, state="sealed")],
            "segment 1 is sealed and has no end",
        ),
        (
            [
                _segment(0, 0, HASH_SPACE),
                _segment(
                    1,
                    0,
                    HASH_SPACE,
                    state="sealed",
                    end=4,
                    removed=LogEnd(Offset(5), LeaderEpoch(0)),
                ),
            ],
            "segment 1 is sealed and without files, with a log up to 5",
        ),
        (
            [
                _segment(0, 0, HASH_SPACE),
                _segment(
                    1,
                    0,
                    HASH_SPACE,
                    state="deleted",
                    end=4,
                    removed=LogEnd(Offset(4), LeaderEpoch(0)),
                ),
            ],
            "segment 1 is deleted and without files, with a log up to 4",
        ),
    ],
)
def test_stored_segments_that_break_an_invariant_are_named(
    segments: list[StreamSegment], problem: str
) -> None:  # R1
    stream = Stream(tuple(segments))
    assert stream.problem() == problem


@pytest.mark.parametrize(
    "value", [{}, None, [[0, 1]], [[0, 1, "closed", [], -1]], [["a", 1, "open", [], -1]]]
)
def test_what_is_no_stored_form_is_refused_by_its_topics_name(value: object) -> None:
    with pytest.raises(CorruptionError, match=r"topic orders: .* are no segments"):
        Stream.of_stored("orders", value)


def test_a_stored_form_of_too_many_segments_is_refused() -> None:
    with pytest.raises(CorruptionError, match=f"more than {SEGMENTS_MAX}"):
        Stream.of_stored("orders", [[0, 1, "open", [], -1]] * (SEGMENTS_MAX + 1))


def test_a_stored_stream_is_read_as_it_was() -> None:
    stream = split_and_sealed(new(3), 1)
    assert Stream.of_stored("orders", stream.stored()) == stream


def test_a_stored_stream_that_loses_keys_is_refused_by_its_topics_name() -> None:  # R1
    value = new(2).stored()[:1]
    with pytest.raises(CorruptionError, match="topic orders: the open segments end at"):
        Stream.of_stored("orders", value)
