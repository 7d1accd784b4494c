"""The audit finds a loss, duplicate, aborted row, changed event and wrong total."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from fencelog_demo import audit, data

EVERY = 500


@pytest.fixture(scope="module")
def source() -> dict[audit.FlightKey, audit.FlightFacts]:
    """A small share of the real flights, as the audit reads them."""
    return audit.read_source(audit.data_folder(), EVERY)


@pytest.fixture
def events(source: dict[audit.FlightKey, audit.FlightFacts]) -> list[audit.Record]:
    """What a faultless pipeline writes for them."""
    return [event_of(key, facts) for key, facts in source.items()]


@pytest.fixture
def totals(source: dict[audit.FlightKey, audit.FlightFacts]) -> list[audit.Record]:
    """The totals that a faultless pipeline ends with."""
    return [
        audit.Record(0, name.encode(), json.dumps(row).encode())
        for name, row in audit.totals_of(source).items()
    ]


def event_of(
    key: audit.FlightKey, facts: audit.FlightFacts, outcome: str = "commit"
) -> audit.Record:
    """One event as the pipeline writes it."""
    names = ("year", "month", "day", "carrier", "flight", "origin", "sched_dep_time")
    more = ("airline", "dest", "dep_delay", "arr_delay", "cancelled")
    event = dict(zip(names, key, strict=True)) | dict(zip(more, facts, strict=True))
    return record({**event, "outcome": outcome})


def record(event: dict[str, Any], partition: int = 0) -> audit.Record:
    """A record of an event."""
    return audit.Record(partition, event["carrier"].encode(), json.dumps(event).encode())


def test_the_audit_reads_the_same_flights_as_the_producer(source) -> None:
    flights = data.flights(EVERY).to_pylist()
    produced = {
        (row["year"], row["month"], row["day"], row["carrier"], row["flight"], row["origin"],
         row["sched_dep_time"]): (row["dest"], row["dep_delay"], row["arr_delay"])
        for row in flights
    }  # fmt: skip
    assert produced == {key: facts[1:4] for key, facts in source.items()}
    assert list(produced) == list(source)


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
    changed = record({**json.loads(events[3].value), "dep_delay": 9_999})
    findings = audit.audit(source, [*events[:3], changed, *events[4:]], totals)
    assert (findings.wrong, findings.passed) == (1, False)


def test_an_invented_flight_is_found(source, events, totals) -> None:
    invented = record({**json.loads(events[3].value), "flight": 99_999})
    findings = audit.audit(source, [*events, invented], totals)
    assert (findings.foreign, findings.passed) == (1, False)


def test_the_newest_total_of_a_key_counts(source, events, totals) -> None:
    stale = [each._replace(value=b'{"flights": 0}') for each in totals]
    assert audit.audit(source, events, stale + totals).passed
    assert not audit.audit(source, events, totals + stale[:1]).passed


def test_a_missing_total_is_found(source, events, totals) -> None:
    findings = audit.audit(source, events, totals[1:])
    assert (findings.totals_wrong, findings.passed) == (1, False)


def moved(events: list[audit.Record], partition: int) -> list[audit.Record]:
    """These records in another partition."""
    return [each._replace(partition=partition) for each in events]


def test_the_order_of_a_carrier_goes_on_in_the_segments_that_came_later(  # R2
    source, events, totals
) -> None:
    # A consumer reads partitions in any order, and those of one partition in theirs.
    halves = [*moved(events[400:], 5), *moved(events[:400], 2)]
    findings = audit.audit(source, halves, totals, in_order=True)
    assert findings.passed, findings


def test_flights_in_segments_in_the_wrong_order_are_found(source, events, totals) -> None:  # R2
    halves = [*moved(events[400:], 2), *moved(events[:400], 5)]
    findings = audit.audit(source, halves, totals, in_order=True)
    # Each of the first ones whose carrier has a later one follows that.
    assert findings.out_of_order > 350
    assert not findings.passed
    assert findings.verdict().endswith(f"0 duplicated, {findings.out_of_order} out of order")
    assert audit.audit(source, halves, totals).passed


def test_one_flight_before_the_one_that_it_follows_is_found(source, events, totals) -> None:  # R2
    first = next(n for n, each in enumerate(events) if each.key == b"UA")
    second = next(n for n, each in enumerate(events) if each.key == b"UA" and n > first)
    events[first], events[second] = events[second], events[first]
    findings = audit.audit(source, events, totals, in_order=True)
    assert (findings.out_of_order, findings.passed) == (1, False)
    assert findings.examples["out of order"] == [f"{list(source)[first]} in partition 0"]


def test_flights_of_other_carriers_come_in_any_order(source, events, totals) -> None:
    by_carrier = sorted(events, key=lambda each: each.key or b"")
    assert audit.audit(source, by_carrier, totals, in_order=True).passed


def test_a_duplicate_that_comes_late_is_out_of_order(source, events, totals) -> None:  # R2
    findings = audit.audit(source, [*events, events[7]], totals, in_order=True)
    assert (findings.duplicated, findings.out_of_order) == (1, 1)


def test_the_audit_shares_no_code_with_the_pipeline() -> None:
    tree = ast.parse(Path(audit.__file__).read_text(encoding="utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
    }
    assert not [name for name in imported if name and name.partition(".")[0] == "fencelog"]
