"""A Spark driver as a process, to be watched and killed: the module ``driver`` with a job."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent.parent.parent
PYTHONPATH = f"{ROOT}:{ROOT / 'src'}"


class DriverProcess:
    """A Spark driver in a process group of its own."""

    def __init__(
        self, job: Mapping[str, object], stderr: Path, *, packages: Path | None = None
    ) -> None:
        """Start it. ``packages``, another PySpark for example, are found before our own."""
        self._stderr = stderr
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
        if packages is not None:
            environment["PYTHONPATH"] = f"{packages}:{PYTHONPATH}"
            environment.pop("SPARK_HOME", None)
        with stderr.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark.driver", json.dumps(job)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.poll()

    @property
    def stderr(self) -> str:
        """The end of what it wrote."""
        return self._stderr.read_text(errors="replace")[-4_000:]

    def kill(self) -> None:
        """SIGKILL its Python and its JVM at once; its Python workers become orphans."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_tree(self) -> None:
        """SIGKILL everything that it started, its Python workers too: the machine is gone."""
        tree = self.tree()
        self.kill()
        for each in tree:
            with suppress(psutil.NoSuchProcess):
                each.kill()

    def pause(self) -> None:
        """SIGSTOP everything."""
        for each in self.tree():
            with suppress(psutil.NoSuchProcess):
                each.suspend()

    def resume(self) -> None:
        """SIGCONT everything."""
        for each in self.tree():
            with suppress(psutil.NoSuchProcess):
                each.resume()

    def jvm(self) -> psutil.Process:
        """Spark's driver itself; the Python of the driver is its parent.

        Raises psutil.NoSuchProcess if it has ended.
        """
        for each in psutil.Process(self._process.pid).children():
            if each.name() == "java":
                return each
        raise psutil.NoSuchProcess(self._process.pid, msg="its JVM has ended")

    def tree(self) -> list[psutil.Process]:
        """It and all that it started, while it runs."""
        process = psutil.Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    @property
    def pid(self) -> int:
        """Of its Python."""
        return self._process.pid

    def end(self, deadline_s: float) -> int:
        """Wait until it ends by itself and return its status."""
        return self._process.wait(deadline_s)
