"""What an interpreter is asked, and what becomes of one that does not answer."""

import os
import sys
from importlib.metadata import version
from pathlib import Path

from fencelog.spark.probe import Interpreter, driver, interpreter, spark_home_version


def script(folder: Path, text: str) -> str:
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def test_this_python_tells_what_spark_finds_in_it(tmp_path: Path) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise SystemExit('not today')\n")
    (tmp_path / "pyspark_other.py").write_text("")
    found = interpreter(sys.executable, {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert found == Interpreter(
        name=sys.executable,
        path=sys.executable,
        executable=sys.executable,
        python=tuple(sys.version_info[:3]),
        versions={
            each: version(each) for each in ("fencelog", "pyspark", "pyarrow", "pandas", "numba")
        },
        sources=("pyspark_fencelog",),
        broken={"pyspark_broken": "SystemExit: not today"},
    )
    assert driver() == Interpreter(**{**vars(found), "broken": {}})


ANSWER = '{"executable": "/p", "python": [3, 12, 0], "versions": {}, "sources": [], "broken": {}}'


def test_a_name_is_looked_up_and_asked_in_the_environment_of_the_workers(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    path = script(tmp_path, f"echo \"$PYTHONPATH $X\" > '{seen}'\necho noise\necho '{ANSWER}'")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": "/mine", "X": "set"}
    assert interpreter("python", environment) == Interpreter(
        name="python", path=path, executable="/p", python=(3, 12, 0)
    )
    *zips, last = seen.read_text().strip().split(":")
    assert last == "/mine set"
    assert [Path(each).name.partition("-")[0] for each in zips] == ["py4j", "pyspark.zip"]


def test_a_name_that_leads_nowhere_has_no_path(tmp_path: Path) -> None:
    assert interpreter("python", {"PATH": str(tmp_path)}) == Interpreter(name="python")


def test_what_is_no_python_says_why(tmp_path: Path) -> None:
    def error(text: str) -> str | None:
        asked = interpreter(script(tmp_path, text), {"PATH": "/usr/bin:/bin"})
        assert (asked.name, asked.path) == (str(tmp_path / "python"), str(tmp_path / "python"))
        return asked.error

    assert error("echo first >&2; echo ' the last ' >&2; exit 3") == " the last"
    assert error("exit 3") == "exit status 3"
    assert error("echo hello") == "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    assert error("true") == "IndexError: list index out of range"


def test_the_core_jar_says_which_spark_a_folder_has(tmp_path: Path) -> None:
    assert spark_home_version(tmp_path) is None
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.3.1.jar").touch()
    assert spark_home_version(tmp_path) == "4.3.1"
