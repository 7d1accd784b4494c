"""One seed's run says everything that was wrong with it, and a failing one gets smaller."""

import asyncio
import json
from dataclasses import dataclass, replace
from random import Random

import pytest

from fencelog.check.history import Event
from fencelog_sim import main as command
from fencelog_sim import run as running
from fencelog_sim.faults import Fault, Kind, draw
from fencelog_sim.run import Case, Result, run
from fencelog_sim.shrink import shrink
from fencelog_sim.workload import Stage
from fencelog_sim.workloads import WORKLOADS
from fencelog_sim.world.disk import Loss

QUIET = Case(1, "odd", plan=(), clients=1, span_s=1.0)


@pytest.fixture(autouse=True)
def _other_tests_keep_their_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only clients that others wrote need the trampolines."""
    monkeypatch.setattr(running.trampolines, "install", lambda: None)
    monkeypatch.setattr(command.logging, "disable", lambda: None)


@dataclass
class Odd:
    """A workload whose clients do one thing, and whose end does another."""

    life: str = ""
    end: str = ""
    name: str = "odd"
    may_lose: bool = False
    expires: bool = False

    async def prepare(self, stage: Stage) -> None:
        pass

    async def client(self, stage: Stage, index: int) -> None:
        await self._do(self.life)

    async def settle(self, stage: Stage) -> None:
        await self._do(self.end)

    @staticmethod
    async def _do(what: str) -> None:
        match what:
            case "sleep":
                await asyncio.Event().wait()
            case "raise":
                raise ValueError("odd")
            case "be cancelled":
                raise asyncio.CancelledError
            case _:
                await asyncio.sleep(0.2)

    def check(self, events: list[Event]) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        (Odd(life="sleep"), "stuck: client w0.1 did not end within 60 s"),
        (Odd(life="raise"), "client w0.1 ended: ValueError: odd"),
        (Odd(life="be cancelled"), "client w0.1 ended: CancelledError: "),
        (Odd(end="sleep"), "final did not end within 180 s"),
        (Odd(end="raise"), "client final ended: ValueError: odd"),
    ],
)
def test_a_client_that_does_not_end_as_it_should_is_a_problem(
    workload: Odd, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORKLOADS, "odd", lambda: workload)  # type: ignore[arg-type]
    assert told in run(QUIET).problems


def test_a_run_in_which_nothing_happened_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "odd", Odd)  # type: ignore[arg-type]
    result = run(QUIET)
    assert result.problems == []
    assert result.counts["runs with nothing to check"] == 1


def test_a_case_and_its_plan_survive_json() -> None:
    for seed in range(50):
        plan = draw(Random(seed), 5.0, clients=3, losses=tuple(Loss))
        case = Case(seed, "queue", plan=plan, clients=2, span_s=3.5)
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


def test_a_plan_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError):
        Fault.from_json({"kind": "kill", "at": 1.0, "where": "here"})
    with pytest.raises(ValueError, match="earthquake"):
        Fault.from_json({"kind": "earthquake", "at": 1.0})


def failing(monkeypatch: pytest.MonkeyPatch) -> Result:
    """A run of five faults and three clients that went wrong."""
    monkeypatch.setitem(WORKLOADS, "odd", Odd)  # type: ignore[arg-type]
    faults = tuple(
        Fault(kind=kind, at=float(at), point="sync *.log", nth=3, how="one", seconds=0.5)
        for at, kind in enumerate((Kind.RESET, Kind.KILL, Kind.SKEW, Kind.PAUSE, Kind.RESTART))
    )
    result = run(QUIET)
    return replace(
        result,
        plan=faults,
        span_s=8.0,
        scale=replace(result.scale, clients=3),
        problems=["client w2.1 ended: ValueError: odd"],
    )


def test_a_failure_is_shrunk_to_the_faults_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    first = failing(monkeypatch)
    tried: list[Case] = []

    def attempt(case: Case) -> Result:
        """Fail wherever a kill meets a pause, whatever the names are."""
        tried.append(case)
        assert case.plan is not None
        assert case.clients is not None
        kinds = {fault.kind for fault in case.plan}
        problems = ["client w0.7 ended: KeyError"] if kinds >= {Kind.KILL, Kind.PAUSE} else []
        return replace(
            first,
            case=case,
            plan=case.plan,
            scale=replace(first.scale, clients=case.clients),
            span_s=case.span_s or first.span_s,
            problems=problems,
        )

    small = shrink(first, attempt)
    assert [fault.kind for fault in small.plan] == [Kind.KILL, Kind.PAUSE]
    assert all(fault.point == "" and fault.seconds == 1.0 for fault in small.plan)
    assert (small.scale.clients, small.span_s) == (1, 2.0)
    assert len(tried) < 40


def test_another_problem_is_not_the_same_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    first = failing(monkeypatch)
    small = shrink(first, lambda case: replace(first, case=case, problems=["lost-write: x"]))
    assert small is first


def test_a_failing_seed_ends_with_1_and_says_how_to_play_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(WORKLOADS, "odd", lambda: Odd(end="raise"))  # type: ignore[arg-type]
    statuses: list[int] = []
    monkeypatch.setattr(command.os, "_exit", statuses.append)
    monkeypatch.setattr(command, "shrink", lambda result, attempt: result)
    assert command.main(["5", "--workload", "odd"]) is None
    told = capsys.readouterr().out.splitlines()
    assert statuses == [1]
    assert "FAILED: seed 5, workload odd" in told
    assert "  client final ended: ValueError: odd" in told
    (line,) = [each for each in told if each.startswith("{")]
    case = Case.from_json(json.loads(line))
    assert (case.seed, case.workload) == (5, "odd")
    assert told[-1] == f"digest: {running.run(case).digest}"
