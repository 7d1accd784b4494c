"""Asks the Python interpreters and the Java of this machine what Spark would find in them."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGES: Final = ("fencelog", "pyspark", "pyarrow", "pandas", "numba")
PROBE_S: Final = 60.0

# What Spark's lookup of data sources does: one module that fails to import hides all of them.
SCRIPT: Final = """
import importlib, importlib.metadata as metadata, json, pkgutil, sys
versions, sources, broken = {}, [], {}
for name in %r:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
for module in pkgutil.iter_modules():
    if module.name.startswith("pyspark_"):
        try:
            if hasattr(importlib.import_module(module.name), "DefaultSource"):
                sources.append(module.name)
        except BaseException as error:
            broken[module.name] = "%%s: %%s" %% (type(error).__name__, error)
print(json.dumps({"python": list(sys.version_info[:3]), "executable": sys.executable,
                  "versions": versions, "sources": sources, "broken": broken}))
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """One Python, as a name that Spark was given leads to it.

    Attributes:
        name: the name or path that was given.
        path: the file that it leads to; None if there is none.
        error: why it could not be asked; None if it was.
        versions: the installed packages among PACKAGES.
        sources: the modules with a data source that Spark's lookup finds in it.
        broken: the modules that fail in Spark's lookup, with the error.
    """

    name: str
    path: str | None = None
    error: str | None = None
    executable: str = ""
    python: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)


def driver() -> Interpreter:
    """This process's interpreter."""
    return interpreter(sys.executable, {})


def interpreter(name: str, environment: Mapping[str, str]) -> Interpreter:
    """Run the interpreter as Spark runs its workers, and ask it. Takes some tenths of a second."""
    path = shutil.which(name, path=environment.get("PATH"))
    if path is None:
        return Interpreter(name=name)
    try:
        asked = subprocess.run(  # noqa: S603  (the user's own Python)
            [path, "-c", SCRIPT % (PACKAGES,)],
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            check=True,
            stdin=subprocess.DEVNULL,
            env=_as_worker(environment) if environment else None,
        )
        told = json.loads(asked.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or [f"exit status {error.returncode}"]
        return Interpreter(name=name, path=path, error=last[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return Interpreter(name=name, path=path, error=f"{type(error).__name__}: {error}")
    return Interpreter(
        name=name,
        path=path,
        executable=told["executable"],
        python=tuple(told["python"]),
        versions=told["versions"],
        sources=tuple(told["sources"]),
        broken=told["broken"],
    )


def spark_home_version(home: Path) -> str | None:
    """The version of the Spark in this folder, by the name of its core jar."""
    for jar in sorted((home / "jars").glob("spark-core_*.jar")):
        return jar.stem.rpartition("-")[2]
    return None


def _as_worker(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the ``PYTHONPATH`` that Spark gives to its workers."""
    spec = find_spec("pyspark")
    places = [environment["PYTHONPATH"]] if environment.get("PYTHONPATH") else []
    if spec is not None and spec.origin is not None:
        library = Path(spec.origin).parent / "python" / "lib"
        places = [*(str(each) for each in sorted(library.glob("*.zip"))), *places]
    return {**environment, "PYTHONPATH": ":".join(places)}
