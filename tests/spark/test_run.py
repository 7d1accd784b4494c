"""``fencelog run`` as a user has it: a file, a broker, progress, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fencelog.errors import RequestError
from tests.spark.conftest import ROOT, Log
from tests.support.waiting import wait_until

ORDERS = [
    {"id": number, "paid": number % 2 == 0, "quantity": 2, "price": 1.5} for number in range(20)
]


def command(python: Path, *arguments: str) -> list[str]:
    return [str(python), "-m", "fencelog", "run", *arguments]


def started(
    folder: Path,
    *arguments: str,
    name: str = "stderr",
    python: Path = Path(sys.executable),
    environment: Mapping[str, str] | None = None,
) -> tuple[subprocess.Popen[bytes], Path]:
    """``fencelog run`` in a process group of its own, and the file with its stderr."""
    stderr = folder / name
    with stderr.open("wb") as file:
        process = subprocess.Popen(
            command(python, *arguments, "--checkpoint", str(folder / "checkpoints")),
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
        )
    return process, stderr


@contextmanager
def running(
    folder: Path, *arguments: str, **how: Any
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """What ``started`` returns, until the block ends."""
    process, stderr = started(folder, *arguments, **how)
    try:
        yield process, stderr
    finally:
        process.kill()
        process.wait()


def interrupt(process: subprocess.Popen[bytes], within_s: float = 90) -> int:
    """Press Ctrl-C: a terminal sends SIGINT to every process of the group. The exit status."""
    os.killpg(process.pid, signal.SIGINT)
    return process.wait(within_s)


@pytest.fixture
def spaced_python(tmp_path: Path) -> Path:
    """This environment's Python under a path with a space."""
    environment = tmp_path / "my environment"
    environment.symlink_to(Path(sys.executable).parent.parent, target_is_directory=True)
    return environment / "bin" / Path(sys.executable).name


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_runs_until_ctrl_c_and_ends_after_its_batch(
    own_log: Log, spaced_python: Path, tmp_path: Path
) -> None:  # S1
    own_log.topic("orders")
    own_log.topic("paid-orders")
    own_log.produce("orders", [json.dumps(order) for order in ORDERS])
    with running(
        tmp_path,
        str(ROOT / "examples" / "orders.py"),
        "-b",
        own_log.servers,
        python=spaced_python,
        environment={"PYSPARK_PYTHON": "/no/such/python"},
    ) as (process, stderr):
        wait_until(
            lambda: "rows in" in stderr.read_text() or process.poll() is not None,
            deadline_s=240,
            what="progress",
        )
        status = interrupt(process)
    text = stderr.read_text()
    assert status == 130, text
    assert "orders: batch 0, 20 rows in, 10 out" in text, text
    assert "lag 0" in text
    assert "WARN" not in text, "Spark's own log goes to a file"
    totals = {record.key: json.loads(record.value) for record in own_log.records("paid-orders")}
    assert totals == {
        str(order["id"]).encode(): {"id": order["id"], "total": 3.0}
        for order in ORDERS
        if order["paid"]
    }


