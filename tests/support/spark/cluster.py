"""A small Spark cluster of its own processes: a master and two workers on two addresses.

Spark never runs a speculative copy on a host that runs the task already, and ``local-cluster`` is
one host. Two loopback addresses are two.
"""

import os
import re
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from fencelog.spark.session import prepare_environment
from tests.support.waiting import wait_until

HOSTS = ("127.0.0.1", "127.0.0.2")
START_S = 180.0


class StandaloneCluster:
    """Entering starts it, leaving kills all of it. ``cores``: of each worker."""

    def __init__(self, folder: Path, *, cores: int = 1) -> None:
        self.master = ""
        self._folder = folder
        self._cores = cores
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._folder.mkdir()
        try:
            log = self._start("master.Master", "--host", HOSTS[0], "--port", "0")
            self.master = wait_until(
                lambda: self._found(r"spark://[\d.:]+", log),
                deadline_s=START_S,
                what="the master's address",
            )
            for host in HOSTS:
                size = ("--cores", str(self._cores), "--memory", "1g")
                self._start("worker.Worker", "--host", host, *size, self.master)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()

    @property
    def pids(self) -> list[int]:
        """Of the master and the workers; executors are children of workers."""
        return [process.pid for process in self._processes]

    def _start(self, what: str, *arguments: str) -> Path:
        log = self._folder / f"{len(self._processes)}.log"
        environment = dict(os.environ)
        prepare_environment(environment)
        environment |= {
            "SPARK_WORKER_DIR": str(self._folder / "work"),
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_NO_DAEMONIZE": "1",
        }
        launcher = Path(pyspark.__path__[0]) / "bin" / "spark-class"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [launcher, f"org.apache.spark.deploy.{what}", "--webui-port", "0", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes.append(process)
        return log

    def _kill(self) -> None:
        # A worker that is asked to end ends its executors; one that is killed leaves them.
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            process.wait(START_S)

    @staticmethod
    def _found(pattern: str, log: Path) -> str | None:
        found = re.search(pattern, log.read_text(errors="replace"))
        return found[0] if found else None
