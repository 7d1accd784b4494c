"""What ``fencelog doctor`` says of Spark's environment: findings from what was found.

Pure functions. Each finding that is a problem says what to do.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from fencelog.spark.java import java_limits
from fencelog.spark.probe import Interpreter

Status = Literal["ok", "warning", "problem", "skipped"]

SUPPORTED_PYTHON: Final = ((3, 11), (3, 14))
ADMISSION_CONTROL: Final = ">=4.2,<4.4"
"""The releases of PySpark that can limit a stream's batches (``pyspark_api``)."""
LOOKUP_MODULE: Final = "pyspark_fencelog"
BY_ITSELF: Final = "`fencelog run` and fencelog.spark.session.build_session set it themselves"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at. ``remedy`` is what to do, empty where nothing is to be done."""

    check: str
    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class JavaFacts:
    """``home`` is what Spark would use by ``JAVA_HOME`` or ``PATH``; ``ours`` what we would."""

    home: str | None
    version: int | None
    ours: str | None
    error: str = ""


def worker_name(environment: Mapping[str, str]) -> str:
    """The Python of the tasks, as Spark chooses it."""
    return environment.get("PYSPARK_PYTHON") or "python3"


def lookup_name(environment: Mapping[str, str]) -> str:
    """The Python in which Spark's JVM looks for data sources and plans with them."""
    return environment.get("PYSPARK_DRIVER_PYTHON") or worker_name(environment)


def check_python(driver: Interpreter) -> Finding:
    """The interpreter of this command."""
    low, high = SUPPORTED_PYTHON
    found = f"{_dotted(driver.python)} at {driver.path}"
    if not low <= driver.python[:2] <= high:
        text = f"use Python {_dotted(low)} to {_dotted(high)}"
        return Finding(check="python", status="problem", found=found, remedy=text)
    return Finding(check="python", status="ok", found=found)


def check_packages(driver: Interpreter, requirements: Sequence[str]) -> Iterator[Finding]:
    """The packages of the extra ``spark``; ``requirements`` is the metadata of this package."""
    wanted = {name: limits for name, limits in map(_requirement, requirements) if limits}
    for name in ("pyspark", "pyarrow", "pandas", "numba"):
        found, limits = driver.versions.get(name), wanted.get(name, "")
        if found is None or not satisfies(found, limits):
            yield Finding(
                check=name,
                status="problem",
                found=f"{found or 'not installed'} (needed: {limits})",
                remedy="run: pip install 'fencelog[spark]'",
            )
        elif name == "pyspark" and not satisfies(found, ADMISSION_CONTROL):
            text = f"{found} (for maxOffsetsPerTrigger: pip install 'pyspark{ADMISSION_CONTROL}')"
            yield Finding(check=name, status="ok", found=text)
        else:
            yield Finding(check=name, status="ok", found=found)


def check_workers(role: str, python: Interpreter, driver: Interpreter) -> Finding:
    """One of Spark's interpreters, beside the driver's. ``role`` is its variable."""
    folder, _, name = driver.executable.rpartition("/")
    same = (
        f'run: export PATH="{folder}:$PATH" PYSPARK_PYTHON={name} PYSPARK_DRIVER_PYTHON={name};'
        f" {BY_ITSELF}"
    )
    found = f"'{python.name}' is {python.path or 'not found'}"
    if python.python:
        found += f", Python {_dotted(python.python)}"
    if (text := _other_python(python, driver)) is not None:
        return Finding(check=role, status="problem", found=f"{found}: {text}", remedy=same)
    if (defect := _defect_of_packages(python, driver)) is not None:
        text, remedy = defect
        return Finding(check=role, status="problem", found=f"{found}: {text}", remedy=remedy)
    return Finding(check=role, status="ok", found=found)


