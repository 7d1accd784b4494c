"""Minimal SVG: escaped elements, and a time axis that can omit spans."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from typing import TypeAlias

Attribute: TypeAlias = str | int | float
GAP_PX = 26
"""Pixels between two spans of an axis."""
TICK_PX = 90
"""Approximate pixels between ticks."""
EDGE_PX = 24
"""Minimal pixels between a tick and the right edge of a span."""


def escape(text: str) -> str:
    """Escaped text for an element or an attribute."""
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return html.escape(shown)


def element(name: str, content: str = "", **attributes: Attribute) -> str:
    """An element; ``content`` is SVG already, ``_`` in names becomes ``-``."""
    told = "".join(
        f' {key.strip("_").replace("_", "-")}="{_number(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{told}>{content}</{name}>" if content else f"<{name}{told}/>"


def _number(value: Attribute) -> str:
    return f"{value:.1f}" if isinstance(value, float) else escape(str(value))


def label(x: float, y: float, text: str, **attributes: Attribute) -> str:
    """A line of text."""
    return element("text", escape(text), x=x, y=y, **attributes)


@dataclass(frozen=True)
class Stretch:
    """A span of seconds and its position."""

    start: float
    end: float
    left: float
    width: float

    def x(self, time: float) -> float:
        """The x of this time; times outside are at the edges."""
        share = (min(max(time, self.start), self.end) - self.start) / (self.end - self.start)
        return self.left + share * self.width


@dataclass
class Axis:
    """Spans of time side by side."""

    stretches: list[Stretch] = field(default_factory=list)

    def spans(self, start: float, end: float) -> Iterable[tuple[float, float]]:
        """The parts of a span of time that are shown, as x and width."""
        for each in self.stretches:
            if start <= each.end and end >= each.start:
                x = each.x(start)
                yield x, each.x(end) - x

    def point(self, time: float) -> float | None:
        """The x of a time, if it is shown."""
        for each in self.stretches:
            if each.start <= time <= each.end:
                return each.x(time)
        return None

    def ticks(self) -> Iterable[tuple[float, str]]:
        """The x and text of round times."""
        for each in self.stretches:
            step = _round_step((each.end - each.start) * TICK_PX / each.width)
            digits = max(0, -floor(log10(step)))
            tick = floor(each.start / step + 1) * step
            while each.x(tick) < each.left + each.width - EDGE_PX:
                yield each.x(tick), f"{tick:.{digits}f} s"
                tick += step


def _round_step(least: float) -> float:
    """The next of 1, 2, 5, 10, … that is not below."""
    power: float = 10.0 ** floor(log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)


def axis(spans: Sequence[tuple[float, float]], left: float, width: float) -> Axis:
    """An axis of these spans of time; each gets a fair share of the width."""
    free = width - GAP_PX * (len(spans) - 1)
    total = sum(end - start for start, end in spans)
    made = Axis()
    for start, end in spans:
        # Half by its length, half equally: a short span must stay readable.
        share = 0.5 * (end - start) / total + 0.5 / len(spans)
        made.stretches.append(Stretch(start, end, left, share * free))
        left += share * free + GAP_PX
    return made
