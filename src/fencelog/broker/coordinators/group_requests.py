"""Requests that wait for their group: JoinGroup for the rebalance, SyncGroup for the assignment.

The shard decides which request gets which answer, and knows requests by their tickets only; here
each ticket has the future of its request. An answer is sent once the state that it shows is
committed (E16), whichever request caused it: the last member to join may disconnect before.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection
from itertools import count
from typing import NamedTuple, TypeVar

from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.coordination.group.model import (
    Answer,
    Caller,
    HeartbeatAnswer,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    Leaver,
    Replies,
    SyncAnswer,
    SyncRequest,
    Ticket,
)
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.shard import Decision
from fencelog.errors import NotLeaderError
from fencelog.ports import Random, WallClock
from fencelog.types import Instant

log = logging.getLogger(__name__)

NAME_CHARACTERS_MAX = 255
"""Characters of the client id or instance id in a member id, which must fit into a record."""

A = TypeVar("A", JoinAnswer, SyncAnswer, LeaveAnswer, HeartbeatAnswer)


class Waiting(NamedTuple):
    """A request without an answer yet, and the shard that will answer it."""

    loaded: Loaded[GroupShard]
    answer: "asyncio.Future[Answer]"


class GroupRequests:
    """Requests of members to their group coordinator.

    Each raises NotLeaderError if the shard cannot be loaded, or is unloaded before it answers.
    """

    def __init__(
        self, runtime: CoordinatorRuntime[GroupShard], *, clock: WallClock, random: Random
    ) -> None:
        """Start without waiting requests."""
        self._runtime = runtime
        self._clock = clock
        self._random = random
        self._tickets = count(1)
        self._waiting: dict[Ticket, Waiting] = {}
        self._closed = False
        runtime.on_expired = self._expired
        runtime.on_unloaded = self._unloaded

    async def join(self, request: JoinRequest) -> JoinAnswer:
        """JoinGroup: wait for the next generation."""
        fresh_id = self._fresh_id(request)

        def rule(shard: GroupShard, now: Instant, ticket: Ticket) -> Decision[Replies]:
            wall_ms = self._clock.now_ms()
            return shard.join(request, ticket, fresh_id=fresh_id, now=now, wall_ms=wall_ms)

        return await self._ask(request.group, rule, JoinAnswer)

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """SyncGroup: wait for the leader's assignment."""

        def rule(shard: GroupShard, now: Instant, ticket: Ticket) -> Decision[Replies]:
            return shard.sync(request, ticket, now=now, wall_ms=self._clock.now_ms())

        return await self._ask(request.group, rule, SyncAnswer)

    async def heartbeat(self, group: str, caller: Caller) -> HeartbeatAnswer:
        """Heartbeat: touch the member's session."""

        def rule(shard: GroupShard, now: Instant, ticket: Ticket) -> Decision[Replies]:
            return shard.heartbeat(group, caller, ticket, now=now)

        return await self._ask(group, rule, HeartbeatAnswer)

    async def leave(self, group: str, leavers: tuple[Leaver, ...]) -> LeaveAnswer:
        """LeaveGroup: remove members."""

        def rule(shard: GroupShard, now: Instant, ticket: Ticket) -> Decision[Replies]:
            return shard.leave(group, leavers, ticket, now=now, wall_ms=self._clock.now_ms())

        return await self._ask(group, rule, LeaveAnswer)

    async def forget_topics(self, topics: Collection[str]) -> None:
        """Delete the offsets of deleted topics; if that fails, the next start does it.

        It is decided in this step: the next topic of a name may have offsets in the next one.
        """

        def failed(error: NotLeaderError) -> None:
            log.warning("offsets of deleted topics stay until the next start: %s", error)

        for loaded in self._runtime.decide_everywhere(
            lambda shard, now: shard.topics_deleted(topics), failed
        ):
            try:
                await self._runtime.await_commit(loaded)
            except NotLeaderError as error:
                failed(error)

    def close(self) -> None:
        """Fail all waiting requests: the broker is stopping."""
        self._closed = True
        for waiting in self._waiting.values():
            _fail(waiting, NotLeaderError("the broker is stopping"))

    # -- inside --------------------------------------------------------------------------------

    def _fresh_id(self, request: JoinRequest) -> str:
        """Return a member id that cannot be guessed and that names its client."""
        number = uuid.UUID(bytes=self._random.bytes(16), version=4)
        name = request.instance_id or request.client_id
        return f"{name[:NAME_CHARACTERS_MAX]}-{number}"

    async def _ask(
        self,
        group: str,
        rule: Callable[[GroupShard, Instant, Ticket], Decision[Replies]],
        kind: type[A],
    ) -> A:
        loaded = await self._runtime.shard_of(group)
        if self._closed:
            raise NotLeaderError("the broker is stopping")
        ticket = Ticket(next(self._tickets))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = Waiting(loaded, future)
        try:
            self._runtime.decide_then(
                loaded, lambda shard, now: rule(shard, now, ticket), self._deliver
            )
            answer = await future
        finally:
            del self._waiting[ticket]
        assert isinstance(answer, kind), answer
        return answer

    def _deliver(self, replies: Replies) -> None:
        for ticket, answer in replies:
            waiting = self._waiting.get(ticket)
            if waiting is not None and not waiting.answer.done():
                waiting.answer.set_result(answer)

    def _expired(self, response: object) -> None:
        assert isinstance(response, tuple)
        self._deliver(response)

    def _unloaded(self, loaded: Loaded[GroupShard]) -> None:
        for waiting in self._waiting.values():
            if waiting.loaded is loaded:
                _fail(waiting, loaded.gone())


def _fail(waiting: Waiting, error: NotLeaderError) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
