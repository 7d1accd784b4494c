"""Spark's own Kafka connector: a topic copied into a topic and into files, through kills.

Files are exactly once, its topic sink is at least once. It reads committed records only.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from fencelog.client.blocking import Client
from fencelog.spark.session import prepare_environment
from tests.clients.copying import PARTITIONS, Copier
from tests.ecosystem._cases import read_now
from tests.ecosystem._tools import HERE
from tests.support.broker import BrokerProcess
from tests.support.jvm.jars import class_path
from tests.support.stock import Confluent, Seen, ToSend
from tests.support.waiting import wait_until

CHUNK, ABORTED = 400, 20
DEADLINE_S = 600.0


class Copy:
    """A driver, the topics it reads and writes, and what was written so far."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        """Describe it. Raises JarsMissingError."""
        prepare_environment(os.environ)
        jars = ",".join(class_path("spark").split(os.pathsep))
        program = str(HERE / "programs" / "spark_copy.py")
        self.command = [sys.executable, program, broker.address, "in", "out", str(folder), jars]
        self._broker = broker
        self.values: list[bytes] = []

    def feed(self) -> None:
        """More committed records, and some of an aborted transaction between them."""
        client, address = Confluent(), self._broker.address
        aborted = client.transactional(address, "aborts")
        aborted.begin()
        for _ in range(ABORTED):
            aborted.send("in", b"aborted")
        aborted.abort()
        aborted.close()
        more = [b"%d" % (len(self.values) + number) for number in range(CHUNK)]
        sent = [ToSend(each, partition=at % PARTITIONS) for at, each in enumerate(more)]
        client.write(address, "in", sent, idempotent=True)
        self.values += more

    def await_copied(self, admin: Client, driver: Copier) -> None:
        """Wait until the output topic has all of it."""

        def holds() -> bool:
            driver.watch()
            return set(read_now(admin, "out")) >= set(self.values)

        wait_until(holds, deadline_s=DEADLINE_S, what="Spark's copy", every_s=0.5)

    def written(self) -> list[Seen]:
        """The records of the output topic."""
        return list(Confluent().read(self._broker.address, "out"))

    def counted(self) -> dict[str, Any]:
        """What a batch query counts, and the files."""
        command = [*self.command, "--count"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def copied(folder: Path) -> tuple[int, int]:
    """Kill the broker and the driver at work; how many records, and how many twice in the topic."""
    with BrokerProcess(folder / "data") as broker, Client(broker.address) as admin:
        for topic in ("in", "out"):
            admin.create_topic(topic, PARTITIONS)
        copy = Copy(broker, folder)
        with (folder / "spark.log").open("ab") as log:
            driver = Copier(copy.command, None, log)
            try:
                for strike in (broker.restart, driver.kill):
                    copy.feed()
                    copy.await_copied(admin, driver)
                    copy.feed()
                    strike()
                copy.feed()
                copy.await_copied(admin, driver)
            finally:
                driver.kill()
            found = copy.counted()
        values = [each.decode() for each in copy.values]
        assert found["rows"] == len(values)
        assert found["files"] == dict.fromkeys(values, 1)
        written = Counter(each.value for each in copy.written())
        assert set(written) == set(copy.values)
        return len(values), written.total() - len(values)
