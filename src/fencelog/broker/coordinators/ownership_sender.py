"""Carries out what grants and ends of claims ask of other leaders, then records that it is done.

The work is read from committed records each time (E16), so a start resumes it without further code,
and repeating a piece does no harm. Pieces of different claims are done concurrently: they share the
syncs of the logs that they write to.
"""

import asyncio
import logging
from collections.abc import Awaitable, Collection
from typing import TypeAlias

from fencelog.broker.coordinators.leaders import OFFLINE, REFUSED, Leaders
from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.coordinators.marker_sender import RETRY_S
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.network.limited_log import LimitedLog
from fencelog.broker.network.time_slices import ITEMS_PER_SLICE, TimeSlices
from fencelog.coordination.ownership.model import NO_FENCE, OwnershipTask
from fencelog.coordination.ownership.shard import OwnershipShard
from fencelog.coordination.shard import Decision
from fencelog.errors import ErrorCode, FencelogError
from fencelog.ports import WallClock
from fencelog.types import Instant, Offset, TopicPartition

log = logging.getLogger(__name__)

_ALL = ""
"""Stands for all sessions of a shard."""
PIECES_MAX = 1_000
"""Pieces that are done at a time; one that waits to be tried again is none of them."""

RETRY_S_MAX = 10.0
"""A piece that fails again and again is tried after twice as long each time, up to this."""
_ERRORS = {REFUSED: ErrorCode.POLICY_VIOLATION, OFFLINE: ErrorCode.KAFKA_STORAGE_ERROR}
"""What a claimant is told of a partition that does not take it."""

