"""One aiokafka copier in a process: ``python -m tests.clients.aio_copier OPTIONS-AS-JSON``.

It cannot name its member in a transaction, so there is one transactional id for each input
partition. What it cannot go on after it dies of; whoever watches starts it again.
"""

import json
import os
import signal
import sys
import threading
from types import TracebackType
from typing import Any

from tests.support.stock.members import AioWorker


def main() -> None:
    """Copy until SIGTERM."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    # Loops and threads of the client may outlive what went wrong, and would keep the process.
    sys.excepthook = die
    worker = AioWorker(options["bootstrap"], options["group"], options["source"], options["target"])
    while not stopping.is_set():
        worker.turn()
    worker.close()


def die(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say what it was, and end at once."""
    sys.__excepthook__(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
