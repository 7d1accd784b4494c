"""The MetadataStore port over SQLite in the data directory.

One connection in a thread of its own, so that the loop never waits for a sync. WAL with full sync:
a completed write survives power loss.

The newest changes are in the WAL file only, and SQLite opens a file without its WAL as if there
were none. So ``user_version`` in the main file says whether a WAL belongs to it.

Watches and leases are for brokers that share one process. One broker uses neither: changes are kept
from the first ``snapshot`` on, and leased keys are noted from the first ``grant`` on.
"""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from fencelog.adapters.change_history import ChangeHistory
from fencelog.adapters.file_disk import sync_directory
from fencelog.errors import CorruptionError, StorageError
from fencelog.ports import LeaseId, MetadataChange, MetadataSnapshot, MetadataWrite

log = logging.getLogger(__name__)

_R = TypeVar("_R")
_Cells = list[tuple[str, bytes, int]]

METADATA_FILE = "metadata.sqlite"
"""Its name in the data directory."""

_HEADER_BYTES = 100
_USER_VERSION = slice(60, 64)  # where SQLite's file format has it
_HAS_WAL = 1
"""``user_version`` from the open to the close of the store."""

# Versions come from one counter for all cells, so that a stale version of a deleted cell never
# matches a later cell of the same key.
_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS cells (
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    version INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revision (id INTEGER PRIMARY KEY CHECK (id = 1), last INTEGER NOT NULL);
INSERT INTO revision VALUES (1, 0) ON CONFLICT DO NOTHING;
COMMIT;
"""

_LEASED_TABLE = """
CREATE TABLE IF NOT EXISTS leased (
    key TEXT PRIMARY KEY,
    lease INTEGER NOT NULL
) WITHOUT ROWID
"""
_END_LEASES = """
BEGIN IMMEDIATE;
DELETE FROM cells WHERE key IN (SELECT key FROM leased);
DELETE FROM leased;
COMMIT;
"""
_LEASE_RETRY_S = 1.0


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    ends_at: float
    """On the loop's clock."""


class _Committed(NamedTuple):
    version: int
    changes: Sequence[MetadataChange]


class SqliteMetadata:
    """Versioned cells in one SQLite file."""

    def __init__(
        self, path: Path, thread: ThreadPoolExecutor, connection: sqlite3.Connection
    ) -> None:
        """Take over an open connection and its thread; see ``open``."""
        self._path = path
        self._thread = thread
        self._connection: sqlite3.Connection | None = connection
        self._history: ChangeHistory | None = None
        self._leases: dict[LeaseId, _Lease] = {}
        self._last_lease = 0
        self._timers: dict[LeaseId, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, path: str | Path, *, sync: bool = True) -> Self:
        """Open or create the file. Raises StorageError or CorruptionError.

        Without ``sync`` completed writes survive the process, but no power loss.
        """
        where = Path(path)
        thread = ThreadPoolExecutor(1, thread_name_prefix="fencelog-metadata")
        loop = asyncio.get_running_loop()
        connecting = loop.run_in_executor(thread, _connect, where, sync)
        try:
            connection = await asyncio.shield(connecting)
        except BaseException as error:
            await asyncio.wait([connecting])
            if isinstance(error, asyncio.CancelledError) and connecting.exception() is None:
                connecting.result().close()
            thread.shutdown(wait=False)
            if isinstance(error, sqlite3.Error | OSError):
                raise _translated(where, error) from error
            raise
        return cls(where, thread, connection)

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """Return value and version of a key, or None."""

        def work(connection: sqlite3.Connection) -> tuple[bytes, int] | None:
            row = connection.execute(
                "SELECT value, version FROM cells WHERE key = ?", (key,)
            ).fetchone()
            return None if row is None else (bytes(row[0]), int(row[1]))

        return await self._run(work)

    async def list(self, prefix: str) -> _Cells:
        """Return key, value and version of each key with this prefix, in key order."""
        return await self._run(lambda connection: _list(connection, prefix))

    async def snapshot(self, prefix: str) -> MetadataSnapshot:
        """Return what ``list`` does, with the revision from which a ``watch`` goes on."""
        if self._history is None:
            self._history = ChangeHistory()  # of what is asked for from now on
        history = self._history

        def work(connection: sqlite3.Connection) -> MetadataSnapshot:
            revision = int(connection.execute("SELECT last FROM revision").fetchone()[0])
            return MetadataSnapshot(_list(connection, prefix), revision)

        snapshot = await self._run(work)
        if history.begins_after is None:
            history.begins_after = snapshot.revision
        return snapshot

    async def put(self, key: str, value: bytes, *, expected_version: int) -> int | None:
        """Compare and set; 0 expects absence. Returns the new version, or None on a conflict."""
        return await self._write([MetadataWrite(key, value, expected_version)])

    async def delete(self, key: str, *, expected_version: int) -> bool:
        """Remove a key at this version; False if its version is different."""
        return await self._write([MetadataWrite(key, None, expected_version)]) is not None

    async def commit(
        self, writes: Sequence[MetadataWrite], *, unchanged: Mapping[str, int] | None = None
    ) -> bool:
        """Apply all writes, to different keys, at once; False if a version is different."""
        return await self._write(writes, unchanged or {}) is not None

    async def watch(self, prefix: str, revision: int) -> AsyncIterator[Sequence[MetadataChange]]:
        """Yield what each commit after this revision has changed of the keys with this prefix."""
        history = self._history or ChangeHistory()
        async for changes in history.watch(prefix, revision, lambda: self._connection is not None):
            yield changes

    # -- leases --------------------------------------------------------------------------------

    async def grant(self, ttl_s: float) -> LeaseId:
        """Begin a lease, which ends ``ttl_s`` after the last ``renew``, by the loop's clock.

        All leases end with the process: the next ``open`` removes their keys.
        """
        await self._run(lambda connection: connection.execute(_LEASED_TABLE))
        self._last_lease += 1
        lease, now = self._last_lease, asyncio.get_running_loop().time()
        self._leases[lease] = _Lease(ttl_s, now + ttl_s)
        self._look_again(lease)
        return lease

    async def renew(self, lease: LeaseId) -> bool:
        """Let the lease's time begin again; False if it has ended: its keys are gone."""
        found = self._leases.get(lease)
        if found is None:
            if self._ending:
                await asyncio.wait(self._ending)
            return False
        found.ends_at = asyncio.get_running_loop().time() + found.ttl_s
        return True

    async def revoke(self, lease: LeaseId) -> None:
        """End a lease now: its keys are removed in one commit. Nothing if it has ended."""
        if self._leases.pop(lease, None) is None:
            return
        self._timers.pop(lease).cancel()
        await asyncio.shield(self._end(lease))

    def _look_again(self, lease: LeaseId) -> None:
        """End a lease that was not renewed; look at another one when its time is over."""
        loop, found = asyncio.get_running_loop(), self._leases[lease]
        if loop.time() < found.ends_at:
            self._timers[lease] = loop.call_at(found.ends_at, self._look_again, lease)
            return
        del self._leases[lease], self._timers[lease]
        self._end(lease)

    def _end(self, lease: LeaseId) -> "asyncio.Task[None]":
        """Remove the keys of a lease, when it can be done."""

        async def remove() -> None:
            while True:
                try:
                    await self._change(lambda connection: _end_lease(connection, lease))
                except StorageError as error:
                    log.error("the keys of a lease that has ended cannot be removed: %s", error)  # noqa: TRY400 - a disk's failure needs no traceback
                    await asyncio.sleep(_LEASE_RETRY_S)
                else:
                    return

        task = asyncio.get_running_loop().create_task(remove())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    # -- the connection ------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the file after the work in progress; a second close does nothing.

        Raises StorageError or CorruptionError; everything stored is stored then, too.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._history is not None:
            self._history.wake()
        for timer in self._timers.values():
            timer.cancel()
        for ending in self._ending:
            ending.cancel()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, _close, self._path, connection)
        except (sqlite3.Error, OSError) as error:
            raise _translated(self._path, error) from error
        finally:
            self._thread.shutdown(wait=False)

    async def _write(
        self, writes: Sequence[MetadataWrite], unchanged: Mapping[str, int] | None = None
    ) -> int | None:
        """Commit; return the version of the new values, or None on a conflict."""
        if any(each.lease is not None and each.lease not in self._leases for each in writes):
            return None
        notes_leases = self._last_lease > 0
        return await self._change(
            lambda connection: _commit(connection, writes, unchanged or {}, notes_leases)
        )

    async def _change(self, work: Callable[[sqlite3.Connection], _Committed | None]) -> int | None:
        """Run what may commit, and keep its changes for the watches, if there may be any."""
        history, loop = self._history, asyncio.get_running_loop()

        def work_and_tell(connection: sqlite3.Connection) -> int | None:
            done = work(connection)
            if done is None:
                return None
            if history is not None and done.changes:
                # From the thread: its order is the one of the commits, whoever waits for them.
                loop.call_soon_threadsafe(history.add, *done)
            return done.version

        return await self._run(work_and_tell)

    async def _run(self, work: Callable[[sqlite3.Connection], _R]) -> _R:
        connection = self._connection
        assert connection is not None, "the store is closed"
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work, connection)
        except (sqlite3.Error, OSError) as error:
            raise _translated(self._path, error) from error


