"""A Kafka Connect worker in a process of its own, and its REST interface."""

import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.jvm.host import java_command
from tests.support.waiting import wait_until

DEADLINE_S = 120.0
FILE = "org.apache.kafka.connect.file.FileStream"
COMMON = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.flush.interval.ms": "300",
    "plugin.discovery": "service_load",
}


def source(file: Path, topic: str) -> dict[str, str]:
    """The file source: the lines of a file, a few to a transaction where it has transactions."""
    return {
        "name": "source",
        "connector.class": f"{FILE}SourceConnector",
        "tasks.max": "1",
        "file": str(file),
        "topic": topic,
        "batch.size": "20",
        # A worker reads its offsets to their end before it fences its killed task. The task's open
        # transaction blocks that until it times out.
        "producer.override.transaction.timeout.ms": "2000",
    }


def sink(file: Path, topic: str) -> dict[str, str]:
    """The file sink: what it reads becomes a line."""
    return {
        "name": "sink",
        "connector.class": f"{FILE}SinkConnector",
        "tasks.max": "1",
        "file": str(file),
        "topics": topic,
        "consumer.override.isolation.level": "read_committed",
    }


class Worker:
    """A worker of Connect; a context manager that kills it in the end."""

    def __init__(
        self, class_path: str, folder: Path, main: str, settings: Mapping[str, str], *files: Path
    ) -> None:
        """Start it. ``main`` is the last word of its class's name, ``files`` its connectors."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        config = write(folder / "worker.properties", {**COMMON, **settings, "listeners": self._url})
        self.log = folder / "worker.log"
        name = f"org.apache.kafka.connect.cli.{main}"
        arguments = [str(config), *map(str, files)]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                java_command(class_path, name, *arguments, log=self.log),
                stdout=out,
                stderr=out,
            )

    def ask(self, path: str, body: object = None) -> Any:
        """GET, or POST where there is a body; None while it does not answer so."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return json.load(answer)
        except OSError:
            assert self._process.poll() is None, self.log.read_text("utf-8")[-4000:]
            return None

    def create(self, connector: Mapping[str, str]) -> None:
        """Create a connector, once the worker is in its group."""
        asked = {"name": connector["name"], "config": dict(connector)}
        wait_until(
            lambda: self.ask("/connectors", asked),
            deadline_s=DEADLINE_S,
            what="the connector",
            every_s=0.1,
        )

    def runs(self, connector: str) -> bool:
        """Whether a connector and its one task are running."""
        status = self.ask(f"/connectors/{connector}/status")
        if status is None:
            return False
        failed = [task for task in status["tasks"] if task["state"] == "FAILED"]
        assert not failed, failed
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        return states == ["RUNNING", "RUNNING"]

    def await_running(self, *connectors: str) -> None:
        """Wait until all of these run."""
        for name in connectors:
            wait_until(lambda: self.runs(name), deadline_s=DEADLINE_S, what=name, every_s=0.1)  # noqa: B023

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "Worker":
        """It runs already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it."""
        self.kill()


def write(file: Path, settings: Mapping[str, str]) -> Path:
    """Write a properties file."""
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return file
