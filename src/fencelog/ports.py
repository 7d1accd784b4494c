"""The doors to the world that an event loop does not have: disk, metadata, wall clock, randomness.

Interfaces only. Each has one contract suite under ``tests/contracts`` that every adapter passes.
Deadlines and sockets are not here: they come from the running loop, which a simulated one replaces.
"""

from collections.abc import Sequence
from typing import Protocol

from fencelog.types import Buffer, TimestampMs


class DiskFile(Protocol):
    """An open file. All positions and sizes are in bytes."""

    @property
    def size(self) -> int:
        """Bytes in the file, those not yet synced included."""
        ...

    async def append(self, buffers: Sequence[Buffer]) -> None:
        """Write the buffers at the end, all or an exception.

        Raises StorageError on a full disk or a failed write; what part of the buffers is in the
        file afterwards is unknown, and the file must not be appended to again.
        """
        ...

    async def read(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        ...

    async def sync(self) -> None:
        """Return when everything written is on stable storage.

        Raises StorageError when the sync failed: the file's unsynced pages are then lost or
        marked clean, so a later sync proves nothing (rule D2) and the file must be given up.
        """
        ...

    async def close(self) -> None:
        """Close without syncing. A second close does nothing."""
        ...


class Disk(Protocol):
    """A tree of files. Paths are relative to the data directory, with ``/`` between parts."""

    async def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open for reading and appending; ``create`` makes an empty file where none is.

        A new name is durable once its directory is synced. Raises FileNotFoundError where there is
        no such file and ``create`` is false, or no directory to make it in.
        """
        ...

    async def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty where there is no such directory."""
        ...

    async def make_directory(self, path: str) -> None:
        """Make a directory and its parents; an existing one is left as it is.

        Each is durable, with all in it, once the directory that holds its name is synced.
        """
        ...

    async def rename(self, old: str, new: str) -> None:
        """Move a file or directory over ``new`` atomically.

        It is durable once both directories are synced.
        """
        ...

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with all in it; nothing happens where there is none."""
        ...

    async def sync_directory(self, path: str) -> None:
        """Return when the names in this directory are on stable storage."""
        ...


class MetadataStore(Protocol):
    """Small, durable, versioned cells: topics, configs, counters. Every write is synced."""

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """Value and version of a key, or None."""
        ...

    async def list(self, prefix: str) -> list[tuple[str, bytes, int]]:
        """Key, value and version of each key with this prefix, in key order."""
        ...

    async def put(self, key: str, value: bytes, *, expected_version: int) -> int | None:
        """Compare and set; 0 expects absence. Returns the new version, or None when it lost."""
        ...

    async def delete(self, key: str, *, expected_version: int) -> bool:
        """Remove a key at this version; False when the version is another one."""
        ...

    async def close(self) -> None:
        """Release the store."""
        ...


class WallClock(Protocol):
    """The time of day, for record timestamps only; deadlines use the loop's clock."""

    def now_ms(self) -> TimestampMs:
        """Milliseconds since 1970-01-01 UTC."""
        ...


class Random(Protocol):
    """A source of randomness that a simulation can seed."""

    def bytes(self, count: int) -> bytes:
        """Return ``count`` random bytes (ids of topics and clusters)."""
        ...