def _other_python(python: Interpreter, driver: Interpreter) -> str | None:
    """Why Spark needs another interpreter, or None."""
    if python.path is None:
        return "Spark cannot start it"
    if " " in python.name:
        return "Spark finds no data source if this path has a space (DATA_SOURCE_NOT_FOUND)"
    if python.error is not None:
        return f"it does not run Python code ({python.error})"
    if python.python[:2] != driver.python[:2]:
        return f"the driver has Python {_dotted(driver.python)} (PYTHON_VERSION_MISMATCH)"
    if LOOKUP_MODULE not in python.sources and not python.broken:
        return "fencelog is not installed in it (DATA_SOURCE_NOT_FOUND)"
    return None


def _defect_of_packages(python: Interpreter, driver: Interpreter) -> tuple[str, str] | None:
    """What is wrong with the packages of the right interpreter, and what to do; or None."""
    for module, error in python.broken.items():
        text = f"module {module} fails to import ({error}): Spark finds no data source at all"
        return text, f"repair or remove {module} in {python.executable}"
    for name in ("fencelog", "pyarrow"):
        ours, theirs = driver.versions.get(name), python.versions.get(name)
        if ours != theirs:
            text = f"it has {name} {theirs or 'not installed'}, and the driver {ours}"
            return text, f"run: {python.executable} -m pip install {name}=={ours}"
    return None


def check_java(java: JavaFacts, driver: Interpreter) -> Finding:
    """The Java that a session gets."""
    limits = java_limits(driver.versions.get("pyspark"))
    if limits.allow(java.version):
        return Finding(check="java", status="ok", found=f"Java {java.version} at {java.home}")
    if java.home is None:
        found = "JAVA_HOME is not set, and no java is on PATH"
    elif java.version is None:
        found = f"{java.home} has no Java that Spark's launcher can start"
    else:
        found = f"{java.home} is Java {java.version}"
    if java.ours is None:
        return Finding(
            check="java",
            status="problem",
            found=java.error or found,
            remedy=f"install Java {limits} and set JAVA_HOME,"
            f" or run: pip install '{limits.package}'",
        )
    return Finding(
        check="java",
        status="problem",
        found=f"{found}; Spark needs {limits}",
        remedy=f"run: export JAVA_HOME='{java.ours}'; {BY_ITSELF}",
    )


def check_spark_home(home: str | None, version: str | None, driver: Interpreter) -> Finding:
    """``SPARK_HOME`` replaces the Spark of the package."""
    installed = driver.versions.get("pyspark")
    if home is None:
        return Finding(
            check="SPARK_HOME", status="ok", found="not set: PySpark's own Spark is used"
        )
    if version is not None and version == installed:
        return Finding(check="SPARK_HOME", status="ok", found=f"{home} is Spark {version}")
    return Finding(
        check="SPARK_HOME",
        status="problem",
        found=f"{home} is {f'Spark {version}' if version else 'not a Spark'},"
        f" and PySpark is {installed}",
        remedy="run: unset SPARK_HOME, or install the PySpark of its version",
    )


def satisfies(version: str, limits: str) -> bool:
    """Whether a version meets limits as ``<4.4,>=4.3``; only the release's numbers count."""
    for limit in filter(None, limits.split(",")):
        found = re.fullmatch(r"\s*(>=|<=|==|<|>)\s*([\d.]+)\s*", limit)
        if found is None:
            continue
        ours, bound = _numbers(version), _numbers(found[2])
        ours = ours[: len(bound)] + (0,) * (len(bound) - len(ours))
        order = (ours > bound) - (ours < bound)
        allowed = {">=": order >= 0, "<": order < 0, "<=": order <= 0, "==": order == 0}
        if not allowed.get(found[1], order > 0):
            return False
    return True


def _requirement(text: str) -> tuple[str, str]:
    """Name and limits of a requirement of the extra ``spark``; no limits for any other."""
    requirement, _, marker = text.partition(";")
    found = re.match(r"\s*([\w.-]+)\s*(.*?)\s*$", requirement)
    if found is None or not re.search(r"""extra\s*==\s*['"]spark['"]""", marker):
        return "", ""
    return found[1], found[2]


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(each) for each in found[0].split(".")) if found else ()


def _dotted(numbers: Sequence[int]) -> str:
    return ".".join(str(each) for each in numbers)
