"""Spark's daemon of Python workers, with one difference: it writes down how each worker ended.

Spark's own lets the kernel forget its dead workers, and the report names the exit status of every
process that was killed. Named to Spark by ``spark.python.daemon.module``.
"""

import os
import signal
from pathlib import Path
from types import FrameType

from fencelog.demo.events import write_event
from fencelog.demo.settings import STAGE_FOLDER


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


def main() -> None:
    """Run Spark's daemon with our handler in place of its "ignore"."""
    from pyspark import daemon

    real = signal.signal

    def install(number: int, handler: object) -> object:
        ours = number == signal.SIGCHLD and handler is signal.SIG_IGN
        return real(number, _reap if ours else handler)  # type: ignore[arg-type]

    signal.signal = install  # type: ignore[assignment]
    daemon.manager()


if __name__ == "__main__":
    main()
