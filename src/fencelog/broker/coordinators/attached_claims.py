"""Claims whose connections to this broker act for them, while their shards may be led elsewhere.

The shard tells every broker that a claim has ended, but not one that is cut off. So the right to
act for a claim is good here for the claim's lease, counted from the question that the shard has
answered; it is asked again before, and without an answer the connections are severed. What a claim
has owned refuses them by its epoch in any case: this bounds how long they stay open.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fencelog.broker.background import Background
from fencelog.coordination.ownership.model import OwnAnswer
from fencelog.errors import ErrorCode, NotLeaderError
from fencelog.wire.own import LEASE_MS_MIN

log = logging.getLogger(__name__)

RETRY_S = 0.2
ASK_AGAIN_PART = 1 / 2
"""Of the lease: when the shard is asked again."""

Ask = Callable[[str | None, str, int], Awaitable[OwnAnswer]]
"""Asks the shard of a group whether connections may act for a session with this epoch."""


class AttachedClaims:
    """The claims that connections here are attached to."""

    def __init__(
        self, ask: Ask, has_connections: Callable[[str], bool], sever: Callable[[str], None]
    ) -> None:
        """``has_connections`` and ``sever`` are of the connections to this broker."""
        self._ask = ask
        self._has_connections = has_connections
        self._sever = sever
        self._kept: set[str] = set()
        self._background = Background()

    async def attach(self, group: str | None, session: str, epoch: int) -> OwnAnswer:
        """Ask for a connection that wants to act for a claim. Raises NotLeaderError."""
        asked_s = asyncio.get_running_loop().time()
        answer = await self._ask(group, session, epoch)
        if answer.error is ErrorCode.NONE and session not in self._kept:
            self._kept.add(session)
            self._background.begin(self._keep(group, session, epoch, asked_s, _lease_s(answer)))
        return answer

    async def stop(self) -> None:
        """Ask no more."""
        await self._background.stop()

    async def _keep(
        self, group: str | None, session: str, epoch: int, asked_s: float, lease_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        ask_at_s, over_at_s = asked_s + ASK_AGAIN_PART * lease_s, asked_s + lease_s
        try:
            while True:
                await asyncio.sleep(max(ask_at_s - loop.time(), 0))
                if not self._has_connections(session):
                    return
                asked_s = loop.time()
                try:
                    async with asyncio.timeout_at(over_at_s):
                        answer = await self._ask(group, session, epoch)
                except (NotLeaderError, TimeoutError) as error:
                    if loop.time() >= over_at_s:
                        log.warning(
                            "connections of a claim end here, nobody confirms it: %s", error
                        )
                        self._sever(session)
                        return
                    ask_at_s = min(loop.time() + RETRY_S, over_at_s)
                    continue
                if answer.error is not ErrorCode.NONE:
                    self._sever(session)
                    return
                lease_s = _lease_s(answer)
                ask_at_s, over_at_s = asked_s + ASK_AGAIN_PART * lease_s, asked_s + lease_s
        finally:
            self._kept.discard(session)


def _lease_s(answer: OwnAnswer) -> float:
    return max(answer.lease_ms, LEASE_MS_MIN) / 1000
