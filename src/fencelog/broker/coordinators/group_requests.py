"""Requests that wait for their group: a join for the rebalance, a sync for the leader's.

The shard decides who is answered what and when; it knows requests as tickets only. Here each ticket
has the future of the one who asked. An answer leaves once what it says is committed (E16), whoever
brought it about: the last member to join may hang up before the others are told.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection
from itertools import count
from typing import TypeVar

from fencelog.broker.coordinators.runtime import CoordinatorRuntime, Loaded
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
"""Of a client's or an instance's name in a member id, which has to fit where one is stored."""

A = TypeVar("A", JoinAnswer, SyncAnswer, LeaveAnswer, HeartbeatAnswer)
Waiting = tuple[Loaded[GroupShard], "asyncio.Future[Answer]"]


class GroupRequests:
    """What members ask of their group coordinator, answered when it is time.

    Each raises NotLeaderError where the shard cannot be loaded, or is thrown away meanwhile.
    """

    def __init__(
        self, runtime: CoordinatorRuntime[GroupShard], *, clock: WallClock, random: Random
    ) -> None:
        """Nobody waits yet."""
        self._runtime = runtime
        self._clock = clock
        self._random = random
        self._tickets = count(1)
        self._waiting: dict[Ticket, Waiting] = {}
        self._closed = False
        runtime.on_expired = self._expired
        runtime.on_unloaded = self._unloaded

    async def join(self, request: JoinRequest) -> JoinAnswer:
        """Wait for the generation that this member is part of."""
        fresh_id = self._fresh_id(request)

        def rule(shard: GroupShard, now: Instant, ticket: Ticket) -> Decision[Replies]:
            wall_ms = self._clock.now_ms()
            return shard.join(request, ticket, fresh_id=fresh_id, now=now, wall_ms=wall_ms)

        return await self._ask(request.group, rule, JoinAnswer)

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Wait for the leader's assignment."""

        def rule(shard: GroupShard, now: Instant, ticket: Ticket) -> Decision[Replies]:
            return shard.sync(request, ticket, now=now, wall_ms=self._clock.now_ms())

        return await self._ask(request.group, rule, SyncAnswer)

    async def heartbeat(self, group: str, caller: Caller) -> HeartbeatAnswer:
        """Say that a member lives."""

        def rule(shard: GroupShard, now: Instant, ticket: Ticket) -> Decision[Replies]:
            return shard.heartbeat(group, caller, ticket, now=now)

        return await self._ask(group, rule, HeartbeatAnswer)

    async def leave(self, group: str, leavers: tuple[Leaver, ...]) -> LeaveAnswer:
        """Take members out."""

        def rule(shard: GroupShard, now: Instant, ticket: Ticket) -> Decision[Replies]:
            return shard.leave(group, leavers, ticket, now=now, wall_ms=self._clock.now_ms())

        return await self._ask(group, rule, LeaveAnswer)

    async def forget_topics(self, topics: Collection[str]) -> None:
        """These are gone, and groups' offsets on them. What fails here the next start does."""
        for loaded in self._runtime.loaded():
            try:
                await self._runtime.decide_on(
                    loaded, lambda shard, now: shard.topics_deleted(topics)
                )
            except NotLeaderError as error:
                log.warning("offsets on topics that are gone stay for now: %s", error)

    def close(self) -> None:
        """The broker is stopping: members are sent away, to ask again where they find another."""
        self._closed = True
        for _, future in self._waiting.values():
            _fail(future, "the broker is stopping")

    # -- inside --------------------------------------------------------------------------------

    def _fresh_id(self, request: JoinRequest) -> str:
        """A member id that nobody can guess, and an operator can read."""
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
        self._waiting[ticket] = (loaded, future)
        try:
            self._runtime.carry_out(
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
            if waiting is not None and not waiting[1].done():
                waiting[1].set_result(answer)

    def _expired(self, response: object) -> None:
        assert isinstance(response, tuple)
        self._deliver(response)

    def _unloaded(self, loaded: Loaded[GroupShard]) -> None:
        for shard, future in self._waiting.values():
            if shard is loaded:
                _fail(future, f"{loaded.partition.name} went out of service")


def _fail(future: "asyncio.Future[Answer]", why: str) -> None:
    if not future.done():
        future.set_exception(NotLeaderError(why))
