"""Many deadlines that are mostly postponed: a heartbeat costs one assignment, not a search."""

import heapq
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Generic, TypeVar

from fencelog.types import Instant

K = TypeVar("K", bound=Hashable)
STALE_MAX = 1000


class Timers(Generic[K]):
    """Deadlines by key. A postponed one keeps its queue entry; when that is due it is queued again.

    Invariant: each key with a deadline has a queue entry at or before it, the one in ``_queued``;
    all other entries are stale.
    """

    def __init__(self) -> None:
        """No deadlines."""
        self._due: dict[K, Instant] = {}
        self._queued: dict[K, Instant] = {}
        self._heap: list[tuple[Instant, int, K]] = []
        self._numbers = count()  # equal deadlines come in the order in which they were set

    def set(self, key: K, due: Instant) -> None:
        """Set a key's deadline; it replaces the previous one."""
        self._due[key] = due
        queued = self._queued.get(key)
        if queued is None or due < queued:
            self._queue(key, due)

    def cancel(self, key: K) -> None:
        """Remove a key's deadline, if it has one."""
        self._due.pop(key, None)

    def has(self, key: K) -> bool:
        """Whether a key has a deadline."""
        return key in self._due

    def next_due(self) -> Instant | None:
        """A time at or before the first deadline; None while there is none."""
        while self._heap:
            at, _, key = self._heap[0]
            if self._queued.get(key) == at and key in self._due:
                return at
            heapq.heappop(self._heap)
            if self._queued.get(key) == at:
                del self._queued[key]
        return None

    def take_due(self, now: Instant) -> Iterator[K]:
        """Yield each key whose deadline has passed; the deadline is removed first."""
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            if self._queued.get(key) != at:
                continue
            del self._queued[key]
            due = self._due.get(key)
            if due is None:
                continue
            if due > now:
                self._queue(key, due)
                continue
            del self._due[key]
            yield key

    def _queue(self, key: K, due: Instant) -> None:
        if len(self._heap) > STALE_MAX + 2 * len(self._due):
            self._sweep()
        self._queued[key] = due
        heapq.heappush(self._heap, (due, next(self._numbers), key))

    def _sweep(self) -> None:
        """Drop stale entries: a key that is set and cancelled leaves one."""
        self._queued = {key: at for key, at in self._queued.items() if key in self._due}
        self._heap = [each for each in self._heap if self._queued.get(each[2]) == each[0]]
        heapq.heapify(self._heap)
