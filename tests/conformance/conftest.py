"""Fixtures of the conformance tests: each client, and a proxy before a broker."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess
from tests.support.hangs import hanging
from tests.support.proxy import Action, FrameProxy, Request
from tests.support.stock import CLIENTS, StockClient

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.conformance)


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest) -> StockClient:
    """Each of the three client libraries."""
    return CLIENTS[request.param]


@pytest.fixture
def brokers() -> list[BrokerProcess]:
    """The brokers that ``proxied`` has started."""
    return []


@pytest.fixture
def proxied(
    tmp_path: Path, brokers: list[BrokerProcess]
) -> Iterator[Callable[[Callable[[Request], Action]], FrameProxy]]:
    """Start a proxy with this rule, and a broker that is reached through it alone."""
    proxies: list[FrameProxy] = []

    def start(decide: Callable[[Request], Action]) -> FrameProxy:
        proxy = FrameProxy(decide)
        proxies.append(proxy)
        broker = BrokerProcess(
            tmp_path / "data", settings=f"advertised.listeners=PLAINTEXT://{proxy.address}\n"
        ).start()
        brokers.append(broker)
        proxy.upstream = (broker.host, broker.port)
        return proxy

    yield start
    for broker, proxy in zip(brokers, proxies, strict=True):
        if broker.running:
            # What the proxy still holds never comes; the way to the broker is open again.
            proxy.decide = lambda request: Action.FORWARD
            assert hanging(proxy.address) == []
    for proxy in proxies:
        proxy.close()
    for broker in brokers:
        broker.kill()
