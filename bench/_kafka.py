"""Apache Kafka itself: one broker of its own jars in KRaft mode, for figures side by side."""

import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.jvm.host import jdk_tool
from tests.support.jvm.jars import class_path

START_DEADLINE_S = 60.0
CLUSTER_ID = "bench-of-fencelog-kafka"
# Those that Kafka's own start script sets, with its default heap.
JAVA = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Xmx1G", "-Xms1G")
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.dirs={directory}/logs
"""


class KafkaProcess:
    """A Kafka broker with the default settings. A context manager; leaving kills it."""

    def __init__(self, directory: Path) -> None:
        """Describe it; ``directory`` gets its data and its settings."""
        self._directory = directory
        self._port, self._controller = _free_port(), _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The process that runs."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        """Format its directory, start it, and wait until it listens."""
        self._directory.mkdir()
        settings = self._directory / "server.properties"
        settings.write_text(
            SETTINGS.format(port=self._port, controller=self._controller, directory=self._directory)
        )
        formatted = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings)]
        subprocess.run(self._java(*formatted), check=True, capture_output=True)
        with (self._directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(settings)), stdout=output, stderr=output
            )
        deadline = time.perf_counter() + START_DEADLINE_S
        while not self._listens():
            assert time.perf_counter() < deadline, (self._directory / "output").read_text()
            time.sleep(0.2)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _java(self, *arguments: str) -> list[str]:
        return [jdk_tool("java"), *JAVA, "-cp", class_path("tools"), *arguments]

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "output").read_text()
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self._port)) == os.EX_OK


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
