"""The contract of Disk and DiskFile, for the real disk and the simulated one."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fencelog.adapters.file_disk import FileDisk
from fencelog.errors import ExhaustedError, StorageError
from fencelog.ports import Disk
from fencelog_sim.world.disk import SimDisk
from fencelog_sim.world.gate import NO_SPACE, Fault

Scenario = Callable[[Disk], Awaitable[None]]
SYSTEM_CALLS = {
    "append": "pwritev",
    "rewrite": "pwritev",
    "truncate": "ftruncate",
    "sync": "fdatasync",
    "sync_directory": "fsync",
}


class Rig:
    """One implementation of the port, and how to make it fail."""

    def __init__(self, disk: FileDisk | SimDisk, patch: pytest.MonkeyPatch) -> None:
        self.disk = disk
        self._patch = patch

    def __call__(self, scenario: Scenario) -> None:
        """Run a scenario."""
        asyncio.run(scenario(self.disk))

    def fail(self, verb: str, reason: str) -> None:
        """Let each operation of this kind fail from now on."""

        def failing(*_: object) -> int:
            raise OSError(errno.ENOSPC if reason == NO_SPACE else errno.EIO, reason)

        if isinstance(self.disk, SimDisk):
            self.disk.gate = lambda asked, _path, _size: Fault(reason) if asked == verb else None
        else:
            self._patch.setattr(os, SYSTEM_CALLS[verb], failing)

    def heal(self) -> None:
        """Let every operation succeed again."""
        if isinstance(self.disk, SimDisk):
            self.disk.gate = None
        else:
            self._patch.undo()


async def a_while(verb: str, path: str, size: int) -> None:
    """Let others run, as during a real sync."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture(params=["file", "sim", "slow sim"])
