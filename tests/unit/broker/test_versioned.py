"""Versioned transactions through a whole node: many writers, one decision (V1 to V8)."""

import asyncio
from dataclasses import replace

import pytest

from fencelog.errors import ErrorCode
from fencelog.wire.messages.join_transaction import JoinTransactionResponse
from fencelog_sim.world.disk import Loss
from fencelog_sim.world.gate import Fault
from tests.support.node import Peer, World, until, visible
from tests.support.transactions import Run, settled


async def values(peer: Peer, partition: int = 0) -> list[str]:
    return [value for _, value in visible(await peer.fetch("t", partition=partition))]


async def test_only_the_writes_of_the_named_attempts_are_committed(
    world: World,
) -> None:  # S3, S4, V1
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2)
        run = Run(peer)
        winner, loser, other = await run.join(), await run.join(), await run.join()
        assert await run.write(loser, "lost") is ErrorCode.NONE
        assert await run.write(winner, "won") is ErrorCode.NONE
        assert await run.write(other, "won too", partition=1) is ErrorCode.NONE
        assert await values(peer) == []
        assert await run.commit(winner, other) is ErrorCode.NONE
        await settled(node, "t", 0)
        await settled(node, "t", 1)
        assert await values(peer) == ["won"]
        assert await values(peer, 1) == ["won too"]


async def test_a_replayed_batch_is_recognised_and_writes_nothing(world: World) -> None:  # S3, V3
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        run = Run(peer)
        first = await run.join()
        await run.write(first, "a")
        assert await run.commit(first) is ErrorCode.NONE
        restarted = replace(run, run_id="run-2")
        assert (await restarted.join()).error_code == ErrorCode.ALREADY_COMMITTED
        assert await restarted.commit() is ErrorCode.NONE
        assert await restarted.commit(fingerprint=b"other") is ErrorCode.VERSION_CONFLICT
        stale = replace(restarted, version=-1)
        assert (await stale.join()).error_code == ErrorCode.INVALID_REQUEST
        gap = replace(restarted, version=2)
        assert (await gap.join()).error_code == ErrorCode.VERSION_GAP
        next_one = replace(restarted, version=1)
        joined = await next_one.join()
        await next_one.write(joined, "b")
        assert await next_one.commit(joined) is ErrorCode.NONE
        assert (await restarted.join()).error_code == ErrorCode.STALE_VERSION
        await settled(node, "t")
        assert await values(peer) == ["a", "b"]


async def test_a_second_driver_fences_the_first_and_aborts_what_it_wrote(
    world: World,
) -> None:  # S5, V2
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as second:
        await peer.create_topic("t")
        zombie = Run(peer)
        old = await zombie.join()
        assert await zombie.write(old, "zombie") is ErrorCode.NONE
        driver = Run(second, run_id="run-2")
        joined = await driver.join()
        assert joined.error_code == ErrorCode.NONE
        assert await zombie.write(old, "late", sequence=1) is not ErrorCode.NONE
        assert (await zombie.join()).error_code == ErrorCode.RUN_FENCED
        assert await zombie.commit(old) is ErrorCode.RUN_FENCED
        assert await zombie.abort() is ErrorCode.RUN_FENCED
        assert await zombie.renew() is ErrorCode.RUN_FENCED
        assert await driver.write(joined, "driver") is ErrorCode.NONE
        assert await driver.commit(joined) is ErrorCode.NONE
        await settled(node, "t")
        assert await values(peer) == ["driver"]


async def test_another_query_may_not_use_the_app_unless_it_takes_over(world: World) -> None:  # V4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        run = Run(peer)
        joined = await run.join()
        await run.write(joined, "a")
        assert await run.commit(joined) is ErrorCode.NONE
        other = Run(peer, query_id="another", run_id="run-9")
        assert (await other.join()).error_code == ErrorCode.APP_IN_USE
        taking = replace(other, takeover=True)
        assert (await taking.join()).error_code == ErrorCode.NONE


async def test_a_commit_of_an_aborted_incarnation_decides_nothing(world: World) -> None:  # V1
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        run = Run(peer)
        joined = await run.join()
        await run.write(joined, "a")
        assert await run.abort() is ErrorCode.NONE
        assert await run.commit(joined) is ErrorCode.TRANSACTION_ABORTED
        again = await run.join()
        await run.write(again, "b")
        assert await run.commit(again) is ErrorCode.NONE
        assert await run.abort() is ErrorCode.NONE  # no effect once it is committed
        await settled(node, "t")
        assert await values(peer) == ["b"]


async def test_a_timeout_above_the_brokers_largest_is_refused(world: World) -> None:
    settings = {"transaction_timeout_ms_max": 1000}
    async with world.node(**settings) as node, Peer.of(node) as peer:
        run = Run(peer)
        refused = await run.join(timeout_ms=1001)
        assert refused.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert (await run.join(timeout_ms=1000)).error_code == ErrorCode.NONE


