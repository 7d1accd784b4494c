"""A simulated disk: the Disk port in memory, with power cuts, full disks and failing syncs.

What is not synced is kept apart: the contents of a file since its last sync, and the names of a
directory since its own. ``power_loss`` keeps a chosen part of both, as a real disk would.

``operations`` is the trace of all that changed something: (verb, path) in order. ``before`` is
called ahead of each of them and may raise ``PowerCut`` to stop the world there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from fencelog.errors import StorageError
from fencelog.types import Buffer


class PowerCut(BaseException):
    """The machine stops here; no handler for ordinary errors may catch it."""


class Loss(Enum):
    """What a power cut leaves of what was not synced."""

    ALL = "nothing unsynced survives"
    NONE = "everything survives, as after kill -9"
    TORN = "each file and directory keeps a random prefix of its changes"
    HOLES = "as torn, but pages in the middle may be zeros"


@dataclass
class _Inode:
    """A file: its bytes, and what of them is on stable storage."""

    data: bytearray = field(default_factory=bytearray)
    stable: bytes = b""


@dataclass
class _Directory:
    """Names of a directory: as seen, as synced, and each state between."""

    names: dict[str, _Inode] = field(default_factory=dict)
    states: list[dict[str, _Inode]] = field(default_factory=lambda: [{}])

    def changed(self) -> None:
        self.states.append(dict(self.names))


class SimFile:
    """One open file of a SimDisk."""

    def __init__(self, disk: "SimDisk", path: str, inode: _Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._failed = False
        self._closed = False
        disk.open_files += 1

    @property
    def size(self) -> int:
        """Bytes in the file, those not yet synced included."""
        return len(self._inode.data)

    async def append(self, buffers: Sequence[Buffer]) -> None:
        """Write at the end; part of it where the disk gets full."""
        self._usable()
        self._disk.happens("append", self._path)
        data = b"".join(bytes(buffer) for buffer in buffers)
        room = self._disk.take_space(len(data))
        self._inode.data += data[:room]
        if room < len(data):
            self._failed = True
            raise StorageError(f"write failed: {self._path}: No space left on device")

    async def read(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``position``."""
        assert not self._closed, self._path
        return bytes(self._inode.data[position : position + size])

    async def sync(self) -> None:
        """Make the bytes stable, or fail and forget which pages were dirty."""
        self._usable()
        self._disk.happens("sync", self._path)
        if self._disk.failing_syncs > 0:
            self._disk.failing_syncs -= 1
            self._failed = True
            raise StorageError(f"sync failed: {self._path}: Input/output error")
        self._inode.stable = bytes(self._inode.data)

    async def close(self) -> None:
        """Close without syncing."""
        self._disk.open_files -= not self._closed
        self._closed = True

    def _usable(self) -> None:
        assert not self._closed, self._path
        if self._failed:
            raise StorageError(f"{self._path} is given up")


