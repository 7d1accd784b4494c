"""A slice of ``./dev prove delays``, and that it sees what it is there to see."""

from pathlib import Path

import pytest
import uvloop

from fencelog.wire.api_versions import ApiKey
from tests.proofs._delays_breaks import BREAKS, NO_AGE
from tests.proofs._delays_play import SLOTS, Arena, Outcome
from tests.proofs._delays_schedule import HELD, Mode, Schedule, Version, draw
from tests.proofs._delays_stock import play_client
from tests.proofs.delays import find_break
from tests.simulation._bug import broken_files

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "mode"), [(2, None), (1, "connection")], ids=["version 2", "version 1"]
)
def test_a_delayed_request_touches_no_later_transaction(
    version: Version, mode: Mode | None
) -> None:  # E14
    outcomes = play([draw(1, number, version, mode=mode) for number in range(SLICE)])
    assert wrong(outcomes) == []
    arrived = {when for each in outcomes for _, when in each.arrivals}
    assert "in its own transaction" in arrived
    assert "in a later one" in arrived


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 1])
def test_a_request_that_arrives_after_a_restart_of_the_broker_does_no_harm(
    version: Version,
) -> None:  # E14, E15
    mode: Mode = "late connection" if version == 2 else "connection"
    schedules = [draw(2, n, version, mode=mode, restarts=True) for n in range(SLOTS)]
    outcomes = play(schedules)
    assert wrong(outcomes) == []
    arrived = [when for each in outcomes for _, when in each.arrivals]
    wanted = "after a restart of the broker" if version == 2 else "never: its connection broke"
    assert wanted in arrived


@pytest.mark.slow
def test_without_what_keeps_delayed_requests_out_the_proof_turns_red() -> None:
    found = uvloop.run(find_break(NO_AGE, 1, SLICE))
    assert found.problems
    assert found.without_delay == []


@pytest.mark.slow
@pytest.mark.conformance
def test_a_delayed_request_of_a_stock_client_touches_no_later_transaction(
    tmp_path: Path,
) -> None:  # E14
    # Of the three it is the one that goes on under one epoch whatever happens.
    stock = play_client("aiokafka", STOCK_SLICE, 1, tmp_path / "broker")
    assert stock.problems == []
    assert stock.committed + stock.aborted > 0


def test_every_break_can_still_be_planted() -> None:
    for each in BREAKS:
        for text in broken_files(each.bug).values():
            compile(text, each.bug.name, "exec")


def test_a_seed_fixes_the_schedules_and_they_hold_every_kind_of_request() -> None:
    for version in HELD:
        schedules = [draw(1, number, version) for number in range(300)]
        assert schedules == [draw(1, number, version) for number in range(300)]
        assert schedules != [draw(2, number, version) for number in range(300)]
        held: set[ApiKey] = {hold.api for each in schedules for hold in each.holds}
        assert held == set(HELD[version])
