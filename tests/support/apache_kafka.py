"""Apache Kafka itself: a broker of its own jars in a process, which a test may kill at any time."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fencelog.client.blocking import Client
from fencelog.errors import RequestError
from fencelog.spark.java import find_java_home
from tests.support.jvm.jars import class_path
from tests.support.waiting import wait_until

START_DEADLINE_S = 180.0
ASK_TIMEOUT_S = 2.0
CLUSTER_ID = "fencelog-tests-kafka-A"
DEFAULT_HEAP = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Xmx1G", "-Xms1G")
"""What Kafka's own start script gives Java."""
SMALL_HEAP = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")
"""For a broker that lives for a test: it gains nothing from the second compiler."""
SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
QUICK = {
    # Each partition of an internal topic is a folder that the first user waits for.
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.cleaner.backoff.ms": "100",
    "num.partitions": "1",
    "auto.create.topics.enable": "false",
    # A transaction whose producer died ends soon after its timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "num.network.threads": "2",
    "num.io.threads": "4",
    # After SIGKILL the controller lets a broker in when the session of the one before it has ended.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
}
"""What makes a broker of one test start fast and stay small."""


class ApacheKafka:
    """A Kafka broker, its own controller too (KRaft), on one directory and one port.

    ``section`` of ``jars.lock`` says of which version. A context manager: entering starts it,
    leaving kills what still runs.
    """

    def __init__(
        self,
        directory: Path,
        *,
        section: str = "tools",
        java: Sequence[str] = SMALL_HEAP,
        settings: Mapping[str, str] = QUICK,
    ) -> None:
        """Format ``directory``, which must not exist, and take two free ports; nothing runs yet.

        Raises JarsMissingError, JavaNotFoundError.
        """
        self._directory = directory
        home = find_java_home(os.environ)
        self._command = [str(home / "bin" / "java"), *java, "-cp", class_path(section)]
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"127.0.0.1:{_free_port()}"
        controller = f"127.0.0.1:{_free_port()}"
        given = {
            **SINGLE_NODE,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": f"{directory}/logs",
            **settings,
        }
        directory.mkdir(parents=True)
        self._settings = directory / "server.properties"
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        self._format()

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process runs, stopped or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        """Everything the broker wrote, over all its processes."""
        return (self._directory / "output").read_text("utf-8", "replace")

    def start(self) -> Self:
        """Start; returns once it answers as a member of its cluster."""
        assert not self.running, "the broker is running already"
        with (self._directory / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [*self._command, "kafka.Kafka", str(self._settings)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        wait_until(self._answers, deadline_s=START_DEADLINE_S, what="Apache Kafka", every_s=0.1)
        return self

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone. Nothing happens where none runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def restart(self) -> Self:
        """SIGKILL, and start on the same port and directory."""
        self.kill()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _format(self) -> None:
        words = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._settings)]
        done = subprocess.run([*self._command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def _answers(self) -> bool:
        assert self.running, self.output
        try:
            with Client(self.address, request_timeout_s=ASK_TIMEOUT_S) as client:
                return bool(client.cluster().brokers)
        except RequestError:
            return False

    def __enter__(self) -> Self:
        """Start it if it does not run yet."""
        return self if self.running else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill what still runs; a failing test shows what the broker wrote."""
        self.kill()
        if error is not None:
            sys.stderr.write(f"--- output of Apache Kafka in {self._directory}\n{self.output}---\n")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
