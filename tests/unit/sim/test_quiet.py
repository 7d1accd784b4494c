"""The quiet workload reports no fault of a broker that did all that it promised."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from fencelog.client.cluster import TRANSACTION, Cluster
from fencelog.client.sender import ProducerOptions, open_sender
from fencelog.client.transaction_admin import TransactionAdmin
from fencelog.wire.batch import Compression
from fencelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from fencelog_sim import run as running
from fencelog_sim.faults import Fault, Kind
from fencelog_sim.run import Case, Result, run
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.own import ERRORS, open_cluster
from fencelog_sim.workloads.quiet import NAME, Quiet, _Client
from fencelog_sim.workloads.silence import Silence

LOST_ANSWER = Fault(kind=Kind.RESET, at=0.0, point="answer Produce", how="all")
TIMEOUT_MS = 10_000
"""Longer than a run takes to begin its last phase."""

Act = Callable[[Stage, Cluster], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the workload with one client that does one thing."""
    # Other tests keep their clocks: only clients that others wrote need the trampolines.
    monkeypatch.setattr(running.trampolines, "install", lambda: None)

    def play(act: Act, *plan: Fault, seed: int = 1) -> Result:
        async def client(self: Quiet, stage: Stage, index: int) -> None:
            cluster = open_cluster(stage)
            try:
                await act(stage, cluster)
                while not stage.stopping:
                    await stage.pause()
            finally:
                await cluster.close()

        monkeypatch.setattr(Quiet, "client", client)
        return run(Case(seed, NAME, plan=plan, clients=1, span_s=1.0))

    return play


def test_a_write_without_a_producer_id_is_not_repeated(play: Callable[..., Result]) -> None:
    async def write(stage: Stage, cluster: Cluster) -> None:
        with suppress(*ERRORS):
            await _Client(stage, cluster, 0)._write(1, Compression.NONE)

    # The fault misses a request that the network delivers in pieces.
    results = [play(write, LOST_ANSWER, seed=seed) for seed in range(1, 5)]
    assert {"reset": 1} in [result.injected for result in results]
    assert [result.problems for result in results] == [[]] * len(results)


def test_the_silence_begins_when_no_coordinator_has_an_open_transaction(
    play: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[str, ...]] = []

    async def enlist(stage: Stage, cluster: Cluster) -> None:
        """Open a transaction that no partition knows of."""
        options = ProducerOptions(transactional_id="t", transaction_timeout_ms=TIMEOUT_MS)
        sender = await open_sender(cluster, options)
        identity = sender._identity
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=NAME, partitions=[0])],
        )
        await cluster.ask_coordinator(
            TRANSACTION, "t", request, AddPartitionsToTxnResponse, cluster.deadline(), 3
        )
        await sender.close()
        found.append(await _states(cluster))

    async def check(self: Silence) -> None:
        found.append(await _states(self._cluster))

    monkeypatch.setattr(Silence, "check", check)
    result = play(enlist)
    assert result.problems == []
    assert found == [("Ongoing",), ("CompleteAbort",)]


async def _states(cluster: Cluster) -> tuple[str, ...]:
    return tuple(each.state for each in await TransactionAdmin(cluster).listed((), (), None))
