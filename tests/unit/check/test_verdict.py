"""The answer: what was counted, how it reads, and when nothing can be said."""

import json

from fencelog.check import check
from fencelog.check.verdict import ERRORS, NOTES
from tests.unit.check.writing import Written, poll, send


def small() -> Written:
    h = Written()
    h.events.append({"type": "meta", "seed": 17})
    h.ok("w", send("x", "a", 0), send("x", "b", 1), txn=True)
    h.failed("w", send("x", "c"), txn=True)
    h.begin("v", send("x", "d"))
    h.ok("final", poll(x=[(0, "a"), (1, "b")]))
    h.ends(x=(0, 4, 4, 4))
    return h


def test_a_valid_history_says_what_was_checked() -> None:
    verdict = small().verdict()
    assert verdict.valid
    assert verdict.counts == {
        "operations": 4,
        "ok": 2,
        "failed": 1,
        "indeterminate": 1,
        "transactions": 2,
        "sends": 4,
        "sends acknowledged": 2,
        "records polled": 2,
        "records polled by final readers": 2,
        "keys": 1,
        "processes": 3,
        "final readers": 1,
        "faults": 0,
    }
    assert verdict.remarks == ()
    text = verdict.text()
    assert text.startswith("VALID: no anomaly\n")
    assert "4 operations, 2 ok" in text
    assert "run: seed 17" in text


def test_the_report_names_what_could_not_be_checked() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0))
    h.ok("r", poll(x=[(0, "a")]))
    text = h.verdict().text()
    assert "no final readers" in text
    assert "no end event" in text


def test_nothing_is_not_valid() -> None:
    for events in ([], small().events[:2], small().events[:3]):
        verdict = check(events)
        assert verdict.outcome == "nothing-checked"
        assert not verdict.valid
        assert "NOTHING CHECKED" in verdict.text()


def test_reads_of_nothing_that_was_acknowledged_check_nothing() -> None:
    h = Written()
    h.unknown("w", send("x", "a"))
    h.ok("final", poll(x=[(0, "a")]))
    assert h.verdict().outcome == "nothing-checked"


def test_a_problem_in_a_history_of_little_is_a_problem_all_the_same() -> None:
    h = Written()
    h.ends(x=(0, 1, 2, 2))
    assert h.verdict().outcome == "invalid"


def test_the_report_shows_the_worst_kind_first_with_its_counterexample() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0), send("x", "b", 1), send("x", "c", 2))
    h.ok("s", poll(x=[(0, "a")]))
    number = h.begin("r")
    h.events.append(
        {"type": "indeterminate", "process": "r", "id": number, "time": 9.5, "error": "timed out",
         "steps": [poll(x=[(2, "c"), (0, "a")])]}
    )  # fmt: skip
    text = h.verdict().text()
    assert text.startswith("INVALID: 1 lost-write, 1 int-nonmonotonic-poll")
    assert text.index("lost-write (1)") < text.index("int-nonmonotonic-poll (1)")
    assert "9.500  r #3           indeterminate polled x: 0 after 2 (timed out)" in text


def test_many_findings_are_shown_in_part() -> None:
    h = Written()
    h.ok("w", *(send("x", n, n) for n in range(10)))
    h.ok("r", poll(x=[(9, 9)]))
    assert "… and 6 more" in h.verdict().text()


def test_the_verdict_is_json() -> None:
    h = small()
    h.ok("r", poll(x=[(3, "c")]))
    told = json.loads(json.dumps(h.verdict().as_json()))
    assert told["outcome"] == "invalid"
    (problem,) = told["problems"]
    assert problem["kind"] == "aborted-read"
    assert [each["process"] for each in problem["counterexample"]] == ["w", "r"]


def test_each_kind_is_explained_once() -> None:
    assert not ERRORS.keys() & NOTES.keys()
