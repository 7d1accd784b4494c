"""Bounds what an unclean start has to read, and what is written but not synced.

The distance of a partition is how much of its log a start would read now: what was written since
its recovery checkpoint, or all of it. Batches count as some bytes more, because checking a small
one takes as long. No write waits for a checkpoint, so the limits are aims: a disk that syncs more
slowly than producers write leaves more.

If the kernel has much to write back, it lets writes wait: up to 200 ms, and with them the loop. So
a partition with more than a little that is not synced is synced before it is written again, once
all have too much together.
"""

from heapq import nlargest
from typing import NamedTuple, Protocol

BATCH_COST_BYTES = 4 << 10
"""What a batch counts beside its bytes: the time to check 1 KiB in a batch or 5 KiB of one."""
_ASKED_MAX = 16


class WritebackLimits(NamedTuple):
    """When checkpoints are stored and writes wait; all but ``at_once`` are bytes."""

    each: int = 64 << 20
    """At this distance of one partition."""
    total: int = 128 << 20
    """At this distance of all partitions together: then of the farthest ones."""
    least: int = 256 << 10
    """Never below this distance: a checkpoint costs two syncs of files and one of a directory."""
    at_once: int = 4
    """So many at the same time. The threads for syncs are left to what responses wait for."""
    unsynced: int = 256 << 20
    """So much of all partitions may be written and not synced. The kernel's default settings let
    writes wait from 15 % of the free memory on: this is less where there are 2 GiB.
    """


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
        self._unsynced: dict[Checkpointed, int] = {}
        self._unsynced_total = 0
        self._under_way: dict[Checkpointed, int] = {}
        """The distances that the checkpoints under way take away."""

    def moved(self, store: Checkpointed, distance: int) -> None:
        """A store is at this distance: it was opened, or its checkpoint was removed."""
        self._set(store, distance)
        self._begin_if_due(store)

    def wrote(self, store: Checkpointed, size: int, batches: int) -> None:
        """A store has written batches of this size in all."""
        self._unsynced[store] = self._unsynced.get(store, 0) + size
        self._unsynced_total += size
        self._set(store, self._distances.get(store, 0) + size + batches * BATCH_COST_BYTES)
        self._begin_if_due(store)

    def unsynced(self, store: Checkpointed) -> int:
        """Return how many bytes of a store are written and not synced."""
        return self._unsynced.get(store, 0)

    def synced(self, store: Checkpointed, size: int) -> None:
        """So many bytes that were not are on stable storage now."""
        if store in self._unsynced:
            self._unsynced[store] -= size
            self._unsynced_total -= size

    def must_sync(self, store: Checkpointed) -> bool:
        """Whether a store is to be synced before it writes more."""
        limits = self._limits
        return self._unsynced_total >= limits.unsynced and self.unsynced(store) >= limits.least

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
        self._unsynced_total -= self._unsynced.pop(store, 0)

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
