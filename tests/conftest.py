"""Fixtures that any test may use: broker processes and fresh names."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess

_numbers = itertools.count(1)


@pytest.fixture
def fresh_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """A maker of names (topics, groups, transactional ids) that no other test uses."""

    def name(kind: str) -> str:
        return f"{kind}-{next(_numbers)}-{request.node.name.partition('[')[0][-40:]}"

    return name


@pytest.fixture
def topic(fresh_name: Callable[[str], str]) -> str:
    """A topic name that no other test uses; nothing is created."""
    return fresh_name("topic")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker process of this test alone, to be killed at will. ``os`` durability for speed."""
    with BrokerProcess(tmp_path / "data") as process:
        yield process


@pytest.fixture
def fsync_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Like ``broker``, with the single node's default durability."""
    with BrokerProcess(tmp_path / "data", durability="fsync") as process:
        yield process


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker process for all tests that only talk to it and bring their own names."""
    with BrokerProcess(tmp_path_factory.mktemp("shared-broker") / "data") as process:
        yield process
