"""Fixtures of the Java tests: Kafka's tools in a JVM that stays, and the printed programs.

Without a Java compiler, or without the jars and a way to them, these tests are skipped; the reason
names the command that failed.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fencelog.spark.java import JavaNotFoundError
from tests.support.broker import BrokerProcess
from tests.support.jvm.host import SOURCES, JdkMissingError, ToolHost, compiled
from tests.support.jvm.jars import JarsMissingError, class_path

HERE = Path(__file__).parent
TIMEOUT_S = 400
"""Of a whole test: starts of Java, and for the first one the jars, 60 MB, on their way."""
EXAMPLES = Path(__file__).parents[2] / "examples" / "clients" / "java"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give what lies in this folder its time."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def class_path_of(section: str, sources: Path, to: Path) -> str:
    """The class path of Kafka's ``client`` or ``tools`` and of programs compiled on it; or skip."""
    try:
        return compiled(class_path(section), sources, to)
    except (JarsMissingError, JavaNotFoundError, JdkMissingError) as error:
        pytest.skip(f"no Java client: {error}")


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolHost]:
    """Kafka's command-line tools."""
    folder = tmp_path_factory.mktemp("tools")
    with ToolHost(class_path_of("tools", SOURCES / "tools", folder), folder / "log") as host:
        yield host


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the printed programs, compiled, and of Kafka's newest client."""
    return class_path_of("client", EXAMPLES, tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="session")
def java_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all that only talk to it; it does not wait three seconds for more members."""
    folder = tmp_path_factory.mktemp("java-broker")
    with BrokerProcess(
        folder / "data", settings="group.initial.rebalance.delay.ms=50\n"
    ) as process:
        yield process
