"""Carries out what grants and ends of claims ask of other leaders, then records that it is done.

The work is read from committed records each time (E16), so a start resumes it without further code,
and repeating a piece does no harm. Pieces of different claims are done concurrently: they share the
syncs of the logs that they write to.
"""

import asyncio
import logging
from itertools import islice

from fencelog.broker.coordinators.leaders import Leaders
from fencelog.broker.coordinators.marker_sender import RETRY_S
from fencelog.broker.coordinators.runtime import CoordinatorRuntime, Loaded
from fencelog.broker.network.time_slices import ITEMS_PER_SLICE, TimeSlices
from fencelog.coordination.ownership.model import OwnershipTask
from fencelog.coordination.ownership.shard import OwnershipShard
from fencelog.errors import FencelogError
from fencelog.ports import WallClock
from fencelog.types import Offset, TopicPartition

log = logging.getLogger(__name__)

PIECES_MAX = 1_000
"""Pieces that are done at a time."""


class OwnershipSender:
    """Does the outstanding work of ownership shards, one piece of a session at a time."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[OwnershipShard],
        leaders: Leaders,
        clock: WallClock,
        time_slices: TimeSlices,
    ) -> None:
        """Start without work; ``wake`` looks for it."""
        self._runtime = runtime
        self._leaders = leaders
        self._clock = clock
        self._time_slices = time_slices
        self._doing: dict[tuple[Loaded[OwnershipShard], str], asyncio.Task[None]] = {}
        self._due: dict[Loaded[OwnershipShard], asyncio.Handle] = {}
        self._stopped = False

    def wake(self, loaded: Loaded[OwnershipShard]) -> None:
        """Look for committed work of this shard in the next iteration of the loop."""
        if loaded not in self._due and not self._stopped:
            loop = asyncio.get_running_loop()
            self._due[loaded] = loop.call_soon(self._begin, loaded)

    async def drain(self) -> None:
        """Do all work of all loaded shards; does not return while a leader refuses it."""
        while True:
            for loaded in self._runtime.loaded():
                self._begin(loaded)
            if not self._doing:
                return
            await asyncio.wait(list(self._doing.values()))

    async def stop(self) -> None:
        """Cancel all work; the next start does the rest."""
        self._stopped = True
        for handle in self._due.values():
            handle.cancel()
        for task in list(self._doing.values()):
            task.cancel()

    def _begin(self, loaded: Loaded[OwnershipShard]) -> None:
        """Begin the pieces that are not being done. Connections are severed before all else."""
        self._due.pop(loaded, None)
        if loaded.dropped:
            return
        for session in loaded.shard.outstanding(loaded.partition.log.high_watermark):
            key = loaded, session
            if key not in self._doing and len(self._doing) < PIECES_MAX:
                piece = loaded.shard.task(session)
                assert piece is not None, session
                for severed in piece.severed:
                    self._leaders.sever(severed)
                work = self._run(loaded, piece)
                self._doing[key] = asyncio.get_running_loop().create_task(work)

    async def _run(self, loaded: Loaded[OwnershipShard], piece: OwnershipTask) -> None:
        try:
            if not await self._do(loaded, piece):
                await asyncio.sleep(RETRY_S)
        except FencelogError as error:
            log.warning("%s: work is retried at its next load: %s", loaded.partition.name, error)
        finally:
            del self._doing[loaded, piece.session]
            self.wake(loaded)

    async def _do(self, loaded: Loaded[OwnershipShard], piece: OwnershipTask) -> bool:
        """Do a piece and record it; False if a leader refused a part of it."""
        groups = {owner.group for owner in piece.commits.values() if owner.group is not None}
        async with asyncio.TaskGroup() as parts:
            others = [
                *(
                    parts.create_task(self._leaders.own_commits(group, piece.commits))
                    for group in groups
                ),
                *(
                    parts.create_task(self._leaders.own_producers(key, owner))
                    for key, owner in piece.producers.items()
                ),
            ]
            fences = await self._own_partitions(piece)
        if fences is None or not all(each.result() for each in others):
            return False
        if loaded.dropped:
            return True  # the shard that is loaded instead has the work, too
        await self._runtime.decide_on(
            loaded,
            lambda shard, now: shard.done(
                piece.session, fences, self._clock.now_ms(), is_live=piece.is_live
            ),
        )
        return True

    async def _own_partitions(self, piece: OwnershipTask) -> dict[TopicPartition, Offset] | None:
        """Tell each partition's log; return the offsets of the records, None if one refused."""
        fences: dict[TopicPartition, Offset] = {}
        every = iter(sorted(piece.partitions.items()))
        refused = False
        while part := list(islice(every, ITEMS_PER_SLICE)):
            asked = [(name, self._leaders.own_partition(name, owner)) for name, owner in part]
            for name, result in asked:
                offset = await result
                if offset is None:
                    refused = True
                else:
                    fences[name] = offset
            if len(part) == ITEMS_PER_SLICE:
                await self._time_slices.next()
        return None if refused else fences
