"""What the real disk adds to the contract: failing devices, and one broker for a directory."""

import asyncio
import errno
import mmap
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fencelog.adapters.file_disk import (
    MAPPED_BYTES_MIN,
    DirectoryInUseError,
    DirectoryLock,
    DirectoryReplacedError,
    FileDisk,
)
from fencelog.errors import StorageError
from fencelog.types import Buffer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def disk(root: Path):
    disk = FileDisk(root)
    yield disk
    disk.close()


async def test_a_full_device_is_a_storage_error_and_ends_the_file(  # D2
    disk: FileDisk, root: Path
) -> None:
    (root / "full").symlink_to("/dev/full")
    file = await disk.open("full")
    with pytest.raises(StorageError, match="full: No space left on device"):
        await file.append([b"abc"])
    with pytest.raises(StorageError, match="accepts no more writes: write failed"):
        await file.append([b"abc"])
    with pytest.raises(StorageError, match="accepts no more writes"):
        await file.sync()
    await file.close()


def test_a_failed_sync_is_never_tried_again(disk: FileDisk, monkeypatch) -> None:  # D2
    calls = []

    def failing(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    async def scenario() -> None:
        monkeypatch.setattr(os, "fdatasync", failing)
        file = await disk.open("a", create=True)
        await file.append([b"abc"])
        with pytest.raises(StorageError, match="/a: Input/output error"):
            await file.sync()
        with pytest.raises(StorageError, match="accepts no more writes: an earlier sync failed"):
            await file.sync()
        with pytest.raises(StorageError, match="accepts no more writes"):
            await file.append([b"d"])
        await file.close()

    asyncio.run(scenario())
    assert len(calls) == 1


async def test_a_write_that_the_system_cuts_short_is_continued(disk: FileDisk, monkeypatch) -> None:
    whole = os.pwritev

    def two_bytes(descriptor: int, buffers: list[memoryview], position: int) -> int:
        return whole(descriptor, [buffers[0][:2]], position)

    monkeypatch.setattr(os, "pwritev", two_bytes)
    file = await disk.open("a", create=True)
    await file.append([b"abc", b"d", b"efghi"])
    assert await file.read(0, 100) == b"abcdefghi"
    await file.close()


async def test_no_change_of_a_directory_runs_in_the_thread_of_the_loop(
    disk: FileDisk, monkeypatch
) -> None:
    threads: dict[str, set[int]] = {}

    def record(name: str) -> None:
        call = getattr(os, name)

        def recorded(*args, **named):
            if name != "open" or args[1] & os.O_CREAT:  # else it opens a file that is there
                threads.setdefault(name, set()).add(threading.get_ident())
            return call(*args, **named)

        monkeypatch.setattr(os, name, recorded)

    for name in ("open", "mkdir", "replace", "unlink", "rmdir", "fsync"):
        record(name)
    await disk.make_directory("d/e")
    await (await disk.open("d/e/a", create=True)).close()
    await disk.rename("d/e/a", "d/e/b")
    await disk.remove("d/e/b")
    await disk.sync_directory("d/e")
    await disk.remove("d")
    assert threads.keys() == {"open", "mkdir", "replace", "unlink", "rmdir", "fsync"}
    assert not any(threading.get_ident() in each for each in threads.values()), threads


async def test_a_file_that_is_there_is_opened_without_a_thread(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await disk.open("a", create=True)).close()

    def refuse(*_: object) -> None:
        raise AssertionError("a thread costs more than the call")

    monkeypatch.setattr(disk._pool, "submit", refuse)
    file = await disk.open("a", create=True)
    assert file.size == 0
    await file.close()


async def test_a_cancelled_open_closes_the_file_it_creates(disk: FileDisk, monkeypatch) -> None:
    opened: list[int] = []
    may_open, begun = threading.Event(), asyncio.Event()
    real, loop = os.open, asyncio.get_running_loop()

    def held(path: str, *how: int) -> int:
        if not how[0] & os.O_CREAT:
            return real(path, *how)
        loop.call_soon_threadsafe(begun.set)
        may_open.wait()
        opened.append(real(path, *how))
        return opened[-1]

    monkeypatch.setattr(os, "open", held)
    opening = asyncio.create_task(disk.open("a", create=True))
    await begun.wait()
    opening.cancel()
    await asyncio.sleep(0)
    assert not opening.done()
    may_open.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_an_unwritable_place_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="Not a directory"):
        FileDisk(tmp_path / "file" / "data")


def test_a_second_lock_is_refused_with_the_holders_pid(tmp_path: Path) -> None:
    code = (
        "import sys; from fencelog.adapters.file_disk import DirectoryLock;"
        "lock = DirectoryLock.acquire(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DirectoryInUseError, match=f"in use by process {holder.pid};"):
            DirectoryLock.acquire(tmp_path)
        holder.kill()
    # The system releases it with the process, however that ended.
    lock = DirectoryLock.acquire(tmp_path)
    lock.release()
    lock.release()


def test_a_released_directory_can_be_locked_again(tmp_path: Path) -> None:
    DirectoryLock.acquire(tmp_path / "new").release()
    lock = DirectoryLock.acquire(tmp_path / "new")
    with pytest.raises(DirectoryInUseError, match=f"process {os.getpid()};"):
        DirectoryLock.acquire(tmp_path / "new")
    lock.release()


def test_a_lock_notices_that_its_directory_is_gone_or_another(tmp_path: Path) -> None:
    data = tmp_path / "data"
    lock = DirectoryLock.acquire(data)
    lock.check()
    data.rename(tmp_path / "elsewhere")
    with pytest.raises(DirectoryReplacedError, match="no such file or directory"):
        lock.check()
    data.mkdir()
    with pytest.raises(DirectoryReplacedError, match="another directory has its name"):
        lock.check()
    data.rmdir()
    (tmp_path / "elsewhere").rename(data)
    lock.check()
    lock.release()


async def test_only_large_reads_are_mapped_and_none_when_there_are_no_descriptors(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await disk.open("a", create=True)
    content = bytes(MAPPED_BYTES_MIN + 10)
    await file.append([content])

    def is_mapped(data: Buffer) -> bool:
        return isinstance(data, memoryview) and isinstance(data.obj, mmap.mmap)

    assert not is_mapped(await file.map(0, MAPPED_BYTES_MIN - 1))
    assert is_mapped(await file.map(7, MAPPED_BYTES_MIN))

    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(mmap, "mmap", none_left)
    assert await file.map(7, MAPPED_BYTES_MIN) == content[7 : 7 + MAPPED_BYTES_MIN]
    await file.close()


async def test_sending_from_a_truncated_file_is_an_error_and_does_not_end_the_process(
    disk: FileDisk, root: Path
) -> None:
    file = await disk.open("a", create=True)
    await file.append([bytes(4 * MAPPED_BYTES_MIN)])
    mapped = await file.map(0, 4 * MAPPED_BYTES_MIN)
    os.truncate(root / "a", 0)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(OSError, match="Bad address"):
        ours.send(mapped)
    await file.close()
