"""Long work in short pieces: one piece of it, of whomever it is, in each turn of the loop.

A request may name ten thousand things, and a hundred connections may send such requests at once.
Each piece waits here for its turn, first come, first served, so every other connection waits for
one piece at most before the loop comes to it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")
ITEMS_PER_SLICE = 200


class TimeSlices:
    """Gives one turn to one who waits, then lets the loop look at its sockets."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False

    async def next(self) -> None:
        """Return when it is the caller's turn: do a few milliseconds of work, then ask again."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._give, loop)
        await turn

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Go through what one request names, a turn for every few of them."""
        for number, item in enumerate(items, 1):
            yield item
            if number % ITEMS_PER_SLICE == 0:
                await self.next()

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else its connection is gone
                turn.set_result(None)
                break
        if self._waiting:
            self._is_due = True
            loop.call_soon(self._give, loop)
