"""Fixtures of the ecosystem's tests: what is not installed is skipped, with the reason."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fencelog.spark.java import JavaNotFoundError
from tests.clients.install import NotInstalled
from tests.support.jvm.host import JdkMissingError
from tests.support.jvm.jars import JarsMissingError

HERE = Path(__file__).parent
# The first run installs: 80 MB of jars and wheels.
TIMEOUT_S = 480
MISSING = (NotInstalled, JarsMissingError, JavaNotFoundError, JdkMissingError)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what lies in this folder time for an installation."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def had() -> Callable[..., object]:
    """Calls what installs or compiles; skips where that cannot be had."""

    def call(function: Callable[..., object], *arguments: object) -> object:
        try:
            return function(*arguments)
        except MISSING as missing:
            pytest.skip(str(missing))

    return call
