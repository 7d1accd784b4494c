"""A segment of a log: what its indexes lead to, and when it is full."""

import pytest

from fencelog.log.config import LogConfig
from fencelog.log.segment import Segment

BASE = 1000
INTERVAL = 100


def segment_of(*batches: tuple[int, int], has_records: bool = True) -> Segment:
    """A segment at ``BASE`` of batches of ten records each: their sizes and largest timestamps."""
    segment = Segment(BASE)
    for number, (size, timestamp) in enumerate(batches, 1):
        last = BASE + 10 * number - 1
        segment.append(size, last, timestamp, INTERVAL, has_records=has_records)
    return segment


def test_an_entry_follows_once_more_than_the_interval_was_written_since_the_last() -> None:
    segment = segment_of(*[(40, number) for number in range(1, 10)])
    # Before the fourth batch lie 120 bytes; before the seventh 120 since the fourth began.
    assert [segment.index.position(each) for each in (38, 39, 68, 69)] == [0, 120, 120, 240]
    assert len(segment.index) == 2
    assert segment.time_index.last() == (7, 69)


def test_a_batch_at_the_interval_itself_has_no_entry() -> None:
    assert len(segment_of((INTERVAL, 1), (1, 2)).index) == 0
    assert len(segment_of((INTERVAL + 1, 1), (1, 2)).index) == 1


def test_an_end_is_sought_by_the_offset_in_the_log() -> None:
    segment = segment_of(*[(40, number) for number in range(1, 10)])
    ends = {offset: segment.end_position(offset) for offset in (1000, 1039, 1040, 1069, 1070, 1090)}
    assert ends == {1000: 120, 1039: 120, 1040: 240, 1069: 240, 1070: 360, 1090: 360}


def test_the_largest_timestamp_leads_to_its_batch_and_ties_to_the_first() -> None:
    segment = segment_of((30, 5), (30, 9), (30, 9), (30, 7))
    assert (segment.max_timestamp, segment.max_timestamp_offset) == (9, BASE + 19)
    segment.seal()
    assert segment.time_index.last() == (9, 19)


@pytest.mark.parametrize(("timestamp", "entries"), [(-1, 0), (0, 1)])
def test_a_segment_without_timestamps_has_no_entry_for_them(timestamp: int, entries: int) -> None:
    segment = segment_of((40, timestamp))
    segment.seal()
    assert len(segment.time_index) == entries


def test_batches_without_records_have_no_timestamp_but_the_first_ones_age() -> None:
    segment = segment_of((40, 5), has_records=False)
    assert (segment.max_timestamp, segment.first_timestamp, segment.newest_timestamp) == (-1, 5, 5)


@pytest.mark.parametrize(
    ("first", "next_one", "created", "now", "full"),
    [
        (1000, 1100, 0, 9000, False),
        (1000, 1101, 0, 0, True),
        (0, 101, 0, 0, True),
        (1000, -1, 5000, 5101, True),
        (1000, -1, 5000, 5100, False),
        (-1, 5000, 5000, 5100, False),
        (-1, 0, 5000, 5101, True),
        (-1, -1, None, 5101, False),
    ],
)
def test_age_is_by_two_timestamps_or_by_the_clock(
    first: int, next_one: int, created: int | None, now: int, full: bool
) -> None:
    segment = segment_of((40, first))
    segment.created_ms = created
    config = LogConfig(segment_ms=100)
    assert segment.is_full_for(config, 40, BASE + 19, next_one, now) is full


@pytest.mark.parametrize(("size", "full"), [(60, False), (61, True)])
def test_a_segment_is_full_where_one_more_batch_would_pass_its_bytes(size: int, full: bool) -> None:
    segment = segment_of((40, 1))
    assert segment.is_full_for(LogConfig(segment_bytes=100), size, BASE + 19, 1, 0) is full


@pytest.mark.parametrize(("last", "full"), [(2**31 - 1, False), (2**31, True)])
def test_a_segment_is_full_where_an_offset_would_not_fit(last: int, full: bool) -> None:
    assert segment_of((40, 1)).is_full_for(LogConfig(), 40, BASE + last, 1, 0) is full


def test_an_empty_segment_takes_any_batch() -> None:
    assert not Segment(BASE).is_full_for(LogConfig(segment_bytes=100), 10**9, BASE + 2**32, 1, 0)
