"""The environment of a session: this Python, by a name without a path, and a Java."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from fencelog.spark import session
from fencelog.spark.session import DEFAULTS, LOCAL_DEFAULTS, is_local, prepare_environment


@pytest.mark.parametrize("has_program", [True, False])
def test_this_python_comes_first_and_is_named_without_its_path(
    has_program: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_program:
        (tmp_path / "fencelog-python").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    environment = {"PATH": os.environ["PATH"], "PYSPARK_PYTHON": "/usr/bin/python2"}
    prepare_environment(environment)
    name = "fencelog-python" if has_program else "python3"
    assert environment["PATH"].split(os.pathsep)[0] == str(tmp_path)
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == name
    assert (Path(environment["JAVA_HOME"]) / "bin" / "java").exists()


def test_a_cluster_s_own_python_is_left_to_it() -> None:
    environment = {"PATH": os.environ["PATH"], "PYSPARK_PYTHON": "/opt/cluster/python"}
    prepare_environment(environment, local=False)
    assert environment["PYSPARK_PYTHON"] == "/opt/cluster/python"


def test_workers_are_used_again_and_reached_without_tcp() -> None:
    assert DEFAULTS["spark.python.worker.reuse"] == "true"
    assert DEFAULTS["spark.python.unix.domain.socket.enabled"] == "true"


def test_local_masters_are_distinguished_from_clusters() -> None:
    assert is_local("local[*,4]")
    assert is_local("local-cluster[2,1,1024]")
    assert not is_local("spark://127.0.0.1:7077")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whether it is local, then what would be started, with its settings; Spark is not there."""
    calls: list[Any] = []

    def launch(conf: SparkConf, popen_kwargs: dict[str, Any]) -> str:
        calls.append(("gateway", dict(conf.getAll())))
        assert popen_kwargs["start_new_session"]
        popen_kwargs["stderr"].write(b"Spark says\n")
        return "a gateway"

    def initialize(*, gateway: str, conf: SparkConf) -> None:
        calls.append((f"context on {gateway}", dict(conf.getAll())))

    def get(builder: Any) -> str:
        calls.append(("session", builder._options))
        return "a session"

    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", initialize)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", get)
    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch)
    monkeypatch.setattr(session, "prepare_environment", lambda _, local: calls.append(local))
    monkeypatch.setattr(session, "compile_ahead", lambda: calls.append("kernels"))
    return calls


def test_a_session_has_its_name_its_master_and_the_settings_that_somebody_gave(
    launched: list[Any],
) -> None:
    session.build_session(name="q", settings={"spark.ui.enabled": "true", "spark.x": "1"})
    wanted = {
        **DEFAULTS,
        **LOCAL_DEFAULTS,
        "spark.master": "local[*,4]",
        "spark.app.name": "q",
        "spark.ui.enabled": "true",
        "spark.x": "1",
    }
    assert launched == [True, "kernels", ("session", wanted)]


def test_a_cluster_s_session_leaves_its_addresses_to_it(launched: list[Any]) -> None:
    session.build_session(name="q", master="spark://h:7077")
    wanted = {**DEFAULTS, "spark.master": "spark://h:7077", "spark.app.name": "q"}
    assert launched == [False, ("session", wanted)]


def test_spark_s_log_is_added_to_a_file(launched: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("an earlier run\n")
    assert session.build_session(name="q", log_file=file) == "a session"
    assert file.read_text() == "an earlier run\nSpark says\n"
    _, _, (first, conf), *later = launched
    assert first == "gateway"
    assert conf["spark.app.name"] == "q"
    assert later == [("context on a gateway", conf), ("session", conf)]


def test_a_spark_that_runs_keeps_its_log(
    launched: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", "one that runs")
    session.build_session(name="q", log_file=tmp_path / "log")
    assert [what for what, _ in launched[2:]] == ["session"]
    assert not (tmp_path / "log").exists()


def test_without_a_path_this_python_s_folder_is_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "find_java_home", lambda _: tmp_path)
    environment: dict[str, str] = {}
    prepare_environment(environment, local=False)
    assert environment == {
        "PATH": str(Path(sys.executable).parent),
        "PYSPARK_PYTHON": Path(sys.executable).name,
        "PYSPARK_DRIVER_PYTHON": Path(sys.executable).name,
        "JAVA_HOME": str(tmp_path),
    }
