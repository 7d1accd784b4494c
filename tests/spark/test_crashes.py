"""Kills at chosen places: after each, each input record is in the output exactly once."""

import platform
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fencelog.types import TopicPartition
from tests.spark.conftest import Log
from tests.support.spark import class_archive
from tests.support.spark.cluster import StandaloneCluster
from tests.support.spark.driver_process import PYTHONPATH, DriverProcess
from tests.support.spark.faults import Announced, Fault, plan
from tests.support.spark.stateful import STATE_SETTINGS, expected, numbered_values
from tests.support.waiting import wait_until

RECORDS = [f"{number:04}" for number in range(400)]
END_S = 240.0
EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": class_archive.options(),
    "spark.executorEnv.PYTHONPATH": PYTHONPATH,
}


STATEFUL_RECORDS = 400

Start = Callable[..., DriverProcess]


@pytest.fixture
def announced(tmp_path: Path) -> Announced:
    folder = tmp_path / "faults"
    folder.mkdir()
    return Announced(folder)


@pytest.fixture
def topics(log: Log, fresh_name: Callable[[str], str]) -> tuple[str, str]:
    source, sink = log.topic(fresh_name("in")), log.topic(fresh_name("out"))
    log.produce(source, RECORDS)
    return source, sink


@pytest.fixture
def start(
    log: Log, topics: tuple[str, str], announced: Announced, tmp_path: Path
) -> Iterator[Start]:
    """Start a driver of the one query, with faults; what still runs at the end is killed."""
    drivers: list[DriverProcess] = []

    def starter(
        *faults: Fault,
        master: str = "local[2,4]",
        settings: dict[str, str] | None = None,
        **writer: str,
    ) -> DriverProcess:
        job = {
            "master": master,
            "settings": settings or {},
            "servers": log.servers,
            "source": topics[0],
            "sink": topics[1],
            "checkpoint": str(tmp_path / "checkpoint"),
            "folder": str(announced.folder),
            "faults": plan(*faults),
            "reader": {"maxOffsetsPerTrigger": "100"},
            "writer": writer,
        }
        drivers.append(DriverProcess(job, tmp_path / f"driver-{len(drivers)}.stderr"))
        return drivers[-1]

    yield starter
    for driver in drivers:
        driver.kill()


def doubled(values: list[str]) -> dict[str, int]:
    return {value: count for value, count in Counter(values).items() if count > 1}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_kill_of_a_driver_or_task_loses_or_duplicates_a_record(
    log: Log, topics: tuple[str, str], start: Start, announced: Announced
) -> None:  # S2, S3, S4, S5
    _, sink = topics

    # A first driver comes to its commit of batch 1 and pauses there: the zombie to be.
    zombie = start(Fault(name="pause", point="committing", batch=1))
    announced.wait("pause")
    committed_by_zombie = len(log.values(sink))

    # A second one takes over and is killed while its tasks hold rows that are not committed.
    second = start(Fault(name="in-task", point="written", batch=1))
    announced.wait("in-task")
    second.kill()
    assert len(log.values(sink)) == committed_by_zombie == 100

    # A third one is killed when batch 1 is decided and Spark has not noted it.
    third = start(Fault(name="decided", point="committed", batch=1))
    announced.wait("decided")
    third.kill()

    # A fourth one loses the worker of a task that had written everything, and goes to the end.
    fourth = start(
        Fault(
            name="worker", point="written", batch=2, partition=0, attempt=0, action="kill-worker"
        ),
        Fault(name="error", point="writing", batch=3, partition=1, attempt=0, action="raise"),
    )
    assert fourth.end(END_S) == 0, fourth.stderr
    assert announced.wait("worker")["attempt"] == 0
    assert announced.wait("error")["attempt"] == 0
    assert log.values(sink) == RECORDS, doubled(log.values(sink))

    # The zombie wakes up: its run is fenced, and it changes nothing.
    announced.release("pause")
    assert zombie.end(END_S) == 1
    assert re.search(
        rf"a newer run of this query has taken over, run \S+ since 20.* on host {platform.node()}",
        zombie.stderr,
    )
    assert log.values(sink) == RECORDS


