"""The asyncio core on the event loops that a program may run it on."""

import asyncio
import threading
from collections.abc import Callable

import pytest
import uvloop

from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster, ClusterOptions
from fencelog.errors import ErrorCode, RequestError
from fencelog.wire.api_versions import ApiKey
from tests.unit.client.fake_broker import Answer, FakeBroker


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


def test_a_connection_that_is_being_opened_is_closed_with_the_others() -> None:
    broker = FakeBroker()
    asked, may_answer = threading.Event(), threading.Event()

    def late(version: int, body: memoryview) -> Answer:
        asked.set()
        assert may_answer.wait(10)
        return broker._answer(ApiKey.API_VERSIONS, version, body)

    broker.script[ApiKey.API_VERSIONS].append(late)

    async def scenario() -> None:
        cluster = Cluster(ClusterOptions(bootstrap_servers=broker.address, request_timeout_s=10))
        address = cluster.options.bootstrap[0]
        opening = asyncio.create_task(cluster.connection(address, cluster.deadline()))
        await asyncio.to_thread(asked.wait, 10)
        cluster.disconnect("cut")
        may_answer.set()
        with pytest.raises(RequestError, match="cut") as told:
            await opening
        assert told.value.code is ErrorCode.NETWORK_EXCEPTION
        assert (await cluster.connection(address, cluster.deadline())).closed is False
        await cluster.close()

    with broker:
        asyncio.run(scenario())
