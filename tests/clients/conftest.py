"""Fixtures of the foreign clients: one broker for all, and each client once it is installed."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients.install import NotInstalled, franz_go, kcat, npm
from tests.clients.node_client import NodeClient
from tests.support.broker import BrokerProcess

HERE = Path(__file__).parent
# The first test of a client waits until it is installed, and one of them compiles for a minute.
TIMEOUT_S = 480

FOLDERS = {"kafkajs": "node", "platformatic": "node", "confluent": "node-confluent"}
SETTINGS = "group.initial.rebalance.delay.ms=50\ngroup.min.session.timeout.ms=500\n"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what lies in this folder time for an installation."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def installs() -> Iterator[dict[str, "Future[Path]"]]:
    """All installations, begun at once: one has to compile, and the tests of others go first."""
    with ThreadPoolExecutor(3) as pool:
        yield {
            "node": pool.submit(npm, "node"),
            "node-confluent": pool.submit(npm, "node-confluent"),
            "kcat": pool.submit(kcat),
            "franz-go": pool.submit(franz_go),
        }


@pytest.fixture(scope="session")
def installed(installs: dict[str, "Future[Path]"]) -> Callable[[str], Path]:
    """Where a client is; skips, with the command that failed and its error, where it is not."""

    def find(name: str) -> Path:
        try:
            return installs[FOLDERS.get(name, name)].result()
        except NotInstalled as missing:
            pytest.skip(f"{name} is not installed: {missing}")

    return find


@pytest.fixture(scope="session")
def start(
    installed: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], NodeClient]]:
    """Starts the process of a Node client; the next asker gets the same."""
    started: dict[str, NodeClient] = {}
    logs = tmp_path_factory.mktemp("node")

    def begin(name: str) -> NodeClient:
        if name not in started:
            started[name] = NodeClient(name, installed(name), logs / name)
        return started[name]

    yield begin
    for client in started.values():
        client.close()


@pytest.fixture(params=list(FOLDERS))
def node(request: pytest.FixtureRequest, start: Callable[[str], NodeClient]) -> NodeClient:
    """Each of the three clients from npm."""
    return start(request.param)


@pytest.fixture(scope="session")
def clients_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all of these tests that do not kill it."""
    folder = tmp_path_factory.mktemp("clients-broker")
    with BrokerProcess(folder / "data", settings=SETTINGS) as process:
        yield process


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of this test alone, to be killed."""
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as process:
        yield process
