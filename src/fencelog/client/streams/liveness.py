"""Readers that have died are declared offline by the others (R9).

Each reader holds a claim of its own name, with a lease. One of the others, the same for all of
them, declares it offline when that claim has ended; if that one does not, the next one does.
"""

import asyncio
from collections.abc import Awaitable, Callable

from fencelog.client.cluster import Cluster
from fencelog.client.ownership import Ownership
from fencelog.client.retry import RETRIABLE, Backoff
from fencelog.coordination.reader_group.rules import detectors
from fencelog.coordination.reader_group.state import GroupState
from fencelog.errors import RequestError
from fencelog.rpc.deadline import Deadline

GRACE_S = 0.2
"""A reader that has lost a connection, and not its lease, claims again within this time."""
RANKS_MAX = 10
FREE = "free"


class Liveness:
    """Watches the claims of a group's readers. Belongs to one event loop."""

    def __init__(
        self,
        cluster: Cluster,
        claims: str,
        me: str,
        state: Callable[[], GroupState],
        declare: Callable[[str, int], Awaitable[None]],
    ) -> None:
        """``claims``: the group of their claims. ``declare`` is told of a name and incarnation."""
        self._ownership, self._claims = Ownership(cluster), claims
        self._me, self._state, self._declare = me, state, declare
        self._free: dict[str, tuple[float, int]] = {}
        """Since when a claim has ended, and its epoch: later incarnations have other claims."""
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Look again: the state has changed."""
        self._changed.set()

    async def watch(self) -> None:
        """Follow who holds what, until cancelled. Raises RequestError."""
        backoff = Backoff()
        while True:
            try:
                async for changed in self._ownership.watch(self._claims, None):
                    backoff = Backoff()
                    now = asyncio.get_running_loop().time()
                    for each in changed:
                        if each.state == FREE:
                            since_s, _ = self._free.get(each.resource, (now, 0))
                            self._free[each.resource] = since_s, each.epoch
                        else:
                            self._free.pop(each.resource, None)
                    self.changed()
            except RequestError as error:
                if error.code not in RETRIABLE:
                    raise
                await backoff.wait(Deadline(60.0))

    async def declare_dead(self) -> None:
        """Declare those offline whose claims have ended, until cancelled."""
        while True:
            self._changed.clear()
            state = self._state()
            dead = [
                each
                for each, (_, epoch) in self._free.items()
                if each in state.readers and state.readers[each].incarnation <= epoch
            ]
            if not dead:
                await self._changed.wait()
                continue
            now = asyncio.get_running_loop().time()
            for name in dead:
                order = detectors(state, name)
                rank = order.index(self._me) if self._me in order else RANKS_MAX
                if name not in self._free:
                    continue  # another one was declared meanwhile
                since_s, epoch = self._free[name]
                if now - since_s >= GRACE_S * (1 + min(rank, RANKS_MAX)):
                    self._free[name] = now, epoch  # if it is still there then, once more
                    await self._declare(name, state.readers[name].incarnation)
            await asyncio.sleep(GRACE_S / 4)
