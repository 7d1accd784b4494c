"""Processes as the kernel tells of them: trees, signals, exit statuses. Linux only.

A stage's orphans come back to the demo's main process (it is their subreaper), which so learns the
exit status of everything that was killed, grandchildren too.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process: its id, its parent, its command's short name."""

    pid: int
    parent: int
    name: str


def adopt_orphans() -> None:
    """Make this process the parent of what its descendants leave behind."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def processes() -> list[Process]:
    """All processes that can be seen now."""
    found = []
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended while we looked
        head, _, tail = stat.rpartition(")")
        name = head.partition("(")[2]
        found.append(Process(pid=int(folder.name), parent=int(tail.split()[1]), name=name))
    return found


def tree(pid: int) -> list[Process]:
    """A process and all its descendants, parents before children."""
    children: dict[int, list[Process]] = {}
    everything = processes()
    for process in everything:
        children.setdefault(process.parent, []).append(process)
    found = [process for process in everything if process.pid == pid]
    for process in found:
        found.extend(children.get(process.pid, ()))
    return found


def send(number: signal.Signals, targets: Iterable[Process]) -> list[Process]:
    """Signal each of the processes; return those that were there to get it."""
    hit = []
    for process in targets:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            continue
        hit.append(process)
    return hit


def exit_status(pid: int) -> int | None:
    """Exit status of an adopted orphan that ended (negative: the signal); None while it runs.

    Raises ChildProcessError where it is no child of ours (any more).
    """
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def gone(pid: int, within_s: float) -> bool:
    """Return whether the process ends (a corpse counts) within this time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return True
        if stat.rpartition(")")[2].split()[0] in {"Z", "X"}:
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
