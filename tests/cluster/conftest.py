"""A real etcd for the tests of a cluster, which are skipped where it cannot be had."""

from collections.abc import Iterator

import pytest

from tests.clients.install import NotInstalled
from tests.support.etcd import Etcd, running_etcd


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    """One member for all tests, each of which has a name of its own there."""
    yield from _running(1)


@pytest.fixture(scope="module")
def three_members() -> Iterator[Etcd]:
    """Three members, for the tests of one file, which leave them as they were."""
    yield from _running(3)


def _running(members: int) -> Iterator[Etcd]:
    try:
        with running_etcd(members) as etcd:
            yield etcd
    except NotInstalled as missing:
        pytest.skip(f"etcd is not installed: {missing}")
