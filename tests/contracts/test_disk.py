"""The contract of Disk and DiskFile, for the real disk and the simulated one."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fencelog.adapters.file_disk import FileDisk
from fencelog.ports import Disk
from fencelog.sim.disk import SimDisk

Scenario = Callable[[Disk], Awaitable[None]]


@pytest.fixture(params=["file", "memory"])
def on_disk(request: pytest.FixtureRequest, tmp_path: Path):
    """Run a scenario against one implementation of the port."""
    disk = FileDisk(tmp_path / "data") if request.param == "file" else SimDisk()

    def run(scenario: Scenario) -> None:
        asyncio.run(scenario(disk))

    yield run
    if isinstance(disk, FileDisk):
        disk.close()


def test_appended_buffers_are_read_back_in_order(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        await file.append([b"one", bytearray(b"two"), memoryview(b"three")])
        await file.append([])
        await file.append([b"", b"four"])
        assert file.size == 15
        assert await file.read(0, 100) == b"onetwothreefour"
        assert await file.read(3, 3) == b"two"
        await file.close()

    on_disk(scenario)


def test_more_buffers_than_one_system_call_takes_are_all_written(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        await file.append([bytes([i % 251]) * 3 for i in range(2500)])
        assert await file.read(0, 10_000) == b"".join(bytes([i % 251]) * 3 for i in range(2500))
        await file.close()

    on_disk(scenario)


def test_a_read_past_the_end_is_short_or_empty(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        await file.append([b"abc"])
        assert await file.read(2, 10) == b"c"
        assert await file.read(3, 10) == b""
        assert await file.read(30, 10) == b""
        await file.close()

    on_disk(scenario)


def test_a_file_opened_again_keeps_its_bytes_and_appends_at_the_end(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        await file.append([b"abc"])
        await file.sync()
        await file.close()
        again = await disk.open("a", create=True)
        assert again.size == 3
        await again.append([b"def"])
        assert await again.read(0, 10) == b"abcdef"
        await again.close()

    on_disk(scenario)


def test_a_missing_file_is_not_found_unless_it_is_to_be_made(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        with pytest.raises(FileNotFoundError):
            await disk.open("a")
        await disk.make_directory("d")
        with pytest.raises(FileNotFoundError):
            await disk.open("d/a")
        await (await disk.open("d/a", create=True)).close()
        await (await disk.open("d/a")).close()

    on_disk(scenario)


def test_two_openings_of_one_file_see_the_same_bytes(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        writer = await disk.open("a", create=True)
        reader = await disk.open("a")
        await writer.append([b"abc"])
        assert await reader.read(0, 10) == b"abc"
        await writer.close()
        await reader.close()

    on_disk(scenario)


def test_a_second_close_does_nothing(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        await file.close()
        await file.close()

    on_disk(scenario)


def test_close_waits_for_the_sync_under_way(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        await file.append([b"abc"])
        sync = asyncio.ensure_future(file.sync())
        await asyncio.sleep(0)
        await file.close()
        await sync

    on_disk(scenario)


def test_names_are_listed_sorted_and_a_missing_directory_is_empty(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.make_directory("d/e")
        for name in ("b", "a"):
            await (await disk.open(f"d/{name}", create=True)).close()
        assert await disk.list("d") == ["a", "b", "e"]
        assert await disk.list("") == ["d"]
        assert await disk.list("nowhere") == []
        await disk.make_directory("d/e")
        assert await disk.list("d") == ["a", "b", "e"]

    on_disk(scenario)


def test_rename_replaces_what_was_there(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        for name in ("old", "new"):
            file = await disk.open(name, create=True)
            await file.append([name.encode()])
            await file.close()
        await disk.rename("old", "new")
        assert await disk.list("") == ["new"]
        file = await disk.open("new")
        assert await file.read(0, 10) == b"old"
        await file.close()
        with pytest.raises(FileNotFoundError):
            await disk.rename("gone", "new")

    on_disk(scenario)


def test_a_directory_is_renamed_with_all_in_it(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.make_directory("d/e")
        await (await disk.open("d/e/a", create=True)).close()
        await disk.rename("d", "f")
        assert await disk.list("") == ["f"]
        assert await disk.list("f/e") == ["a"]

    on_disk(scenario)


def test_remove_takes_files_trees_and_nothing(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.make_directory("d/e")
        await (await disk.open("d/e/a", create=True)).close()
        await (await disk.open("b", create=True)).close()
        await disk.remove("b")
        await disk.remove("b")
        await disk.remove("d")
        assert await disk.list("") == []

    on_disk(scenario)


def test_an_open_file_outlives_its_name(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        await file.append([b"abc"])
        await disk.remove("a")
        assert await file.read(0, 10) == b"abc"
        await file.close()

    on_disk(scenario)


def test_files_and_directories_can_be_synced(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.make_directory("d")
        file = await disk.open("d/a", create=True)
        await file.append([b"abc"])
        await file.sync()
        await disk.sync_directory("d")
        await disk.sync_directory("")
        await file.close()

    on_disk(scenario)
