"""Draws how a stream was split and merged: the hash range across, time downwards.

Each row has the segments that covered the hash range at one time; the next row has what one or
more resizes made of them. A label stands where its segment begins.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fencelog.coordination.streams.model import HASH_SPACE, SegmentState, Stream, StreamSegment

ROWS_MAX = 16
"""Rows of a chart: it fits on a screen. The newest are drawn."""
WIDTH_MIN, WIDTH_MAX = 20, 160
STEP_MIN = 4
"""Columns between two edges where widths are not to scale."""

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_CORNERS = " │││─┘┐┤─└┌├─┴┬┼"
"""By what meets there: up 1, down 2, left 4, right 8."""
_TIMES = "\N{MULTIPLICATION SIGN}"
_ASCII = str.maketrans(
    dict.fromkeys("┘┐┤└┌├┴┬┼", "+") | {"│": "|", "─": "-", _TIMES: "x", "…": "~"}
)


class Label(NamedTuple):
    """Where a chart names a segment: a line, and columns of it."""

    line: int
    start: int
    end: int
    is_open: bool


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The lines of a chart, where its labels are, and what it leaves out."""

    lines: tuple[str, ...]
    labels: tuple[Label, ...]
    notes: tuple[str, ...]


class _Cell(NamedTuple):
    """One segment between two columns, or adjacent ones that are too narrow for their numbers."""

    start: int
    end: int
    segments: tuple[StreamSegment, ...]


class _Scale(NamedTuple):
    """Where the edges of segments are, on columns 0 to ``last``."""

    last: int
    columns: Mapping[int, int] | None
    """Of each edge; None if widths are true."""

    @property
    def is_linear(self) -> bool:
        return self.columns is None

    def column(self, key_hash: int) -> int:
        if self.columns is None:
            return round(key_hash * self.last / HASH_SPACE)
        return self.columns[key_hash]


def draw(stream: Stream, width: int, *, ascii_only: bool = False) -> Chart:
    """Draw a stream within so many columns and ``ROWS_MAX`` rows, whatever its size."""
    last = max(min(width, WIDTH_MAX), WIDTH_MIN) - 1
    left_out, rows = _rows(stream)
    scale = _scale(rows, last)
    cells = [_cells(row, scale) for row in rows]
    lines = [_axis(scale)]
    labels: list[Label] = []
    above: list[_Cell] = []
    for each in [*cells, []]:
        lines.append(_rule(above, each, last))
        if each:
            text, found = _content(each, _kept(above, each), last)
            labels += [Label(len(lines), *one) for one in found]
            lines.append(text)
        above = each
    notes = []
    if left_out:
        notes.append(f"{left_out} earlier resizes are not drawn")
    if not scale.is_linear:
        notes.append("widths are not to scale")
    if narrow := len(rows[-1]) - sum(_has_number(each) for each in cells[-1]):
        notes.append(f"{narrow} of the newest row are too narrow to be numbered at this width")
    if ascii_only:
        lines = [each.translate(_ASCII) for each in lines]
    return Chart(lines=tuple(lines), labels=tuple(labels), notes=tuple(notes))


def _rows(stream: Stream) -> tuple[int, list[list[StreamSegment]]]:
    """Return how many resizes come before the first row, and the newest rows in range order."""
    steps = list(_steps(stream))
    at = {each.index: each for each in stream.segments if not each.predecessors}
    earlier, shown = steps[: -(ROWS_MAX - 1)], steps[-(ROWS_MAX - 1) :]
    for step in earlier:
        _apply(at, step)
    rows = [_in_order(at)]
    for step in shown:
        _apply(at, step)
        rows.append(_in_order(at))
    return sum(len({each.predecessors for each in step}) for step in earlier), rows


def _steps(stream: Stream) -> Iterator[list[StreamSegment]]:
    """Yield the successors of consecutive resizes, several at once where none follows another."""
    step: list[StreamSegment] = []
    begin = 0
    for each in stream.segments:
        if not each.predecessors:
            continue
        if step and max(each.predecessors) >= begin:
            yield step
            step = []
        if not step:
            begin = each.index
        step.append(each)
    if step:
        yield step


def _apply(at: dict[int, StreamSegment], step: Sequence[StreamSegment]) -> None:
    for each in step:
        for index in each.predecessors:
            at.pop(index, None)
    at.update((each.index, each) for each in step)


def _in_order(at: dict[int, StreamSegment]) -> list[StreamSegment]:
    return sorted(at.values(), key=lambda each: each.low)


