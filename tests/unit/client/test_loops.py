"""The asyncio core on the event loops that a program may run it on."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster, ClusterOptions
from tests.unit.client.fake_broker import FakeBroker


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_client_asks_a_broker_on_this_loop(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def ask(address: str) -> list[int]:
        cluster = Cluster(ClusterOptions(bootstrap_servers=address, request_timeout_s=10))
        found = await Admin(cluster).partitions(["t"])
        await cluster.close()
        return found["t"]

    with FakeBroker() as broker, asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(ask(broker.address)) == [0]
