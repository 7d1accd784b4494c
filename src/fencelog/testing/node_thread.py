"""A broker node in a thread with its own event loop, from its start to its kill."""

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakSet

from fencelog.adapters.file_disk import FileDisk, FileDiskFile
from fencelog.adapters.shared_metadata import SharedMetadata
from fencelog.adapters.sqlite_metadata import METADATA_FILE, SqliteMetadata
from fencelog.adapters.system_clock import SystemClock, SystemRandom
from fencelog.alone import Alone
from fencelog.broker.config import BrokerConfig
from fencelog.broker.context import Broker
from fencelog.broker.dispatch import Dispatcher
from fencelog.client.loop_thread import LoopThread
from fencelog.coordination.group.model import Leaver
from fencelog.coordination.shard import Decision
from fencelog.coordination.transaction.records import read_key
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.errors import FencedError, StorageError
from fencelog.node import NewMembership, Node, Ports
from fencelog.ports import MetadataStore, Stopwatch
from fencelog.testing.held_requests import Held, HoldingServer
from fencelog.types import Instant

T = TypeVar("T")
R = TypeVar("R")

SETTLE_TIMEOUT_S = 10.0
POLL_S = 0.001
BOOT_ID = "the test's"
"""A machine that does not start again: no power is cut in a test."""
END_TIMEOUT_S = 10.0
NEXT_LIFE_S = 0.1
"""Between two attempts to take part again."""


