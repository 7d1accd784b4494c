"""The simulated disk: the Disk port in memory, with kills, power cuts, full disks and failures.

Verbs of the hooks: ``create``, ``append``, ``rewrite``, ``truncate``, ``sync``, ``mkdir``,
``rename``, ``remove`` and ``sync_directory`` change something; ``open``, ``read`` and ``list`` do
not. As on the real disk, syncs and changes of a directory wait, writes to a file and what changes
nothing do not: they are not delayed. The size in a hook counts bytes of a file, changes of a
directory that is synced, names of a tree.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Self

from fencelog.errors import ExhaustedError, StorageError
from fencelog.types import Buffer
from fencelog_sim.world.disk_image import Directory, DiskImage, Entry, Inode, Loss
from fencelog_sim.world.gate import NO_SPACE, Device, Fault, Halt

__all__ = ["READING", "Loss", "PowerCut", "SimDisk", "SimFile"]

READING = frozenset({"open", "read", "list"})
"""Verbs of operations that change nothing."""


class PowerCut(BaseException):
    """The machine stops here: for a gate to raise where nothing after it is looked at again."""


class SimFile:
    """One open file of a SimDisk."""

    def __init__(self, disk: "SimDisk", path: str, inode: Inode) -> None:
        """Open it."""
        self._disk = disk
        self._path = path
        self._inode = inode
        self._failed = False
        self._closed = False
        self._syncs = 0
        self._synced: asyncio.Future[None] | None = None
        """Set by a close that waits for the syncs under way."""
        disk.opened(inode)

    @property
    def size(self) -> int:
        """Bytes in the file, those not yet synced included."""
        return len(self._inode.data)

    async def append(self, buffers: Sequence[Buffer]) -> None:
        """Write at the end; part of it where the disk gets full."""
        self._check_usable()
        data = b"".join(buffers)
        if not data:
            return
        verdict = self._disk.verdict("append", self._path, len(data))
        wanted = len(data) if verdict is None else min(verdict.done, len(data))
        written = self._disk.image.take(wanted)
        is_full = verdict is None or (isinstance(verdict, Fault) and verdict.reason == NO_SPACE)
        if is_full and written < len(data):
            self._disk.image.used -= written  # cut back, as the real disk does
            raise _failed("write", self._path, NO_SPACE)
        position = len(self._inode.data)
        self._inode.data += data if written == len(data) else data[:written]
        self._inode.writes += 1
        if self._disk.wrote is not None:
            self._disk.wrote(self._path, position, data[:written])
        if verdict is None:
            return
        if isinstance(verdict, Halt):
            await self._disk.halt(verdict)
        self._failed = True
        raise _failed("write", self._path, verdict.reason)

    async def rewrite(self, position: int, data: Buffer) -> None:
        """Make the bytes that are here dirty again."""
        self._check_usable()
        end = position + len(data)
        assert self._inode.data[position:end] == data, (self._path, position)
        await self._change("rewrite", len(data))
        self._inode.rewritten.append((position, end))

    async def truncate(self, size: int) -> None:
        """Remove what is at ``size`` and after it."""
        self._check_usable()
        assert size <= len(self._inode.data), (self._path, size)
        await self._change("truncate", len(self._inode.data) - size)
        self._disk.image.used -= self._inode.truncate(size)
        if self._disk.truncated is not None:
            self._disk.truncated(self._path)

    async def _change(self, verb: str, size: int) -> None:
        """Let a change of bytes that are there happen whole, or not at all."""
        verdict = self._disk.verdict(verb, self._path, size)
        if isinstance(verdict, Halt):
            await self._disk.halt(verdict)
        if verdict is not None:
            self._failed = True
            raise _failed(verb, self._path, verdict.reason)

    async def read(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``position``."""
        assert not self._closed, self._path
        await self._disk.pass_gate("read", "read", self._path, size)
        with memoryview(self._inode.data) as data:
            return bytes(data[position : position + size])

    async def map(self, position: int, size: int) -> bytes:
        """Return a copy, as ``read`` does."""
        return await self.read(position, size)

    async def sync(self) -> None:
        """Make the bytes stable, or fail and forget which pages were dirty."""
        self._check_usable()
        inode = self._inode
        end = len(inode.data)
        await self._wait_for_sync(end - inode.synced)
        verdict = self._disk.sync_verdict(self._path, max(end - inode.synced, 0))
        inode.sync(end if verdict is None else min(inode.synced + verdict.done, end))
        if verdict is None:
            inode.sync_changes()
        if isinstance(verdict, Halt):
            await self._disk.halt(verdict)
        if verdict is not None:
            inode.fail_sync(end)
            self._failed = True
            raise _failed("sync", self._path, verdict.reason)
        # As on the real disk: a concurrent sync that failed may have taken these pages.
        self._check_not_failed()

    async def close(self) -> None:
        """Close without syncing, after the syncs under way; a second close does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._syncs:
            self._synced = asyncio.get_running_loop().create_future()
            await self._synced
        self._disk.closed(self._inode)

    async def _wait_for_sync(self, size: int) -> None:
        self._syncs += 1
        try:
            await self._disk.wait("sync", self._path, size)
        finally:
            self._syncs -= 1
            if self._syncs == 0 and self._synced is not None and not self._synced.done():
                self._synced.set_result(None)

    def _check_usable(self) -> None:
        assert not self._closed, self._path
        self._check_not_failed()

    def _check_not_failed(self) -> None:
        if self._failed:
            raise StorageError(f"{self._path} accepts no more writes")


class SimDisk(Device):
    """A tree of files in memory; one process's view of it."""

    def __init__(
        self,
        *,
        free_bytes: int | None = None,
        operations: list[tuple[str, str]] | None = None,
    ) -> None:
        """Make an empty disk.

        ``free_bytes`` limits what may be appended from now on. ``operations`` takes the verb and
        path of everything that changed something, in order.
        """
        super().__init__()
        self.image = DiskImage(capacity=free_bytes)
        self.failing_syncs = 0
        """How many of the next syncs of files fail."""
        self.open_files = 0
        self.operations = operations
        self.wrote: Callable[[str, int, bytes], None] | None = None
        """Called with path, position and bytes of each append, in the same step."""
        self.renamed: Callable[[str], None] | None = None
        """Called with the new name of each file that was renamed, in the same way."""
        self.removed: Callable[[str], None] | None = None
        """Called with the name of each file that was removed, in the same way."""
        self.truncated: Callable[[str], None] | None = None
        """Called with the name of each file that was truncated, in the same way."""

    @property
    def free_bytes(self) -> int | None:
        """Bytes that can still be appended; None for no end of them. Removals give theirs back."""
        image = self.image
        return None if image.capacity is None else image.capacity - image.used

    @free_bytes.setter
    def free_bytes(self, size: int | None) -> None:
        self.image.capacity = None if size is None else self.image.used + size

    # -- the port ------------------------------------------------------------------------------

    async def open(self, path: str, *, create: bool = False) -> SimFile:
        """Open a file."""
        if create:
            await self.wait("create", path)
        directory, name = self._locate("open", path)
        entry = directory.names.get(name)
        if entry is None:
            if not create:
                raise FileNotFoundError(path)
            await self.pass_gate("create", "open", path)
            entry = Inode()
            directory.change({name: entry})
        else:
            await self.pass_gate("open", "open", path)
        if isinstance(entry, Directory):
            raise _failed("open", path, "Is a directory")
        return SimFile(self, path, entry)

    async def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        await self.pass_gate("list", "list", path)
        directory = self._find(path)
        return sorted(directory.names) if isinstance(directory, Directory) else []

    async def make_directory(self, path: str) -> None:
        """Make a directory and its parents."""
        await self.wait("mkdir", path)
        directory = self.image.root
        made = ""
        for name in _parts(path):
            made = f"{made}/{name}" if made else name
            if name not in directory.names:
                await self.pass_gate("mkdir", "make directory", made)
                directory.change({name: Directory()})
            entry = directory.names[name]
            if isinstance(entry, Inode):
                raise _failed("make directory", path, "Not a directory")
            directory = entry

    async def rename(self, old: str, new: str) -> None:
        """Move a file or a directory."""
        await self.wait("rename", new)
        source, old_name = self._locate("rename", old)
        target, new_name = self._locate("rename", new)
        moved = source.names.get(old_name)
        if moved is None:
            raise FileNotFoundError(old)
        replaced = target.names.get(new_name)
        problem = _cannot_replace(moved, replaced)
        if problem is not None:
            raise _failed("rename", old, problem)
        await self.pass_gate("rename", "rename", new)
        if moved is replaced:
            return
        if source is target:
            source.change({old_name: None, new_name: moved})
        else:
            target.change({new_name: moved})
            source.change({old_name: None})
        self._unnamed(replaced)
        if self.renamed is not None:
            self.renamed(new)

    async def remove(self, path: str) -> None:
        """Remove a file or a tree; of a tree the names below go one by one."""
        assert _parts(path), path
        if not isinstance(self._find(path), Directory):
            await self.wait("remove", path)
        if self._find(path) is None:
            return
        directory, name = self._locate("remove", path)
        entry = directory.names[name]
        if isinstance(entry, Inode):
            await self.pass_gate("remove", "remove", path)
        else:
            below = entry.count()
            await self.wait("remove", path, below)
            verdict = self.verdict("remove", path, below)
            self._prune(entry, below if verdict is None else min(verdict.done, below))
            await self.heed(verdict, "remove", path)
        if directory.names.get(name) is entry:
            directory.change({name: None})
            self._unnamed(entry)
            if self.removed is not None:
                self.removed(path)

    async def sync_directory(self, path: str) -> None:
        """Make the names of a directory stable."""
        directory = self._find(path)
        if not isinstance(directory, Directory):
            problem = "No such file or directory" if directory is None else "Not a directory"
            raise _failed("sync directory", path, problem)
        changes = len(directory.changes)
        end = directory.synced + changes
        await self.wait("sync_directory", path, changes)
        verdict = self.verdict("sync_directory", path, changes)
        directory.sync(end if verdict is None else min(directory.synced + verdict.done, end))
        await self.heed(verdict, "sync directory", path)

    # -- crashes and damage -------------------------------------------------------------------

    def restarted(self) -> Self:
        """The disk as the next process finds it after a kill: all that was written, nothing open.

        This view has ended: nothing asked of it takes effect or returns.
        """
        self._ended = True
        return self._seen_again(self.image.closed())

    def power_loss(self, loss: Loss, random: Random | None = None) -> Self:
        """A copy of the disk as the next boot finds it; this one is not used afterwards."""
        return self._seen_again(self.image.survivor(loss, random or Random(0)))

    def corrupt(self, path: str, position: int, flip: int = 0x01) -> None:
        """Flip bits of one stored byte."""
        self._file(path).data[position] ^= flip

    def lose(self, path: str) -> None:
        """Take a file's name where there is one; no power cut brings it back."""
        directory, name = self._locate("remove", path)
        self._unnamed(directory.names.get(name))
        directory.names.pop(name, None)
        directory.stable.pop(name, None)
        for change in directory.changes:
            change.pop(name, None)

    def overwrite(self, path: str, data: Buffer) -> None:
        """Put other stored bytes in the place of a file's."""
        inode = self._file(path)
        self.image.used += len(data) - len(inode.data)
        inode.data[:] = data
        inode.synced = len(data)
        inode.doubtful.clear()
        inode.rewritten.clear()
        inode.removed = b""

    def contents(self, path: str) -> bytes:
        """The bytes of a file as a reader sees them."""
        return bytes(self._file(path).data)

    def exists(self, path: str) -> bool:
        """Whether there is a file of this name."""
        return isinstance(self._find(path), Inode)

    # -- inside --------------------------------------------------------------------------------

    def verdict(self, verb: str, name: str, size: int = 0) -> Halt | Fault | None:
        """The fault at an operation; the operation is traced."""
        verdict = super().verdict(verb, name, size)
        if self.operations is not None and verb not in READING:
            self.operations.append((verb, name))
        return verdict

    def sync_verdict(self, path: str, size: int) -> Halt | Fault | None:
        """The fault at the sync of a file, ``failing_syncs`` included."""
        verdict = self.verdict("sync", path, size)
        if verdict is None and self.failing_syncs > 0:
            self.failing_syncs -= 1
            return Fault()
        return verdict

    async def heed(self, verdict: Halt | Fault | None, what: str, path: str) -> None:
        """Continue, fail, or never return."""
        if isinstance(verdict, Halt):
            await self.halt(verdict)
        if verdict is not None:
            raise _failed(what, path, verdict.reason)

    async def pass_gate(self, verb: str, what: str, path: str, size: int = 0) -> None:
        """Apply the fault to an operation that happens whole or not at all."""
        verdict = self.verdict(verb, path, size)
        if verdict is not None:
            await self.heed(verdict, what, path)

    def opened(self, inode: Inode) -> None:
        """Count an opening."""
        inode.openings += 1
        self.open_files += 1

    def closed(self, inode: Inode) -> None:
        """Count a close."""
        self.open_files -= 1
        if not self._ended:
            inode.openings -= 1
            self.image.give_back(inode)

    def _seen_again(self, image: DiskImage) -> Self:
        after = type(self)()
        after.image = image
        return after

    def _prune(self, directory: Directory, count: int) -> int:
        """Take up to ``count`` names below a directory; returns how many are left to take."""
        for name, entry in sorted(directory.names.items(), key=_by_name):
            if isinstance(entry, Directory):
                count = self._prune(entry, count)
            if count == 0:
                return 0
            directory.change({name: None})
            self._unnamed(entry)
            count -= 1
        return count

    def _unnamed(self, entry: "Entry | None") -> None:
        if isinstance(entry, Inode):
            entry.is_named = False
            self.image.give_back(entry)

    def _find(self, path: str) -> "Entry | None":
        entry: Entry | None = self.image.root
        for name in _parts(path):
            entry = entry.names.get(name) if isinstance(entry, Directory) else None
        return entry

    def _locate(self, what: str, path: str) -> tuple[Directory, str]:
        *above, name = _parts(path)
        parent = self._find("/".join(above))
        if parent is None:
            raise FileNotFoundError(path)
        if isinstance(parent, Inode):
            raise _failed(what, path, "Not a directory")
        return parent, name

    def _file(self, path: str) -> Inode:
        inode = self._find(path)
        assert isinstance(inode, Inode), path
        return inode


def _parts(path: str) -> list[str]:
    parts = path.split("/") if path not in {"", "."} else []
    assert all(part not in {"", ".", ".."} for part in parts), path
    return parts


def _by_name(item: tuple[str, Entry]) -> str:
    return item[0]


def _cannot_replace(moved: Entry, replaced: "Entry | None") -> str | None:
    """Why a rename over what is there is refused, as by rename(2)."""
    if replaced is None or replaced is moved:
        return None
    if isinstance(moved, Directory) and isinstance(replaced, Inode):
        return "Not a directory"
    if isinstance(moved, Inode) and isinstance(replaced, Directory):
        return "Is a directory"
    if isinstance(replaced, Directory) and replaced.names:
        return "Directory not empty"
    return None


def _failed(what: str, path: str, reason: str) -> StorageError:
    is_exhausted = reason == NO_SPACE and what not in {"sync", "sync directory"}
    kind = ExhaustedError if is_exhausted else StorageError
    return kind(f"{what} failed: {path}: {reason}")
