"""What SQLite adds to the contract: errors of ours, and full sync."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from fencelog.adapters import sqlite_metadata
from fencelog.adapters.sqlite_metadata import SqliteMetadata
from fencelog.errors import CorruptionError, StorageError
from fencelog.ports import MetadataWrite


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


async def test_a_renewal_puts_the_end_of_a_lease_off(tmp_path: Path) -> None:
    store = await SqliteMetadata.open(tmp_path / "metadata.sqlite")
    lease = await store.grant(600)
    assert await store.commit([MetadataWrite("a", b"", 0, lease)])
    store._leases[lease].ends_at = asyncio.get_running_loop().time()
    assert await store.renew(lease)
    store._look_again(lease)
    assert await store.renew(lease)
    store._leases[lease].ends_at = asyncio.get_running_loop().time()
    store._look_again(lease)
    assert not await store.renew(lease)
    assert await store.get("a") is None
    await store.close()


async def test_the_leases_of_a_killed_process_have_ended(tmp_path: Path) -> None:
    killed = await SqliteMetadata.open(tmp_path / "metadata.sqlite")
    lease = await killed.grant(600)
    assert await killed.commit([MetadataWrite("a", b"", 0, lease), MetadataWrite("b", b"", 0)])
    store = await SqliteMetadata.open(tmp_path / "metadata.sqlite")
    assert [key for key, _, _ in await store.list("")] == ["b"]
    await store.close()
    await killed.close()


async def test_the_keys_of_an_ended_lease_go_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_metadata, "_LEASE_RETRY_S", 0)
    store = await SqliteMetadata.open(tmp_path / "metadata.sqlite")
    lease = await store.grant(600)
    assert await store.commit([MetadataWrite("a", b"", 0, lease)])
    failures = iter([sqlite3.OperationalError("database or disk is full")] * 2)
    end_lease = sqlite_metadata._end_lease

    def failing(connection: sqlite3.Connection, lease: int) -> object:
        for error in failures:
            raise error
        return end_lease(connection, lease)

    monkeypatch.setattr(sqlite_metadata, "_end_lease", failing)
    await store.revoke(lease)
    assert await store.get("a") is None
    assert caplog.text.count("disk is full") == 2
    await store.close()


async def test_one_broker_keeps_no_history_and_no_leases(tmp_path: Path) -> None:
    store = await SqliteMetadata.open(tmp_path / "metadata.sqlite")
    await store.put("a", b"", expected_version=0)
    assert store._history is None
    assert store._connection is not None
    tables = store._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    assert {name for (name,) in tables} == {"cells", "revision"}
    await store.close()
