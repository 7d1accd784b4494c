"""A stream as JSON, as the rows of a table, and as what a terminal shows."""

import json

import pytest

from fencelog.cli.stream_view import (
    INDEXES_MAX,
    ROWS_MAX,
    as_json,
    chosen,
    cut_json,
    headline,
    listed,
    show_chart,
    successor_rows,
)
from fencelog.client.streams.model import StreamDescription
from fencelog.coordination.streams.model import Stream
from fencelog.coordination.streams.rules import created, merge, sealed, split, unsealed
from fencelog.types import Offset, TopicId


def described(outcome: object, end: int = 7) -> StreamDescription:
    """The stream once its seals are committed."""
    assert isinstance(outcome, Stream)
    for index in unsealed(outcome):
        outcome = sealed(outcome, index, Offset(end))
    topic_id = TopicId(b"0123456789abcdef")
    return StreamDescription(name="orders", topic_id=topic_id, segments=outcome.segments)


def resizing() -> StreamDescription:
    stream = split(described(split(created_of(2), 0)).stream, 2)
    assert isinstance(stream, Stream)
    topic_id = TopicId(b"0123456789abcdef")
    return StreamDescription(name="orders", topic_id=topic_id, segments=stream.segments)


def created_of(count: int) -> Stream:
    stream = created(count)
    assert isinstance(stream, Stream)
    return stream


def test_json_has_ranges_from_0_to_1_and_no_end_while_a_segment_is_open() -> None:  # R1
    found = json.loads(json.dumps(as_json(resizing())))
    assert (found["name"], len(found["topic_id"])) == ("orders", 32)
    first, second, third = found["segments"][:3]
    assert (first["low"], first["high"], first["state"]) == (0.0, 0.5, "sealed")
    assert (first["successors"], first["end_offset"]) == ([2, 3], 7)
    assert (second["state"], second["successors"], second["end_offset"]) == ("open", [], None)
    assert (third["state"], third["predecessors"]) == ("sealing", [0])
    assert [each["state"] for each in found["segments"][4:]] == ["opening", "opening"]


def test_the_headline_and_the_list_count_what_accepts_records() -> None:
    row = listed(resizing())
    assert (row["open"], row["sealed"], row["resizing"]) == (3, 1, True)
    assert headline(resizing()).startswith("orders  3 open, 1 sealed, resizing  (id 3031")
    assert headline(described(created_of(4))).startswith("orders  4 open, 0 sealed  (id")


def test_a_long_table_keeps_what_is_open_and_says_how_much_it_leaves_out() -> None:
    stream = described(created_of(2)).stream
    for _ in range(60):
        stream = described(split(stream, stream.covering[0].index)).stream
        if len(stream.covering) > 5:
            stream = described(merge(stream, [each.index for each in stream.covering[:4]])).stream
    found = described(stream)
    rows, left_out = chosen(found)
    assert len(rows) == ROWS_MAX
    assert left_out == len(stream.segments) - ROWS_MAX
    assert {each.index for each in stream.covering} <= {row["id"] for row in rows}
    assert [row["id"] for row in rows] == sorted({int(str(row["id"])) for row in rows})
    everything, none = chosen(described(created_of(3)))
    assert (len(everything), none) == (3, 0)


def test_a_row_names_a_few_of_many_predecessors() -> None:
    found = described(merge(created_of(100), range(100)))
    row = chosen(found)[0][-1]
    assert row["predecessors"] == f"0, 1, 2, 3, 4, 5 and {100 - INDEXES_MAX} more"
    assert row["successors"] is None


def test_successors_are_shown_in_the_order_of_their_ranges() -> None:
    found = described(split(created_of(1), 0))
    assert [row["id"] for row in successor_rows(found, [2, 1])] == [1, 2]


def test_a_cut_has_the_position_of_each_segment() -> None:  # R10
    found = described(split(created_of(1), 0))
    cut = json.loads(json.dumps(cut_json(found, {2: 5, 1: 0})))
    assert (cut["stream"], cut["segments"]) == ("orders", {"1": 0, "2": 5})
    assert cut_json(found, {0: 8})["segments"] == {"0": 7}, "not behind its seal"


@pytest.mark.parametrize("segments", [1, 10_000])
def test_the_chart_on_a_terminal_is_bounded(
    segments: int, capsys: pytest.CaptureFixture[str]
) -> None:
    show_chart(created_of(segments), 80)
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 5
    assert max(map(len, out.splitlines())) <= 80
