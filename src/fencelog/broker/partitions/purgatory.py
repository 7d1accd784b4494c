"""Requests that wait on one partition: for the high watermark, or for new data to read."""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from fencelog.types import Offset

Done = Callable[[Exception | None], None]


class Purgatory:
    """The waiting requests of one partition.

    Invariant: ``_commits`` is sorted by end offset, and each end is above ``_high_watermark``.
    """

    def __init__(self, high_watermark: Offset) -> None:
        """Start with nothing waiting."""
        self._high_watermark = high_watermark
        self._commits: deque[tuple[Offset, Done]] = deque()
        self._readers: set[asyncio.Future[None]] = set()
        self._failure: Exception | None = None

    def when_committed(self, end_offset: Offset, done: Done) -> None:
        """Call ``done(None)`` once the high watermark covers ``end_offset``, or ``done(error)``.

        It may be called before this returns. Appends come in offset order, so only a duplicate is
        inserted anywhere but at the end of the queue.
        """
        if self._failure is not None:
            done(self._failure)
        elif end_offset <= self._high_watermark:
            done(None)
        elif self._commits and end_offset < self._commits[-1][0]:
            position = bisect_right(self._commits, end_offset, key=itemgetter(0))
            self._commits.insert(position, (end_offset, done))
        else:
            self._commits.append((end_offset, done))

    async def committed(self, end_offset: Offset) -> None:
        """Return once the high watermark covers ``end_offset``.

        Raises StorageError or NotLeaderError when it never will.
        """
        if self._failure is None and end_offset <= self._high_watermark:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.when_committed(end_offset, settle)
        await future

    def add_reader(self, waiter: "asyncio.Future[None]") -> None:
        """Resolve ``waiter`` at the next change of an end offset, or at failure.

        After a failure nothing changes any more: a reader that is added then waits for its
        deadline, instead of polling.
        """
        self._readers.add(waiter)

    def remove_reader(self, waiter: "asyncio.Future[None]") -> None:
        """Forget a waiter."""
        self._readers.discard(waiter)

    def advance(self, high_watermark: Offset) -> None:
        """The high watermark (and perhaps the LSO) has moved: complete the waits it satisfies."""
        self._high_watermark = high_watermark
        commits = self._commits
        while commits and commits[0][0] <= high_watermark:
            commits.popleft()[1](None)
        self.wake_readers()

    def wake_readers(self) -> None:
        """Wake all readers: there may be new data."""
        readers, self._readers = self._readers, set()
        for waiter in readers:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """Nothing is committed here until ``resume``: complete all waits with the error."""
        self._failure = error
        commits, self._commits = self._commits, deque()
        for _, done in commits:
            done(error)
        self.wake_readers()

    def resume(self) -> None:
        """Requests may wait again."""
        self._failure = None
