"""Interfaces to what an event loop does not provide: disk, metadata, clocks, randomness.

Each has one contract suite under ``tests/contracts`` that every adapter passes. Deadlines and
sockets are not here: they come from the running loop, which the simulator replaces.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from fencelog.types import Buffer, TimestampMs


class DiskFile(Protocol):
    """An open file. All positions and sizes are in bytes."""

    @property
    def size(self) -> int:
        """Bytes in the file, those not yet synced included."""
        ...

    async def append(self, buffers: Sequence[Buffer]) -> None:
        """Write all buffers at the end of the file.

        Raises ExhaustedError on a full disk: nothing of the buffers is in the file, and they may be
        appended later. Raises StorageError on any other failure: any part of the buffers may then
        be in the file, and the file must not be appended to again.
        """
        ...

    async def rewrite(self, position: int, data: Buffer) -> None:
        """Write the bytes that are at this position once more: the next sync then covers them.

        A failed sync may have marked them clean, so that a sync alone would skip them (rule D2).
        Raises StorageError; the file is as it was then, and must not be used again.
        """
        ...

    async def truncate(self, size: int) -> None:
        """Remove everything from this position on, durably with the next sync."""
        ...

    async def read(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        ...

    async def map(self, position: int, size: int) -> Buffer:
        """Return bytes as ``read`` does, to be sent and not looked at; they outlive the file.

        They may be the page cache's own, so a fault of the disk shows only when they are used.
        """
        ...

    async def sync(self) -> None:
        """Return when everything written is on stable storage.

        Raises StorageError when the sync failed: the file's unsynced pages are then lost or
        marked clean, so a later sync proves nothing (rule D2) and the file must not be used again.
        """
        ...

    async def close(self) -> None:
        """Close without syncing. A second close does nothing."""
        ...


class Disk(Protocol):
    """A tree of files. Paths are relative to the data directory, with ``/`` between parts.

    Every method raises StorageError on a failure; an ExhaustedError means that it did nothing.
    """

    async def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open for reading and appending; ``create`` makes an empty file if there is none.

        A new name is durable once its directory is synced. Raises FileNotFoundError if the file
        does not exist and ``create`` is false, or if its directory does not exist.
        """
        ...

    async def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if there is no such directory."""
        ...

    async def make_directory(self, path: str) -> None:
        """Make a directory and its parents; an existing one is not changed.

        Each is durable, with all in it, once the directory that holds its name is synced.
        """
        ...

    async def rename(self, old: str, new: str) -> None:
        """Move a file or directory over ``new`` atomically.

        It is durable once both directories are synced.
        """
        ...

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with all in it; do nothing if there is none."""
        ...

    async def sync_directory(self, path: str) -> None:
        """Return when the names in this directory are on stable storage."""
        ...


LeaseId: TypeAlias = int
"""A lease of a metadata store, as ``grant`` has returned it."""


COMMIT_KEYS_MAX = 128
"""Keys that one ``MetadataStore.commit`` writes and compares together: etcd's own by default."""
COMMIT_BYTES_MAX = 1 << 20
"""Bytes of its keys and values together, which leaves a third of etcd's limit to the form."""


class MetadataWrite(NamedTuple):
    """One write of a ``MetadataStore.commit``."""

    key: str
    value: bytes | None
    """The new value; None removes the key."""
    expected_version: int | None = None
    """The version to be replaced: 0 expects absence, None replaces any."""
    lease: LeaseId | None = None
    """The lease with whose end the key is removed; None: it stays, also if it had a lease."""


class MetadataSnapshot(NamedTuple):
    """All keys with a prefix, at one instant."""

    cells: Sequence[tuple[str, bytes, int]]
    """Key, value and version of each, in key order."""
    revision: int
    """The store's revision at that instant: a watch from here on misses nothing."""


class MetadataChange(NamedTuple):
    """A key as a commit has left it."""

    key: str
    value: bytes | None
    """The new value; None: the key was removed."""
    version: int
    """The key's version from then on, or the revision of its removal.

    It grows with each commit, and all changes of one commit have the same.
    """


class MetadataStore(Protocol):
    """Small, durable, versioned values: topics, configs, counters, who leads. Writes are synced.

    A method raises StorageError if it has changed nothing, and UnknownOutcomeError where the answer
    of a write was lost: it may be stored, or be stored later, as long as its versions are the ones
    it expects. Read before anything is done that depends on it. The store of a single process
    raises only the former: nothing in the process sees such a write, though after a crash it may be
    there. Calls that overlap may take effect in any order.
    """

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """Return value and version of a key, or None."""
        ...

    async def list(self, prefix: str) -> list[tuple[str, bytes, int]]:
        """Return key, value and version of each key with this prefix, in key order."""
        ...

    async def snapshot(self, prefix: str) -> MetadataSnapshot:
        """Return what ``list`` does, with the revision from which a ``watch`` goes on."""
        ...

    async def put(self, key: str, value: bytes, *, expected_version: int) -> int | None:
        """Compare and set; 0 expects absence. Returns the new version, or None on a conflict."""
        ...

    async def delete(self, key: str, *, expected_version: int) -> bool:
        """Remove a key at this version; False if its version is different."""
        ...

    async def commit(
        self, writes: Sequence[MetadataWrite], *, unchanged: Mapping[str, int] | None = None
    ) -> bool:
        """Apply all writes, to different keys, at once; False if a version is different.

        ``unchanged``: versions of other keys, which are compared only; 0 expects absence. It is
        False, too, if the lease of a write has ended. Nothing is written then; after a crash all
        writes are there or none. Its caller splits what is over ``COMMIT_KEYS_MAX`` or
        ``COMMIT_BYTES_MAX``: a cluster's store refuses it with StorageError.
        """
        ...

    def watch(self, prefix: str, revision: int) -> AsyncIterator[Sequence[MetadataChange]]:
        """Yield what each commit after this revision has changed of the keys with this prefix.

        In order, each commit once and whole, also over lost connections to the store; the end of a
        lease is a commit. Raises HistoryLostError when the store no longer has the changes after
        the revision: take a ``snapshot``, which has their result, and watch from there. Cancel the
        task that iterates to end the watch.
        """
        ...

    async def grant(self, ttl_s: float) -> LeaseId:
        """Begin a lease, which ends ``ttl_s`` after the last ``renew``, and its keys with it.

        A store may round the time up. Its end comes no earlier, by the store's clock: who counts
        the same time from the sending of the last renewal knows first. A lease whose grant failed
        ends by itself.
        """
        ...

    async def renew(self, lease: LeaseId) -> bool:
        """Let the lease's time begin again; False if it has ended: its keys are gone.

        If it raises, the time may have begun again or not.
        """
        ...

    async def revoke(self, lease: LeaseId) -> None:
        """End a lease now: its keys are removed in one commit. Nothing if it has ended."""
        ...

    async def close(self) -> None:
        """Release the store; its watches end."""
        ...


class WallClock(Protocol):
    """The time of day, for record timestamps only; deadlines use the loop's clock."""

    def now_ms(self) -> TimestampMs:
        """Return milliseconds since 1970-01-01 UTC."""
        ...


Stopwatch: TypeAlias = Callable[[], float]
"""Seconds since some moment, to measure work: the loop's clock may stand still in an iteration."""


class Random(Protocol):
    """A source of randomness that a simulation can seed."""

    def bytes(self, count: int) -> bytes:
        """Return ``count`` random bytes (ids of topics and clusters)."""
        ...
