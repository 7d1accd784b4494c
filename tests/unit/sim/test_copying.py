"""The workloads of groups and of tables on a real broker, and what their checkers find."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencelog.check import check
from fencelog.check.history import Event
from fencelog_sim.workload import Scale
from fencelog_sim.workloads import WORKLOADS
from fencelog_sim.workloads.keyed_claims import Table, claims
from tests.support.broker import BrokerProcess
from tests.unit.sim.real_stage import play

pytestmark = pytest.mark.slow  # broker processes, and workloads played to their end

SCALE = Scale(clients=2, partitions=2, records_per_send=3, pause_s=0, session_s=0.4)
QUICK = {
    "FENCELOG_GROUP_MIN_SESSION_TIMEOUT_MS": "100",
    "FENCELOG_GROUP_INITIAL_REBALANCE_DELAY_MS": "50",
    "FENCELOG_LOG_CLEANER_BACKOFF_MS": "100",
    "FENCELOG_LOG_RETENTION_CHECK_INTERVAL_MS": "300",
}
TABLES = {"t": Table(is_compacted=True), "d": Table(is_compacted=False)}


@pytest.fixture
def quick_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", environment=QUICK) as process:
        yield process


def test_copies_on_an_undisturbed_broker_are_exactly_once(  # E8, E10
    quick_broker: BrokerProcess,
) -> None:
    workload = WORKLOADS["copy"]()
    events = play(workload, quick_broker.address, operations=60, scale=SCALE)
    verdict = check(events)
    assert verdict.outcome == "valid", verdict.problems
    assert workload.check(events) == []
    assert verdict.counts["transactions"] > 5
    tampered: list[Any] = json.loads(json.dumps(events))
    (end,) = [each for each in tampered if each["type"] == "group_end"]
    end["offsets"] = dict.fromkeys(end["offsets"], 0)
    assert {each.kind for each in check(tampered).problems} == {"uncommitted-input"}
    assert all(each.startswith("left behind: ") for each in workload.check(tampered))
    broken = {"type": "failed", "process": "w", "error": "RequestError: (UNKNOWN_SERVER_ERROR)"}
    assert workload.check([broken])[0].startswith("broken: w")


def test_tables_on_an_undisturbed_broker_lose_nothing_that_counts(  # D4
    quick_broker: BrokerProcess,
) -> None:
    workload = WORKLOADS["keyed"]()
    events: list[Any] = play(workload, quick_broker.address, operations=150, scale=SCALE)
    assert workload.check(events) == []
    assert [each for each in events if each.get("what") == "left"]


def wrote(
    pairs: list[list[str | None]], outcome: str = "ok", base: int = 0, topic: str = "t"
) -> list[Event]:
    number = f"{pairs}"
    offsets = {f"{topic}-0": base} if outcome == "ok" else {}
    return [
        {
            "type": "meta",
            "process": "w",
            "what": "write",
            "number": number,
            "batches": {f"{topic}-0": pairs},
        },
        {
            "type": "meta",
            "process": "w",
            "what": "wrote",
            "number": number,
            "outcome": outcome,
            "offsets": offsets,
        },
    ]


def left(rows: list[list[Any]], start: int = 0, topic: str = "t") -> list[Event]:
    return [
        {
            "type": "meta",
            "process": "final",
            "what": "left",
            "partition": f"{topic}-0",
            "rows": rows,
            "start": start,
        }
    ]


TWO = [*wrote([["k", "a"]]), *wrote([["k", "b"]], base=1)]


@pytest.mark.parametrize(
    "events",
    [
        [*TWO, *left([[0, "k", "a"], [1, "k", "b"]])],
        [*TWO, *left([[1, "k", "b"]])],
        [*TWO, *wrote([["k", None]], base=2), *left([])],
        [*TWO, *wrote([["k", None]], "indeterminate"), *left([])],
        [*TWO, *left([], start=2)],
        [*wrote([["k", "c"]], "failed"), *left([])],
    ],
)
def test_records_that_a_compacted_topic_may_lose(events: list[Event]) -> None:  # D4
    assert claims(events, TABLES) == []


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([*TWO, *left([[0, "k", "a"]])], "lost: t-0 at 1"),
        ([*TWO, *left([])], "lost: t-0 at 0"),
        (
            [
                *wrote([["k", "a"]], topic="d"),
                *wrote([["k", "b"]], base=1, topic="d"),
                *left([[1, "k", "b"]], topic="d"),
            ],
            "lost: d-0 at 0",
        ),
        ([*wrote([["k", "c"]], "failed"), *left([[0, "k", "c"]])], "aborted: t-0 at 0"),
        ([*TWO, *left([[1, "k", "b"], [2, "k", "b"]])], "twice: b in t-0"),
        ([*TWO, *left([[1, "k", "a"]])], "elsewhere: t-0 at 1"),
        ([*left([[1, "k", "a"]])], "from nowhere: t-0 at 1"),
        ([*TWO, *left([[1, "k", "b"], [0, "k", "a"]])], "reads back: t-0"),
        (
            [
                *wrote([["k", "a"]], "indeterminate"),
                *wrote([["j", "b"]], "indeterminate"),
                *left([[5, "k", "a"]]),
                *left([[5, "j", "b"]]),
            ],
            "reads twice: t-0 at 5",
        ),
    ],
)
def test_records_that_a_compacted_topic_may_not_lose_or_show(
    events: list[Event], said: str
) -> None:  # D4
    assert any(each.startswith(said) for each in claims(events, TABLES)), claims(events, TABLES)
