"""The pytest plugin: real brokers inside the test's process, which the test can kill.

``fencelog_broker`` is a LocalBroker for one test, ``fencelog_bootstrap`` its address for any Kafka
client; ``fencelog_cluster`` is a LocalCluster of three brokers. They are described in
docs/guide/testing.md.

pytest loads this module in every run, so the broker is imported only when a test uses a fixture.
PYTEST_DONT_REWRITE: there is no assert here, and a user may have imported it before pytest.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fencelog.testing.broker import LocalBroker
    from fencelog.testing.cluster import LocalCluster
    from fencelog.testing.held_requests import Held

__all__ = [
    "Held",
    "LocalBroker",
    "LocalCluster",
    "fencelog_bootstrap",
    "fencelog_broker",
    "fencelog_cluster",
]


@pytest.fixture
def fencelog_broker(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[LocalBroker]":
    """A running broker with an empty data directory; it is killed when the test ends."""
    from fencelog.testing.broker import LocalBroker

    with LocalBroker(tmp_path_factory.mktemp("fencelog")) as broker:
        yield broker


@pytest.fixture
def fencelog_bootstrap(fencelog_broker: "LocalBroker") -> str:
    """``host:port`` of the test's broker; the same over restarts."""
    return fencelog_broker.bootstrap


@pytest.fixture
def fencelog_cluster(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[LocalCluster]":
    """Three running brokers with empty data directories; they are killed when the test ends."""
    from fencelog.testing.cluster import LocalCluster

    with LocalCluster(tmp_path_factory.mktemp("fencelog")) as cluster:
        yield cluster


def __getattr__(name: str) -> object:
    if name == "LocalBroker":
        from fencelog.testing.broker import LocalBroker

        return LocalBroker
    if name == "LocalCluster":
        from fencelog.testing.cluster import LocalCluster

        return LocalCluster
    if name == "Held":
        from fencelog.testing.held_requests import Held

        return Held
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
