"""A Spark query on Apache Kafka whose drivers, tasks and broker are killed, stopped and continued.

The query of ``_spark_kills``, but source and sink are on a stock Kafka, so its driver commits: all
points of that way are struck. Two strikes leave somebody alive who must not write any more: an
``orphan`` is the Python worker that commits for a driver that died, and a ``zombie`` a whole driver
that is stopped, and continued when another one has taken the query over.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.proofs._spark_kills import (
    LOCAL,
    PARTITIONS,
    SINK,
    STEP_S,
    Kill,
    Output,
    Run,
    Verdict,
    create_topics,
    play,
    stages,
)
from tests.support.apache_kafka import ApacheKafka
from tests.support.hangs import hanging
from tests.support.jvm.jars import class_path
from tests.support.spark.driver_process import DriverProcess

IN_TASKS = ("writing", "written")
IN_DRIVER = ("committing", "sending", "ending", "ended", "committed")
DEATHS = frozenset({"driver", "orphan", "zombie"})
FROZEN_S = (1.0, 10.0)
"""How long a broker is stopped: its session at the controller is 6 s."""
CHOSEN = (
    *(Kill("driver", point) for point in (*IN_TASKS, *IN_DRIVER)),
    *(Kill("zombie", point) for point in (*IN_TASKS, *IN_DRIVER)),
    *(Kill("orphan", point) for point in IN_DRIVER),
    *(Kill("broker", point) for point in (*IN_TASKS, *IN_DRIVER)),
    *(Kill("frozen broker", point) for point in ("committing", "sending", "ending")),
    *(Kill("worker", point) for point in IN_TASKS),
    *(Kill("executor", point) for point in IN_TASKS),
    Kill("driver", "start"),
)
"""Each kind of strike at each of its points."""
SLICE = (Kill("zombie", "sending"),)
"""What the test suite runs."""
BIG_BATCH_RECORDS = 40_000
"""Of the connector: its sink's batch has to last longer than one look at the output."""


def choose(kills: int, chance: random.Random) -> list[Kill]:
    """Every chosen strike first, then random ones: half at any moment, half at a point."""
    drawn = list(CHOSEN[:kills])
    while len(drawn) < kills:
        if chance.random() < 0.5:
            drawn.append(Kill(chance.choice(("driver", "driver", "broker", "orphan")), "random"))
        else:
            drawn.append(chance.choice(CHOSEN))
    return drawn


class KafkaRun(Run):
    """One query over one checkpoint, on Apache Kafka."""

    decided_at = frozenset({"ended", "committed"})

    def __init__(
        self, folder: Path, broker: ApacheKafka, chance: random.Random, verdict: Verdict
    ) -> None:
        """Nothing runs yet."""
        super().__init__(folder, broker, chance, verdict)
        self._kafka = broker

    def _kill_now(self, kill: Kill, driver: DriverProcess, facts: Mapping[str, int]) -> None:
        match kill.target:
            case "driver":
                driver.kill_tree()
            case "orphan":
                driver.kill()
            case _:
                super()._kill_now(kill, driver, facts)

    def _kill(self, kill: Kill, batch: int, driver: DriverProcess) -> None:
        if self._zombies and kill.point != "start":
            # The driver of this stage has repeated their batch: it is the newer run.
            self._wait(driver, lambda: self._last("commits") >= batch - 1, "a takeover")
            self._continue(list(self._zombies))
        name = self._name(batch, kill)
        match kill.target:
            case "zombie":
                self._reached(driver, batch, kill)
                driver.pause()
                self._zombies.append((driver, name))
                decided = batch if kill.point in self.decided_at else batch - 1
                self._expect([decided], f"{kill}, batch {batch}")
            case "frozen broker":
                self._reached(driver, batch, kill)
                self._kafka.pause()
                self._announced.release(name)
                threading.Event().wait(self._chance.uniform(*FROZEN_S))
                self._kafka.resume()
                self._wait(driver, lambda: self._last("commits") >= batch, f"batch {batch} done")
                self._expect_any(f"{kill}, batch {batch}")
            case _:
                super()._kill(kill, batch, driver)


def run(
    folder: Path,
    *,
    kills: Sequence[Kill],
    seed: int,
    progress: Callable[[], None] = lambda: None,
) -> Verdict:
    """Do the kills in as few drivers as they need, check after each one and at the end."""
    began = time.monotonic()
    verdict = Verdict(seed=seed)
    with ApacheKafka(folder / "kafka") as broker:
        create_topics(broker.address)
        query = KafkaRun(folder, broker, random.Random(seed), verdict)
        play(query, stages(kills, DEATHS), verdict, progress)
        verdict.problems += hanging(broker.address)
    verdict.seconds = time.monotonic() - began
    return verdict


@dataclass
class Control:
    """What Spark's own connector made of the same kills: its sink writes at least once."""

    kills: int = 0
    sent: int = 0
    read: int = 0
    lost: int = 0
    doubled: int = 0
    """Records that are more than once in the output."""
    seconds: float = 0.0


def run_connector(folder: Path, *, kills: int, progress: Callable[[], None]) -> Control:
    """Kill drivers of Spark's connector while a batch of theirs is written; count at the end."""
    began = time.monotonic()
    control = Control()
    with ApacheKafka(folder / "kafka") as broker:
        create_topics(broker.address)
        query = ConnectorRun(folder, broker, random.Random(0), Verdict(seed=0))
        for _ in range(kills):
            query.kill_while_writing()
            control.kills += 1
            progress()
        control.sent, found = query.read_to_the_end()
    control.read = found.total()
    control.lost = control.sent - len(found)
    control.doubled = sum(count > 1 for count in found.values())
    control.seconds = time.monotonic() - began
    return control


class ConnectorRun(Run):
    """The same query with ``format("kafka")`` on both sides. Larger batches: they take longer."""

    def kill_while_writing(self) -> None:
        """Start a driver and kill it when rows of a batch are visible that it has not finished."""
        self._send(BIG_BATCH_RECORDS)
        written = self._written()
        driver = self._start_connector()

        def is_writing() -> bool:
            return self._written() > written and self._last("offsets") > self._last("commits")

        try:
            self._wait(driver, is_writing, "the connector writes")
        finally:
            driver.kill_tree()

    def read_to_the_end(self) -> tuple[int, Output]:
        """How much there was, and the output once a driver has gone to the end."""
        driver = self._start_connector()
        try:
            assert driver.end(STEP_S) == 0, driver.stderr
        finally:
            driver.kill()
        return self._sent, self._read()

    def _start_connector(self) -> DriverProcess:
        jars = ",".join(class_path("spark").split(os.pathsep))
        return self._start_job(
            {
                "connector": "kafka",
                "master": LOCAL,
                "settings": {"spark.jars": jars},
                "checkpoint": str(self._checkpoint),
                "faults": "[]",
                "reader": {"maxOffsetsPerTrigger": str(BIG_BATCH_RECORDS)},
            }
        )

    def _written(self) -> int:
        with Client(self._broker.address) as client:
            sink = [TopicPartition(SINK, number) for number in range(PARTITIONS)]
            return sum(client.offsets(sink, "latest").values())
