"""Requests that wait for an ownership shard: a claim for its grant, a watch for a change.

Nobody asks again and again: a claim is woken by its session, a watch by its group, in the step in
which the shard's records are committed.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from fencelog.broker.coordinators.runtime import CoordinatorRuntime, Loaded
from fencelog.coordination.ownership.model import OwnAnswer
from fencelog.coordination.ownership.shard import OwnershipShard
from fencelog.errors import NotLeaderError
from fencelog.ports import Random
from fencelog.types import Instant

SESSION_BYTES = 16
WATCHES_MAX = 10_000
"""Watches that wait at a time; any other is answered at once."""

Wakeup: TypeAlias = "asyncio.Future[None]"


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
                if answer is not None or not await _woken(wakeup, deadline):
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
                if self._watching > WATCHES_MAX or not await _woken(wakeup, deadline):
                    return False
            finally:
                self._unwatch(loaded, group, wakeup)

    def committed(self, loaded: Loaded[OwnershipShard]) -> None:
        """Records of a shard are committed: wake those who wait for what they say."""
        for session in loaded.shard.take_settled(loaded.partition.log.high_watermark):
            if session in self._claims:
                _wake(self._claims[session][1])
        for group, watches in self._watches.get(loaded, {}).items():
            revision = loaded.shard.revision(group)
            if revision != watches.revision:
                watches.revision = revision
                for wakeup in watches.wakeups:
                    _wake(wakeup)

    def close(self) -> None:
        """The broker stops: no request waits any more."""
        self._closed = True
        self._fail(lambda loaded: True, NotLeaderError("the broker is stopping"))

    # -- inside --------------------------------------------------------------------------------

    def _new_wakeup(self) -> Wakeup:
        if self._closed:
            raise NotLeaderError("the broker is stopping")
        return asyncio.get_running_loop().create_future()

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


def _wake(wakeup: Wakeup) -> None:
    if not wakeup.done():
        wakeup.set_result(None)


async def _woken(wakeup: Wakeup, deadline: Instant | None) -> bool:
    """Wait until somebody wakes it; False at the deadline."""
    try:
        async with asyncio.timeout_at(deadline):
            await wakeup
    except TimeoutError:
        return False
    return True
