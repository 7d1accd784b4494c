"""Composes one broker from its parts and adapters; defines its start and stop order."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fencelog.adapters.file_disk import DirectoryLock, FileDisk
from fencelog.adapters.sqlite_metadata import METADATA_FILE, SqliteMetadata
from fencelog.adapters.system_clock import SystemClock, SystemRandom, system_stopwatch
from fencelog.broker.config import BrokerConfig
from fencelog.broker.context import Broker
from fencelog.broker.coordinators.claims import ClaimConnections
from fencelog.broker.coordinators.group_requests import GroupRequests
from fencelog.broker.coordinators.leaders import LocalLeaders
from fencelog.broker.coordinators.marker_sender import MarkerSender
from fencelog.broker.coordinators.marker_work import transaction_work, versioned_work
from fencelog.broker.coordinators.orphaned_owners import end_orphaned_owners
from fencelog.broker.coordinators.orphaned_transactions import (
    OrphanedTransactions,
    highest_coordinator_epoch,
)
from fencelog.broker.coordinators.ownership_requests import OwnershipRequests
from fencelog.broker.coordinators.ownership_sender import OwnershipSender
from fencelog.broker.coordinators.pauses import Pauses
from fencelog.broker.coordinators.producer_ids import ProducerIds
from fencelog.broker.coordinators.runtime import CoordinatorRuntime, Loaded, ReplayMarker
from fencelog.broker.coordinators.writer_connections import WriterConnections
from fencelog.broker.dispatch import Dispatcher
from fencelog.broker.fetching.sessions import FetchSessions
from fencelog.broker.handlers.table import handlers
from fencelog.broker.metadata.catalog import (
    GROUP_TOPIC,
    INTERNAL_TOPICS,
    OWNERSHIP_TOPIC,
    TRANSACTION_TOPIC,
    VERSIONED_TOPIC,
    Catalog,
)
from fencelog.broker.metadata.controller import Controller
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.network.connection import Connection
from fencelog.broker.network.server import Server
from fencelog.broker.network.time_slices import TimeSlices
from fencelog.broker.observer import Observer
from fencelog.broker.partitions.log_cleaner import LogCleaner
from fencelog.broker.partitions.log_flusher import LogFlusher
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.coordination.group.model import GroupLimits
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.ownership.shard import OwnershipShard
from fencelog.coordination.shard import Shard
from fencelog.coordination.transaction.shard import TransactionLimits, TransactionShard
from fencelog.coordination.versioned.answers import VersionedLimits
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.errors import CorruptionError, FencelogError, NotLeaderError, StorageError
from fencelog.ports import Disk, MetadataStore, Random, Stopwatch, WallClock
from fencelog.storage.directory import DataDirectory
from fencelog.types import CoordinatorEpoch, ProducerId
from fencelog.wire.own import coordinated_by

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
Runtimes = tuple[
    CoordinatorRuntime[TransactionShard],
    CoordinatorRuntime[VersionedShard],
    CoordinatorRuntime[GroupShard],
    CoordinatorRuntime[OwnershipShard],
]


def _unchecked() -> None:
    """The directory of a simulated disk cannot be replaced."""


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The interfaces a node runs on; the simulator supplies its own."""

    disk: Disk
    metadata: MetadataStore
    clock: WallClock
    random: Random
    stopwatch: Stopwatch = system_stopwatch
    check_directory: Callable[[], None] = _unchecked
    """Raises DirectoryReplacedError once the data directory is another."""


