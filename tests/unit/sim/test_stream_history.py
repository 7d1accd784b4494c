"""What the check of the workload ``streams`` must find, history by history."""

import pytest

from fencelog.check.history import Event
from fencelog.coordination.streams.model import HASH_SPACE
from fencelog_sim.workloads.stream_history import hash_of, problems_of

KEY = "k0"
HALF = HASH_SPACE // 2
MINE, OTHER = ((0, HALF), (HALF, HASH_SPACE))
if hash_of(KEY) >= HALF:
    MINE, OTHER = OTHER, MINE
Row = list[object]


def note(what: str, time: float, **fields: object) -> Event:
    return {"type": "meta", "process": "p", "time": time, "what": what, **fields}


def wrote(
    number: int,
    at: float,
    *values: str,
    outcome: str = "ok",
    producer: str = "a",
    placed: list[list[int]] | None = None,
) -> list[Event]:
    """A write and its end, a tenth of a second later."""
    write = note(
        "write", at, number=number, producer=producer, records=[[KEY, each] for each in values]
    )
    where = [[0, -1, len(values)]] if placed is None else placed
    return [write, note("wrote", at + 0.1, number=number, outcome=outcome, placed=where)]


def segment(
    index: int,
    *rows: Row,
    between: tuple[int, int] = (0, HASH_SPACE),
    state: str = "open",
    after: tuple[int, ...] = (),
    end: int = -1,
) -> Event:
    return note(
        "segment",
        9.0,
        index=index,
        low=between[0],
        high=between[1],
        state=state,
        predecessors=list(after),
        end=end,
        rows=list(rows),
    )


def sealed(*rows: Row, end: int = 2) -> Event:
    return segment(0, *rows, state="sealed", end=end)


def split(*rows: Row) -> list[Event]:
    """Both successors of segment 0, the first of which has the key."""
    return [segment(1, *rows, between=MINE, after=(0,)), segment(2, between=OTHER, after=(0,))]


WRITES = [*wrote(1, 1.0, "v1"), *wrote(2, 2.0, "v2")]
SOUND = [*WRITES, sealed([0, KEY, "v1"]), *split([0, KEY, "v2"])]


def test_a_key_that_goes_on_in_a_successor_is_sound() -> None:
    assert problems_of(SOUND) == []


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        pytest.param([*WRITES, sealed([0, KEY, "v1"]), *split()], "lost: v2", id="lost"),
        pytest.param(
            [*WRITES, sealed([0, KEY, "v1"], [1, KEY, "v2"]), *split([0, KEY, "v2"])],
            "twice:",
            id="before the seal and in a successor",
        ),
        pytest.param(
            [*WRITES, sealed([0, KEY, "v2"]), *split([0, KEY, "v1"])],
            "order of k0:",
            id="newer ones have overtaken moved ones",
        ),
        pytest.param(
            [*wrote(1, 1.0, "v1", "v2"), sealed([0, KEY, "v2"]), *split([0, KEY, "v1"])],
            "order of k0:",
            id="one write in another order",
        ),
        pytest.param(
            [*WRITES, sealed([0, KEY, "v1"]), segment(1, [0, KEY, "v2"], between=OTHER)],
            "wrong range:",
            id="resent to another range",
        ),
        pytest.param(
            [*wrote(1, 1.0, "v1", outcome="failed"), sealed([0, KEY, "v1"]), *split()],
            "aborted:",
            id="aborted",
        ),
        pytest.param([sealed([0, KEY, "v1"]), *split()], "from nowhere:", id="never written"),
        pytest.param(
            [*WRITES, sealed([0, KEY, "v1"], [3, KEY, "v2"]), *split()],
            "behind the seal:",
            id="behind the seal",
        ),
        pytest.param(
            [*WRITES, segment(0, [0, KEY, "v1"], [1, KEY, "v2"], state="sealing")],
            "unfinished:",
            id="a resize that does not end",
        ),
        pytest.param(
            [*wrote(1, 1.0, "v1", placed=[[1, 0, 1]]), sealed([0, KEY, "v1"]), *split()],
            "elsewhere:",
            id="not where it was acknowledged",
        ),
        pytest.param(
            [*SOUND, note("read", 3.0, segment=0, start=0, end=1, rows=[[0, KEY, "v0"]])],
            "read otherwise:",
            id="shown and changed",
        ),
        pytest.param(
            [*SOUND, note("read", 3.0, segment=0, start=0, end=1, rows=[])],
            "read otherwise:",
            id="passed over",
        ),
    ],
)
def test_what_does_not_hold_is_named(events: list[Event], problem: str) -> None:
    assert [each for each in problems_of(events) if each.startswith(problem)], problems_of(events)


def test_a_write_of_unknown_outcome_may_be_there_or_not() -> None:
    unknown = wrote(1, 1.0, "v1", outcome="indeterminate")
    assert problems_of([*unknown, sealed(), *split()]) == []
    assert problems_of([*unknown, sealed([0, KEY, "v1"]), *split()]) == []


def test_a_stream_that_was_not_read_is_not_judged() -> None:
    assert problems_of(WRITES) == []
