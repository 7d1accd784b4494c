"""What a kill or a power cut leaves of the simulated metadata store's writes in flight."""

import asyncio
from random import Random

import pytest

from fencelog.errors import StorageError
from fencelog_sim.world.gate import NO_SPACE, Fault, Halt
from fencelog_sim.world.metadata import SimMetadata

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
