"""Processes of the printed copier, their kills, and the input that grows meanwhile."""

import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.support.jvm.host import java_command

GROUP = "copiers"
SETTINGS = {
    "session.timeout.ms": "1500",
    "heartbeat.interval.ms": "200",
    "transaction.timeout.ms": "4000",
    "max.poll.records": "40",
    "metadata.max.age.ms": "2000",
    "reconnect.backoff.max.ms": "200",
    "retry.backoff.max.ms": "200",
}


class Copier:
    """A process of ``CopyExactlyOnce`` under one name; restarted after its end."""

    def __init__(self, class_path: str, address: str, name: str, folder: Path) -> None:
        """Describe it; ``start`` starts it."""
        self.name = name
        self.transactional_id = f"{GROUP}-{name}"
        settings = [f"{key}={value}" for key, value in SETTINGS.items()]
        arguments = [address, "in", "out", GROUP, name, *settings]
        log = folder / f"{name}.log"
        self._command = java_command(class_path, "CopyExactlyOnce", *arguments, log=log)
        self._out = folder / f"{name}.out"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> list[str]:
        """What it printed, in all its processes."""
        return self._out.read_text("utf-8").splitlines()

    @property
    def commits(self) -> int:
        """How many transactions it has committed."""
        return sum(line.startswith("committed ") for line in self.said)

    @property
    def was_refused(self) -> bool:
        """Whether it learned that it is a zombie: by its generation, or by its epoch."""
        told = ("CommitFailedException", "ProducerFencedException", "InvalidProducerEpoch")
        return any(name in line for name in told for line in self.said)

    def start(self) -> Self:
        """Start it, or let it be where it runs."""
        if not self.running:
            with self._out.open("ab") as out:
                self._process = subprocess.Popen(self._command, stdout=out, stderr=out)
        return self

    def send(self, how: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(how)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self, deadline_s: float) -> int:
        """Let it leave its group and end by itself; its exit status."""
        assert self._process is not None
        self.send(signal.SIGINT)
        return self._process.wait(deadline_s)


class Feeder:
    """Writes numbered records over all partitions until it is stopped."""

    def __init__(self, address: str, partitions: int) -> None:
        """Describe it; entering it begins to write."""
        self.written = 0
        self._address = address
        self._partitions = partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        """Begin to write."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    def _run(self) -> None:
        with Client(self._address) as client, client.producer() as producer:
            while not self._stop.wait(0.02):
                for _ in range(10):
                    number = self.written
                    value = str(number).encode()
                    producer.send("in", value, key=value, partition=number % self._partitions)
                    self.written += 1
                producer.flush()

    def stop(self) -> int:
        """Stop; how many records there are."""
        self._stop.set()
        self._thread.join()
        return self.written


def is_ongoing(client: Client, transactional_id: str) -> bool:
    """Whether this producer has a transaction open."""
    return client.describe_transaction(transactional_id).state == "Ongoing"


def places(topic: str, partitions: int) -> list[TopicPartition]:
    """All partitions of a topic."""
    return [TopicPartition(topic, number) for number in range(partitions)]


def read_all(client: Client, where: Sequence[TopicPartition]) -> list[list[int]]:
    """The committed numbers of each partition, in its order."""
    ends = client.offsets(where, "latest")
    return [
        [int(record.value or b"") for record in client.fetch(place, 0, ends[place])]
        for place in where
    ]
