"""``fencelog serve`` that can say how long its loop was held: CPU time of its longest iteration.

Wall time would measure the machine as well. ``TELL``, a signal of which ``serve`` knows nothing,
makes it write the figure to stderr and begin anew. It runs on asyncio's own loop, whose iterations
can be measured; uvloop's are no longer.
"""

import asyncio
import signal
import sys
import time

TELL = signal.SIGRTMIN


class Turns:
    """The iterations of this process's loop."""

    longest_s = 0.0

    @classmethod
    def measure(cls) -> None:
        """Measure the CPU time of every iteration."""
        base = asyncio.base_events.BaseEventLoop
        inner = base._run_once  # type: ignore[attr-defined]

        def run_once(loop: asyncio.BaseEventLoop) -> None:
            began = time.thread_time()
            inner(loop)
            cls.longest_s = max(cls.longest_s, time.thread_time() - began)

        base._run_once = run_once  # type: ignore[attr-defined]

    @classmethod
    def tell(cls, *_: object) -> None:
        """Write the longest iteration since the last time."""
        sys.stderr.write(f"longest iteration {1e3 * cls.longest_s:.2f} ms\n")
        sys.stderr.flush()
        cls.longest_s = 0.0


def main() -> None:
    """Serve, with the arguments of the command line tool."""
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    Turns.measure()
    signal.signal(TELL, Turns.tell)
    from fencelog.cli.main import main as fencelog

    sys.argv[0] = "fencelog"
    fencelog()


if __name__ == "__main__":
    main()
