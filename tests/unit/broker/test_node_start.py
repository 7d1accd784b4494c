"""A start that fails or is cancelled leaves no task, file, thread or lock behind."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fencelog import alone
from fencelog import node as node_module
from fencelog.adapters.file_disk import DirectoryInUseError, DirectoryLock
from fencelog.adapters.sqlite_metadata import SqliteMetadata
from fencelog.broker.config import BrokerConfig
from fencelog.broker.coordinators.group_requests import GroupRequests
from fencelog.broker.coordinators.leaders import LocalLeaders
from fencelog.broker.coordinators.marker_sender import MarkerSender
from fencelog.broker.coordinators.orphaned_transactions import OrphanedTransactions
from fencelog.broker.coordinators.producer_ids import ProducerIds
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.metadata.catalog import Catalog
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.network.server import Server
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.errors import ErrorCode, StorageError
from fencelog.node import open_node
from fencelog.storage import directory as directory_module
from fencelog.storage.directory import DataDirectory
from fencelog_sim.world.gate import Fault
from tests.support.leftovers import nothing_left
from tests.support.node import Peer, World
from tests.support.restarts import Spy, Twin, check, fill
from tests.support.transactions import Producer, settled

ASYNC: dict[str, tuple[object, str]] = {
    "metadata store": (SqliteMetadata, "open"),
    "data directory": (DataDirectory, "open"),
    "offset checkpoints": (directory_module, "_read_offsets"),
    "settings": (Settings, "load"),
    "partitions that are there": (LogManager, "present"),
    "catalog": (Catalog, "load"),
    "logs": (LogManager, "open"),
    "coordinators": (CoordinatorRuntime, "load"),
    "groups' topics": (GroupRequests, "forget_topics"),
    "producer ids": (ProducerIds, "start_above"),
    "orphaned transactions": (OrphanedTransactions, "end"),
    "retired producer ids": (OrphanedTransactions, "retire"),
    "markers": (MarkerSender, "drain"),
    "server": (Server, "start"),
}
SYNC: dict[str, tuple[object, str]] = {
    "lock": (DirectoryLock, "acquire"),
    "disk": (node_module, "FileDisk"),
    "node": (node_module, "Node"),
    "coordinator epochs": (alone, "highest_coordinator_epoch"),
}
IS_OPEN_AFTERWARDS = {"metadata store", "data directory"}
"""What they return is the caller's to close; that they fail after all is not possible."""


class PlannedError(StorageError):
    """What a step fails with here."""


def config_of(folder: Path, **settings: Any) -> BrokerConfig:
    return BrokerConfig(data_dir=str(folder / "data"), port=0, **settings)


async def filled(folder: Path) -> None:
    async with open_node(config_of(folder)) as node:
        await fill(node)


def replace(
    monkeypatch: pytest.MonkeyPatch, where: tuple[object, str], make: Callable[..., Any]
) -> Callable[[], None]:
    """Put something in place of a step; returns what takes it away again."""
    owner, name = where
    found = vars(owner)[name]
    original = getattr(owner, name)
    unbound = found.__func__.__get__(owner) if isinstance(found, classmethod) else original
    made = make(unbound)
    monkeypatch.setattr(owner, name, staticmethod(made) if isinstance(found, classmethod) else made)
    return lambda: monkeypatch.setattr(owner, name, found)


async def start_once(folder: Path) -> None:
    async with open_node(config_of(folder)):
        pass


async def fails_and_recovers(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: tuple[object, str],
    make: Callable[..., Any],
    attempt: Callable[[Path], Awaitable[None]],
) -> None:
    await filled(folder)
    spy = Spy(monkeypatch)
    restore = replace(monkeypatch, where, make)
    async with nothing_left():
        await attempt(folder)
    restore()
    spy.clean.clear()
    async with nothing_left(), open_node(config_of(folder)) as node:
        assert spy.clean
        assert all(spy.clean), "the stop before the failed start was clean, and still is"
        await check(node)


async def must_fail(folder: Path) -> None:
    with pytest.raises(PlannedError):
        await start_once(folder)


