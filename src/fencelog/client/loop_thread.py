"""A thread with an event loop, for blocking callers.

It is a daemon thread, so that an unclosed client does not keep a process alive. It is stopped and
joined at interpreter exit. After a fork the thread does not exist although its loop looks alive:
``owned`` is false then, and the caller creates a new one.
"""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from fencelog.rpc.failures import client_closed

T = TypeVar("T")
JOIN_TIMEOUT_S = 5.0

_running: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()
_abandoned: list[object] = []


def keep_for_ever(inherited: object) -> None:
    """Keep the objects of the parent process from being collected after a fork.

    A collected loop or transport unregisters itself from an epoll set that the parent still uses.
    """
    _abandoned.append(inherited)


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str, farewell: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the thread. ``farewell`` runs in the loop before it is closed."""
        self._farewell = farewell
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        _running.add(self)

    @property
    def owned(self) -> bool:
        """Whether this process started the thread (false in a forked child)."""
        return self._pid == os.getpid()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, for what may be called from any thread."""
        return self._loop

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine in the loop; the future answers in any thread."""
        with self._lock:
            if not self._closed and self._thread.is_alive():
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise client_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait; an interrupt of the waiter cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def one_ahead(self, work: Callable[[], Coroutine[Any, Any, T | None]]) -> Iterator[T]:
        """Yield what the coroutines return until None; the next runs while one is used."""
        pending = self.submit(work())
        try:
            while (result := pending.result()) is not None:
                pending = self.submit(work())
                yield result
        finally:
            pending.cancel()

    def close(self) -> None:
        """Stop the loop, cancel what still runs in it, join the thread. May be called twice."""
        _running.discard(self)
        if not self.owned or not self._thread.is_alive():
            return
        with self._lock:
            if not self._closed:
                # After everything that was submitted, so that all of it is cancelled.
                self._closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_TIMEOUT_S)

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._end())
        finally:
            self._loop.close()

    async def _end(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=JOIN_TIMEOUT_S)
        await self._farewell()


@atexit.register
def _close_all() -> None:
    for thread in list(_running):
        thread.close()
