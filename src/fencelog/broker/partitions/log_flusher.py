"""Writes and syncs what was appended: one write and one sync per partition and round.

Requests append in memory and wait. A round takes the unflushed batches of each partition, of those
that wait longest. A write that begins a segment, and in ``fsync`` mode every sync, runs beside the
rounds, and its partition collects its next batches meanwhile: a producer waits for the disk time of
its own partition only. In ``os`` mode a partition is synced if too much is written and not synced,
or if what it says counts in every mode.

One client may write to thousands of partitions at once. A round takes as many of them as a request
may append to in one iteration of the loop, so that no backlog of writes forms. Syncs take longer:
of those that wait, every other one is of a partition that was synced not long ago, if there is one.
"""

import asyncio
from collections import OrderedDict, deque
from itertools import islice

from fencelog.broker.network.time_slices import ITEMS_PER_SLICE
from fencelog.broker.partitions.concurrency import CONCURRENCY_MAX
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ExhaustedError
from fencelog.types import Offset

PARTITIONS_PER_SLICE = ITEMS_PER_SLICE
"""Partitions that are written before the loop polls its sockets; most writes do not wait."""
ROLLS_MAX = CONCURRENCY_MAX
"""Writes that begin a segment, at the same time."""
SYNCS_MAX = 2 * CONCURRENCY_MAX
"""Syncs that are begun and not ended: the disk's threads never wait for the next."""
RECENT_MAX = 500
"""The last so many partitions that were synced count as synced not long ago."""


Unsynced = tuple[Partition, Offset]
"""A partition, and the end offset of what is written."""


class LogFlusher:
    """Decides when partitions are written and synced while the broker serves."""

    def __init__(self, *, sync: bool) -> None:
        """``sync``: whether every acknowledgement waits for stable storage (D1)."""
        self._sync = sync
        self._dirty: dict[Partition, None] = {}
        self._busy: set[Partition] = set()
        """Partitions that begin a segment or are being synced, or wait for it."""
        self._rolling: deque[Partition] = deque()
        """What waits to begin a segment."""
        self._rolls = 0
        self._waiting: tuple[deque[Unsynced], deque[Unsynced]] = deque(), deque()
        """What waits for a sync, of partitions that were not and that were synced recently."""
        self._next_queue = 0
        self._recent: OrderedDict[Partition, None] = OrderedDict()
        self._syncs = 0
        self._woken: asyncio.Future[None] | None = None
        """The future ``run`` waits for while there is nothing to flush."""
        self._writing = False
        self._ended = False
        self._idle = asyncio.Event()
        self._idle.set()

    def enqueue(self, partition: Partition) -> None:
        """Flush this partition in the next round, after an append to it."""
        self._dirty[partition] = None
        if not self._ended:
            self._idle.clear()
        if partition not in self._busy:
            self._wake()

    async def run(self) -> None:
        """Flush until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    unwritten = (p for p in self._dirty if p not in self._busy)
                    ready = list(islice(unwritten, PARTITIONS_PER_SLICE))
                    if not ready:
                        self._woken = loop.create_future()
                        await self._woken
                        continue
                    self._writing = True
                    for partition in ready:
                        del self._dirty[partition]
                        if partition.begins_segment:
                            self._roll(partition, tasks)
                        else:
                            self._written(partition, await partition.write(), tasks)
                    if len(ready) == PARTITIONS_PER_SLICE:
                        await asyncio.sleep(0)
                    self._writing = False
                    self._update_idle()
        finally:
            self._ended = True
            self._idle.set()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def drained(self) -> None:
        """Return when nothing is left to flush, or ``run`` has ended."""
        await self._idle.wait()

    def _roll(self, partition: Partition, tasks: asyncio.TaskGroup) -> None:
        """Write, beside the rounds, what begins a segment."""
        self._busy.add(partition)
        self._rolling.append(partition)
        if self._rolls < ROLLS_MAX:
            self._rolls += 1
            tasks.create_task(self._write_rolling(tasks))

    async def _write_rolling(self, tasks: asyncio.TaskGroup) -> None:
        try:
            while self._rolling:
                partition = self._rolling.popleft()
                end_offset = await partition.write()
                self._busy.discard(partition)
                self._written(partition, end_offset, tasks)
                self._go_on(partition)
        finally:
            self._rolls -= 1

    def _written(
        self, partition: Partition, end_offset: Offset | None, tasks: asyncio.TaskGroup
    ) -> None:
        if end_offset is None:
            return
        if not (self._sync or partition.recovery_point < min(end_offset, partition.synced_below)):
            partition.flushed(end_offset)
            if not partition.must_sync:
                return
        self._busy.add(partition)
        self._waiting[partition in self._recent].append((partition, end_offset))
        if self._syncs < SYNCS_MAX:
            self._syncs += 1
            tasks.create_task(self._sync_waiting())

    async def _sync_waiting(self) -> None:
        """Sync what waits, from both queues in turn."""
        try:
            while any(self._waiting):
                self._next_queue = 1 - self._next_queue
                queue = self._waiting[self._next_queue] or self._waiting[1 - self._next_queue]
                await self._sync_one(*queue.popleft())
        finally:
            self._syncs -= 1

    async def _sync_one(self, partition: Partition, end_offset: Offset) -> None:
        self._recent.pop(partition, None)
        self._recent[partition] = None
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)
        try:
            if await partition.sync():
                partition.flushed(end_offset)
        except ExhaustedError as error:
            partition.stall(error, unsynced=end_offset)
        finally:
            self._busy.discard(partition)
        self._go_on(partition)

    def _go_on(self, partition: Partition) -> None:
        """A partition may be busy no more: flush what it has collected."""
        if partition in self._dirty and partition not in self._busy:
            self._wake()
        self._update_idle()

    def _update_idle(self) -> None:
        if not self._dirty and not self._busy and not self._writing:
            self._idle.set()