TRANSACTION_TIMEOUT_S = 120
"""The default of ``kafka.transaction.timeout.ms``."""
POINTS = {
    "windows": "committed",
    "joins": "written",
    "dropDuplicates": "committing",
    "applyInPandasWithState": "writing",
    "transformWithStateInPandas": "committed",
}
"""Where a driver with a query of each kind is when it is killed."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_driver_killed_in_batches_of_queries_with_state_changes_no_result(
    log: Log, fresh_name: Callable[[str], str], announced: Announced, tmp_path: Path
) -> None:  # S2, S3
    source, sink = log.topic(fresh_name("in")), fresh_name("out")
    for name in POINTS:
        log.topic(f"{sink}-{name}")
    log.produce(source, numbered_values(STATEFUL_RECORDS))
    job = {
        "master": "local[8,4]",
        "settings": STATE_SETTINGS,
        "servers": log.servers,
        "source": source,
        "sink": sink,
        "checkpoint": str(tmp_path / "checkpoint"),
        "folder": str(announced.folder),
        "reader": {"maxOffsetsPerTrigger": str(STATEFUL_RECORDS // 2)},
        "queries": list(POINTS),
    }
    faults = {
        name: plan(Fault(name=name, point=point, batch=1, attempt=0 if "writ" in point else None))
        for name, point in POINTS.items()
    }
    killed = DriverProcess({**job, "faults": faults}, tmp_path / "killed.stderr")
    try:
        for name in POINTS:
            announced.wait(name)
    finally:
        killed.kill()
    # Its connections are closed, so readers need not wait for the transactions' timeout (V7).
    wait_until(
        lambda: all(_is_settled(log, f"{sink}-{name}") for name in POINTS),
        deadline_s=TRANSACTION_TIMEOUT_S / 2,
        what="what the driver left open is aborted",
    )
    second = DriverProcess({**job, "faults": {}}, tmp_path / "second.stderr")
    try:
        assert second.end(END_S) == 0, second.stderr
    finally:
        second.kill()
    found = {name: sorted(log.values(f"{sink}-{name}")) for name in POINTS}
    assert found == {name: sorted(each) for name, each in expected(STATEFUL_RECORDS).items()}


def _is_settled(log: Log, topic: str) -> bool:
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    ends = [log.client.offsets(places, "latest", each) for each in ("transactional", "replicated")]
    return ends[0] == ends[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_executor_changes_nothing(
    log: Log, topics: tuple[str, str], start: Start, announced: Announced
) -> None:  # S4, S7
    _, sink = topics
    driver = start(
        Fault(name="executor", point="written", batch=1, partition=0, attempt=0),
        master="local-cluster[2,1,1024]",
        settings=EXECUTORS,
    )
    daemon = announced.wait("executor")["parent"]
    # The workers' daemon is the child of the executor's JVM.
    psutil.Process(daemon).parent().kill()
    assert driver.end(END_S) == 0, driver.stderr
    assert log.values(sink) == RECORDS, doubled(log.values(sink))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_speculated_copy_of_a_task_duplicates_nothing(
    log: Log, topics: tuple[str, str], start: Start, announced: Announced, tmp_path: Path
) -> None:  # S4, S7
    _, sink = topics
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        driver = start(
            # A task that has written everything waits until a copy of it has won.
            Fault(name="straggler", point="written", batch=1, partition=0, attempt=0),
            Fault(name="copy", point="written", batch=1, partition=0, attempt=1, action="pass"),
            master=cluster.master,
            settings={
                **EXECUTORS,
                "spark.speculation": "true",
                "spark.speculation.interval": "100ms",
                "spark.speculation.minTaskRuntime": "100ms",
                "spark.speculation.quantile": "0.5",
                "spark.speculation.multiplier": "1.5",
                "spark.speculation.efficiency.enabled": "false",
            },
        )
        announced.wait("straggler")
        assert announced.wait("copy")["attempt"] == 1
        assert driver.end(END_S) == 0, driver.stderr
    assert log.values(sink) == RECORDS, doubled(log.values(sink))
