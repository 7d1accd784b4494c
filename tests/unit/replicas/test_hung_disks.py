"""A disk that hangs and goes on later: whose it is comes back by itself (F2)."""

import asyncio

import pytest

from fencelog.broker.replicas import fetcher
from tests.support.partition import scenario
from tests.unit.replicas.hosts import until
from tests.unit.replicas.test_brokers import NAME, NODES, Broker, running

pytestmark = pytest.mark.slow  # brokers that wait for each other


class Hung:
    """The disk of a broker, which does not end what it is asked for until it goes on."""

    def __init__(self, broker: Broker) -> None:
        self._goes_on = asyncio.Event()
        self._disk = broker.disk
        self._disk.delay = self._wait
        self.waiting = 0

    async def _wait(self, verb: str, path: str, size: int) -> None:
        self.waiting += 1
        await self._goes_on.wait()

    def go_on(self) -> None:
        self._disk.delay = None
        self._goes_on.set()


@pytest.mark.parametrize("unflushed_max", [fetcher.UNFLUSHED_MAX, 1])
@scenario
async def test_a_follower_whose_disk_has_hung_comes_back_without_a_restart(
    unflushed_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where so much is not durable meanwhile that it has stopped to fetch."""
    monkeypatch.setattr(fetcher, "UNFLUSHED_MAX", unflushed_max)
    async with running("fsync") as cluster:
        cluster[1].produce(b"a")
        await cluster.all_committed(1)
        before, hung = cluster[2].partition, Hung(cluster[2])
        cluster[1].produce(b"b")
        await until(lambda: hung.waiting)
        await until(lambda: cluster.state.isr == (1, 3))
        await until(lambda: cluster[1].committed(2))
        cluster[1].produce(b"c")
        await until(lambda: cluster[1].committed(3))
        assert cluster[2].partition.durable_end == 1
        hung.go_on()
        await until(lambda: cluster.state.isr == NODES)
        await cluster.all_committed(3)
        assert cluster[2].partition is before


@scenario
async def test_a_log_that_is_to_be_cut_while_its_disk_hangs_is_cut_when_it_goes_on() -> None:  # F7
    async with running("fsync") as cluster:
        cluster[1].produce(b"a")
        await cluster.all_committed(1)
        hung = Hung(cluster[1])
        cluster[1].is_up = False  # nobody reaches it
        for node in (2, 3):
            for wire in cluster[node].wires:
                wire.close("the network is cut")
        cluster[1].produce(b"only here")
        await until(lambda: hung.waiting)
        cluster.elect(2, NODES)
        cluster[1].is_up = True
        await until(lambda: cluster[2].leads(1))
        cluster[2].produce(b"b")
        await until(lambda: cluster.state.isr == (2, 3))
        await until(lambda: cluster[2].committed(2))
        hung.go_on()
        await until(lambda: cluster.state.isr == NODES)
        await cluster.all_committed(2)
        assert b"only here" not in cluster[1].log


@scenario
async def test_a_leader_whose_disk_hangs_leads_on_commits_nothing_and_then_all() -> None:  # D1
    async with running("fsync") as cluster:
        cluster[1].produce(b"a")
        await cluster.all_committed(1)
        hung = Hung(cluster[1])
        cluster[1].produce(b"b")
        await until(lambda: cluster[2].partition.durable_end == 2)
        await until(lambda: cluster[3].partition.durable_end == 2)
        assert cluster[1].partition.log.high_watermark == 1
        assert cluster.state.isr == NODES
        assert cluster[1].logs.get(*NAME) is cluster[1].partition
        hung.go_on()
        await cluster.all_committed(2)
