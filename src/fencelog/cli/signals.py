"""What each signal does to a running broker; none ends it by surprise."""

import asyncio
import logging
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial

from fencelog.cli.log_output import LogOutput, marked

log = logging.getLogger(__name__)

TASKS_MAX = 200
"""Tasks that a dump shows, of perhaps thousands."""
STOPS = (signal.SIGTERM, signal.SIGINT)
IGNORED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def handle_signals(
    stop: Callable[[], None], output: LogOutput, *, stops: tuple[signal.Signals, ...] = STOPS
) -> None:
    """Handle signals in the running loop: ``stops`` stop, SIGQUIT dumps, others are ignored.

    The handlers are Python's, not the loop's: a loop that closes gives its signals back to the
    system for a moment, and one of them in that moment would end the process.
    """
    loop = asyncio.get_running_loop()

    def handle(number: signal.Signals, callback: Callable[[], None]) -> None:
        signal.signal(number, lambda _number, _frame: loop.call_soon_threadsafe(callback))

    for number in IGNORED:
        handle(number, partial(_ignore, number))
    handle(signal.SIGQUIT, partial(_dump, loop, output))
    for number in stops:
        handle(number, stop)


def ignore_signals() -> None:
    """Ignore all of these signals from here on: the broker has stopped, and its status is known.

    A supervisor that asks for a stop again must not turn a clean one into a failure.
    """
    for number in (*IGNORED, signal.SIGQUIT, *STOPS):
        signal.signal(number, signal.SIG_IGN)


def _ignore(number: signal.Signals) -> None:
    log.warning(
        "%s is ignored: settings are read at the start; SIGTERM stops the broker", number.name
    )


def _dump(loop: asyncio.AbstractEventLoop, output: LogOutput) -> None:
    """Write the stacks of all threads and tasks to the log, and go on."""
    frames = sys._current_frames()  # noqa: SLF001 - the documented way to them
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    log.warning("SIGQUIT: stacks of %d threads and %d tasks follow", len(frames), len(tasks))
    for number, frame in frames.items():
        stack = "".join(traceback.format_stack(frame))
        output.line(marked(f"thread {number}\n{stack}"))
    for task in tasks[:TASKS_MAX]:
        stack = "".join(
            line for frame in task.get_stack(limit=10) for line in traceback.format_stack(frame, 1)
        )
        output.line(marked(f"task {task.get_name()} {task.get_coro()!r}\n{stack}"))
