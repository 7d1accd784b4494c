"""The MetadataStore port over SQLite in the data directory.

One connection in a thread of its own, so that the loop never waits for a sync. WAL with full sync:
a completed write survives power loss.

The newest changes are in the WAL file only, and SQLite opens a file without its WAL as if there
were none. So ``user_version`` in the main file says whether a WAL belongs to it.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from fencelog.adapters.file_disk import sync_directory
from fencelog.errors import CorruptionError, StorageError
from fencelog.ports import MetadataWrite

_R = TypeVar("_R")

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


class SqliteMetadata:
    """Versioned cells in one SQLite file."""

    def __init__(
        self, path: Path, thread: ThreadPoolExecutor, connection: sqlite3.Connection
    ) -> None:
        """Take over an open connection and its thread; see ``open``."""
        self._path = path
        self._thread = thread
        self._connection: sqlite3.Connection | None = connection

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

    async def list(self, prefix: str) -> list[tuple[str, bytes, int]]:
        """Return key, value and version of each key with this prefix, in key order."""

        def work(connection: sqlite3.Connection) -> list[tuple[str, bytes, int]]:
            rows = connection.execute(
                "SELECT key, value, version FROM cells"
                " WHERE key >= :prefix AND substr(key, 1, length(:prefix)) = :prefix ORDER BY key",
                {"prefix": prefix},
            )
            return [(str(key), bytes(value), int(version)) for key, value, version in rows]

        return await self._run(work)

    async def put(self, key: str, value: bytes, *, expected_version: int) -> int | None:
        """Compare and set; 0 expects absence. Returns the new version, or None on a conflict."""

        writes = [MetadataWrite(key, value, expected_version)]
        return await self._run(lambda connection: _commit(connection, writes))

    async def delete(self, key: str, *, expected_version: int) -> bool:
        """Remove a key at this version; False if its version is different."""

        def work(connection: sqlite3.Connection) -> bool:
            deleted = connection.execute(
                "DELETE FROM cells WHERE key = ? AND version = ?", (key, expected_version)
            )
            return deleted.rowcount > 0

        return await self._run(work)

    async def commit(self, writes: Sequence[MetadataWrite]) -> bool:
        """Apply all writes, to different keys, at once; False if a version is different."""
        return await self._run(lambda connection: _commit(connection, writes)) is not None

    async def close(self) -> None:
        """Close the file after the work in progress; a second close does nothing.

        Raises StorageError or CorruptionError; everything stored is stored then, too.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, _close, self._path, connection)
        except (sqlite3.Error, OSError) as error:
            raise _translated(self._path, error) from error
        finally:
            self._thread.shutdown(wait=False)

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


def _commit(connection: sqlite3.Connection, writes: Sequence[MetadataWrite]) -> int | None:
    """Apply all writes in one transaction; return the version of the new values, or None."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        row = connection.execute("UPDATE revision SET last = last + 1 RETURNING last").fetchone()
        version = int(row[0])
        applied = all(_apply(connection, write, version) for write in writes)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT" if applied else "ROLLBACK")
    return version if applied else None


def _apply(connection: sqlite3.Connection, write: MetadataWrite, version: int) -> bool:
    """Apply one write; False if its expected version is different."""
    key, value, expected = write
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


def _translated(path: Path, error: Exception) -> StorageError | CorruptionError:
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return CorruptionError(f"{path}: {error}")
    return StorageError(f"{path}: {error}")