class SimDisk:
    """A tree of files in memory. Directories themselves are always durable, their names are not."""

    def __init__(self, *, free_bytes: int | None = None) -> None:
        """Make an empty disk; ``free_bytes`` limits what may be appended from now on."""
        self._directories: dict[str, _Directory] = {"": _Directory()}
        self.free_bytes = free_bytes
        self.failing_syncs = 0
        self.open_files = 0
        self.operations: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = _nothing

    async def open(self, path: str, *, create: bool = False) -> SimFile:
        """Open a file."""
        directory, name = self._split(path)
        inode = directory.names.get(name)
        if inode is None:
            if not create or path in self._directories:
                raise FileNotFoundError(path)
            self.happens("create", path)
            inode = directory.names[name] = _Inode()
            directory.changed()
        return SimFile(self, path, inode)

    async def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        if path not in self._directories:
            return []
        prefix = f"{path}/" if path else ""
        below = {
            d[len(prefix) :].split("/")[0] for d in self._directories if d.startswith(prefix) and d
        }
        return sorted({*self._directories[path].names, *below} - {""})

    async def make_directory(self, path: str) -> None:
        """Make a directory and its parents."""
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            parent = "/".join(parts[:end])
            if parent not in self._directories:
                self.happens("mkdir", parent)
                self._directories[parent] = _Directory()

    async def rename(self, old: str, new: str) -> None:
        """Move a file or a directory."""
        source, old_name = self._split(old)
        target, new_name = self._split(new)
        if old in self._directories:
            self.happens("rename", new)
            moved = [d for d in self._directories if d == old or d.startswith(f"{old}/")]
            for path in moved:
                self._directories[new + path[len(old) :]] = self._directories.pop(path)
            return
        if old_name not in source.names:
            raise FileNotFoundError(old)
        self.happens("rename", new)
        target.names[new_name] = source.names.pop(old_name)
        target.changed()
        if source is not target:
            source.changed()

    async def remove(self, path: str) -> None:
        """Remove a file or a tree."""
        if path in self._directories:
            self.happens("remove", path)
            for below in [d for d in self._directories if d == path or d.startswith(f"{path}/")]:
                del self._directories[below]
            return
        directory, name = self._split(path)
        if name in directory.names:
            self.happens("remove", path)
            del directory.names[name]
            directory.changed()

    async def sync_directory(self, path: str) -> None:
        """Make the names of a directory stable."""
        if path not in self._directories:
            raise StorageError(f"sync failed: {path}: No such file or directory")
        self.happens("sync_directory", path)
        directory = self._directories[path]
        directory.states = [dict(directory.names)]

    def power_loss(self, loss: Loss, random: Random | None = None) -> "SimDisk":
        """The disk as the next boot finds it; this one is not used afterwards."""
        random = random or Random(0)
        after = SimDisk()
        survivors: dict[int, _Inode] = {}
        for path, directory in self._directories.items():
            states = directory.states
            if loss is Loss.ALL:
                names = states[0]
            elif loss is Loss.NONE:
                names = directory.names
            else:
                names = random.choice(states)
            kept = {
                name: survivors.setdefault(id(inode), _survivor(inode, loss, random))
                for name, inode in names.items()
            }
            after._directories[path] = _Directory(names=kept, states=[dict(kept)])
        return after

    def corrupt(self, path: str, position: int, flip: int = 0x01) -> None:
        """Flip bits of one stored byte."""
        directory, name = self._split(path)
        inode = directory.names[name]
        inode.data[position] ^= flip
        inode.stable = bytes(inode.data)

    def contents(self, path: str) -> bytes:
        """The bytes of a file as a reader sees them."""
        directory, name = self._split(path)
        return bytes(directory.names[name].data)

    def happens(self, verb: str, path: str) -> None:
        """Record an operation that is about to change something."""
        self.before(verb, path)
        self.operations.append((verb, path))

    def take_space(self, size: int) -> int:
        """How many of these bytes the disk has room for; they are taken."""
        if self.free_bytes is None:
            return size
        room = min(size, self.free_bytes)
        self.free_bytes -= room
        return room

    def _split(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        if parent not in self._directories:
            raise FileNotFoundError(path)
        return self._directories[parent], name


def _nothing(verb: str, path: str) -> None:
    """Let every operation happen."""


def _survivor(inode: _Inode, loss: Loss, random: Random) -> _Inode:
    data, stable = bytes(inode.data), inode.stable
    if loss is Loss.ALL:
        kept = stable
    elif loss is Loss.NONE:
        kept = data
    elif data.startswith(stable):
        kept = data[: random.randint(len(stable), len(data))]
        if loss is Loss.HOLES and len(kept) > len(stable):
            start = random.randint(len(stable), len(kept))
            end = random.randint(start, len(kept))
            kept = kept[:start] + bytes(end - start) + kept[end:]
    else:
        kept = random.choice([stable, data])
    return _Inode(bytearray(kept), kept)