def _connect(path: Path, sync: bool) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_wal(path)
    # isolation_level None: each statement is its own transaction, synced when it returns.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute("PRAGMA synchronous = FULL" if sync else "PRAGMA synchronous = OFF")
        connection.executescript(_SCHEMA)
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'leased'").fetchone():
            connection.executescript(_END_LEASES)
        if sync:
            sync_directory(path.parent)
        # Once the WAL's name is durable. The checkpoint writes it to the main file.
        connection.execute(f"PRAGMA user_version = {_HAS_WAL}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _check_wal(path: Path) -> None:
    """Raise CorruptionError if one of the two files is missing; change nothing.

    SQLite would ignore the other one, or remove it.
    """
    wal = _wal_of(path)
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        header = b""
    if not header and wal.exists() and wal.stat().st_size > 0:
        raise CorruptionError(
            f"{path} is missing or empty, but {wal.name} is there: put the file back, or restore "
            "the directory from a backup"
        )
    has_wal = int.from_bytes(header[_USER_VERSION]) == _HAS_WAL
    if has_wal and not wal.exists():
        raise CorruptionError(
            f"{wal} is missing: the last run was killed, and the newest topics and producer ids "
            "are in that file. Put it back, or restore the directory from a backup. To go on "
            "without them, create an empty file of this name"
        )


def _close(path: Path, connection: sqlite3.Connection) -> None:
    """Close the connection, which moves the WAL to the main file and removes it."""
    marked = False
    try:
        connection.execute("PRAGMA user_version = 0")
        marked = True
    finally:
        connection.close()
        if not marked:  # a full disk, say: the main file still says that there is a WAL
            _wal_of(path).touch()


def _wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _list(connection: sqlite3.Connection, prefix: str) -> _Cells:
    rows = connection.execute(
        "SELECT key, value, version FROM cells"
        " WHERE key >= :prefix AND substr(key, 1, length(:prefix)) = :prefix ORDER BY key",
        {"prefix": prefix},
    )
    return [(str(key), bytes(value), int(version)) for key, value, version in rows]


def _commit(
    connection: sqlite3.Connection,
    writes: Sequence[MetadataWrite],
    unchanged: Mapping[str, int],
    notes_leases: bool,
) -> _Committed | None:
    """Apply all writes in one transaction; None if a version is different."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _next_version(connection)
        changes = [
            MetadataChange(write.key, write.value, version)
            for write in writes
            if write.value is not None or _version(connection, write.key)
        ]
        applied = all(
            _version(connection, key) == expected for key, expected in unchanged.items()
        ) and all(_apply(connection, write, version) for write in writes)
        if applied and notes_leases:
            _note_leases(connection, writes)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT" if applied else "ROLLBACK")
    return _Committed(version, changes) if applied else None


def _next_version(connection: sqlite3.Connection) -> int:
    row = connection.execute("UPDATE revision SET last = last + 1 RETURNING last").fetchone()
    return int(row[0])


def _version(connection: sqlite3.Connection, key: str) -> int:
    row = connection.execute("SELECT version FROM cells WHERE key = ?", (key,)).fetchone()
    return 0 if row is None else int(row[0])


def _apply(connection: sqlite3.Connection, write: MetadataWrite, version: int) -> bool:
    """Apply one write; False if its expected version is different."""
    key, value, expected, _ = write
    if expected is None:
        if value is None:
            connection.execute("DELETE FROM cells WHERE key = ?", (key,))
        else:
            connection.execute("REPLACE INTO cells VALUES (?, ?, ?)", (key, value, version))
        return True
    if value is None:
        changed = connection.execute(
            "DELETE FROM cells WHERE key = ? AND version = ?", (key, expected)
        )
    elif expected == 0:
        changed = connection.execute(
            "INSERT INTO cells VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (key, value, version)
        )
    else:
        changed = connection.execute(
            "UPDATE cells SET value = ?, version = ? WHERE key = ? AND version = ?",
            (value, version, key, expected),
        )
    return changed.rowcount > 0


def _note_leases(connection: sqlite3.Connection, writes: Sequence[MetadataWrite]) -> None:
    for key, _, _, lease in writes:
        if lease is None:
            connection.execute("DELETE FROM leased WHERE key = ?", (key,))
        else:
            connection.execute("REPLACE INTO leased VALUES (?, ?)", (key, lease))


def _end_lease(connection: sqlite3.Connection, lease: LeaseId) -> _Committed | None:
    """Remove the keys of a lease; None if it has none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _next_version(connection)
        rows = connection.execute("DELETE FROM leased WHERE lease = ? RETURNING key", (lease,))
        keys = sorted(str(key) for (key,) in rows)
        connection.executemany("DELETE FROM cells WHERE key = ?", [(key,) for key in keys])
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT" if keys else "ROLLBACK")
    return _Committed(version, [MetadataChange(key, None, version) for key in keys])


def _translated(path: Path, error: Exception) -> StorageError | CorruptionError:
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return CorruptionError(f"{path}: {error}")
    return StorageError(f"{path}: {error}")
