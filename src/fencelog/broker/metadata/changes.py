"""Changes of the metadata that a client asks for: one at a time, each to its end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fencelog.errors import ErrorCode, RequestError, StorageError, UnknownOutcomeError

T = TypeVar("T")


class Changes:
    """Runs one change after the other."""

    def __init__(self) -> None:
        """None is running."""
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[object]] = set()
        self._stopped = False

    async def run(self, change: Callable[[], Awaitable[T]]) -> T:
        """Complete one change at a time, even if the caller is cancelled.

        Raises RequestError on a failure of the disk or the metadata store.
        """

        async def take_turn() -> T:
            async with self._turn:
                if self._stopped:
                    raise RequestError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker is stopping")
                try:
                    return await change()
                except UnknownOutcomeError as error:
                    raise RequestError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
                except StorageError as error:
                    raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

        task = asyncio.get_running_loop().create_task(take_turn())
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """Accept no more, also of those that wait for their turn; wait for the one in progress."""
        self._stopped = True
        if self._running:
            await asyncio.wait(list(self._running))

    def _ended(self, task: "asyncio.Task[T]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # the caller gets it, unless it was cancelled
