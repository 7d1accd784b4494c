"""Bounds what an unclean start has to read: says which partition's checkpoint is stored next.

The distance of a partition is how much of its log a start would read now: what was written since
its recovery checkpoint, or all of it. Batches count as some bytes more, because checking a small
one takes as long. No write waits for a checkpoint, so the limits are aims: a disk that syncs more
slowly than producers write leaves more.
"""

from heapq import nlargest
from typing import NamedTuple, Protocol

BATCH_COST_BYTES = 4 << 10
"""What a batch counts beside its bytes: the time to check 1 KiB in a batch or 5 KiB of one."""
_ASKED_MAX = 16


class WritebackLimits(NamedTuple):
    """When checkpoints are stored; all but the last one are distances in bytes."""

    each: int = 64 << 20
    """At this distance of one partition."""
    total: int = 128 << 20
    """At this distance of all partitions together: then of the farthest ones."""
    least: int = 256 << 10
    """Never below this distance: a checkpoint costs two syncs of files and one of a directory."""
    at_once: int = 4
    """So many at the same time. The threads for syncs are left to what responses wait for."""


class Checkpointed(Protocol):
    """A partition's store."""

    def begin_checkpoint(self) -> bool:
        """Begin to store a checkpoint; False if it cannot be now. ``Writeback.ended`` follows."""
        ...


class Writeback:
    """The distances of all open partitions of a broker."""

    def __init__(self, limits: WritebackLimits | None = None) -> None:
        """No partition is open."""
        self._limits = limits or WritebackLimits()
        self._distances: dict[Checkpointed, int] = {}
        self._total = 0
        self._under_way: dict[Checkpointed, int] = {}
        """The distances that the checkpoints under way take away."""

    def moved(self, store: Checkpointed, distance: int) -> None:
        """A store is at this distance: it was opened, or its checkpoint was removed."""
        self._set(store, distance)
        self._begin_if_due(store)

    def wrote(self, store: Checkpointed, size: int, batches: int) -> None:
        """A store has written batches of this size in all."""
        self._set(store, self._distances.get(store, 0) + size + batches * BATCH_COST_BYTES)
        self._begin_if_due(store)

    def ended(self, store: Checkpointed, *, is_stored: bool) -> None:
        """The checkpoint that a store has begun is stored, or was given up for a later one."""
        covered = self._under_way.pop(store)
        if is_stored and store in self._distances:
            self._set(store, self._distances[store] - covered)
        # Also those that nobody writes to any more.
        for each in nlargest(_ASKED_MAX, self._distances, key=self._distances.__getitem__):
            self._begin_if_due(each)

    def failed(self, store: Checkpointed) -> None:
        """The checkpoint that a store has begun could not be stored; its next write tries again."""
        del self._under_way[store]

    def closed(self, store: Checkpointed) -> None:
        """A store is closed, or has failed."""
        self._total -= self._distances.pop(store, 0)

    def _set(self, store: Checkpointed, distance: int) -> None:
        self._total += distance - self._distances.get(store, 0)
        self._distances[store] = distance

    def _begin_if_due(self, store: Checkpointed) -> None:
        distance, limits = self._distances[store], self._limits
        is_due = distance >= limits.each or (
            self._total >= limits.total and distance >= limits.least
        )
        if not is_due or store in self._under_way or len(self._under_way) >= limits.at_once:
            return
        if store.begin_checkpoint():
            self._under_way[store] = distance
