"""``fencelog-python``: what ``python -m`` does, with PySpark from where it is installed."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fencelog.spark import worker_python
from fencelog.spark.worker_python import without_archives

PROGRAM = [sys.executable, "-c", "from fencelog.spark.worker_python import main; main()"]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of packages with PySpark and Py4J in it."""
    for package in ("pyspark", "py4j"):
        (tmp_path / "packages" / package).mkdir(parents=True)
        (tmp_path / "packages" / package / "__init__.py").touch()
    return tmp_path / "packages"


def archives(packages: Path) -> list[str]:
    home = packages / "pyspark"
    return [
        str(home / "python" / "lib" / "pyspark.zip"),
        str(home / "python" / "lib" / "py4j-0.10.9.9-src.zip"),
        str(home / "jars" / "spark-core_2.13-4.3.0.jar"),
    ]


def test_spark_s_own_archives_leave_the_path_and_nothing_else_does(installed: Path) -> None:
    users = ["/job", "/job/more.zip", str(installed)]
    assert without_archives([users[0], *archives(installed), *users[1:]]) == users


def test_a_link_to_where_pyspark_is_installed_is_the_same_place(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(installed)
    path = [*archives(tmp_path / "link"), str(installed)]
    assert without_archives(path) == [str(installed)]


def test_the_archives_of_another_spark_stay(installed: Path) -> None:
    path = [*archives(Path("/opt/spark/python")), str(installed)]
    assert without_archives(path) == path


@pytest.mark.parametrize("missing", ["pyspark", "py4j"])
def test_the_archives_stay_where_what_is_in_them_is_not_installed(
    missing: str, installed: Path
) -> None:
    (installed / missing / "__init__.py").unlink()
    (installed / missing).rmdir()
    path = [*archives(installed), str(installed)]
    assert without_archives(path) == path


def test_a_module_runs_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("import sys\nprint(__name__, sys.argv, sys.path[0])\n")
    told = [
        subprocess.run(
            [*command, "-m", "told", "-x", "1"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for command in (PROGRAM, [sys.executable])
    ]
    assert told[0] == told[1] == f"__main__ {[str(tmp_path / 'told.py'), '-x', '1']} {tmp_path}\n"


def test_anything_else_is_for_the_interpreter() -> None:
    asked = [*PROGRAM, "-c", "import sys; print(sys.argv[1:])", "-m", "x"]
    assert subprocess.run(asked, capture_output=True, check=True).stdout == b"['-m', 'x']\n"


@pytest.mark.parametrize(
    ("command", "preloads"),
    [
        ("pyspark.daemon pyspark.worker", True),
        ("pyspark.daemon pyspark.sql.worker.create_data_source", False),
        ("pyspark.sql.worker.lookup_data_sources", False),
    ],
)
def test_only_the_process_that_forks_tasks_imports_what_they_need(
    command: str, preloads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    module, *more = command.split()
    monkeypatch.setattr(sys, "argv", ["fencelog-python", "-m", module, *more])
    monkeypatch.setattr(sys, "path", ["/bin", *sys.path[1:]])
    monkeypatch.setattr(worker_python, "_preload", lambda: done.append("preload"))
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: done.append(name))
    worker_python.main()
    assert done == [*["preload"] * preloads, module]
    assert sys.path[0] == os.getcwd()
