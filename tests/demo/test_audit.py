"""The audit finds a loss, duplicate, aborted row, changed event and wrong total."""

import ast
import json
from pathlib import Path

import pytest

from fencelog_demo import audit, data

EVERY = 500


@pytest.fixture(scope="module")
def source() -> dict[audit.FlightKey, audit.FlightFacts]:
    """A small share of the real flights, as the audit reads them."""
    return audit.read_source(audit.data_folder(), EVERY)


@pytest.fixture
def events(source: dict[audit.FlightKey, audit.FlightFacts]) -> list[bytes]:
    """What a faultless pipeline writes for them."""
    return [event_of(key, facts) for key, facts in source.items()]


@pytest.fixture
def totals(source: dict[audit.FlightKey, audit.FlightFacts]) -> list[tuple[bytes, bytes]]:
    """The totals that a faultless pipeline ends with."""
    return [
        (name.encode(), json.dumps(row).encode()) for name, row in audit.totals_of(source).items()
    ]


def event_of(key: audit.FlightKey, facts: audit.FlightFacts, outcome: str = "commit") -> bytes:
    """One event as the pipeline writes it."""
    names = ("year", "month", "day", "carrier", "flight", "origin", "sched_dep_time")
    more = ("airline", "dest", "dep_delay", "arr_delay", "cancelled")
    event = dict(zip(names, key, strict=True)) | dict(zip(more, facts, strict=True))
    return json.dumps({**event, "outcome": outcome}).encode()


def test_the_audit_reads_the_same_flights_as_the_producer(source) -> None:
    flights = data.flights(EVERY).to_pylist()
    produced = {
        (row["year"], row["month"], row["day"], row["carrier"], row["flight"], row["origin"],
         row["sched_dep_time"]): (row["dest"], row["dep_delay"], row["arr_delay"])
        for row in flights
    }  # fmt: skip
    assert produced == {key: facts[1:4] for key, facts in source.items()}


def test_a_faultless_run_passes_with_the_promised_line(source, events, totals) -> None:
    findings = audit.audit(source, events, totals)
    assert findings.passed
    assert findings.verdict() == "audit: 674 in, 674 out, 0 lost, 0 duplicated"
    assert findings.totals_checked > 100


def test_a_loss_is_found(source, events, totals) -> None:
    findings = audit.audit(source, events[:100] + events[101:], totals)
    assert not findings.passed
    assert findings.verdict() == "audit: 674 in, 673 out, 1 lost, 0 duplicated"
    assert findings.examples["lost"] == [str(list(source)[100])]


def test_a_duplicate_is_found(source, events, totals) -> None:
    findings = audit.audit(source, [*events, events[7]], totals)
    assert not findings.passed
    assert findings.verdict() == "audit: 674 in, 675 out, 0 lost, 1 duplicated"


def test_a_loss_does_not_make_up_for_a_duplicate(source, events, totals) -> None:
    findings = audit.audit(source, [*events[1:], events[7]], totals)
    assert findings.verdict() == "audit: 674 in, 674 out, 1 lost, 1 duplicated"
    assert not findings.passed


def test_a_row_of_an_aborted_transaction_is_found(source, events, totals) -> None:
    key, facts = next(iter(source.items()))
    findings = audit.audit(source, [event_of(key, facts, "abort"), *events[1:]], totals)
    assert not findings.passed
    assert findings.verdict() == (
        "audit: 674 in, 674 out, 0 lost, 0 duplicated, 1 from aborted transactions"
    )


def test_a_changed_delay_is_found(source, events, totals) -> None:
    changed = {**json.loads(events[3]), "dep_delay": 9_999}
    findings = audit.audit(source, [*events[:3], json.dumps(changed), *events[4:]], totals)
    assert (findings.wrong, findings.passed) == (1, False)


def test_an_invented_flight_is_found(source, events, totals) -> None:
    invented = json.dumps({**json.loads(events[3]), "flight": 99_999})
    findings = audit.audit(source, [*events, invented], totals)
    assert (findings.foreign, findings.passed) == (1, False)


def test_the_newest_total_of_a_key_counts(source, events, totals) -> None:
    stale = [(name, b'{"flights": 0}') for name, _ in totals]
    assert audit.audit(source, events, stale + totals).passed
    assert not audit.audit(source, events, totals + stale[:1]).passed


def test_a_missing_total_is_found(source, events, totals) -> None:
    findings = audit.audit(source, events, totals[1:])
    assert (findings.totals_wrong, findings.passed) == (1, False)


def test_the_audit_shares_no_code_with_the_pipeline() -> None:
    tree = ast.parse(Path(audit.__file__).read_text(encoding="utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
    }
    assert not [name for name in imported if name and name.partition(".")[0] == "fencelog"]