@pytest.mark.parametrize("step", [*ASYNC, *SYNC])
def test_a_step_of_the_start_that_fails_leaves_nothing_behind(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        async def failing(*args: object, **how: object) -> None:
            raise PlannedError(step)

        def failing_at_once(*args: object, **how: object) -> None:
            raise PlannedError(step)

        return failing if step in ASYNC else failing_at_once

    where = (ASYNC | SYNC)[step]
    asyncio.run(fails_and_recovers(tmp_path, monkeypatch, where, make, must_fail))


@pytest.mark.parametrize("step", [each for each in ASYNC if each not in IS_OPEN_AFTERWARDS])
def test_what_a_step_of_the_start_had_done_before_it_failed_is_undone(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        async def failing(*args: object, **how: object) -> None:
            await original(*args, **how)
            raise PlannedError(step)

        return failing

    asyncio.run(fails_and_recovers(tmp_path, monkeypatch, ASYNC[step], make, must_fail))


@pytest.mark.parametrize("step", ASYNC)
def test_a_start_that_is_cancelled_leaves_nothing_behind(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        async def waiting(*args: object, **how: object) -> None:
            if step not in IS_OPEN_AFTERWARDS:
                await original(*args, **how)
            reached.set()
            await asyncio.Event().wait()

        return waiting

    async def attempt(folder: Path) -> None:
        starting = asyncio.ensure_future(start_once(folder))
        await reached.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(fails_and_recovers(tmp_path, monkeypatch, ASYNC[step], make, attempt))


def test_a_port_that_is_taken_ends_the_start_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        await filled(tmp_path)
        taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        async with taken:
            port = taken.sockets[0].getsockname()[1]
            config = BrokerConfig(data_dir=str(tmp_path / "data"), host="127.0.0.1", port=port)
            async with nothing_left():
                with pytest.raises(OSError, match=f":{port}: address already in use.*--listen"):
                    async with open_node(config):
                        pass
        async with open_node(config_of(tmp_path)) as node:
            await check(node)

    asyncio.run(scenario())


def test_a_second_broker_is_refused_and_the_first_one_serves_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_node(config_of(tmp_path)) as node:
            await fill(node)
            async with nothing_left():
                with pytest.raises(DirectoryInUseError, match=f"process {os.getpid()}"):
                    await start_once(tmp_path)
            await check(node)

    asyncio.run(scenario())


# -- every place at which a start may end --------------------------------------------------------


def test_a_start_that_is_cancelled_at_any_point_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        twin = Twin()
        node = twin.node()
        await node.start()
        await fill(node)
        await node.stop()
        cancelled = 0
        while True:
            async with nothing_left():
                node = twin.node()
                starting = asyncio.ensure_future(node.start())
                for _ in range(cancelled):
                    await asyncio.sleep(0)
                if starting.done():
                    await node.stop()
                    break
                starting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await starting
                assert twin.disk.open_files == 0, cancelled
            await twin.serves()
            cancelled += 1
        assert cancelled > 10

    asyncio.run(scenario())


@pytest.mark.slow  # a start for each of many points
def test_a_disk_that_fails_at_any_point_of_a_start_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        twin = Twin()
        node = twin.node()
        await node.start()
        await fill(node)
        await node.stop()
        failed = number = 0
        while True:
            left_over = number

            def gate(verb: str, path: str, size: int) -> Fault | None:
                nonlocal left_over
                left_over -= 1
                return Fault() if left_over == -1 else None

            async with nothing_left():
                node = twin.node()
                twin.disk.gate = gate
                try:
                    await node.start()
                except StorageError:
                    failed += 1
                else:
                    with suppress(StorageError):
                        await node.stop()
                twin.disk.gate = None
                assert twin.disk.open_files == 0, number
            if left_over >= 0:
                break
            await twin.serves()
            number += 1
        assert failed > 5

    asyncio.run(scenario())


def test_a_start_that_fails_while_markers_cannot_be_written_leaves_no_round_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            await fill(node)
            producer = Producer(peer)
            assert await producer.init() is ErrorCode.NONE
            assert await producer.add("t", 0) is ErrorCode.NONE
            world.disk.hold("t-0")
            assert await producer.end(commit=True) is ErrorCode.NONE
        world.disk.release()

        def not_now(*_: object) -> "asyncio.Future[bool]":
            refused: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            refused.set_result(False)
            return refused

        async def failing(*_: object) -> None:
            raise PlannedError("server")

        with monkeypatch.context() as patched:
            patched.setattr(LocalLeaders, "write_markers", not_now)
            patched.setattr(Server, "start", failing)
            async with nothing_left():
                with pytest.raises(PlannedError):
                    async with world.node(resume_timeout_s=0.01):
                        pass
        async with world.node() as node:
            await settled(node, "t")

    asyncio.run(scenario())
