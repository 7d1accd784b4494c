"""The oldest PySpark that works, in an environment of its own; all other tests have the newest."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.install import packages_of
from tests.spark.conftest import Log
from tests.support.spark.driver_process import DriverProcess
from tests.support.spark.faults import Announced, Fault, plan

RECORDS = [f"{number:04}" for number in range(400)]
LOCK = Path(__file__).parent / "python" / "oldest.lock"
VERSION = "4.0.0"
END_S = 240.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_oldest_pyspark_copies_each_record_once_through_kills(
    log: Log, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:  # S2, S3, S4: without admission control, and without its own Arrow writer for streams
    packages = packages_of(LOCK)
    source, sink, table = (log.topic(fresh_name(kind)) for kind in ("in", "out", "table"))
    announced = Announced(tmp_path)

    def started(number: int, *faults: Fault, **more: str) -> DriverProcess:
        job = {
            "master": "local[2,4]",
            "servers": log.servers,
            "source": source,
            "sink": sink,
            "checkpoint": str(tmp_path / "checkpoint"),
            "folder": str(tmp_path),
            "faults": plan(*faults),
            **more,
        }
        return DriverProcess(job, tmp_path / f"driver-{number}.stderr", packages=packages)

    def finish(driver: DriverProcess) -> None:
        try:
            assert driver.end(END_S) == 0, driver.stderr
        finally:
            driver.kill()

    # The driver is killed when the batch is decided and Spark has not noted it.
    log.produce(source, RECORDS[:200])
    first = started(1, Fault(name="decided", point="committed", batch=0))
    try:
        announced.wait("decided")
    finally:
        first.kill()
    assert (tmp_path / "version").read_text() == VERSION
    assert log.values(sink) == RECORDS[:200]

    # The next one repeats that batch.
    finish(started(2))
    assert log.values(sink) == RECORDS[:200]

    # Another loses the worker of a task that had written everything.
    log.produce(source, RECORDS[200:])
    lost = Fault(
        name="worker", point="written", batch=1, partition=0, attempt=0, action="kill-worker"
    )
    finish(started(3, lost, table=table))
    assert announced.wait("worker")["attempt"] == 0
    assert log.values(sink) == RECORDS
    assert log.values(table) == RECORDS
