"""Older PySparks, each in an environment of its own; all other tests have the newest."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.install import packages_of
from tests.spark.conftest import Log
from tests.support.spark.driver_process import DriverProcess
from tests.support.spark.faults import Announced, Fault, plan

RECORDS = [f"{number:04}" for number in range(400)]
LOCKS = Path(__file__).parent / "python"
VERSION = "4.0.0"
END_S = 240.0


class Drivers:
    """Drivers of one copy, on one PySpark."""

    def __init__(self, log: Log, fresh_name: Callable[[str], str], folder: Path, lock: str) -> None:
        self.packages = packages_of(LOCKS / lock)
        self.source, self.sink, self.table = (
            log.topic(fresh_name(kind)) for kind in ("in", "out", "table")
        )
        self.announced = Announced(folder)
        self._folder = folder
        self._servers = log.servers

    def start(self, number: int, *faults: Fault, **more: object) -> DriverProcess:
        job = {
            "master": "local[2,4]",
            "servers": self._servers,
            "source": self.source,
            "sink": self.sink,
            "checkpoint": str(self._folder / "checkpoint"),
            "folder": str(self._folder),
            "faults": plan(*faults),
            **more,
        }
        stderr = self._folder / f"driver-{number}.stderr"
        return DriverProcess(job, stderr, packages=self.packages)

    @property
    def version(self) -> str:
        return (self._folder / "version").read_text()


def finish(driver: DriverProcess) -> None:
    try:
        assert driver.end(END_S) == 0, driver.stderr
    finally:
        driver.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_oldest_pyspark_copies_each_record_once_through_kills(
    log: Log, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:  # S2, S3, S4: without admission control, and without its own Arrow writer for streams
    drivers = Drivers(log, fresh_name, tmp_path, "oldest.lock")

    # The driver is killed when the batch is decided and Spark has not noted it.
    log.produce(drivers.source, RECORDS[:200])
    first = drivers.start(1, Fault(name="decided", point="committed", batch=0))
    try:
        drivers.announced.wait("decided")
    finally:
        first.kill()
    assert drivers.version == VERSION
    assert log.values(drivers.sink) == RECORDS[:200]

    # The next one repeats that batch.
    finish(drivers.start(2))
    assert log.values(drivers.sink) == RECORDS[:200]

    # Another loses the worker of a task that had written everything.
    log.produce(drivers.source, RECORDS[200:])
    lost = Fault(
        name="worker", point="written", batch=1, partition=0, attempt=0, action="kill-worker"
    )
    finish(drivers.start(3, lost, table=drivers.table))
    assert drivers.announced.wait("worker")["attempt"] == 0
    assert log.values(drivers.sink) == RECORDS
    assert log.values(drivers.table) == RECORDS


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("lock", "version", "reader"),
    [
        # Arrow in streams' sinks, and no admission control yet.
        ("pyspark-4.1.lock", "4.1.4", {}),
        ("pyspark-4.2.lock", "4.2.1", {"maxOffsetsPerTrigger": "200"}),
    ],
)
def test_a_pyspark_in_between_copies_each_record_once_where_a_task_dies(
    lock: str,
    version: str,
    reader: dict[str, str],
    log: Log,
    fresh_name: Callable[[str], str],
    tmp_path: Path,
) -> None:  # S2, S4
    drivers = Drivers(log, fresh_name, tmp_path, lock)
    log.produce(drivers.source, RECORDS)
    lost = Fault(
        name="worker", point="written", batch=0, partition=0, attempt=0, action="kill-worker"
    )
    finish(drivers.start(1, lost, reader=reader, table=drivers.table))
    assert drivers.version == version
    assert drivers.announced.wait("worker")["attempt"] == 0
    assert log.values(drivers.sink) == RECORDS
    assert log.values(drivers.table) == RECORDS
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == (2 if reader else 1)
