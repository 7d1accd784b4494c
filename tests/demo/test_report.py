"""The outcome that a stage's event log gives, and the report about it."""

import re
from dataclasses import replace

import pytest

from fencelog_demo import chart, report
from fencelog_demo.events import Event
from fencelog_demo.outcome import Outcome, outcome
from fencelog_demo.plan import PIPELINES
from fencelog_demo.run import shortcomings
from fencelog_demo.screen import line_of
from tests.demo.synthetic import events_of

ROWS = 33_678
PASSED = {
    "rows_in": ROWS,
    "rows_out": ROWS,
    "lost": 0,
    "duplicated": 0,
    "passed": True,
    "verdict": f"audit: {ROWS} in, {ROWS} out, 0 lost, 0 duplicated",
}


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """Both runs, audited."""
    exact, plain = [outcome(name, ROWS, events_of(ROWS)) for name in PIPELINES]
    duplicates = plain.visible[-1][1] - ROWS
    faults = {**PASSED, "rows_out": ROWS + duplicates, "duplicated": duplicates, "passed": False}
    return [replace(exact, audit=PASSED), replace(plain, audit=faults)]


def test_exactly_once_rows_become_visible_with_commits_and_end_at_the_source(outcomes) -> None:
    assert outcomes[0].visible[-1][1] == ROWS


def test_at_least_once_rows_become_visible_with_every_attempt(outcomes) -> None:
    assert outcomes[1].visible[-1][1] > ROWS


def test_each_fault_has_pids_exit_statuses_and_recovery(outcomes) -> None:
    faults = outcomes[0].faults
    assert [fault.name for fault in faults] == [
        "worker", "broker", "before-commit", "after-commit", "zombie",
    ]  # fmt: skip
    assert all(target.status == -9 for fault in faults[:4] for target in fault.targets)
    assert all(set(fault.recovered_s) == set(PIPELINES) for fault in faults)
    assert faults[4].resumed_s is not None


def test_the_outcome_shows_the_fenced_zombie(outcomes) -> None:
    assert outcomes[0].fenced


def test_a_run_that_duplicated_nothing_or_never_recovered_has_shortcomings(outcomes) -> None:
    exact, plain = outcomes
    assert shortcomings([exact, plain], streams=False) == []
    harmless = replace(plain, audit={**plain.audit, "duplicated": 0})
    assert shortcomings([exact, harmless], streams=False) != []
    assert shortcomings([replace(exact, fenced=False), plain], streams=False) != []
    dead = replace(exact, faults=(replace(exact.faults[0], recovered_s={}),))
    assert shortcomings([dead, plain], streams=False) != []


def test_a_run_over_streams_that_stayed_as_they_were_has_a_shortcoming(outcomes) -> None:
    assert shortcomings(outcomes, streams=True) == [
        "no segment was split or merged: the demo showed nothing of streams"
    ]
    resized = [replace(each, resizes=1) for each in outcomes]
    assert shortcomings(resized, streams=True) == []


def test_resizes_are_counted_and_shown_where_there_are_any(
    outcomes, capsys: pytest.CaptureFixture
) -> None:
    split = Event(1_000_010.0, "resized", {"stream": "flights", "segments": [0]})
    assert outcome(PIPELINES[0], ROWS, [*events_of(ROWS), split, split]).resizes == 2
    report.print_table(outcomes, total_s=99.0)
    assert "segments" not in capsys.readouterr().out
    exact, plain = [replace(each, resizes=42) for each in outcomes]
    late = replace(exact, audit={**exact.audit, "out_of_order": 3})
    report.print_table([late, plain], total_s=99.0)
    printed = capsys.readouterr().out
    assert re.search(r"segments split or merged\s+│\s+42 │\s+42 ", printed)
    assert re.search(r"out of the order of their carrier\s+│\s+3 │\s+- ", printed)
    page = report.page([exact, plain], b"\x89PNG", total_s=99.0, quick=True)
    assert "fencelog&#39;s producer in transactions" in page
    assert "42 times a segment was split" in page


@pytest.mark.parametrize(
    ("segments", "successors", "line"),
    [
        ([3], [4, 5], "flights: segment 3 becomes 4 and 5"),
        ([4, 5], [6], "flights: segments 4 and 5 become 6"),
    ],
)
def test_a_resize_is_a_line_on_the_screen(
    segments: list[int], successors: list[int], line: str
) -> None:
    facts = {"stream": "flights", "segments": segments, "successors": successors}
    assert line_of(Event(0.0, "resized", facts)) == line


def test_the_chart_is_a_png(outcomes) -> None:
    assert chart.draw(outcomes).startswith(b"\x89PNG\r\n")


def test_the_page_is_self_contained_and_names_pids_and_statuses(outcomes) -> None:
    page = report.page(outcomes, b"\x89PNG", total_s=99.0, quick=True)
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "data:image/png;base64," in page
    assert "java 1300: -9 (SIGKILL)" in page
    assert PASSED["verdict"] in page


def test_the_page_shows_a_name_with_markup_as_text(outcomes) -> None:
    exact, plain = outcomes
    named = replace(exact, processes=(replace(exact.processes[0], label="<i>broker"),))
    page = report.page([named, plain], b"\x89PNG", total_s=99.0, quick=True)
    assert "&lt;i&gt;broker" in page
    assert "<i>" not in page


def test_the_table_shows_both_modes_side_by_side(outcomes, capsys: pytest.CaptureFixture) -> None:
    report.print_table(outcomes, total_s=99.0)
    printed = capsys.readouterr().out
    assert re.search(r"duplicated\s+│\s+0 │\s+[1-9]", printed)
