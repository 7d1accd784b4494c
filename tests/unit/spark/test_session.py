"""The environment of a session: this Python, by a name without a path, and a Java."""

import os
import sys
from pathlib import Path

from fencelog.spark.session import DEFAULTS, is_local, prepare_environment


def test_this_python_comes_first_and_is_named_without_its_path() -> None:
    environment = {"PATH": os.environ["PATH"], "PYSPARK_PYTHON": "/usr/bin/python2"}
    prepare_environment(environment)
    name = Path(sys.executable).name
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == name
    assert (Path(environment["JAVA_HOME"]) / "bin" / "java").exists()


def test_a_cluster_s_own_python_is_left_to_it() -> None:
    environment = {"PATH": os.environ["PATH"], "PYSPARK_PYTHON": "/opt/cluster/python"}
    prepare_environment(environment, local=False)
    assert environment["PYSPARK_PYTHON"] == "/opt/cluster/python"


def test_workers_are_used_again() -> None:
    assert DEFAULTS["spark.python.worker.reuse"] == "true"


def test_local_masters_are_distinguished_from_clusters() -> None:
    assert is_local("local[*,4]")
    assert is_local("local-cluster[2,1,1024]")
    assert not is_local("spark://127.0.0.1:7077")
