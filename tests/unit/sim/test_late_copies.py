"""A copy of a write that arrives late, in the next topic of the name: which ones may be there."""

import pytest

from fencelog.check.history import Event
from fencelog_sim import run as running
from fencelog_sim.faults import Fault, Kind
from fencelog_sim.run import Case, run
from fencelog_sim.workloads import WORKLOADS

STRANDED = Fault(kind=Kind.STRAND, at=0.0, point="request Produce", nth=4, seconds=1.5)
SEEDS = (6, 8, 12)
"""In these the topic is made again before the copy arrives."""


def noted(what: str, **fields: object) -> Event:
    return {"type": "meta", "time": 1.0, "what": what, "topic": "admin-0", **fields}


def written_once(*, once: bool) -> list[Event]:
    """A value of a deleted topic that is in the next one."""
    place = {"partition": "admin-0-0", "offset": 0}
    row = ["admin-0-0", 0, "early"]
    return [
        noted("write", value="early"),
        noted("wrote", value="early", once=once, **place),
        noted("delete"),
        noted("deleted", quick=True, is_heard=True),
        noted("left", rows=[row], starts=0, committed={}),
    ]


def test_only_a_write_that_was_sent_again_may_be_in_the_next_topic() -> None:
    check = WORKLOADS["admin"]().check
    assert check(written_once(once=False)) == []
    (problem,) = check(written_once(once=True))
    assert problem == "from nowhere: admin-0 has early, of a deleted topic"


@pytest.mark.parametrize(("late_s", "problems"), [(12.9, []), (13.0, ["lost: the offset of p"])])
def test_what_is_committed_before_its_coordinator_hears_of_a_deletion_may_go_with_it(
    late_s: float, problems: list[str]
) -> None:
    events = [
        noted("delete"),
        noted("deleted", quick=True, is_heard=False),
        noted("commit", partition="p", offset=3),
        {**noted("committed", partition="p", offset=3), "time": 1.0 + late_s},
        noted("left", rows=[], starts=0, committed={}),
    ]
    assert [each.partition(",")[0] for each in WORKLOADS["admin"]().check(events)] == problems


@pytest.mark.parametrize(("late_s", "problems"), [(12.9, []), (13.0, ["from nowhere: admin-0"])])
def test_who_has_not_heard_of_a_deletion_shows_the_deleted_records(
    late_s: float, problems: list[str]
) -> None:
    place = {"partition": "admin-0-0", "offset": 0}
    row = ["admin-0-0", 0, "old"]
    events = [
        noted("write", value="old"),
        noted("wrote", value="old", once=True, **place),
        noted("delete"),
        noted("deleted", quick=True, is_heard=False),
        {**noted("left", rows=[row], starts=0, committed={}), "time": 1.0 + late_s},
        {**noted("left", rows=[["admin-0-0", 0, "never"]], starts=0, committed={}), "time": 30.0},
    ]
    *found, never = (each.partition(" has")[0] for each in WORKLOADS["admin"]().check(events))
    assert found == problems
    assert never == "from nowhere: admin-0"


@pytest.mark.parametrize("is_doubtful", [True, False])
def test_a_topic_that_was_deleted_is_not_refused_as_existing(*, is_doubtful: bool) -> None:
    made = [noted("create"), noted("created", is_new=True, quick=not is_doubtful)]
    deleted = [noted("delete"), noted("deleted", quick=True, is_heard=True)]
    refused = [noted("create"), noted("created", is_new=False, quick=True)]
    check = WORKLOADS["admin"]().check
    assert check([*made, *deleted, *made]) == []
    told = ["broken: admin-0 is refused as existing, and was deleted"]
    assert check([*made, *deleted, *refused]) == ([] if is_doubtful else told)
    assert check([*made, *refused]) == []
    assert check([noted("create"), *made, *deleted, *refused]) == []  # the first may come yet


@pytest.mark.parametrize("seed", SEEDS)
def test_a_write_whose_connection_broke_is_known_to_be_sent_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.trampolines, "install", lambda: None)
    result = run(Case(seed, "admin", plan=(STRANDED,), clients=1, span_s=3.0))
    assert result.problems == []
    wrote = [event for event in result.history if event.get("what") == "wrote"]
    assert [event["once"] for event in wrote].count(False) == 1