Piece: TypeAlias = tuple[Loaded[OwnershipShard], str]
"""The shard and the session of a claim with work."""


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
        self._doing: dict[Piece, asyncio.Task[None]] = {}
        self._delays_s: dict[Piece, float] = {}
        """Of pieces that have failed: for how long they wait the next time."""
        self._busy = 0
        self._due: dict[Loaded[OwnershipShard], None] = {}
        self._skipped: dict[Loaded[OwnershipShard], None] = {}
        """Shards that have pieces for which there was no place."""
        self._looking: asyncio.Handle | None = None
        self._limited_log = LimitedLog(log)
        self._stopped = False

    def wake(self, loaded: Loaded[OwnershipShard]) -> None:
        """Look for committed work of this shard in the next iteration of the loop."""
        if self._stopped:
            return
        self._due[loaded] = None
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_soon(self._look)

    def created(self, names: Collection[TopicPartition]) -> None:
        """Tell new partitions their owners, in the step in which they begin to serve.

        A topic may be deleted, and made again under the same name, while claims of it live.
        """
        for loaded in self._runtime.loaded():
            committed = loaded.partition.log.high_watermark
            for name, owner in loaded.shard.owners(committed, names):
                self._leaders.own_partition(name, owner)

    def loaded(self, loaded: Loaded[OwnershipShard]) -> None:
        """Tell all others the owners that this shard has, in case they do not know them.

        A crash comes between a partition's creation and its first record, for example, or a power
        cut takes from a group's coordinator, in ``os`` mode, what this shard has counted as done.
        """
        task = asyncio.get_running_loop().create_task(self._tell(loaded))
        self._doing[loaded, _ALL] = task

    async def _tell(self, loaded: Loaded[OwnershipShard]) -> None:
        committed, delay_s = loaded.partition.log.high_watermark, RETRY_S
        try:
            live = {each.session: each for each in loaded.shard.live(committed)}
            owners = [each for task in live.values() for each in task.partitions.items()]
            async for name, owner in self._time_slices.each(owners):
                if loaded.shard.is_live(owner.session):
                    self._leaders.own_partition(name, owner)
            while not await self._tried(loaded, self._all_told(loaded, live)):
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_S_MAX)
        finally:
            del self._doing[loaded, _ALL]

    async def _all_told(
        self, loaded: Loaded[OwnershipShard], untold: dict[str, OwnershipTask]
    ) -> bool:
        """Tell the coordinators of these claims; those that are to be told later stay in there."""
        async for part in self._time_slices.parts(list(untold.values())):
            async with asyncio.TaskGroup() as parts:
                told = {
                    each.session: self._tell_coordinators(parts, each)
                    for each in part
                    if loaded.shard.is_live(each.session)
                }
            for each in part:
                if all(answer.result() for answer in told.get(each.session, ())):
                    del untold[each.session]
        return loaded.dropped or not untold

    def _tell_coordinators(
        self, parts: asyncio.TaskGroup, piece: OwnershipTask
    ) -> list[asyncio.Task[bool]]:
        """Tell those of a claim's producers and group; the results are False: tell them later."""
        told = [
            parts.create_task(self._leaders.own_producers(key, owner))
            for key, owner in piece.producers.items()
        ]
        if piece.group is not None and piece.partitions:
            own = self._leaders.own_commits(piece.group, piece.partitions)
            told.append(parts.create_task(own))
        return told

    async def drain(self) -> None:
        """Do all work of all loaded shards; does not return while a leader refuses it."""
        while True:
            for loaded in self._runtime.loaded():
                self.wake(loaded)
            while self._due:
                await self._time_slices.next()
            if not self._doing:
                return
            await asyncio.wait(list(self._doing.values()))

    async def stop(self) -> None:
        """Cancel all work; the next start does the rest."""
        self._stopped = True
        self._due.clear()
        if self._looking is not None:
            self._looking.cancel()
        for task in list(self._doing.values()):
            task.cancel()

    def _look(self) -> None:
        """Begin what is not being done, for one time slice. Severing comes before all else (O7)."""
        self._looking = None
        due, self._due = self._due, {}
        found = [(loaded, self._sever(loaded)) for loaded in due if not loaded.dropped]
        items = 0
        for loaded, sessions in found:
            for session in sessions:
                if self._busy >= PIECES_MAX:
                    self._skipped[loaded] = None
                    break
                if items >= ITEMS_PER_SLICE:
                    self.wake(loaded)
                    break
                items += self._begin(loaded, session)

    def _sever(self, loaded: Loaded[OwnershipShard]) -> list[str]:
        """Sever the connections of ended claims; return the sessions whose work is to begin."""
        committed = loaded.partition.log.high_watermark
        sessions = [
            each
            for each in loaded.shard.outstanding(committed)
            if (loaded, each) not in self._doing
        ]
        for session in sessions:
            if not loaded.shard.is_live(session):
                self._leaders.sever(session)
        return sessions

    def _begin(self, loaded: Loaded[OwnershipShard], session: str) -> int:
        """Begin a piece; return how much it is."""
        piece = loaded.shard.task(session)
        assert piece is not None, session
        work = self._run(loaded, piece)
        self._busy += 1
        self._doing[loaded, session] = asyncio.get_running_loop().create_task(work)
        return 1 + len(piece.partitions)

    async def _run(self, loaded: Loaded[OwnershipShard], piece: OwnershipTask) -> None:
        key = loaded, piece.session
        delay_s = self._delays_s.pop(key, RETRY_S)
        try:
            if not await self._done(loaded, piece):
                await asyncio.sleep(delay_s)
                kept = ((each, s) for each, s in self._delays_s.items() if not each[0].dropped)
                self._delays_s = {**dict(kept), key: min(2 * delay_s, RETRY_S_MAX)}
        finally:
            del self._doing[loaded, piece.session]
        self.wake(loaded)  # not if it was cancelled: the broker ends

    async def _done(self, loaded: Loaded[OwnershipShard], piece: OwnershipTask) -> bool:
        """Do a piece in its place; False: try it again later."""
        try:
            return await self._tried(loaded, self._do(loaded, piece))
        finally:
            self._busy -= 1
            skipped, self._skipped = self._skipped, {}
            for each in skipped:
                self.wake(each)

    async def _tried(self, loaded: Loaded[OwnershipShard], work: Awaitable[bool]) -> bool:
        """Return what the work does, False if it fails: try it again later."""
        try:
            return await work
        except* FencelogError as errors:
            now = Instant(asyncio.get_running_loop().time())
            text = "%s: work is tried again: %s"
            reason = errors.exceptions[0]
            self._limited_log.warning(now, "failed", text, loaded.partition.name, reason)
        except* Exception:
            log.exception("%s: internal error, please report it", loaded.partition.name)
        return False

    async def _do(self, loaded: Loaded[OwnershipShard], piece: OwnershipTask) -> bool:
        """Do a piece and record it; False if a leader refused a part of it."""
        async with asyncio.TaskGroup() as parts:
            others = self._tell_coordinators(parts, piece)
            fences = await self._own_partitions(piece)
        if fences is None or not all(each.result() for each in others):
            return False
        if loaded.dropped:
            return True  # the shard that is loaded instead has the work, too

        def rule(shard: OwnershipShard, now: Instant) -> Decision[None]:
            del now
            refused = {name: _ERRORS[each] for name, each in fences.items() if each in _ERRORS}
            if refused:
                shard.give_up(piece.session, refused)
            known = {name: max(offset, NO_FENCE) for name, offset in fences.items()}
            return shard.done(piece.session, known, self._clock.now_ms(), is_live=piece.is_live)

        await self._runtime.decide_on(loaded, rule)
        return True

    async def _own_partitions(self, piece: OwnershipTask) -> dict[TopicPartition, Offset] | None:
        """Tell each partition's log; return the offsets, None if one refused for now."""
        fences: dict[TopicPartition, Offset] = {}
        refused = False
        async for part in self._time_slices.parts(sorted(piece.partitions.items())):
            asked = [(name, self._leaders.own_partition(name, owner)) for name, owner in part]
            for name, result in asked:
                offset = await result
                if offset is None:
                    refused = True
                else:
                    fences[name] = offset
        return None if refused else fences
