"""``fencelog doctor``: what is wrong with this machine, and what to do about it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fencelog.cli import doctor
from fencelog.spark.session import prepare_environment
from tests.support.broker import BrokerProcess


def run(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fencelog", "doctor", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment,
    )


@pytest.fixture
def environment() -> dict[str, str]:
    """What the documents tell users to set, and nothing else for Spark."""
    chosen = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK")}
    prepare_environment(chosen)
    return chosen


def test_where_all_is_well_the_exit_status_is_0(
    environment: dict[str, str], shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    done = run(environment, "-b", shared_broker.address, "--data-dir", tmp_path / "new")
    rows = {row["check"]: row for row in json.loads(done.stdout)}
    assert {row["status"] for row in rows.values()} == {"ok"}, rows
    assert done.returncode == 0, done.stderr
    assert rows["advertised listener"]["found"] == f"broker 1 names {shared_broker.address}"
    assert rows["exactly-once sink"]["found"] == "the broker has versioned transactions"
    assert rows["data directory"]["found"].startswith(f"{tmp_path / 'new'} can be created")


def test_each_problem_has_what_to_do_and_the_exit_status_is_1(
    environment: dict[str, str], tmp_path: Path
) -> None:
    spaced = tmp_path / "my env"
    spaced.symlink_to(Path(sys.executable).parent.parent, target_is_directory=True)
    environment |= {
        "PYSPARK_PYTHON": "no-such-python",
        "PYSPARK_DRIVER_PYTHON": str(spaced / "bin" / Path(sys.executable).name),
        "JAVA_HOME": str(tmp_path),
        "SPARK_HOME": str(tmp_path),
    }
    settings = "advertised.listeners=PLAINTEXT://127.0.0.1:1\n"
    (tmp_path / "file").touch()
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        done = run(
            environment,
            *("-b", broker.address, "-X", "request.timeout.ms=1000"),
            *("--data-dir", tmp_path / "file", "--format", "table"),
        )
    assert done.returncode == 1, done.stdout
    assert done.stderr == "6 problems found\n"
    lines = done.stdout.splitlines()
    problems = [line for line in lines if "  problem  " in line]
    remedies = [lines[lines.index(line) + 1].strip() for line in problems]
    assert [line.split()[0] for line in problems] == [
        "java",
        "PYSPARK_PYTHON",
        "PYSPARK_DRIVER_PYTHON",
        "SPARK_HOME",
        "advertised",
        "data",
    ]
    assert "DATA_SOURCE_NOT_FOUND" in problems[2]
    assert remedies[0].startswith("run: export JAVA_HOME=")
    assert remedies[1] == remedies[2]
    assert remedies[1].startswith(f'run: export PATH="{Path(sys.executable).parent}:$PATH"')
    assert remedies[3].startswith("run: unset SPARK_HOME")
    assert remedies[4].startswith("set advertised.listeners=PLAINTEXT://HOST:PORT on broker 1")
    assert remedies[5] == "name a directory"


def test_a_broker_that_does_not_answer_is_a_problem() -> None:
    (finding,) = doctor._broker("127.0.0.1:1", ["request.timeout.ms=300"])
    assert finding.status == "problem"
    assert "connection refused" in finding.found
    assert "fencelog serve" in finding.remedy


def test_a_file_that_the_user_may_not_write_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t-0").mkdir()
    barred = tmp_path / "t-0" / "00000000000000000000.log"
    barred.touch()
    # The user who runs the tests may be root, who may write everything.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != barred)
    (finding,) = doctor._data_directory(tmp_path)
    assert finding.status == "problem"
    assert finding.found.endswith(f"cannot read and write {barred}")
    assert "chown -R" in finding.remedy


def test_little_room_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "FREE_BYTES_MIN", 1 << 62)
    (finding,) = doctor._data_directory(tmp_path)
    assert finding.status == "warning"
    assert "disk" in finding.remedy
