"""The Disk port over a real directory, and the lock that keeps a second broker out of it.

Reads and writes run inline: they use the page cache and take microseconds. Syncs, and changes of
directories (a new file, a rename, a removal), wait for the file system's journal, which takes
milliseconds on a busy disk: they run in a small thread pool.
"""

import asyncio
import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar, TypeVarTuple, Unpack

from fencelog.errors import ExhaustedError, StorageError
from fencelog.types import Buffer

_T = TypeVar("_T")
_R = TypeVar("_R")
_Ts = TypeVarTuple("_Ts")

# Concurrent syncs share the file system's commits: on ext4, 16 threads did tens of times as many
# syncs of small appends as one. They are started when they are needed.
_SYNC_THREADS = 16
_BUFFERS_PER_WRITE_MAX = 1024  # IOV_MAX of Linux
_NO_PARTS = frozenset({"", ".", ".."})
_EXHAUSTED = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
    }
)
"""The system has no more of something; once it has, the same call succeeds."""
MAPPED_BYTES_MIN = 256 * 1024
"""Below this, making and removing a mapping costs more than a copy."""
_LOCK_FILE = ".lock"  # Kafka's name for it


class DirectoryInUseError(StorageError):
    """Another broker holds the data directory; the message names its process."""


class FileDiskFile:
    """One open file of a FileDisk."""

    def __init__(self, disk: "FileDisk", path: str, descriptor: int) -> None:
        """Take over an open descriptor."""
        self._disk = disk
        self._path = path
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._failure: str | None = None
        self._syncs: set[asyncio.Future[None]] = set()
        self._closed = False

    @property
    def size(self) -> int:
        """Bytes in the file, those not yet synced included."""
        return self._size

    async def append(self, buffers: Sequence[Buffer]) -> None:
        """Write all buffers at the end; nothing of them if the disk is full (ExhaustedError).

        After any other StorageError the file accepts no more writes.
        """
        self._check_usable()
        start = self._size
        views = [memoryview(buffer) for buffer in buffers if len(buffer)]
        try:
            while views:
                written = os.pwritev(self._descriptor, views[:_BUFFERS_PER_WRITE_MAX], self._size)
                self._size += written
                views = _after(views, written)
        except OSError as error:
            if error.errno in _EXHAUSTED and self._cut_back(start):
                raise _storage_error("write", self._path, error) from error
            raise self._fail("write", error) from error

    async def rewrite(self, position: int, data: Buffer) -> None:
        """Write the bytes that are at this position once more: the next sync then covers them."""
        self._check_usable()
        assert position + len(data) <= self._size, (position, len(data), self._size)
        views = [memoryview(data)]
        try:
            while views:
                written = os.pwritev(self._descriptor, views, position)
                position += written
                views = _after(views, written)
        except OSError as error:
            raise self._fail("write", error) from error

    async def truncate(self, size: int) -> None:
        """Remove everything from this position on, durably with the next sync."""
        self._check_usable()
        assert size <= self._size, (size, self._size)
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise self._fail("truncate", error) from error
        self._size = size

    def _cut_back(self, size: int) -> bool:
        """Remove what a failed write left above ``size``; False if that fails, too."""
        try:
            os.ftruncate(self._descriptor, size)
        except OSError:
            return False
        self._size = size
        return True

    async def read(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        assert not self._closed, self._path
        try:
            data = os.pread(self._descriptor, size, position)
            if len(data) == size or position + len(data) >= self._size or not data:
                return data
            parts = [data]
            got = len(data)
            while got < size and (more := os.pread(self._descriptor, size - got, position + got)):
                parts.append(more)
                got += len(more)
            return b"".join(parts)
        except OSError as error:
            raise _storage_error("read", self._path, error) from error

    async def map(self, position: int, size: int) -> Buffer:
        """Return bytes to be sent: large ones are mapped, so that the kernel copies them once.

        A mapping has an open file of its own, so the bytes stay when this file is closed or
        removed. Files are never truncated while they are open; if it happens all the same, or the
        disk fails, sending reports an error (ADR 15).
        """
        if size < MAPPED_BYTES_MIN:
            return await self.read(position, size)
        start = position - position % mmap.ALLOCATIONGRANULARITY
        skipped = position - start
        size = min(size, self._size - position)
        try:
            whole = mmap.mmap(self._descriptor, skipped + size, prot=mmap.PROT_READ, offset=start)
        except (OSError, ValueError):  # no more open files or mappings are to be had
            return await self.read(position, size)
        return memoryview(whole)[skipped:]

    async def sync(self) -> None:
        """Return when everything written is on stable storage; never retried after a failure."""
        self._check_usable()
        sync = self._disk.submit_sync(os.fdatasync, self._descriptor)
        self._syncs.add(sync)
        sync.add_done_callback(self._sync_ended)
        try:
            await asyncio.shield(sync)
        except OSError as error:
            raise _storage_error("sync", self._path, error) from error
        # A concurrent sync may have got the error report for these pages.
        self._check_not_failed()

    def _sync_ended(self, sync: "asyncio.Future[None]") -> None:
        self._syncs.discard(sync)
        if not sync.cancelled() and (error := sync.exception()) is not None:
            self._failure = f"an earlier sync failed: {getattr(error, 'strerror', error)}"

    async def close(self) -> None:
        """Close without syncing, after the syncs in progress; a second close does nothing."""
        if self._closed:
            return
        self._closed = True
        # A descriptor that is closed during a sync could be reused for another file.
        if self._syncs:
            await asyncio.wait(set(self._syncs))
        os.close(self._descriptor)

    def _check_usable(self) -> None:
        assert not self._closed, self._path
        self._check_not_failed()

    def _check_not_failed(self) -> None:
        if self._failure is not None:
            raise StorageError(f"{self._path} accepts no more writes: {self._failure}")

    def _fail(self, what: str, error: OSError) -> StorageError:
        self._failure = f"{what} failed: {error.strerror}"
        return _storage_error(what, self._path, error)


class FileDisk:
    """A directory of the file system as a Disk."""

    def __init__(self, root: str | Path) -> None:
        """Create the directory if it is missing, and make its name durable."""
        self._root = os.path.abspath(root)
        self._pool = ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="fencelog-disk")
        try:
            where = Path(self._root)
            missing = [p for p in (where, *where.parents) if not p.exists()]
            where.mkdir(parents=True, exist_ok=True)
            for path in missing:
                sync_directory(path.parent)
        except OSError as error:
            raise _storage_error("make directory", self._root, error) from error

    async def open(self, path: str, *, create: bool = False) -> FileDiskFile:
        """Open for reading and appending; ``create`` makes an empty file if there is none."""
        where = self._where(path)
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            try:
                descriptor = _open(where, flags)
            except FileNotFoundError:
                if not create:
                    raise
                descriptor = await self._change(_open, where, flags | os.O_CREAT, undo=os.close)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _storage_error("open", where, error) from error
        return FileDiskFile(self, where, descriptor)

    async def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if there is no such directory."""
        where = self._where(path)
        try:
            return sorted(os.listdir(where))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _storage_error("list", where, error) from error

    async def make_directory(self, path: str) -> None:
        """Make a directory and its parents; an existing one is not changed."""
        where = self._where(path)
        try:
            await self._change(_make_directory, where)
        except OSError as error:
            raise _storage_error("make directory", where, error) from error

    async def rename(self, old: str, new: str) -> None:
        """Move a file or directory over ``new`` atomically."""
        source = self._where(old)
        try:
            await self._change(os.replace, source, self._where(new))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _storage_error("rename", source, error) from error

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with all in it; do nothing if there is none."""
        where = self._where(path)
        assert where != self._root, path
        try:
            await self._change(_remove, where)
        except OSError as error:
            raise _storage_error("remove", where, error) from error

    async def sync_directory(self, path: str) -> None:
        """Return when the names in this directory are on stable storage."""
        where = self._where(path)
        try:
            await self.submit_sync(sync_directory, where)
        except OSError as error:
            raise StorageError(f"sync directory failed: {where}: {error.strerror}") from error

    def submit_sync(self, function: Callable[[_T], _R], argument: _T) -> "asyncio.Future[_R]":
        """Run a sync in the pool."""
        return asyncio.get_running_loop().run_in_executor(self._pool, function, argument)

    async def _change(
        self,
        function: Callable[[Unpack[_Ts]], _R],
        *arguments: *_Ts,
        undo: Callable[[_R], None] | None = None,
    ) -> _R:
        """Change a directory in the pool; a cancelled caller waits until the change is made.

        ``undo`` gets the result that a cancelled caller does not take over.
        """
        loop = asyncio.get_running_loop()
        change = loop.run_in_executor(self._pool, function, *arguments)
        try:
            return await asyncio.shield(change)
        except asyncio.CancelledError:
            await asyncio.wait([change])
            if undo is not None and change.exception() is None:
                undo(change.result())
            raise

    def close(self) -> None:
        """End the pool's threads; the disk is not used afterwards."""
        self._pool.shutdown(wait=True)

    def _where(self, path: str) -> str:
        if path in {"", "."}:
            return self._root
        assert _NO_PARTS.isdisjoint(path.split("/")), path
        return f"{self._root}/{path}"


