"""A broker in the test's own process, and the data source on it as Spark makes it."""

from collections.abc import Callable, Iterator

import pytest

from fencelog.client.blocking import Client
from fencelog.spark.plain_errors import HIDE
from fencelog.spark.source import FencelogDataSource
from fencelog.testing.broker import LocalBroker


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """The broker of a file's tests."""
    with LocalBroker(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(scope="module")
def client(local: LocalBroker) -> Iterator[Client]:
    """A client of that broker."""
    with Client(local.bootstrap) as connected:
        yield connected


@pytest.fixture
def source(
    local: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., FencelogDataSource]:
    """The data source with these options; what its errors set for Spark is put back."""
    monkeypatch.setenv(HIDE, "0")

    def make(**options: str) -> FencelogDataSource:
        return FencelogDataSource({"kafka.bootstrap.servers": local.bootstrap, **options})

    return make
