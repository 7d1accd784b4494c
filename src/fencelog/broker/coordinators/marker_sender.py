"""Writes the outstanding markers of coordinators, then records that they are written.

The work is read from committed coordinator state each time (E16), so a start resumes it without
further code, and repeating a piece does no harm.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from fencelog.broker.coordinators.leaders import Leaders
from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.network.time_slices import TimeSlices
from fencelog.coordination.shard import Decision, Shard
from fencelog.errors import FencelogError
from fencelog.log.values import MarkerToWrite
from fencelog.types import Offset, TopicPartition

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
RETRY_S = 0.5


@dataclass(frozen=True, kw_only=True)
class MarkerWork(Generic[S]):
    """Markers that belong together, and the decision that records where they are written."""

    markers: Mapping[TopicPartition, tuple[MarkerToWrite, ...]]
    written: Callable[[S, Collection[TopicPartition]], Decision[None]]


class MarkerSender(Generic[S]):
    """Writes the outstanding markers of a coordinator's shards, one round at a time per shard."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[S],
        outstanding: Callable[[S, Offset], Iterable[MarkerWork[S]]],
        leaders: Leaders,
        time_slices: TimeSlices,
    ) -> None:
        """``outstanding(shard, committed)`` returns the work decided below a committed offset."""
        self._runtime = runtime
        self._outstanding = outstanding
        self._leaders = leaders
        self._time_slices = time_slices
        self._rounds: dict[Loaded[S], asyncio.Task[None]] = {}
        self._again: set[Loaded[S]] = set()
        runtime.on_committed = self.wake

    def wake(self, loaded: Loaded[S]) -> None:
        """Start a round if this shard has committed work."""
        if loaded.dropped:
            return
        if loaded in self._rounds:
            self._again.add(loaded)
            return
        committed = loaded.partition.log.high_watermark
        if not any(True for _ in self._outstanding(loaded.shard, committed)):
            return
        task = asyncio.get_running_loop().create_task(self._run(loaded))
        self._rounds[loaded] = task

    async def drain(self) -> None:
        """Do all work of all loaded shards; does not return while a partition refuses markers."""
        for loaded in self._runtime.loaded():
            self.wake(loaded)
        while self._rounds:
            await asyncio.wait(list(self._rounds.values()), return_when=asyncio.FIRST_COMPLETED)

    async def stop(self) -> None:
        """Cancel all rounds; the next start does the rest."""
        for task in list(self._rounds.values()):
            task.cancel()

    async def _run(self, loaded: Loaded[S]) -> None:
        try:
            while True:
                self._again.discard(loaded)
                committed = loaded.partition.log.high_watermark
                work = list(self._outstanding(loaded.shard, committed))
                if not work and loaded not in self._again:
                    return
                stuck = False
                for piece in work:
                    if loaded.dropped:
                        return  # the shard that is loaded instead has the work, too
                    stuck = not await self._do(loaded, piece) or stuck
                if stuck:
                    await asyncio.sleep(RETRY_S)
        except FencelogError as error:
            log.warning(
                "%s: markers are retried at its next load: %s", loaded.partition.name, error
            )
        finally:
            del self._rounds[loaded]
            self._again.discard(loaded)

    async def _do(self, loaded: Loaded[S], piece: MarkerWork[S]) -> bool:
        """Write the markers of one piece; False if a partition refused them.

        What was written is recorded either way, so that one failed partition does not cause the
        others to be marked repeatedly.
        """
        done: set[TopicPartition] = set()
        async for part in self._time_slices.parts(piece.markers.items()):
            writes = [(name, self._leaders.write_markers(name, markers)) for name, markers in part]
            done.update([name for name, result in writes if await result])
        if done or not piece.markers:
            await self._runtime.decide_on(loaded, lambda shard, now: piece.written(shard, done))
        return done == piece.markers.keys()