class DirectoryReplacedError(StorageError):
    """The path of the data directory no longer leads to the locked directory."""


class DirectoryLock:
    """Exclusive use of a data directory, held until closed or until the process ends.

    The directory itself is locked: unlike a file in it, it cannot be removed while it is used. The
    lock file has the pid of the holder, and is locked for tools that know Kafka's lock file.
    """

    def __init__(self, path: Path, descriptors: Sequence[int]) -> None:
        """Take over the locked descriptors: the directory's, then that of the file in it."""
        self._path = path
        self._descriptors = list(descriptors)

    @classmethod
    def acquire(cls, root: str | Path) -> Self:
        """Lock the directory, or raise DirectoryInUseError with the pid of its holder."""
        directory = Path(root)
        path = directory / _LOCK_FILE
        descriptors: list[int] = []
        try:
            directory.mkdir(parents=True, exist_ok=True)
            descriptors.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            descriptors.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
            for descriptor in descriptors:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptors[1], 0)
            os.pwrite(descriptors[1], f"{os.getpid()}\n".encode("ascii"), 0)
        except BlockingIOError:
            # Empty: the holder has not written its pid yet, or somebody removed the file it wrote.
            pid = os.pread(descriptors[1], 32, 0).decode("ascii", "replace").strip()
            holder = f"process {pid}" if pid else "another process"
            _close_all(descriptors)
            raise DirectoryInUseError(
                f"data directory {directory} is in use by {holder}; "
                "stop that broker, or start this one with another --data-dir"
            ) from None
        except OSError as error:
            _close_all(descriptors)
            raise _storage_error("lock", path, error) from error
        return cls(directory, descriptors)

    @property
    def place(self) -> str:
        """Which directory it is on this machine: a copy is another one."""
        held = os.fstat(self._descriptors[0])
        return f"@{held.st_dev:x}:{held.st_ino:x}"

    def check(self) -> None:
        """Raise DirectoryReplacedError if the path leads to another directory or to none.

        Another broker may have locked that one, and files opened by path would be in it.
        """
        held = os.fstat(self._descriptors[0])
        try:
            found = os.stat(self._path)
        except OSError as error:
            problem = f"{error.strerror}".lower()
        else:
            if (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino):
                return
            problem = "another directory has its name"
        raise DirectoryReplacedError(
            f"data directory {self._path} was moved, replaced or removed while it was in use "
            f"({problem}): put it back, then start the broker"
        )

    def release(self) -> None:
        """Unlock the directory; a second release does nothing."""
        # The file stays: it names the last holder.
        _close_all(self._descriptors)
        self._descriptors.clear()


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _after(views: list[memoryview], written: int) -> list[memoryview]:
    """Return the views without their first ``written`` bytes."""
    for index, view in enumerate(views):
        if written < view.nbytes:
            return [view[written:], *views[index + 1 :]]
        written -= view.nbytes
    return []


def _open(path: str, flags: int) -> int:
    return os.open(path, flags, 0o644)


def _make_directory(path: str) -> None:
    os.makedirs(path, exist_ok=True)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
        return
    with suppress(FileNotFoundError):
        os.unlink(path)


def sync_directory(path: str | Path) -> None:
    """Make the names in a directory durable. Raises StorageError, and OSError for a failed sync."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:  # nothing is lost by a sync that did not begin
        raise _storage_error("sync directory", path, error) from error
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _storage_error(what: str, path: str | Path, error: OSError) -> StorageError:
    # What a failed sync has lost stays lost, whatever the reason (D2).
    is_exhausted = error.errno in _EXHAUSTED and what != "sync"
    kind = ExhaustedError if is_exhausted else StorageError
    return kind(f"{what} failed: {path}: {error.strerror}")
