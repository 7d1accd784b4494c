"""MirrorMaker 2, dedicated and exactly once, from one broker to another."""

import socket
import subprocess
from collections import Counter
from pathlib import Path

from fencelog.client.blocking import Client
from fencelog.errors import FencelogError
from fencelog.types import TopicPartition
from tests.jvm._connect import write
from tests.jvm._copiers import Feeder, places, read_all
from tests.support.broker import BrokerProcess
from tests.support.jvm.host import java_command
from tests.support.jvm.jars import class_path
from tests.support.stock import Confluent
from tests.support.waiting import wait_until

PARTITIONS = 3
DEADLINE_S = 180.0
MORE = 400
GROUP = "readers"
SETTINGS = {
    "clusters": "a, b",
    "a->b.enabled": "true",
    "a->b.topics": "in",
    "a->b.groups": GROUP,
    "b->a.enabled": "false",
    "tasks.max": "1",
    "dedicated.mode.enable.internal.rest": "true",
    "b.exactly.once.source.support": "enabled",
    "a.consumer.isolation.level": "read_committed",
    # A new process reads its offsets to their end first, and waits there for the killed one's
    # transaction to time out.
    "b.producer.transaction.timeout.ms": "4000",
    "b.offset.flush.interval.ms": "500",
    "sync.group.offsets.enabled": "true",
    "offset.lag.max": "0",
    **dict.fromkeys(
        (
            "emit.checkpoints.interval.seconds",
            "sync.group.offsets.interval.seconds",
            "refresh.topics.interval.seconds",
            "refresh.groups.interval.seconds",
        ),
        "1",
    ),
    **{
        f"{kind}.replication.factor": "1"
        for kind in (
            *("config.storage", "offset.storage", "status.storage"),
            *("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic"),
        )
    },
    "replication.factor": "1",
}


class Mirror:
    """A MirrorMaker process and its two brokers."""

    def __init__(self, folder: Path, a: BrokerProcess, b: BrokerProcess) -> None:
        """Describe it. Raises JarsMissingError."""
        self.a, self.b = a, b
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        addresses = {
            "a.bootstrap.servers": a.address,
            "b.bootstrap.servers": b.address,
            "listeners": f"http://127.0.0.1:{port}",
        }
        config = write(folder / "mirror.properties", {**SETTINGS, **addresses})
        self.log = folder / "mirror.log"
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        path = f"{class_path('mirror')}:{class_path('tools')}"
        self._command = java_command(path, main, str(config), log=self.log)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out)

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def count(self) -> int:
        """How many records readers see in the mirrored topic."""
        try:
            with Client(self.b.address) as client:
                return sum(map(len, read_all(client, places("a.in", PARTITIONS))))
        except FencelogError:  # not created yet
            return 0

    def numbers(self) -> list[list[int]]:
        """What is in each partition of the mirrored topic, as a stock client reads it."""
        found: list[list[int]] = [[] for _ in range(PARTITIONS)]
        for record in Confluent().read(self.b.address, "a.in"):
            found[record.partition].append(int(record.value or b""))
        return found

    def await_more(self) -> None:
        """Wait until many more records are there."""
        assert self._process is not None
        wanted = self.count() + MORE

        def holds() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:  # it gives up when it finds no broker
                self.start()
            return self.count() >= wanted

        wait_until(holds, deadline_s=DEADLINE_S, what="mirrored records", every_s=0.2)


def check_group(mirror: Mirror, numbers: list[list[int]]) -> None:
    """The group's offsets arrive, and none skips a record that was not read at the source."""
    with Client(mirror.a.address) as at_a, Client(mirror.b.address) as at_b:
        middle = {
            place: len(part) // 2
            for place, part in zip(places("in", PARTITIONS), numbers, strict=True)
        }
        at_a.commit_offsets(GROUP, middle)

        def synced() -> dict[TopicPartition, int]:
            try:
                return dict(at_b.committed_offsets(GROUP))
            except FencelogError:
                return {}

        found = wait_until(
            lambda: len(got := synced()) == PARTITIONS and got,
            deadline_s=DEADLINE_S,
            what="the group's offsets",
            every_s=0.2,
        )
        ends = at_b.offsets(places("a.in", PARTITIONS), "latest")
        for place, offset in found.items():
            left = list(at_b.fetch(place, offset, ends[place]))
            read = numbers[place.partition][: len(numbers[place.partition]) // 2]
            assert len(left) >= len(numbers[place.partition]) - len(read)


def mirrored(folder: Path) -> int:
    """Kill the process and both brokers at work; how many records came over, each once."""
    settings = "group.initial.rebalance.delay.ms=50\n"
    with (
        BrokerProcess(folder / "a", settings=settings) as a,
        BrokerProcess(folder / "b", settings=settings) as b,
    ):
        mirror = Mirror(folder, a, b)
        with Client(a.address) as client:
            client.create_topic("in", PARTITIONS)
        mirror.start()
        try:
            with Feeder(a.address, PARTITIONS) as feeder:
                for victim in (mirror, b, a):
                    mirror.await_more()
                    if isinstance(victim, BrokerProcess):
                        victim.restart()
                    else:
                        victim.kill()
                        victim.start()
                mirror.await_more()
                written = feeder.stop()
            wait_until(
                lambda: mirror.count() >= written,
                deadline_s=DEADLINE_S,
                what="the rest",
                every_s=0.2,
            )
            numbers = mirror.numbers()
            assert Counter(number for part in numbers for number in part) == Counter(range(written))
            assert all(part == sorted(part) for part in numbers)
            check_group(mirror, numbers)
        finally:
            mirror.kill()
    return written