class Node:
    """A broker, from start to stop.

    Start: open the data directory, recover logs, replay coordinators, write outstanding markers,
    listen. So no reader sees a decided transaction that is only partly marked (V6). A stop, and a
    failed start, undo these steps in reverse order.
    """

    def __init__(
        self,
        config: BrokerConfig,
        ports: Ports,
        *,
        observer: Observer | None = None,
        new_server: Callable[[BrokerConfig, Dispatcher, Stopwatch], Server] = Server,
    ) -> None:
        """Compose; nothing runs before ``start``. ``new_server`` makes the listener."""
        self.config = config
        self._ports = ports
        self._running = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._coordinator_epoch_seen = CoordinatorEpoch(-1)
        clock, metadata = ports.clock, ports.metadata
        self.flusher = LogFlusher(sync=config.durability == "fsync")
        self.logs = LogManager(ports.disk, config, self.flusher, observer)
        self.cleaner = LogCleaner(self.logs, clock, config.compaction_interval_s)
        catalog = Catalog(metadata)
        settings = Settings(config, metadata)
        controller = Controller(config, catalog, settings, self.logs, ports.random)
        self._open_internal = controller.open_internal
        self._observer = observer
        runtimes = self._new_runtimes()
        self.transactions, self.versioned, self.groups, self.ownership = runtimes
        claims = ClaimConnections(self.ownership)
        leaders = LocalLeaders(
            self.logs,
            self.transactions,
            self.versioned,
            self.groups,
            claims,
            clock,
            self.config.markers_wait_s,
        )
        time_slices = TimeSlices()
        self.marker_senders = self._marker_senders(leaders, time_slices)
        self.ownership_sender = OwnershipSender(self.ownership, leaders, clock, time_slices)
        self.logs.on_created = self.ownership_sender.created
        self.ownership.on_loaded = self.ownership_sender.loaded
        self._pauses = Pauses(self.ownership)
        self.ownership.on_committed = self._ownership_committed
        self._orphaned = OrphanedTransactions(self.logs, leaders, self.transactions, clock)
        self.broker = Broker(
            config=config,
            catalog=catalog,
            logs=self.logs,
            settings=settings,
            controller=controller,
            leaders=leaders,
            transactions=self.transactions,
            versioned=self.versioned,
            writer_connections=WriterConnections(self.versioned),
            groups=self.groups,
            group_requests=GroupRequests(self.groups, clock=clock, random=ports.random),
            ownership=self.ownership,
            ownership_requests=OwnershipRequests(self.ownership, ports.random),
            claims=claims,
            producer_ids=ProducerIds(metadata, observer),
            fetch_sessions=FetchSessions(config.fetch_sessions_max, ports.random.bytes),
            clock=clock,
            time_slices=time_slices,
            observer=observer,
            address=(config.host, config.port),
        )
        self.server = new_server(config, Dispatcher(self.broker, handlers()), ports.stopwatch)
        self.server.on_closed = self._connection_closed

    @property
    def address(self) -> tuple[str, int]:
        """The address the broker listens on; after the start, with the real port."""
        return self.broker.address

    async def start(self) -> None:
        """Recover and serve. If that fails or is cancelled, nothing is left running or open.

        Raises CorruptionError or StorageError for an unusable directory, and OSError for an address
        on which it cannot listen.
        """
        undo = AsyncExitStack()
        try:
            await self._start(undo)
        except BaseException:
            try:
                await undo.aclose()
            except FencelogError as error:
                log.error("could not release everything after a failed start: %s", error)  # noqa: TRY400
            raise
        self._running = undo

    async def _start(self, undo: AsyncExitStack) -> None:
        broker, config = self.broker, self.config
        await _check_metadata(self._ports)
        directory = await DataDirectory.open(
            self._ports.disk, self._ports.random, node_id=config.node_id
        )
        broker.cluster_id = directory.cluster_id
        self.logs.start(directory)
        undo.push_async_callback(self.logs.stop)
        undo.push_async_callback(broker.controller.stop)
        await broker.controller.start()
        undo.callback(broker.deadlines.stop)
        self._coordinator_epoch_seen = highest_coordinator_epoch(self.logs)
        undo.push_async_callback(self._cancel_tasks)
        self._begin(self.flusher.run())
        undo.push_async_callback(self.flusher.drained)
        for runtime in self.runtimes():
            # The stored partition count maps keys to shards, even if the setting has changed.
            topic = broker.catalog.get(runtime.topic)
            if topic is not None:
                runtime.partition_count = topic.partitions
            undo.push_async_callback(runtime.stop)
        for sender in self.senders():
            undo.push_async_callback(sender.stop)
        undo.callback(self._pauses.stop)
        await self._resume()
        self._pauses.start()
        undo.push_async_callback(self._stop_upkeep)
        self._begin(self._keep_up())
        if config.compaction_enabled:
            self._begin(self.cleaner.run())
        undo.push_async_callback(self.server.stop)
        broker.address = await self.server.start()
        undo.callback(broker.group_requests.close)
        undo.callback(broker.ownership_requests.close)
        undo.callback(broker.claims.stop)

    async def stop(self) -> None:
        """Finish open requests, flush, and close so that the next start trusts the files."""
        await self._running.aclose()

    def failure(self) -> BaseException | None:
        """Return the error that ended a background task, or None."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                return task.exception()
        return None

    async def wait_failed(self) -> None:
        """Return when a background task has ended."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def runtimes(self) -> Runtimes:
        """The runtimes of all coordinators."""
        return (self.transactions, self.versioned, self.groups, self.ownership)

    def senders(
        self,
    ) -> tuple[
        MarkerSender[TransactionShard] | MarkerSender[VersionedShard] | OwnershipSender, ...
    ]:
        """The senders of all coordinators' outstanding work, those of markers first."""
        return (*self.marker_senders, self.ownership_sender)

    # -- inside --------------------------------------------------------------------------------

    def _ownership_committed(self, loaded: Loaded[OwnershipShard]) -> None:
        self.ownership_sender.wake(loaded)
        self.broker.ownership_requests.committed(loaded)
        self._pauses.start()

    def _connection_closed(self, connection: Connection) -> None:
        self.broker.writer_connections.closed(connection)
        self.broker.claims.closed(connection)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        """Start a task that runs for as long as the broker does."""
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # noqa: TID251 - all are cancelled

    async def _stop_upkeep(self) -> None:
        """Wait for upkeep and compaction to end: a cancelled sync counts as failed (D2)."""
        self._stopping.set()
        self.logs.stop_upkeep()
        self.cleaner.stop()
        _, *upkeep = self._tasks
        await asyncio.wait(upkeep)

    def _marker_senders(
        self, leaders: LocalLeaders, time_slices: TimeSlices
    ) -> tuple[MarkerSender[TransactionShard], MarkerSender[VersionedShard]]:
        clock = self._ports.clock
        return (
            MarkerSender(
                self.transactions,
                lambda shard, committed: transaction_work(shard, committed, clock),
                leaders,
                time_slices,
            ),
            MarkerSender(self.versioned, versioned_work, leaders, time_slices),
        )

    def _new_runtimes(self) -> Runtimes:
        config = self.config
        transaction_limits = _transaction_limits(config)
        versioned_limits = VersionedLimits(timeout_ms_max=config.transaction_timeout_ms_max)
        group_limits = _group_limits(config)
        transactions = self._runtime(
            TRANSACTION_TOPIC, lambda epoch: TransactionShard(epoch, transaction_limits)
        )
        transactions.key_of = coordinated_by
        return (
            transactions,
            self._runtime(VERSIONED_TOPIC, lambda epoch: VersionedShard(epoch, versioned_limits)),
            self._runtime(
                GROUP_TOPIC,
                lambda epoch: GroupShard(epoch, group_limits),
                lambda shard, producer_id, commit: shard.replay_marker(producer_id, commit=commit),
            ),
            self._runtime(OWNERSHIP_TOPIC, OwnershipShard),
        )

    def _runtime(
        self,
        topic: str,
        new_shard: Callable[[CoordinatorEpoch], S],
        replay_marker: ReplayMarker[S] | None = None,
    ) -> CoordinatorRuntime[S]:
        return CoordinatorRuntime(
            topic,
            self.config.internal_partitions,
            new_shard,
            open_partition=self._open_internal,
            next_epoch=self._next_coordinator_epoch,
            clock=self._ports.clock,
            observer=self._observer,
            replay_marker=replay_marker,
        )

    async def _next_coordinator_epoch(self, shard: str) -> CoordinatorEpoch:
        """Return a number that grows with every load of a shard, stored before it is used (E17).

        It is above every epoch that a log has at the start: the metadata may be an older copy.
        """
        key = f"coordinator-epoch/{shard}"
        while True:
            cell = await self._ports.metadata.get(key)
            stored, version = (int(cell[0]), cell[1]) if cell else (-1, 0)
            value = max(stored, self._coordinator_epoch_seen) + 1
            if await self._ports.metadata.put(key, b"%d" % value, expected_version=version):
                return CoordinatorEpoch(value)

    async def _resume(self) -> None:
        """Load every shard that has records, and write the markers of decided transactions."""
        catalog = self.broker.catalog
        is_whole = not any(name.topic in INTERNAL_TOPICS for name in self.logs.offline())
        for runtime in self.runtimes():
            topic = catalog.get(runtime.topic)
            for index in range(topic.partitions if topic else 0):
                if self.logs.get(runtime.topic, index) is not None:
                    try:
                        await runtime.load(index)
                    except NotLeaderError as error:
                        log.error("%s", error)  # noqa: TRY400
                        is_whole = False
        read = {topic for each in self.groups.loaded() for topic in each.shard.topics()}
        gone = [each for each in sorted(read) if not catalog.get(each)]
        await self.broker.group_requests.forget_topics(gone)
        highest = self.logs.highest_producer_id()
        for shards in (self.transactions.loaded(), self.versioned.loaded()):
            for loaded in shards:
                highest = max(highest, loaded.shard.highest_producer_id())
        await self.broker.producer_ids.start_above(ProducerId(highest))
        # Before the markers: one of a stale coordinator would be refused, and retried.
        if not is_whole or not await self._orphaned.end():
            # Its decisions are unknown, so the last stable offsets stay where they are.
            log.error("a coordinator is offline: orphaned transactions stay open")
        await self._orphaned.retire()
        broker = self.broker
        await end_orphaned_owners(self.logs, broker.leaders, self.ownership, broker.time_slices)
        try:
            async with asyncio.timeout(self.config.resume_timeout_s):
                for sender in self.senders():
                    await sender.drain()
        except TimeoutError:
            log.error(  # noqa: TRY400
                "cannot write some markers or owners yet; those transactions stay open, and those "
                "claims are not answered"
            )

    async def _keep_up(self) -> None:
        """Run checkpoints and retention. A disk failure fails the writers, not this task."""
        loop = asyncio.get_running_loop()
        interval_s = self.config.upkeep_interval_s
        checkpoint_s = self.config.checkpoint_interval_s
        upkeep_at = loop.time() + interval_s
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(checkpoint_s, upkeep_at - loop.time())):
                    await self._stopping.wait()
            if self._stopping.is_set():
                return
            is_due = loop.time() >= upkeep_at
            if is_due:
                upkeep_at = loop.time() + interval_s
            self._ports.check_directory()
            try:
                await self.logs.checkpoint()
                if is_due:
                    await self.logs.upkeep(self._ports.clock.now_ms())
            except StorageError as error:
                log.error("upkeep failed and will be retried: %s", error)  # noqa: TRY400


