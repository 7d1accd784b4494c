"""What kills of Spark queries share: a query over one checkpoint, through a row of drivers.

At most kills the query waits at a chosen point, so what must be visible is known exactly: the input
up to the end that the checkpoint has for the last decided batch, each record once.
"""

import json
import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeAlias

import psutil

from tests.proofs._compare import read_all
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import BrokerProcess
from tests.support.spark.driver_process import PYTHONPATH, DriverProcess
from tests.support.spark.faults import Announced, Fault, plan
from tests.support.waiting import wait_until

SOURCE, SINK = "source", "sink"
PARTITIONS = 2
BATCH_RECORDS = 100
STEP_S = 300.0
MARKERS_S = 20.0
"""A commit is answered once it is decided; readers see it when its markers are written."""
POINTS = ("writing", "written", "committing", "committed")
"""Where a query can be stopped; the first two are in its tasks, the others in its driver."""
LOCAL, CLUSTER = "local[2,4]", "local-cluster[2,1,1024]"
CLUSTER_SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": PYTHONPATH,
}


@dataclass(frozen=True)
class Kill:
    """What is killed where; ``random`` is any moment of a batch."""

    target: str
    point: str

    def __str__(self) -> str:
        """As reports name it."""
        return f"{self.target} at {self.point}"


@dataclass(frozen=True)
class Stage:
    """The kills of one driver; after a stage that ends with a kill of the driver comes another."""

    master: str
    kills: tuple[Kill, ...]


def stages(kills: Sequence[Kill], last: frozenset[str] = frozenset({"driver"})) -> list[Stage]:
    """Put kills into as few drivers as they need; the last driver goes to the end.

    After a kill of the targets ``last`` a driver does no more.
    """
    on_cluster = [each for each in kills if each.target == "executor"]
    elsewhere = [each for each in kills if each.target not in {"executor", *last}]
    deaths = [each for each in kills if each.target in last]
    shares = max(len(deaths), 1)
    result = [
        Stage(LOCAL, (*elsewhere[index::shares], *deaths[index : index + 1]))
        for index in range(shares)
    ]
    return [*result, Stage(CLUSTER if on_cluster else LOCAL, tuple(on_cluster))]


Output: TypeAlias = "Counter[tuple[int, int]]"
"""How often each record is in the output, by source partition and number there."""


@dataclass
class Verdict:
    """What was killed, and what was wrong."""

    seed: int
    kills: list[str] = field(default_factory=list)
    drivers: int = 0
    zombies: int = 0
    """Stopped drivers that went on beside a newer one."""
    seconds: float = 0.0
    sent: int = 0
    read: int = 0
    lost: int = 0
    doubled: int = 0
    """Records that are not, and that are more than once in the output at the end."""
    problems: list[str] = field(default_factory=list)


