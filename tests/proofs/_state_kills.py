"""Queries with state whose driver is killed again and again; in the end each output is exact.

Each driver runs every query of ``stateful``, each over a checkpoint of its own. When all of them
are at a chosen point of a batch the driver gets SIGKILL, and the next one goes on. The last one
goes to the end. What a query then has written is known: each value, as often as it has to be there.
"""

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from fencelog.client.blocking import Client
from tests.proofs._compare import read_all
from tests.proofs._spark_kills import POINTS, SINK, SOURCE, STEP_S, Verdict
from tests.support.broker import BrokerProcess
from tests.support.hangs import hanging
from tests.support.spark.driver_process import DriverProcess
from tests.support.spark.faults import Announced, Fault, plan
from tests.support.spark.stateful import QUERIES, STATE_SETTINGS, expected, numbered_values

BATCH_RECORDS = 100
BATCHES_PER_KILL = 2
"""The batch that the driver before left is repeated; the next one is held."""


def run(
    folder: Path, *, kills: int, seed: int, progress: Callable[[], None] = lambda: None
) -> Verdict:
    """Do the kills, one driver each, and check the outputs in the end."""
    began = time.monotonic()
    chance = random.Random(seed)
    verdict = Verdict(seed=seed, sent=(BATCHES_PER_KILL * kills + 2) * BATCH_RECORDS)
    announced = Announced(folder / "faults")
    announced.folder.mkdir(parents=True)
    with (
        BrokerProcess(folder / "data", durability="os") as broker,
        Client(broker.address) as client,
    ):
        for name in (SOURCE, *(f"{SINK}-{name}" for name in QUERIES)):
            client.create_topic(name, 2)
        with client.producer() as producer:
            for number, value in enumerate(numbered_values(verdict.sent)):
                producer.send(SOURCE, value.encode(), partition=number % 2)
        try:
            for number in range(kills):
                faults = _faults(folder, number, chance)
                driver = _start(folder, broker, faults, verdict)
                _kill(driver, announced, faults, verdict)
                progress()
            driver = _start(folder, broker, {}, verdict)
            try:
                if driver.end(STEP_S) != 0:
                    verdict.problems.append(f"the last driver failed: {driver.stderr}")
            finally:
                driver.kill()
            verdict.problems += _differences(broker.address, verdict)
            verdict.problems += hanging(broker.address)
        except (AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
            verdict.problems.append(f"the queries got stuck: {error}")
    verdict.seconds = time.monotonic() - began
    return verdict


def _faults(folder: Path, number: int, chance: random.Random) -> dict[str, Fault]:
    """Where each query is held: at a random point of the batch after the one to be repeated."""
    points = {name: chance.choice(POINTS) for name in QUERIES}
    return {
        name: Fault(
            name=f"{number}-{name}",
            point=point,
            batch=_last_commit(folder, name) + BATCHES_PER_KILL,
            attempt=0 if point in POINTS[:2] else None,
        )
        for name, point in points.items()
    }


def _last_commit(folder: Path, name: str) -> int:
    """The newest batch that the query's checkpoint has as finished; -1 before the first."""
    files = (folder / f"checkpoint-{name}" / "commits").glob("[0-9]*")
    return max((int(each.name) for each in files), default=-1)


def _start(
    folder: Path, broker: BrokerProcess, faults: dict[str, Fault], verdict: Verdict
) -> DriverProcess:
    verdict.drivers += 1
    job = {
        "master": "local[8,4]",
        "settings": STATE_SETTINGS,
        "servers": broker.address,
        "source": SOURCE,
        "sink": SINK,
        "checkpoint": str(folder / "checkpoint"),
        "folder": str(folder / "faults"),
        "reader": {"maxOffsetsPerTrigger": str(BATCH_RECORDS)},
        "queries": list(QUERIES),
        "faults": {name: plan(fault) for name, fault in faults.items()},
    }
    return DriverProcess(job, folder / f"driver-{verdict.drivers}.stderr")


def _kill(
    driver: DriverProcess, announced: Announced, faults: dict[str, Fault], verdict: Verdict
) -> None:
    try:
        for name, fault in faults.items():
            announced.wait(fault.name, STEP_S)
            verdict.kills.append(f"driver, {name} at {fault.point}, batch {fault.batch}")
    finally:
        driver.kill()


def _differences(address: str, verdict: Verdict) -> Sequence[str]:
    """What a reader of committed records finds that is not as it must be."""
    problems = []
    for name, values in expected(verdict.sent).items():
        partitions = read_all(address, f"{SINK}-{name}", 2).values()
        found = Counter(value.decode() for records in partitions for _, value in records)
        wanted = Counter(values)
        verdict.read += found.total()
        if found != wanted:
            lost, more = wanted - found, found - wanted
            problems.append(
                f"{name}: {lost.total()} are lost, {more.total()} are too many: "
                f"{sorted(lost)[:5]} {sorted(more)[:5]}"
            )
    return problems
