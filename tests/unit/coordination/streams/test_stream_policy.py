"""When the broker resizes a stream by itself, from what was measured (R3)."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelog.coordination.streams.model import HASH_SPACE, SegmentState, Stream, StreamSegment
from fencelog.coordination.streams.policy import (
    Decision,
    MedianSample,
    Merge,
    SegmentRate,
    Split,
    decide,
    load,
    may_merge,
    split_point,
)
from fencelog.coordination.streams.rules import created, sealed, split
from fencelog.coordination.streams.settings import StreamSettings
from fencelog.types import Instant, Offset

SETTINGS = StreamSettings(events_per_s=100, cooldown_ms=10_000)
SPLIT_POINT = HASH_SPACE // 4


def new(count: int) -> Stream:
    stream = created(count)
    assert isinstance(stream, Stream)
    return stream


def rate(events_per_s: float, kbytes_per_s: float = 0.0) -> SegmentRate:
    return SegmentRate(events_per_s=events_per_s, kbytes_per_s=kbytes_per_s)


def decided(
    stream: Stream,
    events: Mapping[int, float],
    settings: StreamSettings = SETTINGS,
    *,
    now: float = 10.0,
) -> Decision | None:
    """The decision ``now`` seconds after a resize."""
    rates = {index: rate(each) for index, each in events.items()}
    return decide(stream, rates, settings, Instant(now), Instant(0.0))


def test_a_segment_above_its_target_splits_with_the_numbers_as_the_reason() -> None:  # R3
    assert decided(new(2), {0: 101.0, 1: 80.0}) == Split(
        0,
        SPLIT_POINT,
        "101.0 events/s, 0.0 KiB/s; the target of a segment is 100 events/s",
    )


def test_of_two_segments_above_their_target_the_one_with_more_splits() -> None:
    decision = decided(new(2), {0: 150.0, 1: 151.0})
    assert isinstance(decision, Split)
    assert decision.segment == 1


def test_a_segment_at_its_target_does_not_split() -> None:
    assert decided(new(2), {0: 100.0, 1: 100.0}) is None


@pytest.mark.parametrize(
    ("now", "is_due"), [(0.0, False), (9.99, False), (10.0, True), (11.0, True)]
)
def test_nothing_is_resized_during_the_cool_down(now: float, *, is_due: bool) -> None:  # R3
    assert (decided(new(1), {0: 500.0}, now=now) is not None) == is_due
    assert (decided(new(2), {0: 0.0, 1: 0.0}, now=now) is not None) == is_due


def test_nothing_is_resized_while_a_resize_is_under_way() -> None:
    stream = split(new(2), 0)
    assert isinstance(stream, Stream)
    assert decided(stream, {0: 500.0, 1: 500.0}) is None
    after = sealed(stream, 0, Offset(1))
    assert isinstance(decided(after, {2: 0.0, 3: 0.0, 1: 500.0}), Split)


def test_a_stream_without_a_rate_has_no_policy() -> None:
    settings = StreamSettings(cooldown_ms=1)
    assert not settings.has_policy
    assert decided(new(2), {0: 1e9, 1: 0.0}, settings) is None
    assert load(rate(1e9, 1e9), settings) == 0


def test_no_policy_passes_the_limits_of_the_stream() -> None:  # R3
    settings = StreamSettings(events_per_s=100, segments_min=2, segments_max=2, cooldown_ms=1)
    assert decided(new(2), {0: 500.0, 1: 500.0}, settings) is None
    assert decided(new(2), {0: 0.0, 1: 0.0}, settings) is None


def test_two_segments_merge_if_together_they_stay_well_below_the_target() -> None:  # R3
    assert decided(new(4), {0: 30.0, 1: 25.0, 2: 24.0, 3: 25.0}) == Merge(
        (1, 2), "together 49.0 events/s, 0.0 KiB/s; the target of a segment is 100 events/s"
    )


def test_two_segments_that_are_half_of_the_target_do_not_merge() -> None:
    assert decided(new(2), {0: 25.0, 1: 25.0}) is None


def test_the_halves_of_a_split_do_not_merge_again() -> None:
    """There is room between the two limits, so a stream does not go to and fro."""
    halves = {0: 50.5, 1: 50.5}
    assert decided(new(2), halves) is None


@pytest.mark.parametrize("events", [{0: 1.0}, {1: 1.0}, {}])
def test_what_was_not_measured_is_not_merged(events: dict[int, float]) -> None:
    assert decided(new(2), events) is None


def test_a_split_is_preferred_to_a_merge() -> None:
    assert isinstance(decided(new(3), {0: 0.0, 1: 0.0, 2: 500.0}), Split)


def test_the_target_in_bytes_counts_like_the_one_in_events() -> None:
    settings = StreamSettings(events_per_s=100, kbytes_per_s=10, cooldown_ms=1)
    assert load(rate(50, 20), settings) == 2
    assert load(rate(150, 1), settings) == 1.5
    decision = decide(new(1), {0: rate(1, 11)}, settings, Instant(1), Instant(0))
    assert isinstance(decision, Split)
    assert decision.reason == (
        "1.0 events/s, 11.0 KiB/s; the target of a segment is 100 events/s, 10 KiB/s"
    )
    only_bytes = StreamSettings(kbytes_per_s=10, cooldown_ms=1)
    found = decide(new(2), {0: rate(1, 1), 1: rate(1, 1)}, only_bytes, Instant(1), Instant(0))
    assert isinstance(found, Merge)
    assert found.reason.endswith("the target of a segment is 10 KiB/s")


# -- where a segment splits ------------------------------------------------------------------------


def segment(low: int, high: int) -> StreamSegment:
    return StreamSegment(index=0, low=low, high=high, state=SegmentState.OPEN)


def test_a_split_halves_what_was_written_and_not_the_range() -> None:  # R3
    samples = [MedianSample(10, 30), MedianSample(20, 30), MedianSample(900, 40)]
    assert split_point(segment(0, 1000), samples) == 20


def test_each_sample_counts_by_its_records() -> None:
    assert split_point(segment(0, 1000), [MedianSample(5, 1), MedianSample(700, 9)]) == 700


def test_without_samples_a_split_halves_the_range() -> None:
    assert split_point(segment(100, 200), []) == 150
    outside = [MedianSample(99, 5), MedianSample(200, 5), MedianSample(-1, 5)]
    assert split_point(segment(100, 200), outside) == 150


def test_a_range_of_one_hash_cannot_be_split() -> None:
    assert split_point(segment(7, 8), [MedianSample(7, 100)]) is None
    stream = Stream(
        (
            StreamSegment(index=0, low=0, high=1, state=SegmentState.OPEN),
            StreamSegment(index=1, low=1, high=HASH_SPACE, state=SegmentState.OPEN),
        )
    )
    assert decided(stream, {0: 900.0, 1: 90.0}) is None
    second = decided(stream, {0: 900.0, 1: 190.0})
    assert isinstance(second, Split)
    assert second.segment == 1


def test_one_key_that_is_all_there_is_has_a_segment_of_its_own_after_two_splits() -> None:
    samples = [MedianSample(600, 10)]
    first = split_point(segment(0, 1000), samples)
    assert first == 600
    assert split_point(segment(first, 1000), samples) == 601
    assert split_point(segment(600, 601), samples) is None


@given(
    st.integers(0, 99),
    st.integers(2, 100),
    st.lists(st.builds(MedianSample, st.integers(-1, 250), st.integers(1, 50))),
)
def test_both_parts_of_a_split_have_some_of_the_range(
    low: int, size: int, samples: list[MedianSample]
) -> None:
    at = split_point(segment(low, low + size), samples)
    assert at is not None
    assert low < at < low + size


# -- segments of other leaders ---------------------------------------------------------------------


def wanted(
    stream: Stream, events: Mapping[int, float], settings: StreamSettings = SETTINGS
) -> list[int]:
    rates = {index: rate(each) for index, each in events.items()}
    return may_merge(stream, rates, settings, Instant(10), Instant(0))


def test_the_leader_of_the_lower_segment_asks_for_the_rate_of_the_upper_one() -> None:
    assert wanted(new(4), {0: 1.0, 2: 1.0}) == [1, 3]
    assert wanted(new(4), {1: 1.0, 3: 60.0}) == [2]
    assert wanted(new(2), {1: 1.0}) == [], "the leader of segment 0 asks"


def test_nobody_asks_for_what_changes_nothing() -> None:
    assert wanted(new(2), {0: 60.0}) == [], "it has too much alone"
    assert wanted(new(2), {0: 1.0, 1: 60.0}) == [], "both are known"
    least = StreamSettings(events_per_s=100, segments_min=2, cooldown_ms=1)
    assert wanted(new(2), {0: 1.0}, least) == []
    resizing = split(new(2), 1)
    assert isinstance(resizing, Stream)
    assert wanted(resizing, {0: 1.0}) == []
    assert wanted(new(2), {0: 1.0}, StreamSettings(cooldown_ms=1)) == []


# -- settings --------------------------------------------------------------------------------------


def test_the_settings_of_a_stream_are_read_from_its_topics() -> None:
    settings = StreamSettings.of_topic_config(
        {
            "stream.segments.min": "2",
            "stream.segments.max": "3",
            "stream.rate.events.per.segment": "4",
            "stream.rate.kbytes.per.segment": "5",
            "stream.cooldown.ms": "6",
            "retention.ms": "7",
        }
    )
    assert settings == StreamSettings(
        segments_min=2, segments_max=3, events_per_s=4, kbytes_per_s=5, cooldown_ms=6
    )
    assert settings.problem() is None
    assert settings.limits == (2, 3)
    assert StreamSettings.of_topic_config({}) == StreamSettings()


def test_a_minimum_above_the_maximum_is_a_problem() -> None:
    assert StreamSettings(segments_min=3, segments_max=2).problem() == (
        "stream.segments.min=3: above stream.segments.max=2"
    )
