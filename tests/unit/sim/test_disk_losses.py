"""What a power cut may take from the simulated disk, and what it never takes."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from fencelog.errors import StorageError
from fencelog_sim.world.disk import Loss, SimDisk

SEEDS = range(200)


def after_cut(
    scenario: Callable[[SimDisk], Coroutine[Any, Any, None]], loss: Loss, seed: int = 0
) -> SimDisk:
    """The disk that a boot finds after the scenario and a power cut."""
    disk = SimDisk()
    asyncio.run(scenario(disk))
    return disk.power_loss(loss, Random(seed))


def names(disk: SimDisk, path: str = "") -> tuple[str, ...]:
    return tuple(asyncio.run(disk.list(path)))


async def write(disk: SimDisk, path: str, data: bytes, *, sync: bool = False) -> None:
    file = await disk.open(path, create=True)
    await file.append([data])
    if sync:
        await file.sync()
    await file.close()


async def synced_and_more(disk: SimDisk) -> None:
    """Three stable bytes, and five that are not."""
    await write(disk, "a", b"abc", sync=True)
    await disk.sync_directory("")
    await write(disk, "a", b"defgh")


def test_synced_bytes_survive_every_cut_and_others_as_far_as_the_loss_says() -> None:
    found = {
        loss: {after_cut(synced_and_more, loss, seed).contents("a") for seed in SEEDS}
        for loss in Loss
    }
    assert found[Loss.ALL] == {b"abc"}
    assert found[Loss.NONE] == {b"abcdefgh"}
    assert found[Loss.TORN] == {b"abcdefgh"[:size] for size in range(3, 9)}
    assert found[Loss.HOLES] > found[Loss.TORN]
    for content in found[Loss.HOLES]:
        assert content[:3] == b"abc"
        assert all(byte in {0, b"abcdefgh"[at]} for at, byte in enumerate(content))


def test_what_survived_a_cut_survives_the_next_one() -> None:
    for seed in SEEDS:
        first = after_cut(synced_and_more, Loss.HOLES, seed)
        assert first.power_loss(Loss.ALL).contents("a") == first.contents("a")


def test_a_sync_makes_stable_what_was_written_before_it_began() -> None:
    async def scenario(disk: SimDisk) -> None:
        file = await disk.open("a", create=True)
        await disk.sync_directory("")
        await file.append([b"abc"])
        may_end = asyncio.Event()

        async def wait(verb: str, path: str, size: int) -> None:
            assert (verb, path, size) == ("sync", "a", 3)
            await may_end.wait()

        disk.delay = wait
        sync = asyncio.ensure_future(file.sync())
        await asyncio.sleep(0)
        await file.append([b"def"])
        may_end.set()
        await sync

    assert after_cut(scenario, Loss.ALL).contents("a") == b"abc"


def test_an_unsynced_name_is_lost_with_the_synced_bytes_behind_it() -> None:
    async def scenario(disk: SimDisk) -> None:
        await write(disk, "a", b"abc", sync=True)

    assert names(after_cut(scenario, Loss.ALL)) == ()
    assert names(after_cut(scenario, Loss.NONE)) == ("a",)


def test_unsynced_names_are_lost_each_for_itself() -> None:
    async def scenario(disk: SimDisk) -> None:
        for name in "ab":
            await write(disk, name, b"", sync=True)

    found = {names(after_cut(scenario, Loss.TORN, seed)) for seed in SEEDS}
    assert found == {(), ("a",), ("b",), ("a", "b")}


def test_names_synced_while_others_were_given_are_those_given_before() -> None:
    async def scenario(disk: SimDisk) -> None:
        await write(disk, "a", b"")
        may_end = asyncio.Event()

        async def wait(verb: str, path: str, size: int) -> None:
            if verb == "sync_directory":
                await may_end.wait()

        disk.delay = wait
        syncs = [asyncio.ensure_future(disk.sync_directory(""))]
        await asyncio.sleep(0)
        await write(disk, "b", b"")
        syncs.append(asyncio.ensure_future(disk.sync_directory("")))
        await asyncio.sleep(0)
        await write(disk, "c", b"")
        may_end.set()
        await asyncio.wait(syncs)

    assert names(after_cut(scenario, Loss.ALL)) == ("a", "b")


def test_a_rename_is_whole_or_not_at_all() -> None:
    async def scenario(disk: SimDisk) -> None:
        await write(disk, "old", b"old", sync=True)
        await write(disk, "new", b"new", sync=True)
        await disk.sync_directory("")
        await disk.rename("new", "old")

    for seed in SEEDS:
        disk = after_cut(scenario, Loss.TORN, seed)
        content = {name: disk.contents(name) for name in names(disk)}
        assert content in ({"old": b"old", "new": b"new"}, {"old": b"new"})
    assert names(after_cut(scenario, Loss.ALL)) == ("new", "old")


def test_an_unsynced_removal_may_be_undone_with_all_that_was_there() -> None:
    async def scenario(disk: SimDisk) -> None:
        await disk.make_directory("d")
        for name in "abc":
            await write(disk, f"d/{name}", name.encode(), sync=True)
        await disk.sync_directory("d")
        await disk.sync_directory("")
        await disk.remove("d")

    assert names(after_cut(scenario, Loss.ALL), "d") == ("a", "b", "c")
    assert names(after_cut(scenario, Loss.NONE)) == ()
    found = {names(after_cut(scenario, Loss.TORN, seed), "d") for seed in SEEDS}
    assert {(), ("a", "b", "c"), ("b", "c"), ("a",)} <= found


def test_a_directory_is_lost_with_all_in_it_until_its_parent_is_synced() -> None:
    async def scenario(disk: SimDisk) -> None:
        await disk.make_directory("d/e")
        await write(disk, "d/e/a", b"abc", sync=True)
        await disk.sync_directory("d/e")
        await disk.sync_directory("d")

    async def synced(disk: SimDisk) -> None:
        await scenario(disk)
        await disk.sync_directory("")

    assert names(after_cut(scenario, Loss.ALL)) == ()
    assert names(after_cut(synced, Loss.ALL), "d/e") == ("a",)
    found = {names(after_cut(scenario, Loss.TORN, seed), "d/e") for seed in SEEDS}
    assert found == {(), ("a",)}


def test_a_directory_renamed_without_a_sync_is_under_either_name_with_the_same_files() -> None:
    async def scenario(disk: SimDisk) -> None:
        await disk.make_directory("d")
        await write(disk, "d/a", b"abc", sync=True)
        await disk.sync_directory("d")
        await disk.sync_directory("")
        await disk.rename("d", "e")

    found = {names(after_cut(scenario, Loss.TORN, seed)) for seed in SEEDS}
    assert found == {("d",), ("e",)}
    assert after_cut(scenario, Loss.ALL).contents("d/a") == b"abc"


async def failed_sync(disk: SimDisk) -> None:
    """Bytes whose sync failed, between those of one sync that succeeded and of another one."""
    await write(disk, "a", b"abc", sync=True)
    await disk.sync_directory("")
    file = await disk.open("a")
    await file.append([b"def"])
    disk.failing_syncs = 1
    with pytest.raises(StorageError, match="Input/output error"):
        await file.sync()
    await file.close()


async def failed_and_later_syncs(disk: SimDisk) -> None:
    await failed_sync(disk)
    await write(disk, "a", b"ghi", sync=True)


def test_pages_of_a_failed_sync_read_well_and_no_later_sync_writes_them() -> None:  # D2
    disk = SimDisk()
    asyncio.run(failed_and_later_syncs(disk))
    assert disk.contents("a") == b"abcdefghi"
    assert disk.restarted().contents("a") == b"abcdefghi"
    assert after_cut(failed_sync, Loss.ALL).contents("a") == b"abc"
    assert after_cut(failed_and_later_syncs, Loss.ALL).contents("a") == b"abc\0\0\0ghi"


def test_pages_of_a_failed_sync_may_have_been_written_in_part() -> None:  # D2
    found = {after_cut(failed_sync, Loss.TORN, seed).contents("a") for seed in SEEDS}
    assert {b"abc", b"abcd", b"abcd\0\0", b"abc\0\0\0", b"abcdef"} <= found
    later = {after_cut(failed_and_later_syncs, Loss.TORN, seed).contents("a") for seed in SEEDS}
    assert later == {b"abc" + b"def"[:n] + bytes(3 - n) + b"ghi" for n in range(4)}


def test_one_seed_leaves_one_disk() -> None:
    async def scenario(disk: SimDisk) -> None:
        for number in range(6):
            await disk.make_directory(f"d{number}")
            for name in "abc":
                await write(disk, f"d{number}/{name}", bytes(range(50)), sync=number % 2 == 0)
            await disk.sync_directory(f"d{number}")
            await disk.rename(f"d{number}/a", f"d{number}/z")

    def dump(seed: int) -> list[tuple[str, bytes]]:
        disk = after_cut(scenario, Loss.HOLES, seed)
        return [
            (f"{directory}/{name}", disk.contents(f"{directory}/{name}"))
            for directory in names(disk)
            for name in names(disk, directory)
        ]

    dumps = [dump(seed) for seed in range(20)]
    assert dumps == [dump(seed) for seed in range(20)]
    assert len({tuple(each) for each in dumps}) > 15
