"""What the check of the workload ``readers`` must find in a copy."""

import pytest

from fencelog.check.history import Event
from fencelog_sim.workloads.stream_copies import problems_of_copy

Row = list[object]


def note(what: str, **fields: object) -> Event:
    return {"type": "meta", "process": "final", "time": 1.0, "what": what, **fields}


STREAM = [
    note("segment", index=0, rows=[[0, "k", "v1"], [1, None, "v2"]]),
    note("segment", index=1, rows=[[0, "k", "v3"]]),
]


def copy(*rows: Row) -> list[Event]:
    return [*STREAM, note("copy", partition=0, rows=list(rows)), note("copy", partition=1, rows=[])]


def test_a_copy_with_each_event_once_is_sound() -> None:
    assert problems_of_copy(copy([0, "k", "v1"], [3, "k", "v3"], [4, None, "v2"])) == []
    assert problems_of_copy(STREAM) == [], "nothing was copied"


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        pytest.param(copy([0, "k", "v1"], [1, None, "v2"]), "not copied: v3", id="lost"),
        pytest.param(
            copy([0, "k", "v1"], [1, None, "v2"], [2, "k", "v3"], [3, None, "v2"]),
            "copied twice:",
            id="twice",
        ),
        pytest.param(
            copy([0, "k", "v3"], [1, "k", "v1"], [2, None, "v2"]),
            "copied in another order:",
            id="a successor before its predecessor",
        ),
        pytest.param(
            copy([0, "k", "v1"], [1, None, "v2"], [2, "k", "v3"], [3, "k", "v4"]),
            "copied from nowhere:",
            id="of an aborted transaction",
        ),
    ],
)
def test_what_does_not_hold_is_named(events: list[Event], problem: str) -> None:
    assert [each for each in problems_of_copy(events) if each.startswith(problem)]
