"""Connections at one broker that act for a claim whose shard another one has (O7, O10)."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from fencelog.broker.coordinators.attached_claims import AttachedClaims
from fencelog.coordination.ownership.model import OwnAnswer
from fencelog.errors import ErrorCode, NotLeaderError
from tests.support.brokers import remote_leaders
from tests.support.loops import run_on
from tests.support.node import Peer, World
from tests.support.ownership import Claimant

LEASE_MS = 6_000
CLAIM = (None, "session", 3)


class Shard:
    """Answers as it is told, and counts."""

    def __init__(self) -> None:
        self.answer: OwnAnswer | Exception | None = OwnAnswer(
            error=ErrorCode.NONE, lease_ms=LEASE_MS
        )
        self.asked = 0
        self.connected = True
        self.severed_s: float | None = None
        self.claims = AttachedClaims(self._ask, lambda session: self.connected, self._sever)

    async def _ask(self, group: str | None, session: str, epoch: int) -> OwnAnswer:
        assert (group, session, epoch) == CLAIM
        self.asked += 1
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer

    def _sever(self, session: str) -> None:
        assert session == CLAIM[1]
        self.severed_s = asyncio.get_running_loop().time()


def play(scenario: Coroutine[Any, Any, None]) -> None:
    run_on("simulated", lambda: scenario)


def test_the_right_is_asked_for_again_as_long_as_a_connection_uses_it() -> None:
    async def scenario() -> None:
        shard = Shard()
        for _ in range(3):  # connections of one claim share the questions
            assert (await shard.claims.attach(*CLAIM)).error is ErrorCode.NONE
        asked = shard.asked
        await asyncio.sleep(10 * LEASE_MS / 1000)
        assert shard.severed_s is None
        assert 10 <= shard.asked - asked <= 30
        shard.connected = False
        await asyncio.sleep(LEASE_MS / 1000)
        asked = shard.asked
        await asyncio.sleep(LEASE_MS / 1000)
        assert shard.asked == asked
        assert shard.severed_s is None

    play(scenario())


@pytest.mark.parametrize("answer", [NotLeaderError("nobody leads it"), None], ids=["error", "none"])
def test_without_an_answer_the_connections_are_severed_with_the_lease(
    answer: Exception | None,
) -> None:  # O10
    async def scenario() -> None:
        shard = Shard()
        began_s = asyncio.get_running_loop().time()
        await shard.claims.attach(*CLAIM)
        shard.answer = answer
        await asyncio.sleep(2 * LEASE_MS / 1000)
        assert shard.severed_s is not None
        assert 0.9 * LEASE_MS <= (shard.severed_s - began_s) * 1000 <= 1.1 * LEASE_MS
        shard.severed_s, shard.answer = None, OwnAnswer(error=ErrorCode.NONE, lease_ms=LEASE_MS)
        await shard.claims.attach(*CLAIM)
        await asyncio.sleep(2 * LEASE_MS / 1000)
        assert shard.severed_s is None
        await shard.claims.stop()

    play(scenario())


def test_an_outage_within_the_lease_severs_nobody() -> None:
    async def scenario() -> None:
        shard = Shard()
        await shard.claims.attach(*CLAIM)
        sound, shard.answer = shard.answer, NotLeaderError("nobody leads it")
        await asyncio.sleep(0.8 * LEASE_MS / 1000)
        shard.answer = sound
        await asyncio.sleep(5 * LEASE_MS / 1000)
        assert shard.severed_s is None
        await shard.claims.stop()

    play(scenario())


def test_a_claim_that_has_ended_unheard_is_severed_at_the_next_question() -> None:  # O7
    async def scenario() -> None:
        shard = Shard()
        await shard.claims.attach(*CLAIM)
        shard.answer = OwnAnswer(error=ErrorCode.OWNER_FENCED)
        await asyncio.sleep(LEASE_MS / 1000)
        assert shard.severed_s is not None

    play(scenario())


async def test_the_shard_elsewhere_knows_who_may_act_for_a_claim(world: World) -> None:  # O7
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        claimant = Claimant(peer)
        async with remote_leaders(node) as (_, leaders):
            with pytest.raises(NotLeaderError):
                await leaders.attach(None, "session", 1)  # there is no shard yet
            assert (await claimant.own("t/0")).error_code == 0
            answer = await leaders.attach(None, claimant.session, claimant.epoch)
            assert answer.error is ErrorCode.NONE
            assert answer.lease_ms > 0
            for wrong in (
                ("g", claimant.session, claimant.epoch),
                (None, "another", claimant.epoch),
                (None, claimant.session, claimant.epoch + 1),
            ):
                assert (await leaders.attach(*wrong)).error is ErrorCode.OWNER_FENCED
            assert (await claimant.release()).error_code == 0
            ended = await leaders.attach(None, claimant.session, claimant.epoch)
            assert ended.error is ErrorCode.OWNER_FENCED
            await node.server.stop(drain_s=0)
            with pytest.raises(NotLeaderError):
                await leaders.attach(None, claimant.session, claimant.epoch)


async def test_an_end_that_is_told_while_the_shard_is_asked_severs_the_connection(
    world: World,
) -> None:  # O7
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as attaching:
        claimant = Claimant(peer)
        assert (await claimant.own("name")).error_code == 0

        async def overtaken(group: str | None, session: str, epoch: int) -> OwnAnswer:
            node.broker.leaders.sever(session)
            return OwnAnswer(error=ErrorCode.NONE, session=session, lease_ms=LEASE_MS)

        node.broker.leaders.attach = overtaken  # type: ignore[method-assign]
        with pytest.raises(asyncio.IncompleteReadError):
            await claimant.attach(attaching)
