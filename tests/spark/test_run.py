"""``fencelog run`` as a user has it: a file, a broker, progress, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import ROOT, Log
from tests.support.waiting import wait_until

ORDERS = [
    {"id": number, "paid": number % 2 == 0, "quantity": 2, "price": 1.5} for number in range(20)
]


def command(python: Path, *arguments: str) -> list[str]:
    return [str(python), "-m", "fencelog", "run", *arguments]


@pytest.fixture
def spaced_python(tmp_path: Path) -> Path:
    """This environment's Python under a path with a space."""
    environment = tmp_path / "my environment"
    environment.symlink_to(Path(sys.executable).parent.parent, target_is_directory=True)
    return environment / "bin" / Path(sys.executable).name


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_runs_until_ctrl_c_and_ends_after_its_batch(
    log: Log, spaced_python: Path, tmp_path: Path
) -> None:  # S1
    log.topic("orders")
    log.topic("paid-orders")
    log.produce("orders", [json.dumps(order) for order in ORDERS])
    stderr = tmp_path / "stderr"
    with stderr.open("wb") as file:
        process = subprocess.Popen(
            command(
                spaced_python,
                str(ROOT / "examples" / "orders.py"),
                "-b",
                log.servers,
                "--checkpoint",
                str(tmp_path / "checkpoints"),
            ),
            cwd=tmp_path,
            env={**os.environ, "PYSPARK_PYTHON": "/no/such/python"},
            stdin=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
        )
    try:
        wait_until(
            lambda: "rows in" in stderr.read_text() or process.poll() is not None,
            deadline_s=240,
            what="progress",
        )
        # A terminal sends SIGINT to every process of the group.
        os.killpg(process.pid, signal.SIGINT)
        status = process.wait(90)
    finally:
        process.kill()
        process.wait()
    text = stderr.read_text()
    assert status == 130, text
    assert "orders: batch 0, 20 rows in, 10 out" in text, text
    assert "lag 0" in text
    assert "WARN" not in text, "Spark's own log goes to a file"
    totals = {record.key: json.loads(record.value) for record in log.records("paid-orders")}
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
