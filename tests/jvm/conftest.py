"""Fixtures of the Java tests: two JVMs that stay, and a broker that starts groups at once.

Without a Java compiler, or without the jars and a way to them, these tests are skipped; the reason
names the command that failed.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencelog.spark.java import JavaNotFoundError
from tests.support.broker import BrokerProcess
from tests.support.jvm.host import JdkMissingError, ToolHost, compiled
from tests.support.jvm.jars import JarsMissingError, class_path

Programs = Callable[[str], str]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The class path with Kafka's ``client`` or ``tools`` and, before them, our own programs."""
    ready: dict[str, str] = {}

    def path(section: str) -> str:
        if section not in ready:
            try:
                jars = class_path(section)
                ready[section] = compiled(jars, tmp_path_factory.mktemp(f"java-{section}"))
            except (JarsMissingError, JavaNotFoundError, JdkMissingError) as error:
                pytest.skip(f"no Java client: {error}")
        return ready[section]

    return path


@pytest.fixture(scope="session")
def tools(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolHost]:
    """Kafka's command-line tools."""
    with ToolHost(programs("tools"), tmp_path_factory.mktemp("tools") / "log") as host:
        yield host


@pytest.fixture(scope="session")
def java(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolHost]:
    """Programs on Kafka's newest client."""
    with ToolHost(programs("client"), tmp_path_factory.mktemp("java") / "log") as host:
        yield host


@pytest.fixture(scope="session")
def java_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all that only talk to it; it does not wait three seconds for more members."""
    folder: Path = tmp_path_factory.mktemp("java-broker")
    config = folder / "broker.properties"
    config.write_text("group.initial.rebalance.delay.ms=50\n")
    with BrokerProcess(folder / "data", config=config) as process:
        yield process