class _Disk(FileDisk):
    """A disk that closes the files of a killed broker, as the kernel does for a process.

    It syncs nothing: the page cache survives a kill, and a test should not wait for the disk.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._files: WeakSet[FileDiskFile] = WeakSet()

    async def open(self, path: str, *, create: bool = False) -> FileDiskFile:
        """Open a file that ``abandon`` will close."""
        file = await super().open(path, create=create)
        self._files.add(file)
        return file

    def submit_sync(self, function: Callable[[T], R], argument: T) -> "asyncio.Future[R]":
        """Complete every sync at once."""
        del function, argument
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        done.set_result(cast(R, None))
        return done

    async def abandon(self) -> None:
        """Close every file without writing or syncing."""
        for file in list(self._files):
            await file.close()
        self.close()


class InCluster(NamedTuple):
    """What a broker of a cluster in one process shares with the others."""

    store: MetadataStore
    loop: asyncio.AbstractEventLoop
    """The one that the store runs in."""
    routes: Mapping[int, int]
    """The port of this broker's link to another one, by that one's own port."""


class NodeThread:
    """A running broker. All its tasks run in its own loop, so that all can be cancelled."""

    def __init__(
        self, config: BrokerConfig, holds: Sequence[Held], cluster: InCluster | None = None
    ) -> None:
        """Start the broker. Raises CorruptionError or StorageError for an unusable directory."""
        self._config = config
        self._holds = holds
        self._cluster = cluster
        self._open = AsyncExitStack()
        self._node: Node | None = None
        self._server: HoldingServer | None = None
        self._lives: asyncio.Task[None] | None = None
        self._opened: WeakSet[asyncio.BaseTransport] = WeakSet()
        """Connections to other brokers."""
        self._thread = LoopThread("fencelog-broker", _no_farewell)
        try:
            self.run(self._start())
        except BaseException:
            self.end()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the broker's loop and wait for it."""
        return self._thread.run(work)

    def end(self) -> None:
        """End the broker as ``kill -9`` does: it writes, syncs and answers nothing more.

        Raises the error of a background task that had failed before.
        """
        try:
            self.run(self._end())
        finally:
            self._thread.close()

    def pause(self, until: threading.Event) -> None:
        """Stop the broker's thread as SIGSTOP does, until the event is set."""
        stopped = threading.Event()

        def stop() -> None:
            stopped.set()
            until.wait()

        self._thread.loop.call_soon_threadsafe(stop)
        stopped.wait()

    async def expire_transaction(self, transactional_id: str) -> bool:
        """End an open transaction as its timeout does (E12); False if none is open."""
        broker = self._broker
        wall_ms = broker.clock.now_ms()

        def rule(shard: TransactionShard, _now: Instant) -> Decision[bool]:
            every = shard.expire(Instant(math.inf), wall_ms).records
            late = tuple(each for each in every if read_key(each.key) == transactional_id)
            return Decision(late, bool(late))

        return await broker.transactions.decide(transactional_id, rule)

    async def expire_members(self, group: str, member_ids: Sequence[str]) -> None:
        """Remove members from their group, as a session timeout does; the others rebalance."""
        leavers = tuple(Leaver(each) for each in member_ids)
        await self._broker.group_requests.leave(group, leavers)

    async def settled(self) -> None:
        """Wait until every decided transaction is complete, so that readers see its outcome."""
        broker = self._broker
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            for runtime in (broker.transactions, broker.versioned):
                for loaded in runtime.loaded():
                    # Also above the high watermark: such a decision is about to be committed.
                    log = loaded.partition.log
                    while loaded.shard.outstanding_markers(log.log_end_offset):  # noqa: ASYNC110 - there is no event for it
                        await asyncio.sleep(POLL_S)

    @property
    def _broker(self) -> Broker:
        assert self._node is not None, "the broker was started in the constructor"
        return self._node.broker

    async def _start(self) -> None:
        if self._cluster is not None:
            _route(self._cluster.routes, self._opened)
        await self._begin_life()
        if self._cluster is not None:
            self._lives = asyncio.get_running_loop().create_task(self._live_on())

    async def _live_on(self) -> None:
        """Begin another life whenever the lease was lost, as a broker's process does."""
        assert self._node is not None, "the first life has begun"
        while True:
            await self._node.wait_failed()
            if not isinstance(self._node.failure(), FencedError):
                return
            await self._node.stop()
            await self._open.aclose()
            while not await self._has_begun():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(NEXT_LIFE_S)

    async def _has_begun(self) -> bool:
        """Whether another life has begun; not while the store has an earlier registration."""
        try:
            await self._begin_life()
        except (FencedError, StorageError):
            await self._open.aclose()
            return False
        return True

    async def _begin_life(self) -> None:
        config = self._config
        disk = _Disk(config.data_dir)
        self._open.push_async_callback(disk.abandon)
        random = SystemRandom()
        membership: NewMembership = Alone
        metadata: MetadataStore
        if self._cluster is None:
            metadata = await SqliteMetadata.open(Path(config.data_dir) / METADATA_FILE, sync=False)
            self._open.push_async_callback(metadata.close)
        else:
            from fencelog.cluster_node import cluster_membership

            metadata = SharedMetadata(self._cluster.store, self._cluster.loop)
            membership = await cluster_membership(config, disk, metadata, random, BOOT_ID)
        ports = Ports(disk=disk, metadata=metadata, clock=SystemClock(), random=random)
        self._node = Node(config, ports, new_membership=membership, new_server=self._new_server)
        await self._node.start()

    def _new_server(
        self, config: BrokerConfig, dispatch: Dispatcher, stopwatch: Stopwatch
    ) -> HoldingServer:
        self._server = HoldingServer(config, dispatch, stopwatch, self._holds)
        return self._server

    async def _end(self) -> None:
        failure = None
        if self._node is not None and self._server is not None:
            await self._server.abort()
            failure = self._failure()
        me = asyncio.current_task()
        async with asyncio.timeout(END_TIMEOUT_S):
            while left := asyncio.all_tasks() - {me}:
                for task in left:
                    task.cancel()
                await asyncio.wait(left)
        if self._server is not None:
            await self._server.abort()  # one of a life that was just beginning
        for transport in list(self._opened):
            cast(asyncio.Transport, transport).abort()
        await asyncio.sleep(0)
        await self._open.aclose()
        if failure is not None:
            raise failure

    def _failure(self) -> BaseException | None:
        """Return what has ended the broker, other than the loss of its lease."""
        assert self._node is not None, "there is a failure only after a start"
        lives = self._lives
        if lives is not None and lives.done() and not lives.cancelled() and lives.exception():
            return lives.exception()
        failure = self._node.failure()
        return None if self._cluster is not None and isinstance(failure, FencedError) else failure


def _route(routes: Mapping[int, int], opened: "WeakSet[asyncio.BaseTransport]") -> None:
    """Let this loop's connections to other brokers go through their links; collect them."""
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def through_link(
        protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        transport, connected = await connect(protocol, host, routes.get(port, port))
        opened.add(transport)
        return transport, connected

    loop.create_connection = through_link  # type: ignore[assignment, method-assign]


async def _no_farewell() -> None:
    """Do nothing: the broker is killed."""
