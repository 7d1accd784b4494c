"""The drawing of a stream: what each picture shows, and that it stays within its bounds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelog.cli.stream_chart import ROWS_MAX, WIDTH_MAX, WIDTH_MIN, Chart, draw
from fencelog.coordination.streams.model import HASH_SPACE, Stream
from fencelog.coordination.streams.rules import created, merge, sealed, split, unsealed
from fencelog.types import Offset


def of(outcome: object) -> Stream:
    assert isinstance(outcome, Stream)
    return outcome


def done(outcome: object, end: int = 7) -> Stream:
    """The stream once its seals are committed."""
    stream = of(outcome)
    for index in unsealed(stream):
        stream = sealed(stream, index, Offset(end))
    return stream


def resized(first: int, resizes: int, seed: int) -> Stream:
    """A stream after so many splits and merges, where chance chooses."""
    chance = random.Random(seed)
    stream = of(created(first))
    for _ in range(resizes):
        place = chance.randrange(len(stream.covering))
        chosen = [each.index for each in stream.covering[place : place + 2]]
        outcome = split(stream, chosen[0]) if chance.random() < 0.6 else merge(stream, chosen)
        stream = done(outcome) if isinstance(outcome, Stream) else stream
    return stream


STREAMS = st.builds(resized, st.integers(1, 60), st.integers(0, 30), st.integers(0, 1000))


def picture(chart: Chart) -> str:
    return "\n" + "\n".join(line.rstrip() for line in chart.lines) + "\n"


def test_splits_and_merges_are_drawn_from_the_first_segments_down_to_the_present() -> None:
    stream = done(split(of(created(2)), 0))
    stream = done(merge(stream, [3, 1]), 1200)
    stream = of(split(stream, 2))
    shown = """
0            0.25            0.5          0.75             1
┌─────────────────────────────┬────────────────────────────┐
│ 0 sealed at 7               │ 1 sealed at 1200           │
├──────────────┬──────────────┤                            │
│ 2 sealing    │ 3 sealed     │                            │
├──────┬───────┼──────────────┴────────────────────────────┤
│ 5    │ 6     │ 4 open                                    │
└──────┴───────┴───────────────────────────────────────────┘
"""
    assert picture(draw(stream, 60)) == shown


def test_resizes_that_do_not_follow_each_other_share_a_row() -> None:
    stream = of(created(2))
    for index in (0, 1):
        stream = done(split(stream, index))
    rows = [line for line in draw(stream, 80).lines if "open" in line]
    assert len(rows) == 1


def test_a_terminal_without_unicode_gets_the_same_picture_in_ascii() -> None:
    stream = resized(40, 60, 1)
    chart = draw(stream, 80, ascii_only=True)
    assert "".join(chart.lines).isascii()
    assert [len(line) for line in chart.lines] == [len(line) for line in draw(stream, 80).lines]


def test_ranges_too_narrow_for_numbers_are_drawn_with_equal_widths_instead() -> None:
    stream = of(created(1))
    for _ in range(8):
        stream = done(split(stream, stream.covering[0].index))
    chart = draw(stream, 80)
    assert "widths are not to scale" in chart.notes
    assert len(chart.notes) == 1
    for each in stream.covering:
        assert f" {each.index}" in "".join(chart.lines)
    assert "0.125" in chart.lines[0]


def test_ten_thousand_segments_are_one_line_with_their_number() -> None:
    chart = draw(of(created(10_000)), 80)
    assert len(chart.lines) == 4
    assert "10000 segments" in chart.lines[2]
    assert chart.notes == ("10000 of the newest row are too narrow to be numbered at this width",)


def test_of_many_resizes_the_newest_are_drawn_and_the_others_counted() -> None:
    stream = of(created(1))
    while len(stream.segments) < 900:
        last = len(stream.segments) - 1
        stream = done(split(stream, last) if last % 3 != 2 else merge(stream, [last - 1, last]))
    chart = draw(stream, 80)
    resizes = len({each.predecessors for each in stream.segments}) - 1
    assert f"{resizes - ROWS_MAX + 1} earlier resizes are not drawn" in chart.notes
    assert f" {stream.covering[-1].index} open" in "".join(chart.lines)


@given(STREAMS, st.integers(-5, 200))
def test_a_chart_never_exceeds_its_rows_and_the_width_of_the_terminal(
    stream: Stream, width: int
) -> None:
    chart = draw(stream, width)
    bound = max(min(width, WIDTH_MAX), WIDTH_MIN)
    assert {len(line) for line in chart.lines} == {bound}
    assert len(chart.lines) <= 2 + 2 * ROWS_MAX
    for each in chart.labels:
        assert chart.lines[each.line][each.start - 1] == "│"


@given(STREAMS, st.integers(WIDTH_MIN, WIDTH_MAX))
def test_each_segment_that_covers_has_its_number_or_is_counted_in_a_note(
    stream: Stream, width: int
) -> None:
    chart = draw(stream, width)
    labels = [chart.lines[one.line][one.start : one.end] for one in chart.labels if one.is_open]
    shown = {each.split()[0] for each in labels if "segments" not in each}
    hidden = [each for each in stream.covering if str(each.index) not in shown]
    said = [int(note.split()[0]) for note in chart.notes if "numbered" in note]
    assert sum(said) == len(hidden)


@given(STREAMS)
def test_the_picture_begins_and_ends_with_segments_that_cover_all_hashes(  # R1
    stream: Stream,
) -> None:
    chart = draw(stream, 120)
    for line in (chart.lines[2], chart.lines[-2]):
        assert line[0] == line[-1] == "│"
    assert sum(each.high - each.low for each in stream.covering) == HASH_SPACE


@pytest.mark.parametrize("width", [WIDTH_MIN, 80])
def test_a_stream_of_one_segment_is_one_row(width: int) -> None:
    assert len(draw(of(created(1)), width).lines) == 4
