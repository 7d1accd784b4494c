"""The quiet workload reports no fault of a broker that did all that it promised."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from fencelog.client.cluster import Cluster
from fencelog.wire.batch import Compression
from fencelog_sim import run as running
from fencelog_sim.faults import Fault, Kind
from fencelog_sim.run import Case, Result, run
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.own import ERRORS, open_cluster
from fencelog_sim.workloads.quiet import NAME, Quiet, _Client

LOST_ANSWER = Fault(kind=Kind.RESET, at=0.0, point="answer Produce", how="all")

Act = Callable[[Stage, Cluster], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the workload with one client that does one thing."""
    # Other tests keep their clocks: only clients that others wrote need the trampolines.
    monkeypatch.setattr(running.trampolines, "install", lambda: None)

    def play(act: Act, *plan: Fault) -> Result:
        async def client(self: Quiet, stage: Stage, index: int) -> None:
            cluster = open_cluster(stage)
            try:
                await act(stage, cluster)
                while not stage.stopping:
                    await stage.pause()
            finally:
                await cluster.close()

        monkeypatch.setattr(Quiet, "client", client)
        return run(Case(1, NAME, plan=plan, clients=1, span_s=1.0))

    return play


def test_a_write_without_a_producer_id_is_not_repeated(play: Callable[..., Result]) -> None:
    async def write(stage: Stage, cluster: Cluster) -> None:
        with suppress(*ERRORS):
            await _Client(stage, cluster, 0)._write(1, Compression.NONE)

    result = play(write, LOST_ANSWER)
    assert result.injected == {"reset": 1}
    assert result.problems == []
