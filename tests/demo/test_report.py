"""The outcome that a stage's event log gives, and the report about it."""

import re
from dataclasses import replace

import pytest

from fencelog_demo import chart, report
from fencelog_demo.outcome import Outcome, outcome
from fencelog_demo.plan import PIPELINES
from fencelog_demo.run import shortcomings
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
    assert shortcomings([exact, plain]) == []
    harmless = replace(plain, audit={**plain.audit, "duplicated": 0})
    assert shortcomings([exact, harmless]) != []
    assert shortcomings([replace(exact, fenced=False), plain]) != []
    dead = replace(exact, faults=(replace(exact.faults[0], recovered_s={}),))
    assert shortcomings([dead, plain]) != []


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
