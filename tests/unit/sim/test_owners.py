"""What the checks of the workload ``owners`` must find, history by history."""

from typing import Any

import pytest

from fencelog.check.history import Event
from fencelog_sim.workloads.owners_history import problems_of

P = "owned/0"
Row = list[object]


def note(what: str, process: str = "p", **fields: object) -> Event:
    return {"type": "meta", "process": process, "what": what, **fields}


def own(claim: str, *, waits: bool = False, generation: int = -1, prev: int = -1) -> Event:
    return note("own", id=claim, group=None, wanted=[[P, generation, prev]], waits=waits)


def granted(claim: str, session: str, epoch: int, fence: int, generation: int = 1) -> Event:
    return note(
        "granted",
        id=claim,
        group=None,
        session=session,
        epochs={P: epoch},
        generations={P: generation},
        fences={P: fence},
    )


def owner(offset: int, epoch: int, session: str, *, live: bool = True) -> Row:
    return [offset, "owner", None, epoch, session, live, offset]


def data(offset: int, value: str, producer_id: int = -1) -> Row:
    return [offset, "data", producer_id, producer_id >= 0, value]


def marker(offset: int, producer_id: int, *, commit: bool) -> Row:
    return [offset, "marker", producer_id, commit]


def log(*rows: Row) -> Event:
    return note("log", partition=P, rows=list(rows))


TOPIC = note("topic", ownership="if-owned")
TWO = [own("1"), granted("1", "a", 1, 0), own("2"), granted("2", "b", 2, 2, 2)]
SOUND = [TOPIC, *TWO, log(owner(0, 1, "a"), data(1, "a:1"), owner(2, 2, "b"), data(3, "b:1"))]


def test_a_takeover_is_sound() -> None:
    assert problems_of(SOUND) == []


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([owner(0, 1, "a"), owner(2, 2, "b"), data(3, "a:2")], "not the owner's"),
        ([owner(0, 1, "a"), owner(2, 2, "b"), data(3, "-:2")], "not the owner's"),
        ([owner(0, 1, "a"), owner(1, 1, "a", live=False), data(2, "a:2")], "a zombie's"),
        ([owner(0, 2, "b"), owner(1, 1, "a")], "epoch back"),
        ([owner(0, 1, "a"), owner(1, 1, "a")], "epoch back"),
        ([owner(0, 1, "a"), [5, "owner", None, 1, "x", True, 0]], "wrong copy"),
        ([owner(0, 1, "a"), data(1, "a:1"), data(2, "a:1")], "twice"),
        ([owner(1, 1, "a"), owner(2, 2, "b")], "wrong fence"),
        ([owner(0, 1, "a"), data(1, "a:1", 7), owner(2, 2, "b"), data(3, "b:1")], "still open"),
    ],
)
def test_what_is_wrong_with_a_log_is_named(rows: list[Row], problem: str) -> None:
    found = problems_of([TOPIC, *TWO, log(*rows)])
    assert any(each.startswith(problem) for each in found), found


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (note("wrote", partition=P, offset=3, value="b:9", session="b"), "lost: b:9"),
        (
            note("write refused", partition=P, value="b:1", session="b", error="X"),
            "refused and stored",
        ),
        (note("ended", values=["b:1"], commit=False, session="b"), "lost: b:1 was aborted"),
        (note("ended", values=["b:7"], commit=True, session="b"), "lost: b:7 was committed"),
        (note("seen", partition=P, session="a", group=None, number=1, end=4), "zombie's read"),
    ],
)
def test_what_a_client_was_told_and_is_not_so_is_named(told: Event, problem: str) -> None:
    events = [*SOUND, note("read", partition=P, session="a", group=None, number=1), told]
    found = problems_of(events)
    assert any(each.startswith(problem) for each in found), found


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([own("1"), granted("1", "a", 1, 0), own("2"), granted("2", "b", 1, 0)], "two owners"),
        ([own("1"), granted("1", "a", 2, 0), own("2"), granted("2", "b", 1, 0)], "epoch back"),
        ([own("1", prev=3), granted("1", "a", 5, 0)], "zombie's claim"),
        ([own("1", generation=4), granted("1", "a", 1, 0)], "broken: epoch 1"),
        (
            [
                *(own("1", generation=4), granted("1", "a", 1, 0, 4)),
                *(own("2", generation=2), granted("2", "b", 2, 0, 2)),
            ],
            "stale claim",
        ),
        (
            [
                *(own("1", waits=True), note("waiting", id="1", group=None, place=0)),
                *(own("2", waits=True), granted("2", "b", 1, 0), own("1", waits=True)),
                granted("1", "a", 2, 0, 2),
            ],
            "overtaken",
        ),
        ([note("states", states=[[None, P, "claiming", 0]])], "left over"),
    ],
)
def test_what_is_wrong_with_grants_is_named(events: list[Event], problem: str) -> None:
    found = problems_of(events)
    assert any(each.startswith(problem) for each in found), found


