"""Writes the outstanding markers of coordinators, then records that they are written.

The work is read from committed coordinator state each time (E16), so a start resumes it without
further code, and repeating a piece does no harm.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
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
    """Markers that belong together, and the decision that records where they are written.

    Of one ``key`` a shard's work is done one after the other: what is reported as written must not
    be in flight still.
    """

    key: Hashable
    markers: Mapping[TopicPartition, tuple[MarkerToWrite, ...]]
    written: Callable[[S, Collection[TopicPartition]], Decision[None]]


class MarkerSender(Generic[S]):
    """Writes the outstanding markers of a coordinator's shards, each piece of work in a task.

    So a partition that cannot commit its marker holds up its own transactions, and no others.
    """

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
        self._doing: dict[tuple[Loaded[S], Hashable], asyncio.Task[None]] = {}
        self._woken: set[Loaded[S]] = set()
        runtime.on_committed = self.wake

    def wake(self, loaded: Loaded[S]) -> None:
        """Begin what this shard has committed and nobody does yet, soon and for all calls once."""
        if loaded not in self._woken and not loaded.dropped:
            self._woken.add(loaded)
            asyncio.get_running_loop().call_soon(self._begin, loaded)

    async def drain(self) -> None:
        """Do all work of all loaded shards; does not return while a partition refuses markers."""
        for loaded in self._runtime.loaded():
            self._begin(loaded)
        while self._doing:
            await asyncio.wait(list(self._doing.values()), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # what follows is begun then

    async def stop(self) -> None:
        """Cancel all work; the next start does the rest."""
        for task in list(self._doing.values()):
            task.cancel()

    def _begin(self, loaded: Loaded[S]) -> None:
        self._woken.discard(loaded)
        if loaded.dropped:
            return  # the shard that is loaded instead has the work, too
        for piece in self._outstanding(loaded.shard, loaded.partition.log.high_watermark):
            if (loaded, piece.key) not in self._doing:
                task = asyncio.get_running_loop().create_task(self._run(loaded, piece))
                self._doing[loaded, piece.key] = task

    async def _run(self, loaded: Loaded[S], piece: MarkerWork[S]) -> None:
        try:
            if not await self._do(loaded, piece):
                await asyncio.sleep(RETRY_S)
        except FencelogError as error:
            log.warning(
                "%s: markers are retried at its next load: %s", loaded.partition.name, error
            )
        else:
            self.wake(loaded)  # what came meanwhile of this key was left
        finally:
            del self._doing[loaded, piece.key]

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
