"""Fixtures of a real etcd, skipped where there is none; each conftest imports its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.clients.install import NotInstalled
from tests.support.etcd import Certificates, Etcd, running_etcd

SMALL_REQUEST_BYTES = 50_000


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    """One member for all tests, each of which has a name of its own there."""
    with etcd_or_skip() as etcd:
        yield etcd


@pytest.fixture(scope="session")
def small_etcd() -> Iterator[Etcd]:
    """One that refuses large values."""
    with etcd_or_skip(options=[f"--max-request-bytes={SMALL_REQUEST_BYTES}"]) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def three_members() -> Iterator[Etcd]:
    """Three members, for the tests of one file, which leave them as they were."""
    with etcd_or_skip(3) as etcd:
        yield etcd


@pytest.fixture
def own_etcd() -> Iterator[Etcd]:
    """One member, which the test may kill."""
    with etcd_or_skip() as etcd:
        yield etcd


@contextmanager
def etcd_or_skip(
    members: int = 1, *, tls: Certificates | None = None, options: Sequence[str] = ()
) -> Iterator[Etcd]:
    """Run an etcd until the block ends, or skip the test."""
    try:
        with running_etcd(members, tls=tls, options=options) as etcd:
            yield etcd
    except NotInstalled as missing:
        pytest.skip(f"etcd is not installed: {missing}")