def commit(what: str, session: str, process: str, **fields: Any) -> Event:
    told = {"partition": P, "session": session, "group": None, "metadata": f"{session}:1"}
    return note(what, process, **{**told, **fields})


def committed(metadata: str, *, pending: bool = False, answered: bool = True) -> list[Event]:
    """An owner commits an offset, in a transaction or not."""
    session = metadata.rpartition(":")[0]
    told = {"metadata": metadata, "is_pending": pending, "group": "readers"}
    begun, done = (commit(what, session, "p", **told) for what in ("commit", "committed"))
    return [begun, done] if answered else [begun]


def ends(metadata: str, *, commits: bool = True, answered: bool = True) -> list[Event]:
    begun, done = (
        note(what, metadata=[metadata], commit=commits) for what in ("offsets end", "offsets ended")
    )
    return [begun, done] if answered else [begun]


def found(metadata: str | None) -> list[Event]:
    return [note("look", "q", partition=P), note("found", "q", partition=P, metadata=metadata)]


def grant(claim: str, session: str, epoch: int) -> list[Event]:
    of_group = {"group": "readers"}
    answer = granted(claim, session, epoch, epoch, epoch)
    return [{**own(claim), **of_group}, {**answer, **of_group}]


def before_the_cut(*events: Event) -> list[Event]:
    """What was done before a power cut in ``os`` mode."""
    return [{**event, "may_be_lost": True} for event in events]


A, B = grant("1", "a", 1), grant("2", "b", 2)


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (
            [*TWO, commit("commit", "a", "p"), commit("committed", "a", "p")],
            "zombie's commit",
        ),
        ([*A, *B, *committed("a:1", pending=True)], "zombie's commit"),
        (
            [
                *(*TWO, commit("commit", "b", "p"), commit("committed", "b", "p")),
                note("nobody commits", "q", partition=P, metadata="-:9"),
                note("nobody committed", "q", partition=P, metadata="-:9", is_pending=True),
                commit("commit", "b", "p", metadata="b:2"),
                commit("committed", "b", "p", metadata="b:2"),
            ],
            "not the owner's",
        ),
        ([*A, *committed("a:1"), *found(None)], "lost offset"),
        ([*A, *committed("a:1"), *committed("a:2"), *found("a:1")], "lost offset"),
        ([*A, *committed("a:1", pending=True), *ends("a:1"), *found(None)], "lost offset"),
        ([*A, *committed("a:1", pending=True), *found("a:1")], "undecided"),
        (
            [*A, *committed("a:1", pending=True), *ends("a:1", commits=False), *found("a:1")],
            "undecided",
        ),
        (
            [
                *(*A, *committed("a:1"), *committed("a:2", answered=False), *B),
                *(*found("a:1"), *found("a:2")),
            ],
            "older commit",
        ),
        (
            [
                *(*A, *committed("a:1", pending=True), *ends("a:1", answered=False), *B),
                *(*found(None), *found("a:1")),
            ],
            "older commit",
        ),
    ],
)
def test_what_is_wrong_with_commits_is_named(events: list[Event], problem: str) -> None:
    problems = problems_of(events)
    assert any(each.startswith(problem) for each in problems), problems


@pytest.mark.parametrize(
    "events",
    [
        [*committed("a:1", pending=True), *ends("a:1"), *found("a:1"), *B, *found("a:1")],
        # The order is that of the records, not that of the ends.
        [*committed("a:1", pending=True), *committed("a:2"), *ends("a:1"), *found("a:2")],
        [*committed("a:1", pending=True), *ends("a:1", answered=False), *found(None)],
        [*committed("a:1", pending=True), *ends("a:1", answered=False), *found("a:1"), *B],
        [*committed("a:1", pending=True), *ends("a:1", commits=False), *found(None)],
        [*committed("a:1"), *committed("a:2", answered=False), *found("a:1"), *found("a:2")],
        [*before_the_cut(*committed("a:1"), *found("a:1")), *found(None)],
        [
            *before_the_cut(*committed("a:1", pending=True), *ends("a:1"), *B, *found("a:1")),
            *found(None),
        ],
        # The commit of the transaction before is done again, on a coordinator that knows no other.
        [*before_the_cut(*committed("a:1", pending=True)), *found("a:1")],
        # What was seen before is gone, and what was there before that is seen again.
        [*committed("a:1"), *before_the_cut(*B, *committed("b:9"), *found("b:9")), *found("a:1")],
    ],
)
def test_offsets_that_a_sound_broker_may_show_are_let_pass(events: list[Event]) -> None:
    assert problems_of([*A, *events]) == []


def test_a_power_cut_may_take_records_and_no_epoch() -> None:
    wrote = note("wrote", partition=P, offset=9, value="b:9", session="b")
    left = log(owner(0, 1, "a"), data(1, "a:1"))
    again = [own("3"), granted("3", "c", 2, 2)]
    assert problems_of([TOPIC, *before_the_cut(*TWO, wrote), left]) == []
    found = problems_of([TOPIC, *before_the_cut(*TWO, wrote), *again, left])
    assert any(each.startswith("two owners") for each in found), found
