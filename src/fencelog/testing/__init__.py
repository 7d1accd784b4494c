"""The pytest plugin: a real broker inside the test's process, which the test can kill.

``fencelog_broker`` is a LocalBroker for one test, ``fencelog_bootstrap`` its address for any Kafka
client. docs/guide/testing.md describes them.

pytest loads this module in every run, so the broker is imported only when a test uses a fixture.
PYTEST_DONT_REWRITE: there is no assert here, and a user may have imported it before pytest.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fencelog.testing.broker import LocalBroker
    from fencelog.testing.held_requests import Held

__all__ = ["Held", "LocalBroker", "fencelog_bootstrap", "fencelog_broker"]


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


def __getattr__(name: str) -> object:
    if name == "LocalBroker":
        from fencelog.testing.broker import LocalBroker

        return LocalBroker
    if name == "Held":
        from fencelog.testing.held_requests import Held

        return Held
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
