"""A chart of a history around its worst finding: operations over time, and the log.

Above, the operations of each client over time; below, the records of the partition that the
finding, who sent them and who read them. Irrelevant time is omitted.
"""

from bisect import bisect_left
from dataclasses import dataclass
from math import isinf

from fencelog.check.facts import Facts, establish
from fencelog.check.svg import Axis, axis, element, escape, label
from fencelog.check.tables import FAILED, INDETERMINATE, OK, OPEN, OUTCOMES, History
from fencelog.check.verdict import Finding, Verdict

WIDTH = 1240
LEFT = 150
RIGHT = 24
LANE = 26
ROW = 20
LANES_MAX = 18
ROWS_AROUND = 3
ROWS_MAX = 24
BARS_MAX = 400
"""At most this many operations are drawn; with more, less time around the counterexample."""
AROUND_S = 2.0
"""Seconds shown before and after a counterexample, unless too much happens in them."""

INK, QUIET, GRID, PAPER = "#1f2933", "#66727f", "#e7e5df", "#fbfaf7"
WRONG, FAULT = "#c81e1e", "#f5d0c5"
COLOR = {OK: "#0f766e", FAILED: "#94a3b8", INDETERMINATE: "#d97706", OPEN: "#d97706"}
FINAL_COLOR = "#1d4ed8"


def draw(history: History, verdict: Verdict) -> str:
    """The chart as an SVG document; of the first problem, or of the whole if there is none."""
    finding = verdict.problems[0] if verdict.problems else None
    return _Chart(history, verdict, finding).document()


@dataclass(frozen=True)
class _Lane:
    process: int
    y: float


