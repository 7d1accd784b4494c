"""Kafka Connect with its file connectors, alone and distributed, where it is exactly once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.jvm._connect import DEADLINE_S, Worker, sink, source, write
from tests.support.broker import BrokerProcess
from tests.support.jvm.jars import class_path
from tests.support.waiting import wait_until

LINES = 3000
DISTRIBUTED = {
    "group.id": "workers",
    "exactly.once.source.support": "enabled",
    "scheduled.rebalance.max.delay.ms": "0",
    "session.timeout.ms": "2000",
    "heartbeat.interval.ms": "300",
    "offset.storage.partitions": "2",
    **{
        f"{kind}.storage.{key}": value
        for kind in ("config", "offset", "status")
        for key, value in {"topic": f"connect-{kind}", "replication.factor": "1"}.items()
    },
}


@pytest.fixture
def connect(tools: object) -> str:
    """The class path of Connect."""
    return class_path("tools")


@pytest.fixture
def workers_broker(tmp_path: Path) -> BrokerProcess:
    """A broker, not started yet, that lets the sessions of workers be short."""
    return BrokerProcess(
        tmp_path / "data",
        settings="group.initial.rebalance.delay.ms=50\ngroup.min.session.timeout.ms=500\n",
    )


class Input:
    """A file that grows."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lines: list[str] = []
        self.grow(LINES)

    def grow(self, count: int) -> None:
        more = [f"line {number}" for number in range(len(self.lines), len(self.lines) + count)]
        with self.file.open("a") as file:
            file.writelines(f"{line}\n" for line in more)
        self.lines += more

    def until(self, seen: Callable[[], list[str]]) -> None:
        """Grow until so many lines are there as were at first.

        The file source keeps lines to itself until it finds more behind them.
        """

        def holds() -> bool:
            self.grow(1)
            return len(seen()) >= LINES

        wait_until(holds, deadline_s=DEADLINE_S, what="the lines", every_s=0.1)


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_a_standalone_worker_copies_a_file_through_a_topic(
    connect: str, java_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    file, copy = Input(tmp_path / "in"), tmp_path / "out"
    settings = {
        "bootstrap.servers": java_broker.address,
        "offset.storage.file.filename": str(tmp_path / "offsets"),
    }
    files = [
        write(tmp_path / "source.properties", source(file.file, topic)),
        write(tmp_path / "sink.properties", sink(copy, topic)),
    ]
    with Worker(connect, tmp_path, "ConnectStandalone", settings, *files) as worker:
        worker.await_running("source", "sink")
        file.until(lambda: lines_of(copy))
    copied = lines_of(copy)
    assert copied == file.lines[: len(copied)]


def test_a_distributed_worker_that_is_killed_writes_each_line_once(
    connect: str, workers_broker: BrokerProcess, tmp_path: Path
) -> None:  # E7, E10, E11
    file, copy = Input(tmp_path / "in"), tmp_path / "out"
    place = TopicPartition("lines", 0)
    with workers_broker as broker, Client(broker.address) as client:
        settings = {**DISTRIBUTED, "bootstrap.servers": broker.address}
        client.create_topic("lines")

        def seen() -> list[str]:
            (end,) = client.offsets([place], "latest").values()
            return [(one.value or b"").decode() for one in client.fetch(place, 0, end)]

        with Worker(connect, tmp_path, "ConnectDistributed", settings) as worker:
            worker.create(source(file.file, "lines"))
            worker.create(sink(copy, "lines"))
            wait_until(lambda: len(seen()) > 40, deadline_s=DEADLINE_S, what="lines", every_s=0)
        assert len(seen()) < LINES, "it was killed at work"
        broker.restart()
        with Worker(connect, tmp_path, "ConnectDistributed", settings) as worker:
            worker.await_running("source", "sink")
            file.until(seen)
            wait_until(
                lambda: set(lines_of(copy)) >= set(file.lines[:LINES]),
                deadline_s=DEADLINE_S,
                what="the sink",
                every_s=0.1,
            )
        written = seen()
        assert written == file.lines[: len(written)]
        for topic in ("connect-config", "connect-offset", "connect-status"):
            assert client.describe_topic(topic).configs["cleanup.policy"] == "compact"
