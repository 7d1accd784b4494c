"""Writes and syncs what was appended: one write and one sync per partition and round.

Requests append in memory and wait. A round takes the unflushed batches of all partitions at once.
In ``fsync`` mode the syncs of a round run concurrently, and a partition whose sync is in progress
collects its next batches meanwhile: a producer waits for the disk time of its own partition only.
"""

import asyncio

from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ExhaustedError
from fencelog.types import Offset

PARTITIONS_PER_SLICE = 100
"""Partitions that are written before the loop polls its sockets; most writes do not wait."""


class LogFlusher:
    """Decides when partitions are written and synced while the broker serves."""

    def __init__(self, *, sync: bool) -> None:
        """``sync``: whether an acknowledgement waits for stable storage (D1)."""
        self._sync = sync
        self._dirty: dict[Partition, None] = {}
        self._syncing: set[Partition] = set()
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
        if partition not in self._syncing:
            self._wake()

    async def run(self) -> None:
        """Flush until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as syncs:
                while True:
                    ready = [p for p in self._dirty if p not in self._syncing]
                    if not ready:
                        self._woken = loop.create_future()
                        await self._woken
                        continue
                    self._writing = True
                    for number, partition in enumerate(ready, 1):
                        del self._dirty[partition]
                        end_offset = await partition.write()
                        if end_offset is not None:
                            self._written(partition, end_offset, syncs)
                        if number % PARTITIONS_PER_SLICE == 0:
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

    def _written(self, partition: Partition, end_offset: Offset, syncs: asyncio.TaskGroup) -> None:
        if self._sync:
            self._syncing.add(partition)
            syncs.create_task(self._sync_one(partition, end_offset))
        else:
            partition.flushed(end_offset)

    async def _sync_one(self, partition: Partition, end_offset: Offset) -> None:
        try:
            if await partition.sync():
                partition.flushed(end_offset)
        except ExhaustedError as error:
            partition.stall(error, unsynced=end_offset)
        finally:
            self._syncing.discard(partition)
        if partition in self._dirty:
            self._wake()
        self._update_idle()

    def _update_idle(self) -> None:
        if not self._dirty and not self._syncing and not self._writing:
            self._idle.set()