def on_disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a scenario against one implementation of the port."""
    disk = FileDisk(tmp_path / "data") if request.param == "file" else SimDisk()
    if isinstance(disk, SimDisk) and request.param == "slow sim":
        disk.delay = a_while
    yield Rig(disk, monkeypatch)
    if isinstance(disk, FileDisk):
        disk.close()


def test_appended_buffers_are_read_back_in_order(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        await file.append([b"one", bytearray(b"two"), memoryview(b"three")])
        await file.append([])
        await file.append([b"", b"four"])
        assert file.size == 15
        content = await file.read(0, 100)
        assert isinstance(content, bytes)
        assert content == b"onetwothreefour"
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


def test_mapped_bytes_stay_when_the_file_is_closed_and_removed(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        content = bytes(range(256)) * 4096
        file = await disk.open("a", create=True)
        await file.append([content])
        for position, size in ((0, 10), (5000, 700_000), (1_000_000, 1 << 20), (0, 1 << 20)):
            assert await file.map(position, size) == content[position : position + size]
        mapped = await file.map(5000, 700_000)
        await file.append([b"more"])
        await file.close()
        await disk.remove("a")
        assert mapped == content[5000:705_000]

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


def test_what_was_read_is_not_changed_by_a_later_append(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        buffer = bytearray(b"abc")
        await file.append([buffer])
        buffer[:] = b"xyz"
        found = await file.read(0, 10)
        await file.append([b"def"])
        assert found == b"abc"
        assert await file.read(0, 10) == b"abcdef"
        await file.close()

    on_disk(scenario)


def test_an_existing_file_is_opened_and_not_made_anew(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        again = await disk.open("a", create=True)
        await file.append([b"abc"])
        assert await again.read(0, 10) == b"abc"
        await file.close()
        await again.close()

    on_disk(scenario)


def test_what_a_directory_cannot_do_is_a_storage_error(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.make_directory("d/e")
        await (await disk.open("a", create=True)).close()
        for create in (False, True):
            with pytest.raises(StorageError, match=r"open failed.*d: Is a directory"):
                await disk.open("d", create=create)
            with pytest.raises(StorageError, match=r"open failed.*a/b: Not a directory"):
                await disk.open("a/b", create=create)
        with pytest.raises(StorageError, match="make directory failed"):
            await disk.make_directory("a")
        with pytest.raises(StorageError, match="make directory failed"):
            await disk.make_directory("a/b")
        with pytest.raises(StorageError, match=r"sync directory failed.*nowhere: No such file"):
            await disk.sync_directory("nowhere")
        with pytest.raises(StorageError, match=r"sync directory failed.*a: Not a directory"):
            await disk.sync_directory("a")
        assert await disk.list("a") == []

    on_disk(scenario)


def test_a_rename_that_would_lose_a_directory_is_refused(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.make_directory("d/e")
        await disk.make_directory("empty")
        await (await disk.open("a", create=True)).close()
        with pytest.raises(StorageError, match=r"rename failed.*a: Is a directory"):
            await disk.rename("a", "d")
        with pytest.raises(StorageError, match=r"rename failed.*empty: Not a directory"):
            await disk.rename("empty", "a")
        with pytest.raises(StorageError, match=r"rename failed.*empty: Directory not empty"):
            await disk.rename("empty", "d")
        assert await disk.list("") == ["a", "d", "empty"]
        await disk.rename("d", "empty")
        assert await disk.list("") == ["a", "empty"]
        assert await disk.list("empty") == ["e"]

    on_disk(scenario)


def test_a_rename_needs_what_it_moves_and_where_to(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.make_directory("d")
        await (await disk.open("a", create=True)).close()
        with pytest.raises(FileNotFoundError):
            await disk.rename("nowhere", "a")
        with pytest.raises(FileNotFoundError):
            await disk.rename("a", "nowhere/a")
        await disk.rename("a", "a")
        await disk.rename("a", "d/b")
        assert await disk.list("") == ["d"]
        assert await disk.list("d") == ["b"]

    on_disk(scenario)


def test_an_open_file_follows_its_name_and_a_replaced_one_stays_as_it_is(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        new, old = await disk.open("new", create=True), await disk.open("old", create=True)
        await new.append([b"new"])
        await old.append([b"old"])
        await disk.rename("new", "old")
        await new.append([b"er"])
        assert await old.read(0, 10) == b"old"
        found = await disk.open("old")
        assert await found.read(0, 10) == b"newer"
        for file in (new, old, found):
            await file.close()

    on_disk(scenario)


def test_nothing_is_removed_where_there_is_nothing(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.make_directory("d")
        await disk.remove("d/a")
        await disk.remove("nowhere/a")
        assert await disk.list("") == ["d"]

    on_disk(scenario)


def test_files_appended_to_and_synced_together_keep_their_own_bytes(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        async def write(name: str) -> None:
            file = await disk.open(name, create=True)
            for number in range(10):
                await file.append([name.encode(), b"%d" % number])
                await file.sync()
            assert file.size == 20
            await file.close()

        async with asyncio.TaskGroup() as tasks:
            for name in "abc":
                tasks.create_task(write(name))
        for name in "abc":
            file = await disk.open(name)
            assert await file.read(0, 100) == b"".join(
                b"%s%d" % (name.encode(), i) for i in range(10)
            )
            await file.close()

    on_disk(scenario)


def test_an_append_to_a_full_disk_leaves_nothing_and_may_be_repeated(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        await file.append([b"abc"])
        on_disk.fail("append", NO_SPACE)
        with pytest.raises(ExhaustedError, match=r"write failed.*a: No space left on device"):
            await file.append([b"def"])
        assert (file.size, await file.read(0, 10)) == (3, b"abc")
        on_disk.heal()
        await file.append([b"ghi"])
        await file.sync()
        assert await file.read(0, 10) == b"abcghi"
        await file.close()

    on_disk(scenario)


def test_a_failed_append_ends_the_file(on_disk) -> None:  # D2
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        await file.append([b"abc"])
        on_disk.fail("append", "Input/output error")
        with pytest.raises(StorageError, match=r"write failed.*a: Input/output error"):
            await file.append([b"def"])
        for attempt in (file.append([b"def"]), file.sync()):
            with pytest.raises(StorageError, match="accepts no more writes"):
                await attempt
        assert (await file.read(0, 10)).startswith(b"abc")
        await file.close()

    on_disk(scenario)


def test_bytes_written_once_more_and_bytes_cut_off_leave_the_rest_as_it_is(on_disk) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        await file.append([b"abcdefgh"])
        await file.rewrite(2, memoryview(b"cdef"))
        await file.rewrite(0, b"abcdefgh")
        assert file.size == 8
        assert await file.read(0, 10) == b"abcdefgh"
        await file.truncate(5)
        assert file.size == 5
        assert await file.read(0, 10) == b"abcde"
        await file.append([b"X"])
        await file.sync()
        await file.close()
        again = await disk.open("a")
        assert await again.read(0, 10) == b"abcdeX"
        await again.close()

    on_disk(scenario)


@pytest.mark.parametrize("verb", ["rewrite", "truncate"])
def test_a_failed_change_of_stored_bytes_ends_the_file(verb: str, on_disk) -> None:  # D2
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        await file.append([b"abc"])
        on_disk.fail(verb, "Input/output error")
        with pytest.raises(StorageError, match="Input/output error"):
            await (file.rewrite(0, b"abc") if verb == "rewrite" else file.truncate(1))
        on_disk.heal()
        with pytest.raises(StorageError):
            await file.sync()
        await file.close()

    on_disk(scenario)


def test_a_failed_sync_ends_the_file(on_disk) -> None:  # D2
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a", create=True)
        await file.append([b"abc"])
        on_disk.fail("sync", "Input/output error")
        with pytest.raises(StorageError, match=r"sync failed.*a: Input/output error"):
            await file.sync()
        for attempt in (file.append([b"def"]), file.sync()):
            with pytest.raises(StorageError, match="accepts no more writes"):
                await attempt
        assert await file.read(0, 10) == b"abc"
        await file.close()

    on_disk(scenario)


def test_a_failed_sync_of_a_directory_is_a_storage_error(on_disk) -> None:  # D2
    async def scenario(disk: Disk) -> None:
        await disk.make_directory("d")
        on_disk.fail("sync_directory", "Input/output error")
        with pytest.raises(StorageError, match=r"sync directory failed.*d: Input/output error"):
            await disk.sync_directory("d")

    on_disk(scenario)
