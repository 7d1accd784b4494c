"""Notices that the broker itself stood still: nobody could renew a lease meanwhile (O10).

A process that was stopped, or a virtual machine that was moved, finds every lease over when it goes
on. So the loop says every now and then that it runs, while there are leases, and before one ends it
is asked how long ago that was.
"""

import asyncio

from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.coordination.ownership.shard import OwnershipShard
from fencelog.types import Instant

TICK_S = 0.25
LATE_S = 0.1
"""A tick that is no later is not late."""


class Pauses:
    """Tells shards for how long the loop stood still.

    Invariant: while a shard has a deadline and ``start`` was called since, a tick is due.
    """

    def __init__(self, runtime: CoordinatorRuntime[OwnershipShard]) -> None:
        """Start without ticks."""
        self._runtime = runtime
        self._tick: asyncio.Handle | None = None
        self._seen = Instant(0.0)
        runtime.before_expiry = self.check

    def start(self) -> None:
        """There may be leases: tick from now on, until there are none."""
        if self._tick is None and self._has_leases():
            self._arm()

    def stop(self) -> None:
        """Tick no more."""
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    def check(self) -> None:
        """Tell the shards if the loop stood still since it was last seen to run."""
        if self._tick is None:
            return
        now = Instant(asyncio.get_running_loop().time())
        still_s, self._seen = now - self._seen, now
        if still_s > TICK_S + LATE_S:
            self._runtime.note(lambda shard, now: shard.paused(still_s))

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._seen = Instant(loop.time())
        self._tick = loop.call_later(TICK_S, self._run)

    def _run(self) -> None:
        self.check()
        if self._has_leases():
            self._arm()
        else:
            self._tick = None

    def _has_leases(self) -> bool:
        return any(each.shard.next_deadline() is not None for each in self._runtime.loaded())
