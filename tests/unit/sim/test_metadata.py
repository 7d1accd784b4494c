"""What a kill or a power cut leaves of the simulated metadata store's writes in flight."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from fencelog.errors import HistoryLostError, StorageError, UnknownOutcomeError
from fencelog.ports import MetadataWrite
from fencelog_sim.world.gate import NO_SPACE, Fault, Halt, Lost
from fencelog_sim.world.loop import SimLoop
from fencelog_sim.world.metadata import SimMetadata, SimStore

SEEDS = range(100)


async def with_writes_in_flight() -> SimMetadata:
    """A store with one cell stored, and four writes between asking and answer."""
    store = SimMetadata()
    assert await store.put("stored", b"", expected_version=0) == 1
    never = asyncio.Event()

    async def wait(verb: str, key: str, size: int) -> None:
        await never.wait()

    store.delay = wait
    writes = [
        asyncio.ensure_future(write)
        for write in (
            store.put("a", b"", expected_version=0),
            store.put("lost", b"", expected_version=7),
            store.put("b", b"", expected_version=0),
            store.delete("a", expected_version=2),
        )
    ]
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(write.done() for write in writes)
    return store


def test_what_was_answered_survives_and_what_was_in_flight_does_in_the_order_of_the_calls() -> None:
    async def scenario(seed: int) -> tuple[str, ...]:
        store = await with_writes_in_flight()
        lost = store.power_loss(Random(seed))
        return tuple(key for key, _, _ in await lost.list(""))

    found = {asyncio.run(scenario(seed)) for seed in SEEDS}
    assert found == {("stored",), ("a", "stored"), ("a", "b", "stored"), ("b", "stored")}
    assert asyncio.run(scenario(3)) == asyncio.run(scenario(3))


async def test_without_a_seed_nothing_in_flight_survives_a_kill() -> None:
    store = await with_writes_in_flight()
    assert [key for key, _, _ in await store.restarted().list("")] == ["stored"]


async def test_nothing_of_a_killed_process_takes_effect_or_returns() -> None:
    store = SimMetadata()
    await store.put("a", b"", expected_version=0)
    after = store.restarted(Random(0))
    operations = [
        asyncio.ensure_future(operation)
        for operation in (
            store.put("a", b"new", expected_version=1),
            store.delete("a", expected_version=1),
            store.get("a"),
            store.list(""),
        )
    ]
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(operation.done() for operation in operations)
    assert await after.get("a") == (b"", 1)


@pytest.mark.parametrize("done", [0, 1])
async def test_a_kill_hits_a_write_before_or_after_it_took_effect(done: int) -> None:
    store = SimMetadata()
    killed: list[str] = []
    store.gate = lambda verb, key, _size: Halt(done, lambda: killed.append(f"{verb} {key}"))
    putting = asyncio.ensure_future(store.put("a", b"one", expected_version=0))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not putting.done()
    assert killed == ["put a"]
    assert await store.restarted().get("a") == ((b"one", 1) if done else None)


def test_a_failed_write_is_not_seen_and_may_be_there_after_a_crash() -> None:
    async def scenario(seed: int, *, done: int, later: bool) -> bytes | None:
        store = SimMetadata()
        version = await store.put("a", b"old", expected_version=0)
        assert version is not None
        store.gate = lambda _verb, _key, _size: Fault(NO_SPACE, done)
        with pytest.raises(StorageError, match="put a: No space left on device"):
            await store.put("a", b"new", expected_version=version)
        store.gate = None
        assert await store.get("a") == (b"old", version)
        if later:
            # It takes the place of the one that failed.
            assert await store.put("b", b"", expected_version=0) == version + 1
        found = await store.power_loss(Random(seed)).get("a")
        return found and found[0]

    def found(*, done: int, later: bool) -> set[bytes | None]:
        return {asyncio.run(scenario(seed, done=done, later=later)) for seed in SEEDS}

    assert found(done=1, later=False) == {b"old", b"new"}
    assert found(done=1, later=True) == {b"old"}
    assert found(done=0, later=False) == {b"old"}


async def test_a_write_that_was_begun_goes_on_though_its_caller_was_cancelled() -> None:
    store = SimMetadata()
    store.delay = lambda _verb, _key, _size: asyncio.sleep(0)
    writes = [asyncio.ensure_future(store.put(k, b"", expected_version=0)) for k in "abc"]
    await asyncio.sleep(0)
    for write in writes[:2]:
        write.cancel()
    await asyncio.wait(writes)
    assert [write.cancelled() for write in writes] == [True, True, False]
    assert [key for key, _, _ in await store.list("")] == ["a", "c"]


async def test_a_close_waits_for_what_was_asked_for() -> None:
    store = SimMetadata()
    store.delay = lambda _verb, _key, _size: asyncio.sleep(0)
    putting = asyncio.ensure_future(store.put("a", b"", expected_version=0))
    await asyncio.sleep(0)
    await store.close()
    assert putting.done()
    with pytest.raises(AssertionError, match="closed"):
        await store.get("a")


# -- a store that several hosts share ------------------------------------------------------------


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    SimLoop("0").run(main(), limit_s=3600)


async def test_what_one_session_has_written_another_one_reads() -> None:
    store = SimStore()
    one, other = store.session(), store.session()
    snapshot = await other.snapshot("")
    watch = other.watch("", snapshot.revision)
    version = await one.put("a", b"1", expected_version=0)
    assert await other.get("a") == (b"1", version)
    assert (await anext(watch))[0].key == "a"
    await one.close()
    assert await other.put("a", b"2", expected_version=version or 0)
    assert (await anext(watch))[0].value == b"2"


@pytest.mark.parametrize("lost", [Lost(is_stored=False), Lost(is_stored=True), Lost(True, 5.0)])
def test_the_answer_of_a_write_is_lost_and_it_is_stored_or_not_or_later(lost: Lost) -> None:
    async def main() -> None:
        session = SimStore().session()
        session.lose = lambda verb, key: lost
        with pytest.raises(UnknownOutcomeError, match="put a"):
            await session.put("a", b"1", expected_version=0)
        at_once = await session.get("a")
        await asyncio.sleep(10)
        later = await session.get("a")
        assert (at_once is not None, later is not None) == (
            lost.is_stored and not lost.after_s,
            lost.is_stored,
        )

    in_virtual_time(main)


def test_a_late_write_changes_nothing_when_its_version_has_gone() -> None:
    async def main() -> None:
        session = SimStore().session()
        session.lose = lambda verb, key: Lost(is_stored=True, after_s=5.0)
        with pytest.raises(UnknownOutcomeError):
            await session.put("a", b"late", expected_version=0)
        session.lose = None
        version = await session.put("a", b"retried", expected_version=0)
        await asyncio.sleep(10)
        assert await session.get("a") == (b"retried", version)

    in_virtual_time(main)


def test_a_store_out_of_reach_fails_reads_and_leaves_writes_unknown() -> None:
    async def main() -> None:
        store = SimStore()
        cut, other = store.session(), store.session()
        lease = await cut.grant(600)
        snapshot = await cut.snapshot("")
        watching = asyncio.ensure_future(anext(cut.watch("", snapshot.revision)))
        cut.cut()
        for read in (cut.get("a"), cut.list(""), cut.snapshot(""), cut.renew(lease)):
            with pytest.raises(StorageError) as failed:
                await read
            assert not isinstance(failed.value, UnknownOutcomeError)
        for write in (cut.put("a", b"", expected_version=0), cut.commit([MetadataWrite("a", b"")])):
            with pytest.raises(UnknownOutcomeError):
                await write
        assert await other.put("b", b"1", expected_version=0)
        await asyncio.sleep(100)
        assert not watching.done()
        cut.heal()
        assert [each.key for each in await watching] == ["b"]
        assert await cut.get("a") is None

    in_virtual_time(main)


def test_a_lease_ends_when_it_is_not_renewed_though_its_holder_was_killed() -> None:
    async def main() -> None:
        store = SimStore()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        holder = loop.process("holder", "h1")
        session, other = store.session(), store.session()

        async def hold() -> None:
            lease = await session.grant(9.0)
            assert await session.commit([MetadataWrite("a", b"", 0, lease)])
            for _ in range(3):
                await asyncio.sleep(3.0)
                assert await session.renew(lease)

        await loop.start(holder, hold())
        loop.kill(holder)
        session.restarted()
        await asyncio.sleep(8.9)
        assert await other.get("a") is not None
        await asyncio.sleep(0.2)
        assert await other.get("a") is None

    in_virtual_time(main)


async def test_a_lease_can_end_while_its_holder_lives() -> None:
    store = SimStore()
    session = store.session()
    lease = await session.grant(600)
    await session.commit([MetadataWrite("a", b"", 0, lease)])
    for each in store.leases():
        store.end(each)
    assert await session.get("a") is None
    assert not await session.renew(lease)


def test_a_late_watch_misses_nothing_unless_the_store_forgets() -> None:
    async def main() -> None:
        store = SimStore()
        session, other = store.session(), store.session()
        session.lateness = lambda: 5.0
        watch = session.watch("", 0)
        for each in "abc":
            await other.put(each, b"", expected_version=0)
        begun = asyncio.get_running_loop().time()
        assert (await anext(watch))[0].key == "a"
        assert asyncio.get_running_loop().time() - begun >= 5.0
        assert (await anext(watch))[0].key == "b"
        store.compact()
        with pytest.raises(HistoryLostError):
            await anext(watch)

    in_virtual_time(main)