def test_a_missing_file_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    answer = subprocess.run(
        command(Path(sys.executable), "no_pipeline.py"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert answer.stderr == "error: file no_pipeline.py does not exist\n"


QUERY = """
def pipeline(spark):
    {before}
    read = spark.readStream.format("fencelog").option("startingOffsets", "earliest")
    rows = read.option("subscribe", "{source}").load().select("value")
    return rows.writeStream.format("fencelog").option("topic", "{sink}")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_query_that_cannot_start_is_not_said_to_and_is_started_again(
    log: Log, tmp_path: Path, fresh_name
) -> None:
    source, sink = fresh_name("late"), log.topic(fresh_name("copied"))
    pipeline = tmp_path / "late.py"
    pipeline.write_text(QUERY.format(before="pass", source=source, sink=sink))
    with running(tmp_path, str(pipeline), "-b", log.servers, "--restart-on-failure", "--ui") as (
        process,
        stderr,
    ):
        again = "it is started again in"
        wait_until(
            lambda: again in stderr.read_text() or process.poll() is not None,
            deadline_s=240,
            what="the first failure",
        )
        assert "has started" not in stderr.read_text(), stderr.read_text()
        log.topic(source)
        log.produce(source, ["a"])
        wait_until(lambda: log.values(sink) == ["a"], deadline_s=240, what="the record")
        status = interrupt(process)
    text = stderr.read_text()
    assert status == 130, text
    assert "Traceback" not in text
    assert f"query 'late' failed: fencelog.errors.RequestError: topic {source} does not" in text
    assert "Spark's UI is at http" in text
    assert "spark.ui.enabled=true" in text
    assert "spark.sql.session.timeZone=UTC" in text


@pytest.mark.slow
@pytest.mark.parametrize("said", ["starting Spark", "in the pipeline"])
def test_an_interrupt_while_spark_starts_ends_it_without_a_traceback(
    log: Log, tmp_path: Path, said: str
) -> None:
    pipeline = tmp_path / "slow.py"
    tell = "import sys, threading; print('in the pipeline', file=sys.stderr, flush=True)"
    wait = f"{tell}; threading.Event().wait()"
    pipeline.write_text(QUERY.format(before=wait, source="a", sink="b"))
    with running(tmp_path, str(pipeline), "-b", log.servers) as (process, stderr):
        wait_until(lambda: said in stderr.read_text(), deadline_s=100, what=said)
        status = interrupt(process, 60)
    text = stderr.read_text()
    assert status == 130, text
    assert "Traceback" not in text
    assert text.endswith("interrupted before all queries were started\n")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_second_driver_stands_by_and_a_paused_one_commits_nothing_once_it_was_replaced(
    log: Log, tmp_path: Path, fresh_name
) -> None:  # S5, O10
    source, sink = log.topic(fresh_name("owned")), log.topic(fresh_name("copied"))
    pipeline = tmp_path / "copies.py"
    pipeline.write_text(QUERY.format(before="pass", source=source, sink=sink))
    arguments = (str(pipeline), "-b", log.servers, "--own", "--own-name", sink)
    first, said_first = started(tmp_path, *arguments, name="first")
    second, paused = first, []
    try:
        log.produce(source, ["a"])
        wait_until(lambda: log.values(sink) == ["a"], deadline_s=240, what="the first batch")
        second, said_second = started(tmp_path, *arguments, name="second")
        wait_until(
            lambda: "standing by" in said_second.read_text(), deadline_s=240, what="the standby"
        )
        assert f":{first.pid} runs pipeline '{sink}'" in said_second.read_text()
        metadata = tmp_path / "checkpoints" / "copies" / "metadata"
        query_id = json.loads(metadata.read_text())["id"]
        stale_run = log.client.describe_app(query_id).run_id
        # With its JVM and its workers, which would go on alone.
        paused = [psutil.Process(first.pid), *psutil.Process(first.pid).children(recursive=True)]
        for each in paused:
            each.suspend()
        log.produce(source, ["b"])
        wait_until(lambda: log.values(sink) == ["a", "b"], deadline_s=240, what="the takeover")
        for each in paused:
            each.resume()
        assert first.wait(90) == 75, said_first.read_text()
        assert f"pipeline '{sink}' is no longer owned" in said_first.read_text()
        assert "Traceback" not in said_first.read_text()
        # The sink's own fence would have refused it as well (V2).
        with pytest.raises(RequestError, match="RUN_FENCED"):
            log.client.join_transaction(query_id, query_id, stale_run, 7)
        log.produce(source, ["c"])
        wait_until(lambda: log.values(sink) == ["a", "b", "c"], deadline_s=240, what="the rest")
        assert interrupt(second) == 130, said_second.read_text()
    finally:
        for process in paused:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for process in (first, second):
            process.kill()
            process.wait()
