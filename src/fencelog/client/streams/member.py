"""A reader as a member of its group: it joins, does what the state says, and goes offline.

What it does follows from the group's state alone (``coordination.reader_group.rules``). What must
happen between two events is asked of the reader (``reach``, ``shed``), which says when that was.
Segments are read on while the state cannot be reached (R11): only what changes the state waits.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from fencelog.client.asynchronous import Claim
from fencelog.client.cluster import Cluster
from fencelog.client.grants import claim_options, this_process
from fencelog.client.retry import RETRIABLE, Backoff
from fencelog.client.streams.group_model import (
    ReaderGroupError,
    ReaderOfflineError,
    ReaderOptions,
    state_topic,
)
from fencelog.client.streams.group_state import GroupCopy
from fencelog.client.streams.liveness import Liveness
from fencelog.client.streams.segment_reader import ReadAgainError, SegmentPlace, SegmentReader
from fencelog.client.streams.settling import Settling
from fencelog.client.streams.successors import successors
from fencelog.coordination.reader_group.rules import Reach, Shed, Take, next_step
from fencelog.coordination.reader_group.state import GroupState, Owned, Reader
from fencelog.coordination.reader_group.updates import (
    CheckpointReached,
    Completed,
    Joined,
    Released,
    Took,
    WentOffline,
)
from fencelog.errors import (
    ClaimRefusedError,
    ErrorCode,
    FencelogError,
    OwnershipLostError,
    RequestError,
)
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure

TAKE_MAX = 1_000
IDLE_S = 5.0
COMPACT_AFTER = 1_000
"""Updates after which the state is stored as a mark."""
FENCED = (OwnershipLostError, ClaimRefusedError, ReadAgainError)


class Member:
    """An online reader, from ``open`` to ``close``. Belongs to one event loop.

    Attributes:
        segments: what the state gives to it, by index.
        failure: why it is no member any more.
        wake: set when the reader has something to do.
        reach: checkpoints that it is to reach between two events.
        shed: the segment that it is to stop between two events.
    """

    def __init__(self, cluster: Cluster, group: str, name: str, options: ReaderOptions) -> None:
        """Nothing is sent before ``open``."""
        self._cluster = Cluster(cluster.options)
        # The watch of claims holds its connection up: the state's follower has another one.
        self._watching = Cluster(cluster.options)
        self._group, self._name, self._options = group, name, options
        self._holder = f"{name}@{this_process()}"
        self.segments: dict[int, SegmentReader] = {}
        self.failure: Exception | None = None
        self.wake = asyncio.Event()
        self.reach: tuple[str, ...] = ()
        self.shed: int | None = None
        self._reached: tuple[tuple[str, ...], dict[int, tuple[int, int]]] | None = None
        self._stopped: SegmentReader | None = None
        self._leaving: set[SegmentReader] = set()
        self._todo = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._shed_s = self._committed_s = float("-inf")
        self._settling = Settling()
        self._again: Exception | None = None
        """Why processed events are handed out again, until a commit was told."""

    @property
    def state(self) -> GroupState:
        """The group's state as it is known here."""
        return self._copy.state

    @property
    def is_finished(self) -> bool:
        """Whether the group has read everything."""
        return self.state.is_finished

    async def open(self) -> None:
        """Join the group. An older incarnation of the name is fenced first (R6).

        Raises ReaderGroupError, ClaimRefusedError, SynchronizerError, RequestError.
        """
        options = claim_options(
            self._name,
            group=state_topic(self._group),
            generation=None,
            transactional_id=None,
            lease_s=self._options.lease_s,
            holder=self._holder,
        )
        self._claim = Claim(self._cluster, options, None, 0.0)
        try:
            await self._claim.__aenter__()
            self._incarnation = self._claim.epoch
            self._copy = GroupCopy(self._cluster, self._group, self._name, self._incarnation)
            await self._copy.write(lambda _: Joined(self._name, self._incarnation))
        except BaseException:
            await self._release_all()
            raise
        self._claim.on_lost(self._lost)
        self._liveness = Liveness(
            self._watching,
            state_topic(self._group),
            self._name,
            lambda: self.state,
            self._declare,
        )
        self._look()
        for work in (
            self._follow(),
            self._coordinate(),
            self._liveness.watch(),
            self._liveness.declare_dead(),
        ):
            self._start(work)

    async def close(self) -> None:
        """Go offline at the positions that are processed, which are committed first (R9)."""
        await self._end_tasks()
        try:
            if self.failure is None:
                # If it cannot be written, the others find the end of its claim.
                with suppress(ReaderGroupError, RequestError):
                    await self._go_offline()
        finally:
            await self._release_all()

    async def _go_offline(self) -> None:
        positions = {}
        for index, segment in self.segments.items():
            if await self._committed(segment):
                positions[index] = segment.position
        offline = WentOffline(self._name, self._incarnation, positions)
        await self._copy.write(lambda _: offline)

    def reached(self) -> None:
        """The reader is between two events, and has processed all that it has handed out."""
        names, self.reach = self.reach, ()
        me = self.state.online(self._name, self._incarnation)
        if me is not None:
            at = {i: (self._position(i, owned), owned.taken) for i, owned in me.segments.items()}
            self._reached = names, at
        self._todo.set()

    def stopped(self) -> None:
        """The reader hands out no more of the segment that it is to give away."""
        index, self.shed = self.shed, None
        found = None if index is None else self.segments.get(index)
        if found is not None:
            found.hold()
            self._stopped = found
        self._todo.set()

    def check_online(self) -> None:
        """Raise why this is no member any more, as far as it is known here."""
        if self.failure is not None:
            raise self.failure
        self._me(self.state)

    async def commit(self, hands: SegmentReader | None = None) -> None:
        """Commit all positions, also that of the segment in hands, which may have ended here.

        Raises ReaderOfflineError once the group goes on without this reader, OwnershipLostError or
        ReadAgainError where it is handed out again what was processed; RequestError.
        """
        self.check_online()
        await self._commit_all()
        left = [each for each in (*self.segments.values(), hands) if each and each.is_uncommitted]
        if left:
            # After a reset they are others, and what was committed before does not count.
            me = self._me(await self._copy.fetch())
            for each in left:
                if _is_same(each, me):
                    self._again = each.give_up()
        self.check_online()
        error, self._again = self._again, None
        if error is not None:
            raise error

    async def _commit_all(self) -> None:
        for segment in list(self.segments.values()):
            await self._committed(segment)

    # --- tasks

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
        self.wake.set()
        for task in self._tasks:
            task.cancel()

    def _lost(self, error: OwnershipLostError) -> None:
        self._fail(ReaderOfflineError(f"reader {self._name} of group {self._group}: {error.text}"))

    async def _follow(self) -> None:
        """Read what is new of the state, until cancelled."""
        backoff = Backoff()
        while True:
            try:
                await self._copy.wait_changed()
            except RequestError as error:
                if error.code not in RETRIABLE:
                    raise self._gone(error) from error
                await backoff.wait(Deadline(60.0))
                continue
            backoff = Backoff()
            self._look()

    def _look(self) -> None:
        """Take note of a state that may be another one."""
        self._settling.look(self.state, asyncio.get_running_loop().time())
        self._todo.set()
        self.wake.set()
        self._liveness.changed()

    async def _coordinate(self) -> None:
        """Do what the state says, until cancelled."""
        backoff = Backoff()
        while True:
            self._todo.clear()
            try:
                wait_s = await self._act()
            except RequestError as error:
                if error.code not in RETRIABLE:
                    raise self._gone(error) from error
                await backoff.wait(Deadline(60.0))  # R11: what is owned is read meanwhile
                continue
            backoff = Backoff()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._todo.wait()

    async def _act(self) -> float:
        """Do what there is to do now; return after how many seconds there may be more."""
        await self._reconcile()
        await self._commit_in_time()
        await self._complete()
        await self._report()
        await self._give_away()
        now = asyncio.get_running_loop().time()
        settles_s = self._settling.over_at_s
        take_max = TAKE_MAX if now >= settles_s else 1 - len(self._me(self.state).segments)
        may_shed = now - self._shed_s >= self._options.window_s
        step = next_step(self.state, self._name, may_shed=may_shed, take_max=take_max)
        match step:
            case Take():
                await self._take(take_max)
            case Shed(segment) if self._stopped is None:
                self.shed = segment
                self.wake.set()
            case Reach(checkpoints) if self._reached is None:
                self.reach = checkpoints
                self.wake.set()
        await self._compact()
        wait_s = min(IDLE_S, self._options.commit_interval_s or IDLE_S)
        if now < settles_s:
            wait_s = min(wait_s, settles_s - now)
        if not may_shed:
            wait_s = min(wait_s, self._shed_s + self._options.window_s - now)
        return max(wait_s, 0.0) + 0.01

    # --- what there is to do

    def _me(self, state: GroupState) -> Reader:
        me = state.online(self._name, self._incarnation)
        if me is None:
            raise ReaderOfflineError(
                f"reader {self._name} of group {self._group} was declared offline, or another "
                "process has joined by its name; others go on with its segments. Stop, or join anew"
            )
        return me

    async def _reconcile(self) -> None:
        """Read the segments that the state gives to this reader, and no others."""
        me = self._me(self.state)
        for index, segment in list(self.segments.items()):
            if _is_same(segment, me):
                if segment.failure is None:
                    continue
                if not isinstance(segment.failure, FENCED):
                    raise segment.failure
                if not isinstance(segment.failure, ReadAgainError):
                    # It may be another reader's since; if it is not, it is claimed again.
                    me = self._me(await self._copy.fetch())
                if segment.is_uncommitted and _is_same(segment, me):
                    self._again = segment.give_up()
            if self._stopped is segment:
                self._stopped = None
            del self.segments[index]
            await self._stop(segment)
        for index, owned in me.segments.items():
            if index not in self.segments:
                place = SegmentPlace.of(
                    self._group, self.state, self._copy.topic_id, index, self._holder
                )
                self.segments[index] = SegmentReader(
                    self._cluster, place, owned, self._options, self._segment_changed
                )
        self.wake.set()

    def _segment_changed(self, needs_work: bool) -> None:
        self.wake.set()
        if needs_work:
            self._todo.set()

    async def _commit_in_time(self) -> None:
        now, interval_s = asyncio.get_running_loop().time(), self._options.commit_interval_s
        if interval_s is not None and now - self._committed_s >= interval_s:
            self._committed_s = now
            await self._commit_all()

    async def _committed(self, segment: SegmentReader) -> bool:
        """Commit a segment's position; return whether it is read by this reader still."""
        try:
            return await segment.commit()
        except RequestError as error:
            if error.code in RETRIABLE:
                raise
            # Others commit there now.
            what = f"commit of segment {segment.index}"
            segment.failure = failure(ErrorCode.OWNER_FENCED, what, error.text)
            self._todo.set()
            return False

    async def _complete(self) -> None:
        """Tell the group of segments that are read to their ends (R8)."""
        for segment in [each for each in self.segments.values() if each.is_complete]:
            if not await self._committed(segment):
                continue
            settings, end = self.state.settings, segment.end
            assert settings is not None, "it was created before anybody joined"
            assert end is not None, segment.index
            after = await successors(self._cluster, settings, segment.index)
            await self._copy.write(partial(self._completed, segment, end, after))
            self._look()
            self.segments.pop(segment.index, None)
            await self._stop(segment)

    def _completed(
        self,
        segment: SegmentReader,
        end: int,
        after: dict[int, tuple[int, ...]],
        state: GroupState,
    ) -> Completed | None:
        owned = self._me(state).segments.get(segment.index)
        if owned is None or owned.taken != segment.taken:
            return None
        at = max(end, owned.offset)
        return Completed(self._name, self._incarnation, segment.index, at, after)

    async def _report(self) -> None:
        """Write that checkpoints are reached (R10)."""
        if self._reached is None:
            return
        names, positions = self._reached
        await self._commit_all()

        def reached(state: GroupState) -> CheckpointReached | None:
            me = self._me(state)
            left = tuple(each for each in names if each in state.checkpoints)
            at = {
                index: max(offset, me.segments[index].offset)
                for index, (offset, taken) in positions.items()
                if index in me.segments and me.segments[index].taken == taken
            }
            if not left or not at:
                return None
            return CheckpointReached(self._name, self._incarnation, left, at)

        await self._copy.write(reached)
        self._reached = None
        self._look()

    async def _give_away(self) -> None:
        """Release the segment that the reader has stopped, at its position (R7)."""
        segment = self._stopped
        if segment is None or not await self._committed(segment):
            return

        def released(state: GroupState) -> Released | None:
            owned = self._me(state).segments.get(segment.index)
            if owned is None or owned.taken != segment.taken:
                return None
            at = max(segment.position, owned.offset)
            return Released(self._name, self._incarnation, segment.index, at)

        await self._copy.write(released)
        self._stopped = None
        self._shed_s = asyncio.get_running_loop().time()
        self.segments.pop(segment.index, None)
        self._look()
        await self._stop(segment)

    async def _take(self, most: int) -> None:
        def took(state: GroupState) -> Took | None:
            self._me(state)
            step = next_step(state, self._name, may_shed=False, take_max=most)
            if not isinstance(step, Take):
                return None
            return Took(self._name, self._incarnation, step.segments)

        await self._copy.write(took)
        self._look()

    async def _compact(self) -> None:
        is_first = min(self.state.readers, default=None) == self._name
        if is_first and self._copy.updates_since_mark >= COMPACT_AFTER:
            await self._copy.compact()

    async def _declare(self, name: str, incarnation: int) -> None:
        """Declare a reader offline whose claim has ended (R9)."""

        def offline(state: GroupState) -> WentOffline | None:
            if state.online(name, incarnation) is None:
                return None
            return WentOffline(name, incarnation, {})

        try:
            await self._copy.write(offline)
        except RequestError as error:
            if error.code not in RETRIABLE:
                raise
        self._look()

    # --- inside

    def _position(self, index: int, owned: Owned) -> int:
        segment = self.segments.get(index)
        is_same = segment is not None and segment.taken == owned.taken
        return max(segment.position, owned.offset) if segment and is_same else owned.offset

    def _gone(self, error: RequestError) -> Exception:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return error
        return ReaderGroupError(
            f"reader group {self._group}, or its stream, was deleted: {error.text}"
        )

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _stop(self, segment: SegmentReader) -> None:
        self._leaving.add(segment)  # if this is cancelled, the end of the reader waits for it
        await segment.stop()
        self._leaving.discard(segment)

    async def _end_claim(self) -> None:
        with suppress(FencelogError):
            await self._claim.release()

    async def _release_all(self) -> None:
        async with AsyncExitStack() as ends:  # the last one first, whatever those before it raise
            ends.push_async_callback(self._watching.close)
            ends.push_async_callback(self._cluster.close)
            ends.push_async_callback(self._end_claim)
            for segment in (*self._leaving, *self.segments.values()):
                ends.push_async_callback(segment.stop)
            self.segments.clear()


def _is_same(segment: SegmentReader, me: Reader) -> bool:
    """Whether the reader has the segment by the update by which it was begun."""
    owned = me.segments.get(segment.index)
    return owned is not None and owned.taken == segment.taken