async def test_the_timeout_runs_from_the_last_renewal(world: World) -> None:  # V7
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        run = Run(peer)
        joined = await run.join(timeout_ms=300)
        await run.write(joined, "a")
        loop = asyncio.get_running_loop()
        for _ in range(4):
            await asyncio.sleep(0.1)  # less than the timeout, together more than it
            assert await run.renew() is ErrorCode.NONE
        renewed_at = loop.time()
        await settled(node, "t")
        assert loop.time() - renewed_at > 0.2
        assert await run.renew() is ErrorCode.TRANSACTION_ABORTED
        assert await run.commit(joined) is ErrorCode.TRANSACTION_ABORTED
        assert await values(peer) == []


async def test_a_write_of_an_unknown_or_ended_attempt_is_refused(world: World) -> None:  # V5
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2)
        run = Run(peer)
        joined = await run.join()
        forged = JoinTransactionResponse(
            producer_id=999_999, producer_epoch=0, transactional_id=joined.transactional_id
        )
        assert await run.write(forged, "x") is ErrorCode.INVALID_TXN_STATE
        await run.write(joined, "a")
        assert await run.commit(joined) is ErrorCode.NONE
        await settled(node, "t")
        assert await run.write(joined, "late", sequence=1) is ErrorCode.INVALID_TXN_STATE
        assert await run.write(joined, "late", partition=1) is ErrorCode.INVALID_TXN_STATE
        found = node.broker.logs.get("t", 0)
        assert found is not None
        assert found.log.producers() == [], "the marker drops the attempt's state"


@pytest.mark.parametrize("torn", [Loss.ALL, Loss.NONE])
async def test_a_decided_version_is_completed_after_a_crash(world: World, torn: Loss) -> None:  # V6
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        run = Run(peer)
        first, second, loser = [await run.join() for _ in range(3)]
        await run.write(first, "a")
        await run.write(loser, "void")
        await run.write(second, "b")
        world.disk.hold("t-0")
        assert await run.commit(first, second) is ErrorCode.NONE
        await until(lambda: world.disk.waiting > 0, "the markers wait for their sync")
        world.disk = world.disk.power_loss(torn)
    async with world.node() as node, Peer.of(node) as peer:
        assert await values(peer) == ["a", "b"]
        again = Run(peer, run_id="run-2")
        assert (await again.join()).error_code == ErrorCode.ALREADY_COMMITTED
        described = await again.describe()
        assert (described.last_version, described.open_version) == (0, -1)


async def test_a_decided_version_is_not_undone_where_its_coordinator_fails_in_the_start(
    world: World,
) -> None:  # E17, V1
    def coordinators_fail(verb: str, name: str, size: int) -> Fault | None:
        is_theirs = name.startswith("__fencelog_versioned-") and name.endswith(".log")
        return Fault() if verb == "append" and is_theirs else None

    async with world.node(crash=True, internal_partitions=1) as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2)
        runs = [Run(peer, app=app) for app in ("one", "other")]
        joined = [await run.join() for run in runs]
        for partition, (run, attempt) in enumerate(zip(runs, joined, strict=True)):
            await run.write(attempt, run.app, partition=partition)
        # The markers cannot become durable: the crash comes first.
        world.disk.hold("t-")
        for run, attempt in zip(runs, joined, strict=True):
            assert await run.commit(attempt) is ErrorCode.NONE
        world.disk = world.disk.power_loss(Loss.ALL)
    world.disk.gate = coordinators_fail
    async with world.node(crash=True):
        world.disk.gate = None
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        assert await values(peer, 0) == ["one"]
        assert await values(peer, 1) == ["other"]


async def test_an_undecided_version_is_aborted_by_the_next_run_after_a_crash(
    world: World,
) -> None:  # V1, V2
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        run = Run(peer)
        joined = await run.join()
        await run.write(joined, "before")
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        run = Run(peer, run_id="run-2")
        joined = await run.join()
        assert await run.write(joined, "after") is ErrorCode.NONE
        assert await run.commit(joined) is ErrorCode.NONE
        await settled(node, "t")
        assert await values(peer) == ["after"]


async def test_readers_do_not_wait_for_the_timeout_of_writers_whose_connections_are_closed(
    world: World,
) -> None:  # V7
    async with world.node() as node, Peer.of(node) as reader:
        await reader.create_topic("t")
        async with Peer.of(node) as second:
            async with Peer.of(node) as first:
                joined = await Run(first).join(session_timeout_ms=100)
                other = await Run(second).join(session_timeout_ms=100)
                assert await Run(first).write(joined, "a") is ErrorCode.NONE
            await asyncio.sleep(0.2)
            # One of them is still there.
            assert await Run(second).write(other, "b") is ErrorCode.NONE
        await settled(node, "t")
        assert await values(reader) == []
        assert await Run(reader).commit(joined, other) is ErrorCode.TRANSACTION_ABORTED


async def test_a_writer_that_is_still_there_goes_on_when_another_connection_of_its_closes(
    world: World,
) -> None:  # V7
    async with world.node() as node, Peer.of(node) as reader, Peer.of(node) as again:
        await reader.create_topic("t")
        async with Peer.of(node) as peer:
            joined = await Run(peer).join(session_timeout_ms=100)
            assert await Run(peer).write(joined, "a") is ErrorCode.NONE
        assert await Run(again).renew() is ErrorCode.NONE
        await asyncio.sleep(0.2)
        assert await Run(reader).commit(joined) is ErrorCode.NONE
        await settled(node, "t")
        assert await values(reader) == ["a"]