def _scale(rows: Sequence[Sequence[StreamSegment]], last: int) -> _Scale:
    """Choose the columns: true widths, or equal ones where that gives each segment its number."""
    linear = _Scale(last, None)
    edges = sorted({each.low for row in rows for each in row} | {HASH_SPACE})
    if (len(edges) - 1) * STEP_MIN > last:
        return linear
    if all(_has_number(cell) for row in rows for cell in _cells(row, linear)):
        return linear
    steps = len(edges) - 1
    return _Scale(last, {edge: round(rank * last / steps) for rank, edge in enumerate(edges)})


def _cells(row: Sequence[StreamSegment], scale: _Scale) -> list[_Cell]:
    """Place segments on columns; adjacent ones without room for their numbers share a cell."""
    cells: list[_Cell] = []
    narrow: list[StreamSegment] = []
    for each in row:
        cell = _Cell(scale.column(each.low), scale.column(each.high), (each,))
        if not _has_number(cell):
            narrow.append(each)
            continue
        cells += _shared(narrow, scale)
        narrow = []
        cells.append(cell)
    return cells + _shared(narrow, scale)


def _has_number(cell: _Cell) -> bool:
    room = cell.end - cell.start - 1
    return len(cell.segments) == 1 and len(str(cell.segments[0].index)) <= room


def _shared(narrow: Sequence[StreamSegment], scale: _Scale) -> list[_Cell]:
    if not narrow:
        return []
    start, end = scale.column(narrow[0].low), scale.column(narrow[-1].high)
    return [_Cell(start, end, tuple(narrow))] if start < end else []


def _kept(above: Sequence[_Cell], cells: Sequence[_Cell]) -> set[_Cell]:
    return set(above) & set(cells)


def _rule(above: Sequence[_Cell], below: Sequence[_Cell], last: int) -> str:
    """Return the line between two rows: a rule wherever a segment ends or begins."""
    upper, lower = _by_column(above, last), _by_column(below, last)
    ups, downs = _edges(above), _edges(below)
    ruled = [upper[x] != lower[x] for x in range(last)]
    return "".join(
        _CORNERS[
            _UP * (x in ups)
            | _DOWN * (x in downs)
            | _LEFT * (x > 0 and ruled[x - 1])
            | _RIGHT * (x < last and ruled[x])
        ]
        for x in range(last + 1)
    )


def _by_column(cells: Sequence[_Cell], last: int) -> list[_Cell | None]:
    found: list[_Cell | None] = [None] * last
    for each in cells:
        found[each.start : each.end] = [each] * (each.end - each.start)
    return found


def _edges(cells: Sequence[_Cell]) -> set[int]:
    return {each.start for each in cells} | {each.end for each in cells}


def _content(
    cells: Sequence[_Cell], kept: set[_Cell], last: int
) -> tuple[str, list[tuple[int, int, bool]]]:
    """Return a row's line, and where its labels are. What is in the row above has it there."""
    text = [" "] * (last + 1)
    for x in _edges(cells):
        text[x] = "│"
    labels = []
    for each in cells:
        label = "" if each in kept else _label(each)
        if label:
            start = each.start + 1
            text[start : start + len(label)] = label
            is_open = all(one.state is SegmentState.OPEN for one in each.segments)
            labels.append((start, start + len(label), is_open))
    return "".join(text), labels


def _label(cell: _Cell) -> str:
    """Return the longest text that fits."""
    if len(cell.segments) > 1:
        count = len(cell.segments)
        texts = [f" {count} segments", f" {_TIMES}{count}", f"{_TIMES}{count}", "…"]
    else:
        (segment,) = cell.segments
        state = segment.state.value
        ended = f"{state} at {segment.end}" if segment.end >= 0 else state
        number = str(segment.index)
        texts = [f" {number} {ended}", f" {number} {state}", f" {number}", number, "…"]
    room = cell.end - cell.start - 1
    return next((text for text in texts if len(text) <= room), "")


def _axis(scale: _Scale) -> str:
    """Return the line above the chart: quarters of the hash range, or the edges that have room."""
    if scale.columns is None:
        edges = {HASH_SPACE * each // 4: scale.column(HASH_SPACE * each // 4) for each in range(5)}
    else:
        edges = dict(scale.columns)
    text = [" "] * (scale.last + 1)
    first, *others, end = sorted(edges)
    for edge in (first, end, *others):
        mark = f"{edge / HASH_SPACE:.3g}"
        start = min(max(edges[edge] - len(mark) // 2, 0), scale.last + 1 - len(mark))
        around = text[max(start - 1, 0) : start + len(mark) + 1]
        if not "".join(around).strip():
            text[start : start + len(mark)] = mark
    return "".join(text)
