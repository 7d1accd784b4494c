"""A slice of ``./dev prove delays``, and that it sees what it is there to see."""

from pathlib import Path

import pytest
import uvloop

from fencelog.wire.api_versions import ApiKey
from tests.proofs._delays_play import SLOTS, Arena, Outcome
from tests.proofs._delays_schedule import Kind, Schedule, draw
from tests.proofs._delays_stock import play_client
from tests.proofs.delays import SHARES, kind_named, play_faulty
from tests.support.faults import copy_source, load

SLICE = 150
STOCK_SLICE = 4


def play(schedules: list[Schedule]) -> list[Outcome]:
    async def run() -> list[Outcome]:
        async with Arena() as arena:
            outcomes = await arena.wave(schedules)
            assert await arena.left_open() == []
            return outcomes

    return uvloop.run(run())


def wrong(outcomes: list[Outcome]) -> list[Outcome]:
    return [each for each in outcomes if each.problems]


PROMISED = [kind for kind, _ in SHARES if kind.is_promised]


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 1])
def test_a_delayed_request_touches_no_later_transaction(version: int) -> None:  # E14
    kinds = [kind for kind in PROMISED if kind.version == version]
    outcomes = play([draw(1, number, kinds[number % len(kinds)]) for number in range(SLICE)])
    assert wrong(outcomes) == []
    arrived = {when for each in outcomes for _, when in each.arrivals}
    assert "in its own transaction" in arrived
    assert "in a later one" in arrived


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (Kind(version=2, mode="late connection"), "after a restart of the broker"),
        (Kind(version=1, mode="connection"), "never: its connection broke"),
    ],
    ids=["version 2", "version 1"],
)
def test_a_request_that_arrives_after_a_restart_of_the_broker_changes_nothing(
    kind: Kind, wanted: str
) -> None:  # E14, E15
    outcomes = play([draw(2, number, kind, restarts=True) for number in range(SLOTS)])
    assert wrong(outcomes) == []
    assert wanted in [when for each in outcomes for _, when in each.arrivals]


@pytest.mark.slow
def test_the_proof_fails_without_the_fences_against_delayed_requests(tmp_path: Path) -> None:
    fault = load("connections-have-no-age")
    (argument,) = fault.arguments("delays")
    environment = {"PYTHONPATH": str(copy_source(fault, tmp_path))}
    problems, without = uvloop.run(play_faulty(environment, kind_named(argument), 1, SLICE))
    assert problems
    assert without == []


@pytest.mark.slow
@pytest.mark.conformance
def test_a_delayed_request_of_a_stock_client_touches_no_later_transaction(
    tmp_path: Path,
) -> None:  # E14
    # Of the three it is the one that goes on under one epoch whatever happens.
    stock = play_client("aiokafka", STOCK_SLICE, 1, tmp_path / "broker")
    assert stock.problems == []
    assert stock.committed + stock.aborted > 0


@pytest.mark.parametrize("kind", [kind for kind, _ in SHARES], ids=lambda kind: kind.name)
def test_a_seed_fixes_the_schedules_and_they_hold_every_kind_of_request(kind: Kind) -> None:
    schedules = [draw(1, number, kind) for number in range(300)]
    assert schedules == [draw(1, number, kind) for number in range(300)]
    assert schedules != [draw(2, number, kind) for number in range(300)]
    held: set[ApiKey] = {hold.api for each in schedules for hold in each.holds}
    assert held == set(kind.held)
    assert {each.lines for each in schedules} == set(kind.lines)
