"""What each signal does to a running broker; none ends it by surprise."""

import asyncio
import logging
import signal
import sys
import traceback
from collections.abc import Callable

from fencelog.cli.log_output import LogOutput, marked

log = logging.getLogger(__name__)

TASKS_MAX = 200
"""Tasks that a dump shows, of perhaps thousands."""
STOPS = (signal.SIGTERM, signal.SIGINT)
IGNORED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def handle_signals(
    stop: Callable[[], None], output: LogOutput, *, stops: tuple[signal.Signals, ...] = STOPS
) -> None:
    """Handle signals in the running loop: ``stops`` stop, SIGQUIT dumps, others are ignored."""
    loop = asyncio.get_running_loop()
    for number in IGNORED:
        loop.add_signal_handler(number, _ignore, number)
    loop.add_signal_handler(signal.SIGQUIT, _dump, loop, output)
    for number in stops:
        loop.add_signal_handler(number, stop)


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
