"""A Spark session for ``format("fencelog")``, with the right Python and Java.

Workers must run the same interpreter, and Spark silently finds no Python data source if its path
has a space. So its folder is put first in ``PATH`` and Spark gets a bare name: in local sessions
that of ``worker_python``, which is installed beside it.
"""

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencelog.client.kernel_cache import compile_ahead
from fencelog.spark.java import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKER_PYTHON: Final = "fencelog-python"
DEFAULT_MASTER: Final = "local[*,4]"
"""All cores; a task may fail three times before its query does, as on a cluster."""

DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    # Without reuse every task starts Python, which takes seconds per batch.
    "spark.python.worker.reuse": "true",
    # Over TCP a micro-batch waits 40 ms for delayed acknowledgements between Spark and Python.
    "spark.python.unix.domain.socket.enabled": "true",
}
LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Stateful queries store this number in their checkpoint, so it must not depend on the cores.
    "spark.sql.shuffle.partitions": "4",
}


def prepare_environment(environment: MutableMapping[str, str], *, local: bool = True) -> None:
    """Set Python and Java for Spark; a cluster's own ``PYSPARK_PYTHON`` is kept."""
    executable = Path(sys.executable)
    folders = [str(executable.parent), *environment.get("PATH", "").split(os.pathsep)]
    environment["PATH"] = os.pathsep.join(dict.fromkeys(folder for folder in folders if folder))
    python = executable.name
    if local and executable.with_name(WORKER_PYTHON).exists():  # else run from a source tree
        python = WORKER_PYTHON
    if local or "PYSPARK_PYTHON" not in environment:
        environment["PYSPARK_PYTHON"] = python
    environment["PYSPARK_DRIVER_PYTHON"] = python
    environment["JAVA_HOME"] = str(find_java_home(environment))


def is_local(master: str) -> bool:
    """Whether Spark runs on this machine only."""
    return master.startswith("local")


def defaults(master: str) -> Mapping[str, str]:
    """The Spark settings that a session gets where nobody says otherwise."""
    return {**DEFAULTS, **(LOCAL_DEFAULTS if is_local(master) else {})}


def build_session(
    *,
    name: str,
    master: str = DEFAULT_MASTER,
    settings: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> "SparkSession":
    """A session in this process; ``settings`` override the defaults.

    With a ``log_file`` Spark's processes leave the terminal: their log goes to that file, and
    Ctrl-C reaches this process alone, so that a running batch can be finished.
    """
    prepare_environment(os.environ, local=is_local(master))
    if is_local(master):
        # While Java starts, which takes as long: the first tasks would each compile them.
        compile_ahead()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    wanted = {**defaults(master), **(settings or {})}
    conf = SparkConf().setMaster(master).setAppName(name).setAll(list(wanted.items()))
    if log_file is not None and SparkContext._gateway is None:  # noqa: SLF001
        from pyspark.java_gateway import launch_gateway

        with log_file.open("ab") as stderr:
            aside = {"start_new_session": True, "stderr": stderr}
            gateway = launch_gateway(conf, popen_kwargs=aside)
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001
    return SparkSession.builder.config(conf=conf).getOrCreate()
