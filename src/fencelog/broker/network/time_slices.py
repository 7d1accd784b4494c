"""Cooperative yielding: long requests run in time slices, one slice per iteration of the loop.

A request may name ten thousand partitions, and a hundred connections may send such requests at
once. Time slices are granted first come, first served, so every other connection waits for one
slice at most before the loop polls its socket.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
ITEMS_PER_SLICE = 200


class TimeSlices:
    """Grants a time slice to one waiting task, then lets the loop poll its sockets."""

    def __init__(self) -> None:
        """Start without waiting tasks."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False

    async def next(self) -> None:
        """Return when the caller has a time slice: a few milliseconds of work, then call again."""
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[None] = loop.create_future()
        self._waiting.append(granted)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._grant, loop)
        await granted

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Iterate over what one request names, with a time slice for each ``ITEMS_PER_SLICE``."""
        for number, item in enumerate(items, 1):
            yield item
            if number % ITEMS_PER_SLICE == 0:
                await self.next()

    async def parts(self, items: Iterable[T]) -> AsyncIterator[list[T]]:
        """Iterate over lists of ``ITEMS_PER_SLICE`` items, the last one shorter, as ``each`` does.

        For work that is begun for all items of a list before any of it is awaited.
        """
        every = iter(items)
        while part := list(islice(every, ITEMS_PER_SLICE)):
            yield part
            if len(part) == ITEMS_PER_SLICE:
                await self.next()

    def _grant(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = False
        while self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():  # else its connection is closed
                granted.set_result(None)
                break
        if self._waiting:
            self._is_due = True
            loop.call_soon(self._grant, loop)
