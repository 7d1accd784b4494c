"""A stream as JSON, as rows and as a chart."""

import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from fencelog.cli.output import Row, console
from fencelog.cli.stream_chart import draw
from fencelog.coordination.streams.model import (
    COVERING,
    ENDED,
    HASH_SPACE,
    SegmentState,
    Stream,
    StreamSegment,
)

if TYPE_CHECKING:
    from fencelog.client.streams.model import StreamDescription

ROWS_MAX = 40
"""Segments that a table on a terminal lists."""
INDEXES_MAX = 6
"""Predecessors, and successors, that a row of it names."""


def segment_row(stream: Stream, segment: StreamSegment) -> Row:
    """One segment, as JSON has it: its range in [0, 1), its end once that is known."""
    return {
        "id": segment.index,
        "low": segment.low / HASH_SPACE,
        "high": segment.high / HASH_SPACE,
        "state": segment.state.value,
        "predecessors": list(segment.predecessors),
        "successors": [each.index for each in stream.successors(segment.index)],
        "end_offset": segment.end if segment.end >= 0 else None,
    }


def as_json(described: "StreamDescription") -> Row:
    """The object that ``stream describe`` prints."""
    stream = described.stream
    return {
        "name": described.name,
        "topic_id": described.topic_id.hex(),
        "segments": [segment_row(stream, each) for each in stream.segments],
    }


def cut_json(described: "StreamDescription", ends: Mapping[int, int]) -> Row:
    """The object that ``stream cut`` prints: positions, none of them behind a seal."""
    positions = {}
    for index, end in sorted(ends.items()):
        segment = described.segments[index]
        positions[str(index)] = min(end, segment.end) if segment.end >= 0 else end
    return {
        "stream": described.name,
        "topic_id": described.topic_id.hex(),
        "segments": positions,
    }


def listed(described: "StreamDescription") -> Row:
    """The row of ``stream list``: how many segments accept records, and how many are ended."""
    states = [each.state for each in described.stream.segments]
    return {
        "name": described.name,
        "topic_id": described.topic_id.hex(),
        "open": sum(each in COVERING for each in states),
        "sealed": sum(each in ENDED for each in states),
        "resizing": SegmentState.SEALING in states,
    }


def headline(described: "StreamDescription") -> str:
    """The line above the chart: name, id and how many segments there are."""
    row = listed(described)
    resizing = ", resizing" if row["resizing"] else ""
    counts = f"{row['open']} open, {row['sealed']} sealed{resizing}"
    return f"{described.name}  {counts}  (id {described.topic_id.hex()})"


def chosen(described: "StreamDescription") -> tuple[list[Row], int]:
    """Rows for a table, and how many segments it leaves out: the oldest sealed ones."""
    segments = described.stream.segments
    wanted = sorted(segments, key=lambda each: (each.state in ENDED, -each.index))[:ROWS_MAX]
    wanted.sort(key=lambda each: each.index)
    rows = [segment_row(described.stream, each) for each in wanted]
    for row in rows:
        row.update((edge, f"{row[edge]:.6g}") for edge in ("low", "high"))
        row.update((name, _shortened(row[name])) for name in ("predecessors", "successors"))
    return rows, len(segments) - len(wanted)


def _shortened(indexes: object) -> str | None:
    assert isinstance(indexes, list)
    text = ", ".join(str(each) for each in indexes[:INDEXES_MAX])
    more = len(indexes) - INDEXES_MAX
    return (f"{text} and {more} more" if more > 0 else text) or None


def successor_rows(described: "StreamDescription", successors: Collection[int]) -> list[Row]:
    """Rows of the segments that a resize made, in the order of their ranges."""
    stream = described.stream
    found = sorted((stream.segments[each] for each in successors), key=lambda each: each.low)
    return [segment_row(stream, each) for each in found]


def show_chart(stream: Stream, width: int) -> None:
    """Draw the stream on stdout: what is open in bold, what is not dimmed."""
    from rich.text import Text

    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    chart = draw(stream, width, ascii_only=encoding != "utf8")
    shown = console(soft_wrap=True, highlight=False)
    for number, line in enumerate(chart.lines):
        text = Text(line)
        for label in chart.labels:
            if label.line == number:
                text.stylize("bold" if label.is_open else "dim", label.start, label.end)
        shown.print(text)
    for note in chart.notes:
        shown.print(f"({note})")
