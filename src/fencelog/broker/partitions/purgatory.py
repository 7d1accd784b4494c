"""Requests that wait on one partition: for the high watermark, or for new data to read."""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Protocol

from fencelog.errors import ErrorCode, StorageError
from fencelog.types import Offset

Done = Callable[[Exception | None], None]


class Reader(Protocol):
    """Waits for changes of a partition; it is called in the step of the change."""

    def advanced(self) -> bool:
        """The high watermark or the LSO has moved; return whether to call again."""
        ...

    def interrupted(self) -> None:
        """What was read or planned before may no longer hold; it is removed already.

        The log start has moved, files were replaced, or the partition has failed or was deleted.
        """
        ...


class Purgatory:
    """The waiting requests of one partition.

    Invariant: ``_commits`` is sorted by end offset, and each end is above ``_high_watermark``.
    """

    def __init__(self, high_watermark: Offset) -> None:
        """Start with nothing waiting."""
        self._high_watermark = high_watermark
        self._commits: deque[tuple[Offset, Done]] = deque()
        self._readers: dict[Reader, None] = {}
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

    def add_reader(self, reader: Reader) -> None:
        """Call this reader at each change until it is removed or no longer wants it."""
        self._readers[reader] = None

    def remove_reader(self, reader: Reader) -> None:
        """Forget a reader."""
        self._readers.pop(reader, None)

    def advance(self, high_watermark: Offset) -> None:
        """The high watermark (and perhaps the LSO) has moved: complete the waits it satisfies."""
        self._high_watermark = high_watermark
        commits = self._commits
        while commits and commits[0][0] <= high_watermark:
            commits.popleft()[1](None)
        if self._readers:
            for reader in [reader for reader in self._readers if not reader.advanced()]:
                self._readers.pop(reader, None)

    def interrupt_readers(self) -> None:
        """What readers know of the partition may no longer hold: let them look again."""
        readers, self._readers = self._readers, {}
        for reader in readers:
            reader.interrupted()

    def fail(self, error: Exception) -> None:
        """Nothing is committed here until ``resume``: complete all waits with the error."""
        self._failure = error
        commits, self._commits = self._commits, deque()
        for _, done in commits:
            done(error)
        self.interrupt_readers()

    def resume(self) -> None:
        """Requests may wait again."""
        self._failure = None


def failure_code(error: Exception) -> ErrorCode:
    """Return the error code for a request whose wait on a partition ended with this failure."""
    if isinstance(error, StorageError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    if isinstance(error, TimeoutError):
        return ErrorCode.REQUEST_TIMED_OUT
    return ErrorCode.NOT_LEADER_OR_FOLLOWER
