"""Processes of the demo: trees, signals, exit statuses. Linux only.

The demo's main process is the subreaper of a stage's orphans, so it learns the exit status of
everything that was killed, grandchildren too.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterable

import psutil

PR_SET_CHILD_SUBREAPER = 36
ENDED = {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def tree(pid: int) -> list[psutil.Process]:
    """A process and all its descendants, parents before children; empty if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def name_of(process: psutil.Process) -> str:
    """The short name of its command; a dash if it has ended."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return "-"


def send(number: signal.Signals, targets: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Signal each of the processes; return those that still ran."""
    hit = []
    for process in targets:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
        hit.append(process)
    return hit


def exit_status(pid: int) -> int | None:
    """Exit status of an adopted orphan that ended (negative: the signal); None while it runs.

    Raises ChildProcessError where it is no child of ours (any more).
    """
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def gone(process: psutil.Process, within_s: float) -> bool:
    """Return whether the process ends within this time. Its parent reaps it."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if process.status() in ENDED:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.005)
    return False


def describe(status: int | None) -> str:
    """An exit status as people read it: ``-9 (SIGKILL)``, ``0``; a dash while unknown."""
    if status is None:
        return "-"
    if status >= 0:
        return str(status)
    try:
        return f"{status} ({signal.Signals(-status).name})"
    except ValueError:
        return str(status)
