"""The chart: an SVG that can be parsed, with the counterexample marked, and time cut down to it."""

import re
from xml.etree import ElementTree

from fencelog.check import judge
from fencelog.check.chart import draw
from fencelog.check.intake import gather
from fencelog.check.svg import axis
from tests.unit.check.writing import Written, poll, send

SVG = "{http://www.w3.org/2000/svg}"


def chart(h: Written) -> ElementTree.Element:
    history = gather(h.events)
    return ElementTree.fromstring(draw(history, judge(history)))


def texts(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def outlined(root: ElementTree.Element) -> list[str]:
    """The tooltips of the operations of the counterexample."""
    return [
        title.text or ""
        for rect in root.iter(f"{SVG}rect")
        if rect.get("stroke") and (title := rect.find(f"{SVG}title")) is not None
    ]


def lost(before: int = 0, after: int = 0) -> Written:
    """A lost write, among other operations."""
    h = Written()
    for n in range(before):
        h.ok("u", send("y", n, n))
    h.ok("w<1>", send("x", "a&b", 0), send("x", "b", 1))
    for n in range(after):
        h.ok("u", send("z", n, n))
    h.ok("final", poll(x=[(1, "b")]))
    return h


def test_the_counterexample_is_outlined_numbered_and_described() -> None:
    root = chart(lost())
    assert len(outlined(root)) == 2
    shown = texts(root)
    assert {"1", "2"} <= set(shown)
    assert any(text.startswith("INVALID: 1 lost-write") for text in shown)
    assert any("sent a&b to x, told 0" in text for text in shown)


def test_the_records_around_the_finding_are_rows() -> None:
    shown = texts(chart(lost()))
    assert {"0: a&b", "1: b"} <= set(shown)


def test_a_long_history_leaves_out_the_time_between_counterexamples() -> None:
    root = chart(lost(before=2000, after=2000))
    assert len(outlined(root)) == 2
    assert any("s left out" in text for text in texts(root))
    assert len(list(root.iter(f"{SVG}rect"))) < 1000


def test_faults_are_shown_over_their_span() -> None:
    h = lost()
    h.events.append({"type": "fault", "time": 1.0, "until": 2.0, "what": "kill <broker>"})
    assert "kill <broker>" in texts(chart(h))


def test_a_valid_history_is_drawn_whole() -> None:
    h = Written()
    h.ok("w", send("x", 1, 0))
    h.begin("v", send("x", 2))
    h.ok("final", poll(x=[(0, 1)]))
    root = chart(h)
    assert texts(root)[0] == "VALID: no anomaly"
    assert {"w", "v", "final"} <= set(texts(root))


def test_an_empty_history_has_a_chart_too() -> None:
    assert texts(chart(Written()))[0].startswith("NOTHING CHECKED")


def test_a_finding_without_operations_has_one_too() -> None:
    h = lost()
    h.events = h.events[:2]
    h.ends(x=(0, 1, 2, 2))
    assert any("hanging-lso" in text for text in texts(chart(h)))


def test_what_cannot_be_printed_does_not_break_the_document() -> None:
    h = Written()
    h.ok("w\x00", send("x", "\x1b\ud800", 0), send("x", "b", 1))
    h.ok("final", poll(x=[(1, "b")]))
    history = gather(h.events)
    svg = draw(history, judge(history))
    assert not re.search(r"[\x00-\x08\x1b\ud800]", svg)
    ElementTree.fromstring(svg)


def test_stretches_share_the_width_and_keep_their_order() -> None:
    made = axis([(0.0, 1.0), (50.0, 60.0)], 100, 1000)
    first, second = made.stretches
    assert first.left == 100
    assert first.left + first.width < second.left
    assert abs(second.left + second.width - 1100) < 1e-6
    assert made.point(0.5) is not None
    assert made.point(5) is None
    assert [text for _, text in made.ticks() if text.startswith("52")] == ["52 s"]
