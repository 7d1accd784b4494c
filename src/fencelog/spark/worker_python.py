"""``fencelog-python``: the Python that a local session gives to Spark for its Python processes.

Spark starts ``python -m MODULE`` with its own archives at the front of the path: for the lookup of
data sources, for each kind of planning, and for tasks. From an archive Python compiles all of
PySpark anew in each of these processes. This program does what ``python -m`` does, with PySpark
from where it is installed, and imports what tasks need once, before their workers are forked.
"""

import gc
import os
import runpy
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Final

ARCHIVES: Final = (".zip", ".jar")
TASKS: Final = ("pyspark.daemon", "pyspark.worker")
"""The process that forks the workers of tasks; those of planning have another second word."""

NEEDED: Final = ("pyspark.worker", "fencelog.client.arrow_encode", "fencelog.client.blocking")


def main() -> None:
    """Do what ``python -m MODULE`` does; anything else is for the interpreter itself."""
    arguments = sys.argv[1:]
    if len(arguments) < 2 or arguments[0] != "-m":
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606  (this Python)
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()  # as with -m; it was the folder of this program
    sys.path[:] = without_archives(sys.path)
    sys.argv = arguments[1:]
    if tuple(sys.argv) == TASKS:
        _preload()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def without_archives(path: Sequence[str]) -> list[str]:
    """The path without the archives that belong to the PySpark installed further behind on it.

    All of it where none is installed, or another than the session's.
    """
    files = [each for each in path if not each.endswith(ARCHIVES)]
    installed = PathFinder.find_spec("pyspark", files)
    if installed is None or installed.origin is None or not PathFinder.find_spec("py4j", files):
        return list(path)
    home = os.path.join(os.path.dirname(os.path.realpath(installed.origin)), "")
    return [
        each
        for each in path
        if not (each.endswith(ARCHIVES) and os.path.realpath(each).startswith(home))
    ]


def _preload() -> None:
    """Import what takes longest, none of which a fork harms.

    With one OpenMP thread, as Spark sets it, NumPy starts none; PyArrow starts jemalloc's, which
    jemalloc itself looks after in a fork. Whatever fails here fails again in a worker, which can
    report it.
    """
    with suppress(Exception):
        for module in NEEDED:
            import_module(module)
    gc.freeze()  # or the first collection in a worker copies all of it
