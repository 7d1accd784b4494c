"""Requests that wait for an ownership shard: a claim for its grant, a watch for a change.

Nobody asks again and again: a claim is woken by its session, a watch by its group, in the step in
which the shard's records are committed. Of thousands of watches, or of waits that end at one time,
each iteration of the loop wakes a few.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.coordination.ownership.model import OwnAnswer
from fencelog.coordination.ownership.shard import OwnershipShard
from fencelog.errors import NotLeaderError
from fencelog.ports import Random
from fencelog.types import Instant

SESSION_BYTES = 16
WATCHES_MAX = 10_000
"""Watches that wait at a time; any other is answered at once."""

WAKES_MAX = 50
"""Waits that are woken in one iteration of the loop."""

Wakeup: TypeAlias = "asyncio.Future[bool]"
"""True: something has changed; False: the wait is over."""


@dataclass(slots=True)
class _Watches:
    """The watches of one group."""

    revision: int
    """What they have seen."""
    wakeups: dict[Wakeup, None] = field(default_factory=dict)


class OwnershipRequests:
    """Claims and watches that wait.

    Each method raises NotLeaderError if the shard is unloaded meanwhile.
    """

    def __init__(self, runtime: CoordinatorRuntime[OwnershipShard], random: Random) -> None:
        """Start without waiting requests."""
        self._runtime = runtime
        self._random = random
        self._claims: dict[str, tuple[Loaded[OwnershipShard], Wakeup]] = {}
        self._watches: dict[Loaded[OwnershipShard], dict[str | None, _Watches]] = {}
        self._watching = 0
        self._waking: deque[tuple[Wakeup, bool]] = deque()
        self._closed = False
        runtime.on_unloaded = self._unloaded
        runtime.on_expired = self._expired

    def new_session(self) -> str:
        """Return the name of a new claim; nobody guesses another's."""
        return self._random.bytes(SESSION_BYTES).hex()

    async def settled(
        self, loaded: Loaded[OwnershipShard], session: str, deadline: Instant | None
    ) -> OwnAnswer | None:
        """Return the final answer to a claim, once it is committed; None at the deadline.

        ``loaded`` is the shard that decided: one that is loaded since knows of no wait.
        """
        while True:
            if loaded.dropped:
                raise loaded.gone()
            wakeup = self._new_wakeup()
            self._claims[session] = loaded, wakeup
            try:
                answer = await self._runtime.read_on(loaded, lambda shard: shard.answer_of(session))
                if answer is not None or not await self._woken(wakeup, deadline):
                    return answer
            finally:
                del self._claims[session]

    async def changed(self, group: str | None, seen: int, deadline: Instant) -> bool:
        """Return once a group's revision is another than ``seen``; False at the deadline."""
        loaded = await self._runtime.shard_of(group or "")
        while True:
            wakeup = self._new_wakeup()
            self._watch(loaded, group, wakeup)
            try:
                revision = await self._runtime.read_on(loaded, lambda shard: shard.revision(group))
                if revision != seen:
                    return True
                if self._watching > WATCHES_MAX or not await self._woken(wakeup, deadline):
                    return False
            finally:
                self._unwatch(loaded, group, wakeup)

    def committed(self, loaded: Loaded[OwnershipShard]) -> None:
        """Records of a shard are committed: wake those who wait for what they say."""
        for session in loaded.shard.take_settled(loaded.partition.log.high_watermark):
            if session in self._claims:
                _wake(self._claims[session][1], is_change=True)
        for group, watches in self._watches.get(loaded, {}).items():
            revision = loaded.shard.revision(group)
            if revision != watches.revision:
                watches.revision = revision
                for wakeup in watches.wakeups:
                    self._wake_later(wakeup, is_change=True)

    def close(self) -> None:
        """The broker stops: no request waits any more."""
        self._closed = True
        self._fail(lambda loaded: True, NotLeaderError("the broker is stopping"))

    # -- inside --------------------------------------------------------------------------------

    def _new_wakeup(self) -> Wakeup:
        if self._closed:
            raise NotLeaderError("the broker is stopping")
        return asyncio.get_running_loop().create_future()

    async def _woken(self, wakeup: Wakeup, deadline: Instant | None) -> bool:
        """Wait until somebody wakes it; False at the deadline."""
        if deadline is None:
            return await wakeup
        end = partial(self._wake_later, wakeup, is_change=False)
        timer = asyncio.get_running_loop().call_at(deadline, end)
        try:
            return await wakeup
        finally:
            timer.cancel()

    def _wake_later(self, wakeup: Wakeup, *, is_change: bool) -> None:
        if not self._waking:
            asyncio.get_running_loop().call_soon(self._wake_some)
        self._waking.append((wakeup, is_change))

    def _wake_some(self) -> None:
        for _ in range(min(WAKES_MAX, len(self._waking))):
            wakeup, is_change = self._waking.popleft()
            _wake(wakeup, is_change=is_change)
        if self._waking:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _watch(self, loaded: Loaded[OwnershipShard], group: str | None, wakeup: Wakeup) -> None:
        groups = self._watches.setdefault(loaded, {})
        if group not in groups:
            groups[group] = _Watches(loaded.shard.revision(group))
        groups[group].wakeups[wakeup] = None
        self._watching += 1

    def _unwatch(self, loaded: Loaded[OwnershipShard], group: str | None, wakeup: Wakeup) -> None:
        self._watching -= 1
        groups = self._watches[loaded]
        del groups[group].wakeups[wakeup]
        if not groups[group].wakeups:
            del groups[group]
        if not groups:
            del self._watches[loaded]

    def _expired(self, response: object) -> None:
        """A claim that waited may be refused, of which no record tells."""
        del response
        for loaded in self._runtime.loaded():
            self.committed(loaded)

    def _unloaded(self, loaded: Loaded[OwnershipShard]) -> None:
        self._fail(lambda each: each is loaded, loaded.gone())

    def _fail(self, fits: Callable[[Loaded[OwnershipShard]], bool], error: NotLeaderError) -> None:
        waiting = [wakeup for loaded, wakeup in self._claims.values() if fits(loaded)]
        for loaded, groups in self._watches.items():
            if fits(loaded):
                waiting += (wakeup for each in groups.values() for wakeup in each.wakeups)
        for wakeup in waiting:
            if not wakeup.done():
                wakeup.set_exception(error)
                wakeup.exception()  # it may be one that is not awaited yet


def _wake(wakeup: Wakeup, *, is_change: bool) -> None:
    if not wakeup.done():
        wakeup.set_result(is_change)
