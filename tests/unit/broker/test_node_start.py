"""A start that fails or is cancelled leaves no task, file, thread or lock; the next one is as ever."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fencelog import node as node_module
from fencelog.adapters.file_disk import DirectoryInUseError, DirectoryLock, FileDisk
from fencelog.adapters.sqlite_metadata import SqliteMetadata
from fencelog.adapters.system_clock import SystemClock, SystemRandom
from fencelog.broker.config import BrokerConfig
from fencelog.broker.coordinators.group_requests import GroupRequests
from fencelog.broker.coordinators.marker_sender import MarkerSender
from fencelog.broker.coordinators.orphaned_transactions import OrphanedTransactions
from fencelog.broker.coordinators.producer_ids import ProducerIds
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.metadata.catalog import Catalog
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.network.server import Server
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.errors import ErrorCode, StorageError
from fencelog.node import Node, Ports, open_node
from fencelog.storage import directory as directory_module
from fencelog.storage.directory import DataDirectory
from fencelog.storage.partition_store import PartitionStore
from fencelog_sim.world.disk import SimDisk
from fencelog_sim.world.gate import Fault
from fencelog_sim.world.metadata import SimMetadata
from tests.support.groups import Member
from tests.support.node import Peer, batch, until, visible
from tests.support.transactions import Producer, settled

RECORDS = [(0, "plain"), (1, "committed")]

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
    "coordinator epochs": (node_module, "highest_coordinator_epoch"),
}
IS_OPEN_AFTERWARDS = {"metadata store", "data directory"}
"""What they return is the caller's to close; that they fail after all is not possible."""


class PlannedError(StorageError):
    """What a step fails with here."""


def left() -> tuple[set[str], set[str]]:
    """Open files with their numbers, and threads of ours."""
    files = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            files.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    threads = {each.name for each in threading.enumerate() if each.name.startswith("fencelog")}
    return files, threads


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """What runs inside begins no task that goes on, and keeps no file open and no thread."""
    before = left()
    tasks = asyncio.all_tasks()
    yield
    assert asyncio.all_tasks() == tasks
    await until(lambda: left()[1] <= before[1], "threads that have nothing to do end")
    assert left()[0] == before[0]


def config_of(folder: Path, **settings: Any) -> BrokerConfig:
    return BrokerConfig(data_dir=str(folder / "data"), port=0, **settings)


async def fill(node: Node) -> None:
    """Records, a committed transaction, an open one, and a group's offset."""
    async with Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.create_topic("u", partitions=3)
        assert (await peer.produce("t", batch("plain"))).error is ErrorCode.NONE
        producer = Producer(peer)
        assert await producer.init() is ErrorCode.NONE
        assert await producer.add("t", 0) is ErrorCode.NONE
        assert await producer.produce("t", "committed") is ErrorCode.NONE
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        assert await producer.add("t", 0) is ErrorCode.NONE
        assert await producer.produce("t", "open") is ErrorCode.NONE
        assert await Member(peer).commit(1) is ErrorCode.NONE


async def check(node: Node) -> None:
    """It serves what ``fill`` wrote."""
    async with Peer.of(node) as peer:
        assert visible(await peer.fetch("t")) == RECORDS
        log = node.logs.partitions()
        assert {each.name.topic for each in log} >= {"t", "u", "__transaction_state"}
        assert not node.logs.offline()
        assert (await peer.produce("u", batch("more"))).error is ErrorCode.NONE


async def filled(folder: Path) -> None:
    async with open_node(config_of(folder)) as node:
        await fill(node)


class Spy:
    """Notes whether partitions were opened as cleanly stopped ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clean: list[bool] = []
        original = PartitionStore.recover

        async def recover(*args: Any, **how: Any) -> Any:
            self.clean.append(how["clean"] is not None)
            return await original(*args, **how)

        monkeypatch.setattr(PartitionStore, "recover", recover)


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
                with pytest.raises(OSError, match="address already in use"):
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


class Twin:
    """A node on a simulated disk, filled and cleanly stopped, to be started many times."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.metadata = SimMetadata()

    def node(self) -> Node:
        ports = Ports(
            disk=self.disk,
            metadata=self.metadata,
            clock=SystemClock(),
            random=SystemRandom(),
        )
        return Node(BrokerConfig(data_dir="memory", port=0, internal_partitions=2), ports)

    async def serves(self) -> None:
        """A start that nothing disturbs, with all its data."""
        node = self.node()
        await node.start()
        await check(node)
        await node.stop()


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


# -- composition and stopping ------------------------------------------------------------------


def test_every_attribute_of_a_node_is_there_before_its_start() -> None:
    async def scenario() -> None:
        node = Twin().node()
        before = set(vars(node))
        await node.start()
        assert set(vars(node)) == before
        await node.stop()
        assert set(vars(node)) == before

    asyncio.run(scenario())


def test_a_node_that_was_not_started_has_nothing_to_stop() -> None:
    async def scenario() -> None:
        async with nothing_left():
            twin = Twin()
            node = twin.node()
            await node.stop()
            assert twin.disk.open_files == 0

    asyncio.run(scenario())


def test_a_second_stop_does_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        twin = Twin()
        node = twin.node()
        await node.start()
        await fill(node)
        await node.stop()
        twin.disk.operations = []
        await node.stop()
        assert twin.disk.operations == []

    asyncio.run(scenario())


def test_a_stop_that_is_cancelled_ends_all_the_same() -> None:
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
                await node.start()
                stopping = asyncio.ensure_future(node.stop())
                for _ in range(cancelled):
                    await asyncio.sleep(0)
                if stopping.done():
                    break
                stopping.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await stopping
                await node.stop()
            await twin.serves()
            cancelled += 1
        assert cancelled > 5

    asyncio.run(scenario())
