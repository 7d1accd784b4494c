"""The pytest plugin: a real broker inside the test's process, which the test may kill at will.

``fencelog_broker`` is a LocalBroker of this test alone, ``fencelog_bootstrap`` the address that any
Kafka client takes. docs/guide/testing.md shows what to do with them.

pytest loads this module in every run, so nothing of the broker is imported before a test asks.
PYTEST_DONT_REWRITE: there is no assert here, and a user may have imported it before pytest does.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fencelog.testing.broker import LocalBroker
    from fencelog.testing.door import Held

__all__ = ["Held", "LocalBroker", "fencelog_bootstrap", "fencelog_broker"]


@pytest.fixture
def fencelog_broker(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[LocalBroker]":
    """A running broker on an empty directory; it ends with the test, as it were by kill -9."""
    from fencelog.testing.broker import LocalBroker

    with LocalBroker(tmp_path_factory.mktemp("fencelog")) as broker:
        yield broker


@pytest.fixture
def fencelog_bootstrap(fencelog_broker: "LocalBroker") -> str:
    """``host:port`` of the test's broker; it stays the same over restarts."""
    return fencelog_broker.bootstrap


def __getattr__(name: str) -> object:
    if name == "LocalBroker":
        from fencelog.testing.broker import LocalBroker

        return LocalBroker
    if name == "Held":
        from fencelog.testing.door import Held

        return Held
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