def _transaction_limits(config: BrokerConfig) -> TransactionLimits:
    return TransactionLimits(
        timeout_ms_max=config.transaction_timeout_ms_max,
        id_expiration_ms=config.transactional_id_expiration_ms,
        id_check_s=config.transactional_id_check_s,
    )


def _group_limits(config: BrokerConfig) -> GroupLimits:
    return GroupLimits(
        members_max=config.group_members_max,
        metadata_bytes_max=config.offset_metadata_bytes_max,
        session_timeout_ms_min=config.group_session_timeout_ms_min,
        session_timeout_ms_max=config.group_session_timeout_ms_max,
        initial_delay_s=config.group_initial_delay_s,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        retention_check_s=config.offsets_retention_check_s,
    )


async def _check_metadata(ports: Ports) -> None:
    """Raise CorruptionError if there are partitions and no metadata: an empty cluster would start.

    It would hand out the same topic names and producer ids again.
    """
    held = await DataDirectory.partitions_of(ports.disk)
    if held and not await ports.metadata.list(""):
        raise CorruptionError(
            f"{METADATA_FILE} is missing or empty, but there are partition directories, such as "
            f"{held[0]}: restore {METADATA_FILE} and {METADATA_FILE}-wal, or the whole directory, "
            "from a backup; to begin an empty cluster, use another directory"
        )


@asynccontextmanager
async def open_node(config: BrokerConfig) -> AsyncIterator[Node]:
    """Run a node on the real disk and clock: start on entering, stop cleanly on leaving.

    Always releases the disk, the metadata store and the lock of the directory. Raises
    CorruptionError, and StorageError: a DirectoryInUseError names the broker that has it.
    """
    async with AsyncExitStack() as undo:
        lock = DirectoryLock.acquire(config.data_dir)
        undo.callback(lock.release)
        disk = FileDisk(config.data_dir)
        undo.callback(disk.close)
        metadata = await SqliteMetadata.open(Path(config.data_dir) / METADATA_FILE)
        undo.push_async_callback(metadata.close)
        ports = Ports(
            disk=disk,
            metadata=metadata,
            clock=SystemClock(),
            random=SystemRandom(),
            check_directory=lock.check,
        )
        node = Node(config, ports)
        await node.start()
        undo.push_async_callback(node.stop)
        yield node