class _Chart:
    def __init__(self, history: History, verdict: Verdict, finding: Finding | None) -> None:
        self._history = history
        self._verdict = verdict
        self._finding = finding
        self._witness = [each.op for each in finding.counterexample] if finding else []
        self._facts = establish(history)
        self._parts: list[str] = []
        self._y = 0.0

    def document(self) -> str:
        self._title()
        spans = self._spans()
        shown = _shown(self._history, spans, self._witness)
        plot = axis(spans, LEFT, WIDTH - LEFT - RIGHT)
        lanes, left_out = self._lanes(shown)
        top = self._y
        height = LANE * len(lanes)
        self._background(plot, top, height)
        for lane in lanes:
            self._lane(
                plot, lane, [op for op in shown if self._history.ops.process[op] == lane.process]
            )
        self._y = top + height
        self._ticks(plot)
        if left_out:
            self._note(f"{left_out} more clients were busy and are not shown")
        if self._finding is not None and self._finding.key is not None:
            self._log(plot, self._finding.key, set(shown))
        self._foot()
        body = "".join(self._parts)
        paper = element("rect", width=WIDTH, height=self._y + 16, fill=PAPER)
        return element(
            "svg",
            paper + body,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {WIDTH} {self._y + 16:.0f}",
            width=WIDTH,
            height=int(self._y + 16),
            font_family="Helvetica, Arial, sans-serif",
            font_size=12,
            fill=INK,
        )

    def _add(self, *parts: str) -> None:
        self._parts += parts

    def _title(self) -> None:
        self._y = 34.0
        headline = self._verdict.text().splitlines()[0]
        self._add(label(24, self._y, _cut(headline, 100), font_size=20, font_weight="bold"))
        if self._finding is not None:
            for line in _wrapped(str(self._finding), 165):
                self._y += 20
                self._add(label(24, self._y, line, fill=WRONG, font_size=13))
        self._y += 36

    def _spans(self) -> list[tuple[float, float]]:
        """The times to show: all of a short history, else some around each counterexample."""
        ops = self._history.ops
        ends = [each for each in ops.completed if not isinf(each)]
        whole = (min(ops.invoked, default=0.0), max([*ops.invoked, *ends], default=0.0))
        margin = max(0.02 * (whole[1] - whole[0]), 1e-6)
        everything = (whole[0] - margin, whole[1] + margin)
        if len(ops) <= BARS_MAX / 2 or not self._witness:
            return [everything]
        around = AROUND_S
        while True:
            spans = self._around(around)
            if len(_shown(self._history, spans, ())) <= BARS_MAX or around < 1e-4:
                return spans
            around /= 2

    def _around(self, seconds: float) -> list[tuple[float, float]]:
        ops = self._history.ops
        spans: list[tuple[float, float]] = []
        for start, end in sorted(
            (ops.invoked[op], ops.invoked[op] if isinf(ops.completed[op]) else ops.completed[op])
            for op in self._witness
        ):
            if spans and start - seconds <= spans[-1][1]:
                spans[-1] = spans[-1][0], max(spans[-1][1], end + seconds)
            else:
                spans.append((start - seconds, end + seconds))
        return spans

    def _lanes(self, shown: list[int]) -> tuple[list[_Lane], int]:
        """Processes of the counterexample first, then other active ones."""
        process = self._history.ops.process
        order = list(dict.fromkeys(process[op] for op in (*self._witness, *shown)))
        lanes = [_Lane(each, self._y + LANE * n) for n, each in enumerate(order[:LANES_MAX])]
        return lanes, len(order) - len(lanes)

    def _background(self, plot: Axis, top: float, height: float) -> None:
        """The spans of time, and the faults in them."""
        for each in plot.stretches:
            self._add(
                element("rect", x=each.left, y=top, width=each.width, height=height, fill="#ffffff")
            )
        free = 0.0
        for fault in self._history.faults:
            until = fault.time if fault.until is None else fault.until
            title = element("title", escape(fault.what))
            for x, width in plot.spans(fault.time, until):
                self._add(
                    element(
                        "rect",
                        title,
                        x=x,
                        y=top - 4,
                        width=max(width, 2.0),
                        height=height + 4,
                        fill=FAULT if width > 2 else WRONG,
                        opacity=0.7 if width > 2 else 0.4,
                    )
                )
                if x >= free:
                    self._add(label(x, top - 8, fault.what, fill=WRONG, font_size=10))
                    free = x + 12 + 5 * len(fault.what)

    def _lane(self, plot: Axis, lane: _Lane, ops: list[int]) -> None:
        middle = lane.y + LANE / 2
        name = self._history.processes.all[lane.process]
        self._add(
            label(LEFT - 10, middle + 4, _cut(name, 20), text_anchor="end", fill=QUIET),
            *(
                element("line", x1=s.left, x2=s.left + s.width, y1=middle, y2=middle, stroke=GRID)
                for s in plot.stretches
            ),
        )
        for op in sorted(ops, key=lambda each: each in self._witness):
            self._bar(plot, op, middle)

    def _bar(self, plot: Axis, op: int, middle: float) -> None:
        ops = self._history.ops
        outcome, is_open = ops.outcome[op], isinf(ops.completed[op])
        number = self._witness.index(op) + 1 if op in self._witness else 0
        end = max(ops.invoked) + 1 if is_open else ops.completed[op]
        style: dict[str, str | int | float] = {"fill": COLOR[outcome]}
        if is_open:
            style |= {"fill_opacity": 0.25}
        elif not number:
            style |= {"fill_opacity": 0.75}
        if number:
            style |= {"stroke": WRONG, "stroke_width": 2}
        title = element("title", escape(self._about(op)))
        for x, width in plot.spans(ops.invoked[op], end):
            self._add(
                element(
                    "rect",
                    title,
                    x=x,
                    y=middle - 7,
                    width=max(width, 3.0),
                    height=14,
                    rx=2,
                    **style,
                )
            )
        x_first = plot.point(ops.invoked[op])
        if number and x_first is not None:
            self._badge(x_first, middle, number)

    def _badge(self, x: float, y: float, number: int) -> None:
        self._add(
            element("circle", cx=x, cy=y, r=9, fill=WRONG),
            label(
                x, y + 4, str(number), text_anchor="middle", fill="#ffffff", font_weight="bold",
                font_size=11,
            ),
        )  # fmt: skip

    def _about(self, op: int) -> str:
        """The tooltip of an operation."""
        history, ops = self._history, self._history.ops
        sends = [
            f"{history.sends.value[send]} to {history.keys.all[history.sends.key[send]]}"
            for send in ops.sends_of(op)[:8]
        ]
        end = "…" if isinf(ops.completed[op]) else f"{ops.completed[op]:.3f}"
        error = f": {ops.errors[op]}" if op in ops.errors else ""
        who = f"{history.processes.all[ops.process[op]]} #{ops.number[op]}"
        return f"{who} {OUTCOMES[ops.outcome[op]]}{error}, {ops.invoked[op]:.3f} to {end}" + (
            f", sends {', '.join(sends)}" if sends else ""
        )

    def _ticks(self, plot: Axis) -> None:
        self._y += 16
        for x, text in plot.ticks():
            self._add(label(x, self._y, text, text_anchor="middle", fill=QUIET, font_size=10))
        for before, after in zip(plot.stretches, plot.stretches[1:], strict=False):
            middle = (before.left + before.width + after.left) / 2
            self._add(
                label(middle, self._y, "⋯", text_anchor="middle", fill=QUIET),
                label(
                    middle, self._y + 14, f"{after.start - before.end:.3g} s left out",
                    text_anchor="middle", fill=QUIET, font_size=10,
                ),
            )  # fmt: skip
        self._y += 14

    def _note(self, text: str) -> None:
        self._y += 14
        self._add(label(LEFT, self._y, text, fill=QUIET, font_size=11))

    def _log(self, plot: Axis, name: str, shown: set[int]) -> None:
        """The records of the partition around the finding: rows of offsets."""
        key = self._history.keys[name]
        assert self._finding is not None
        rows = _rows(self._facts, key, self._finding.offsets)
        if not rows:
            return
        self._y += 34
        self._add(label(24, self._y, f"{name}, offset: value", font_weight="bold"))
        x = LEFT + 40.0
        for mark, color, text in (
            ("■", COLOR[OK], "sent, where its operation ended"),
            ("●", COLOR[OK], "shown to a reader"),
            ("●", FINAL_COLOR, "shown to a final reader"),
        ):
            self._add(
                label(x, self._y, mark, fill=color),
                label(x + 14, self._y, text, fill=QUIET, font_size=11),
            )
            x += 40 + 5.5 * len(text)
        self._y += 10
        places: dict[int, float] = {}
        wrong = set(self._finding.offsets)
        last = rows[0] - 1
        for rank in rows:
            offset = self._facts.orders[key][rank]
            if rank != last + 1:
                self._y += 8
            places[offset] = self._y + ROW / 2
            self._row(plot, key, rank, is_wrong=offset in wrong)
            last = rank
            self._y += ROW
        self._marks(plot, key, places, shown)

    def _row(self, plot: Axis, key: int, rank: int, *, is_wrong: bool) -> None:
        offset = self._facts.orders[key][rank]
        value = self._history.sends.value[self._facts.send_at(key, rank)]
        fill = "#fde2e2" if is_wrong else "#ffffff"
        for each in plot.stretches:
            self._add(
                element(
                    "rect", x=each.left, y=self._y + 1, width=each.width, height=ROW - 2, fill=fill
                )
            )
        self._add(
            label(
                LEFT - 10,
                self._y + ROW / 2 + 4,
                f"{offset}: {_cut(str(value), 14)}",
                text_anchor="end",
                fill=WRONG if is_wrong else QUIET,
            )
        )

    def _marks(self, plot: Axis, key: int, places: dict[int, float], shown: set[int]) -> None:
        """Who sent and who read these records, when their operations ended."""
        history, ops = self._history, self._history.ops
        for offset, y in places.items():
            send = self._facts.send_at(key, self._facts.rank(key, offset))
            op = history.sends.op[send]
            if op in shown:
                x = plot.point(ops.invoked[op] if isinf(ops.completed[op]) else ops.completed[op])
                if x is not None:
                    color = COLOR[ops.outcome[op]]
                    title = element("title", escape(self._about(op)))
                    self._add(
                        element("rect", title, x=x - 5, y=y - 5, width=10, height=10, fill=color)
                    )
        finals = set(self._facts.finals)
        for run, (op, run_key) in enumerate(zip(history.runs.op, history.runs.key, strict=True)):
            if run_key != key or op not in shown:
                continue
            x = plot.point(ops.completed[op])
            if x is None:
                continue
            color = FINAL_COLOR if ops.process[op] in finals else COLOR[ops.outcome[op]]
            for offset in history.runs.offsets_of(run):
                if offset in places:
                    self._add(element("circle", cx=x, cy=places[offset], r=4, fill=color))

    def _foot(self) -> None:
        """The colours, and the counterexample in words."""
        self._y += 30
        x = 24.0
        names = {"ok": OK, "failed": FAILED, "indeterminate or no answer": INDETERMINATE}
        for name, outcome in names.items():
            self._add(
                element("rect", x=x, y=self._y - 10, width=14, height=10, fill=COLOR[outcome]),
                label(x + 20, self._y, name, fill=QUIET),
            )
            x += 44 + 6 * len(name)
        if self._history.faults:
            self._add(
                element("rect", x=x, y=self._y - 10, width=14, height=10, fill=FAULT),
                label(x + 20, self._y, "broken on purpose", fill=QUIET),
            )
        if self._finding is None:
            return
        self._y += 12
        for number, each in enumerate(self._finding.counterexample, 1):
            self._y += 22
            self._badge(34, self._y - 4, number)
            self._add(label(52, self._y, " ".join(each.line().split())))


def _shown(
    history: History,
    spans: list[tuple[float, float]],
    counterexample: "list[int] | tuple[int, ...]",
) -> list[int]:
    """The operations in progress in this span, including the counterexample."""
    ops = history.ops
    found = [
        op
        for op, (start, end) in enumerate(zip(ops.invoked, ops.completed, strict=True))
        if any(
            start <= upper and (end if not isinf(end) else start) >= lower for lower, upper in spans
        )
    ]
    return sorted({*found[: BARS_MAX * 2], *counterexample})


def _rows(facts: Facts, key: int, offsets: tuple[int, ...]) -> list[int]:
    """The ranks around these offsets."""
    size = len(facts.orders[key])
    ranks: set[int] = set()
    for offset in offsets:
        rank = bisect_left(facts.orders[key], offset)
        ranks |= set(range(max(0, rank - ROWS_AROUND), min(size, rank + ROWS_AROUND + 1)))
    return sorted(ranks)[:ROWS_MAX]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _wrapped(text: str, most: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= most:
            lines.append("")
        lines[-1] += f"{word} "
    return [line.strip() for line in lines]
