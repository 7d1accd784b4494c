"""What SQLite adds to the contract: errors of ours, and full sync."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from fencelog.adapters import sqlite_metadata
from fencelog.adapters.sqlite_metadata import SqliteMetadata
from fencelog.errors import CorruptionError, StorageError


def test_a_file_that_is_no_database_is_damage_and_named(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(CorruptionError, match=r"metadata\.db"):
        asyncio.run(SqliteMetadata.open(path))


def test_a_place_that_cannot_be_opened_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").mkdir()
    with pytest.raises(StorageError, match=r"metadata\.db"):
        asyncio.run(SqliteMetadata.open(tmp_path / "metadata.db"))


async def test_each_write_is_synced(tmp_path: Path) -> None:  # D1
    store = await SqliteMetadata.open(tmp_path / "metadata.db")
    assert store._connection is not None
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await store.close()


async def test_a_cancelled_open_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[sqlite3.Connection] = []
    may_connect, begun = threading.Event(), asyncio.Event()
    loop, connect = asyncio.get_running_loop(), sqlite_metadata._connect

    def held(path: Path, sync: bool) -> sqlite3.Connection:
        loop.call_soon_threadsafe(begun.set)
        may_connect.wait()
        connected.append(connect(path, sync))
        return connected[0]

    monkeypatch.setattr(sqlite_metadata, "_connect", held)
    opening = asyncio.create_task(SqliteMetadata.open(tmp_path / "metadata.sqlite"))
    await begun.wait()
    opening.cancel()
    loop.call_later(0, may_connect.set)
    with pytest.raises(asyncio.CancelledError):
        await opening
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        connected[0].execute("SELECT 1")
