"""What a node leaves behind in its process."""

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.node import until


def left() -> tuple[set[str], set[str]]:
    """Open files with their numbers, and threads of ours."""
    files = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            files.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    threads = {each.name for each in threading.enumerate() if each.name.startswith("fencelog")}
    return files, threads


def timers() -> set[asyncio.TimerHandle]:
    """What the loop is to call later; asyncio's loop tells, uvloop's does not."""
    scheduled = getattr(asyncio.get_running_loop(), "_scheduled", ())
    return {each for each in scheduled if not each.cancelled()}


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """What runs inside leaves no task and no timer, and keeps no file open and no thread."""
    gc.collect()  # what an earlier test left to the collector would be closed in between
    before = left()
    tasks = asyncio.all_tasks()
    due = timers()
    yield
    more = asyncio.all_tasks() ^ tasks
    assert not more, f"tasks: {more}"
    late = timers() - due
    assert not late, f"timers: {late}"
    await until(lambda: left()[1] <= before[1], "threads that have nothing to do end")
    with suppress(AssertionError):
        await until(lambda: not _changed(before[0]), "files are closed")
    files = _changed(before[0])
    assert not files, f"open files: {sorted(files)}"


def _changed(before: set[str]) -> set[str]:
    """Files that are open now and were not, or the reverse.

    But sockets and pipes may be closed: by threads of other tests' clients.
    """
    now = left()[0]
    return (now - before) | {each for each in before - now if each.partition(" ")[2][0] == "/"}