class Run:
    """One query over one checkpoint, and the knowledge of what its output must be."""

    decided_at: ClassVar[frozenset[str]] = frozenset({"committed"})
    """The points at which the batch is in the output."""

    def __init__(
        self,
        folder: Path,
        broker: BrokerProcess | ApacheKafka,
        chance: random.Random,
        verdict: Verdict,
    ) -> None:
        """Nothing runs yet."""
        self._folder = folder
        self._broker = broker
        self._chance = chance
        self._verdict = verdict
        self._checkpoint = folder / "checkpoint"
        self._announced = Announced(folder / "faults")
        self._announced.folder.mkdir(parents=True)
        self._sent = 0
        self._driver: DriverProcess | None = None
        self._zombies: list[tuple[DriverProcess, str]] = []
        """Drivers that are stopped, each with the fault that holds it."""

    # -- the query -----------------------------------------------------------------------------

    def run_stage(self, stage: Stage, progress: Callable[[], None]) -> None:
        """Start a driver, do its kills, and let it end unless it was killed.

        Zombies that no kill continued are continued at the stage's end.
        """
        first = self._last("commits") + 1
        # The batch that an earlier driver left is repeated as it was: the faults come after it.
        planned = [(first + 1 + index, kill) for index, kill in enumerate(stage.kills)]
        self._send((len(planned) + 3) * BATCH_RECORDS)
        driver = self._driver = self._start(stage.master, self._faults(planned))
        try:
            for batch, kill in planned:
                self._kill(kill, batch, driver)
                self._verdict.kills.append(f"{kill}, batch {batch}")
                progress()
            if not self._is_over(driver) and driver.end(STEP_S) != 0:
                self._wrong(f"the driver ended with status {driver.status}: {driver.stderr}")
        finally:
            if not self._is_zombie(driver):
                driver.kill()
        self._continue([each for each in self._zombies if each[0] is not driver])

    def _is_over(self, driver: DriverProcess) -> bool:
        """Whether a stage does not wait for the end of its driver."""
        return self._is_zombie(driver) or driver.status is not None

    def _is_zombie(self, driver: DriverProcess) -> bool:
        return any(driver is zombie for zombie, _ in self._zombies)

    def _continue(self, zombies: Sequence[tuple[DriverProcess, str]]) -> None:
        """Let stopped drivers go on, and wait until they have ended by themselves."""
        for zombie, fault in zombies:
            self._announced.release(fault)
            zombie.resume()
        for zombie, fault in zombies:
            self._zombies.remove((zombie, fault))
            try:
                wait_until(
                    lambda: zombie.status is not None,  # noqa: B023
                    deadline_s=STEP_S,
                    what=f"the end of zombie {fault}",
                )
            finally:
                zombie.kill()
            self._verdict.zombies += 1
            self._expect_any(f"zombie {fault} went on")

    def _start(self, master: str, faults: Sequence[Fault]) -> DriverProcess:
        settings = CLUSTER_SETTINGS if master == CLUSTER else {}
        return self._start_job(
            {
                "master": master,
                "settings": settings,
                "checkpoint": str(self._checkpoint),
                "faults": plan(*faults),
            }
        )

    def _start_job(self, job: Mapping[str, object]) -> DriverProcess:
        """Start a driver with this and with what each of them is told."""
        self._verdict.drivers += 1
        common = {
            "servers": self._broker.address,
            "source": SOURCE,
            "sink": SINK,
            "folder": str(self._announced.folder),
            "reader": {"maxOffsetsPerTrigger": str(BATCH_RECORDS)},
        }
        log = self._folder / f"driver-{self._verdict.drivers}.stderr"
        return DriverProcess({**common, **job}, log)

    def _send(self, count: int) -> None:
        """Numbered records, in turn to each partition: offsets of the source count them."""
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self._broker.address,
                "enable.idempotence": True,
                "log_level": 0,
            }
        )
        for number in range(self._sent, self._sent + count):
            value = self._value(number)
            producer.produce(SOURCE, value, key=value, partition=number % PARTITIONS)
        assert producer.flush(STEP_S) == 0, "the input could not be written"
        self._sent += count
        self._verdict.sent = self._sent

    def _value(self, number: int) -> bytes:
        """One record of the input."""
        return b"%d/%d" % (number % PARTITIONS, number // PARTITIONS)

    def _name(self, batch: int, kill: Kill) -> str:
        return f"{batch}-{kill.target}-{kill.point}"

    def _faults(self, planned: Sequence[tuple[int, Kill]]) -> list[Fault]:
        """Where the query waits for these kills."""
        return [
            Fault(
                name=self._name(batch, kill),
                point=kill.point,
                batch=batch,
                action="kill-worker" if kill.target == "worker" else "hold",
                partition=0 if kill.point in POINTS[:2] else None,
                attempt=0 if kill.point in POINTS[:2] else None,
            )
            for batch, kill in planned
            if kill.point not in ("random", "start")
        ]

    # -- killing -------------------------------------------------------------------------------

    def _kill(self, kill: Kill, batch: int, driver: DriverProcess) -> None:
        if kill.point == "start":
            threading.Event().wait(self._chance.uniform(0.5, 8.0))
            driver.kill()
            self._expect_any(f"{kill}")
        elif kill.point == "random":
            self._wait(driver, lambda: self._last("offsets") >= batch, f"batch {batch} planned")
            threading.Event().wait(self._chance.uniform(0.0, 1.0))
            self._kill_now(kill, driver, {})
            self._expect_any(f"{kill}, batch {batch}")
        elif kill.target in ("worker", "executor"):
            facts = self._reached(driver, batch, kill)
            self._kill_now(kill, driver, facts)
            self._announced.release(self._name(batch, kill))
            self._wait(driver, lambda: self._last("commits") >= batch, f"batch {batch} committed")
            self._expect_any(f"{kill}, batch {batch}")
        else:
            facts = self._reached(driver, batch, kill)
            self._kill_now(kill, driver, facts)
            decided = batch if kill.point in self.decided_at else batch - 1
            self._expect([decided], f"{kill}, batch {batch}")
            self._announced.release(self._name(batch, kill))

    def _reached(self, driver: DriverProcess, batch: int, kill: Kill) -> Mapping[str, int]:
        file = self._announced.folder / f"{self._name(batch, kill)}.reached"
        self._wait(driver, file.exists, f"{kill} reached in batch {batch}")
        return json.loads(file.read_text())

    def _kill_now(self, kill: Kill, driver: DriverProcess, facts: Mapping[str, int]) -> None:
        match kill.target:
            case "driver":
                driver.kill()
            case "broker":
                self._broker.restart()
            case "executor":
                # The worker's parent is the daemon, and that one's is the executor's JVM.
                psutil.Process(facts["parent"]).parent().kill()
            case _:
                assert kill.target == "worker", kill  # it has killed itself

    def _wait(self, driver: DriverProcess, condition: Callable[[], bool], what: str) -> None:
        def reached() -> bool:
            done = condition()
            assert done or driver.status is None, f"{what}: driver ended early: {driver.stderr}"
            return done

        wait_until(reached, deadline_s=STEP_S, what=what)

    # -- checks ----------------------------------------------------------------------------------

    def _last(self, log: str) -> int:
        """The last batch in a log of the checkpoint, -1 without one."""
        return last_batch(self._checkpoint / log)

    def _ends(self, batch: int) -> tuple[int, ...]:
        """How much of each source partition the batches up to this one hold."""
        return batch_ends(self._checkpoint, batch)

    def _expect_any(self, when: str) -> None:
        """The output is exact for some batch: the last that Spark noted, or the one it was at."""
        deadline = time.monotonic() + STEP_S
        while True:
            # A running query moves on between two looks; a wrong output stays wrong.
            before = self._last("commits")
            found = self._read()
            batches = range(max(before, -1), self._last("offsets") + 1)
            if self._problem(found, batches) is None or time.monotonic() > deadline:
                break
            if _is_beyond_repair(found) or (self._driver and self._driver.status is not None):
                break
        self._check(found, batches, when)

    def _expect(self, batches: Sequence[int], when: str) -> None:
        """The output is exact for these batches; the markers of the last one may still be due."""
        deadline = time.monotonic() + MARKERS_S
        found = self._read()
        while self._problem(found, batches) is not None and not _is_beyond_repair(found):
            if time.monotonic() > deadline:
                break
            found = self._read()
        self._check(found, batches, when)

    def expect_all(self) -> None:
        """The whole input is in the output, each record once."""
        wanted = Counter(
            (number % PARTITIONS, number // PARTITIONS) for number in range(self._sent)
        )
        deadline = time.monotonic() + MARKERS_S
        found = self._read()
        while wanted - found and time.monotonic() < deadline:
            found = self._read()
        self._verdict.read = found.total()
        self._verdict.lost = len(wanted - found)
        self._verdict.doubled = len(found - wanted)
        if found != wanted:
            lost, more = wanted - found, found - wanted
            self._wrong(
                f"in the end {lost.total()} records are lost, {more.total()} are too many: "
                f"{sorted(lost)[:5]} {sorted(more)[:5]}"
            )

    def _read(self) -> Output:
        found: Output = Counter()
        for records in read_all(self._broker.address, SINK, PARTITIONS).values():
            for _, value in records:
                partition, number = value.split(b"/")
                found[int(partition), int(number)] += 1
        return found

    def _problem(self, found: Output, batches: Sequence[int]) -> str | None:
        return problem(found, [self._ends(batch) for batch in batches])

    def _check(self, found: Output, batches: Sequence[int], when: str) -> None:
        wrong = self._problem(found, batches)
        if wrong is not None:
            self._wrong(f"after {when}: {wrong}")

    def _wrong(self, problem: str) -> None:
        self._verdict.problems.append(problem)


def last_batch(log: Path) -> int:
    """The last batch in a log of a checkpoint, -1 without one."""
    names = os.listdir(log) if log.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def batch_ends(checkpoint: Path, batch: int) -> tuple[int, ...]:
    """How much of each source partition the batches up to this one hold."""
    if batch < 0:
        return (0,) * PARTITIONS
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    ends = json.loads(lines[-1])[SOURCE]
    return tuple(ends[str(index)] for index in range(PARTITIONS))


def problem(found: Output, allowed: Sequence[tuple[int, ...]]) -> str | None:
    """Why the output is not the input up to one of these ends, each record once; None if it is."""
    doubled = sorted(each for each, count in found.items() if count > 1)
    if doubled:
        return f"{len(doubled)} records are doubled, {doubled[:3]} among them"
    counts = tuple(sum(1 for each in found if each[0] == index) for index in range(PARTITIONS))
    beyond = [each for each in found if each[1] >= counts[each[0]]]
    if beyond:
        return f"{len(beyond)} records are there without all that precede them"
    return None if counts in allowed else f"{counts} records, one of {allowed} expected"


def _is_beyond_repair(found: Output) -> bool:
    return any(count > 1 for count in found.values())


def create_topics(address: str, names: Sequence[str] = (SOURCE, SINK)) -> None:
    """Create source and sinks."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    topics = [NewTopic(name, PARTITIONS, 1) for name in names]
    for created in admin.create_topics(topics).values():
        created.result(STEP_S)


def play(
    query: Run, planned: Sequence[Stage], verdict: Verdict, progress: Callable[[], None]
) -> None:
    """Run the stages and look at the whole output; a query that gets stuck is a problem."""
    try:
        for stage in planned:
            query.run_stage(stage, progress)
        query.expect_all()
    except (AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
        verdict.problems.append(f"the query got stuck: {error}")
