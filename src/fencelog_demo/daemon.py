"""Spark's daemon of Python workers, with two differences; ``spark.python.daemon.module`` names it.

It logs how each worker ended: Spark's own daemon ignores it, and the report names the exit status
of every process that was killed. And it imports what every worker needs before it forks, because a
driver that runs for twenty seconds has no time for repeated imports.
"""

import gc
import importlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from fencelog_demo.events import write_event
from fencelog_demo.settings import STAGE_FOLDER

WORKERS = "pyspark.worker"


def _reap(number: int, frame: FrameType | None) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        write_event(Path(os.environ[STAGE_FOLDER]), "exited", role="worker", pid=pid, status=code)


def preload() -> None:
    """Import the workers' modules once. None of them starts a thread, which a fork would lose.

    A worker collects garbage after every task; what was imported here is never garbage.
    """
    for name in ("pyspark.worker", "pandas", "fencelog.client.arrow_encode", "fencelog_demo.sink"):
        importlib.import_module(name)
    gc.freeze()


def main() -> None:
    """Run Spark's daemon with our handler in place of its "ignore"."""
    from pyspark import daemon

    if WORKERS in sys.argv:
        preload()
    real = signal.signal

    def install(number: int, handler: object) -> object:
        ours = number == signal.SIGCHLD and handler is signal.SIG_IGN
        return real(number, _reap if ours else handler)  # type: ignore[arg-type]

    signal.signal = install  # type: ignore[assignment]
    daemon.manager()


if __name__ == "__main__":
    main()
