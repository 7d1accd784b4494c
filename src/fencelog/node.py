"""Composes one broker from its parts and adapters; defines its start and stop order."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fencelog.adapters.file_disk import DirectoryLock, FileDisk
from fencelog.adapters.sqlite_metadata import METADATA_FILE, SqliteMetadata
from fencelog.adapters.system_clock import SystemClock, SystemRandom, system_stopwatch
from fencelog.alone import Alone, Begin, Senders
from fencelog.broker.config import BrokerConfig
from fencelog.broker.context import Broker
from fencelog.broker.coordinators.claims import ClaimConnections
from fencelog.broker.coordinators.coordinator_epochs import CoordinatorEpochs
from fencelog.broker.coordinators.group_requests import GroupRequests
from fencelog.broker.coordinators.leaders import Leaders, LocalLeaders
from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.coordinators.marker_sender import MarkerSender
from fencelog.broker.coordinators.marker_work import transaction_work, versioned_work
from fencelog.broker.coordinators.orphaned_transactions import (
    OrphanedTransactions,
)
from fencelog.broker.coordinators.ownership_requests import OwnershipRequests
from fencelog.broker.coordinators.ownership_sender import OwnershipSender
from fencelog.broker.coordinators.pauses import Pauses
from fencelog.broker.coordinators.producer_ids import ProducerIds
from fencelog.broker.coordinators.runtimes import Runtimes, new_runtimes
from fencelog.broker.coordinators.stream_policy import StreamPolicy
from fencelog.broker.coordinators.stream_sealer import StreamSealer
from fencelog.broker.coordinators.writer_connections import WriterConnections
from fencelog.broker.dispatch import Dispatcher
from fencelog.broker.fetching.sessions import FetchSessions
from fencelog.broker.metadata.catalog import (
    Catalog,
)
from fencelog.broker.metadata.placement import LeaderElections, LowWatermarks, Placement
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.metadata.streams import Streams
from fencelog.broker.metadata.topic_changes import TopicChanges
from fencelog.broker.network.connection import Connection
from fencelog.broker.network.lease import Lease
from fencelog.broker.network.server import Server
from fencelog.broker.network.time_slices import TimeSlices
from fencelog.broker.observer import Observer
from fencelog.broker.partitions.log_cleaner import LogCleaner
from fencelog.broker.partitions.log_flusher import LogFlusher
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.ownership.shard import OwnershipShard
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.errors import FencelogError, StorageError
from fencelog.ports import Disk, MetadataStore, Random, Stopwatch, WallClock
from fencelog.types import TopicId, TopicPartition

log = logging.getLogger(__name__)


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


class Membership(Protocol):
    """What a broker holds and leads, and how it learns it: alone, or as one of a cluster."""

    @property
    def catalog(self) -> Catalog:
        """The topics."""

    @property
    def settings(self) -> Settings:
        """The settings in force."""

    @property
    def coordinator_epochs(self) -> CoordinatorEpochs:
        """Numbers the loads of each shard."""

    @property
    def placement(self) -> Placement | None:
        """The other brokers, and who leads what; None for a broker that is alone."""

    @property
    def elections(self) -> LeaderElections | None:
        """What carries out an operator's elections; None for a broker that is alone."""

    @property
    def low_watermarks(self) -> LowWatermarks | None:
        """Where the logs of followers begin; None for a broker that is alone."""

    @property
    def lease(self) -> Lease | None:
        """For how long requests are served; None for a broker that is alone."""

    @property
    def controller(self) -> TopicChanges:
        """Return what changes topics and settings."""

    async def open_internal(self, topic_name: str, index: int) -> Partition:
        """Return the partition of a coordinator's shard. Raises NotLeaderError."""

    def leaders(self, local: LocalLeaders) -> Leaders:
        """Return the leaders of all partitions and shards; ``local`` are those of this broker."""

    def dispatcher(self, broker: Broker, local: LocalLeaders) -> Dispatcher:
        """Return what passes requests to their handlers."""

    def find_led(self, topic_id: TopicId, index: int) -> Partition | None:
        """Return an open partition that this broker leads, by its topic's id."""

    def connection_closed(self, connection: Connection) -> None:
        """A connection to this broker is closed."""

    async def open(self, undo: AsyncExitStack) -> str:
        """Open the data directory and the partitions in it; return the cluster's id."""

    async def resume(
        self, broker: Broker, senders: Senders, orphaned: OrphanedTransactions
    ) -> None:
        """Go on with what the last run left, before the broker listens."""

    async def join(
        self, broker: Broker, server: Server, begin: Begin, undo: AsyncExitStack
    ) -> None:
        """The broker listens: begin to take part, with work that ends before upkeep does."""


NewMembership = Callable[[BrokerConfig, Disk, MetadataStore, Random, LogManager], Membership]


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
        new_membership: NewMembership = Alone,
        new_server: Callable[[BrokerConfig, Dispatcher, Stopwatch], Server] = Server,
    ) -> None:
        """Compose; nothing runs before ``start``. ``new_server`` makes the listener."""
        self.config = config
        self._ports = ports
        self._running = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        clock, metadata = ports.clock, ports.metadata
        self.flusher = LogFlusher(sync=config.durability == "fsync")
        self.logs = LogManager(ports.disk, config, self.flusher, observer)
        self.cleaner = LogCleaner(self.logs, clock, config.compaction_interval_s)
        self.membership = membership = new_membership(
            config, ports.disk, metadata, ports.random, self.logs
        )
        runtimes = new_runtimes(
            config, clock, observer, membership.open_internal, membership.coordinator_epochs.next
        )
        self.transactions, self.versioned, self.groups, self.ownership = runtimes
        claims = ClaimConnections(self.ownership)
        wait_s = config.markers_wait_s
        local = LocalLeaders(membership.catalog, self.logs, *runtimes[:3], claims, clock, wait_s)
        leaders = membership.leaders(local)
        time_slices = TimeSlices()
        self.marker_senders = self._marker_senders(leaders, time_slices)
        self.ownership_sender = OwnershipSender(self.ownership, leaders, clock, time_slices)
        self.logs.on_created = self._created
        self.ownership.on_loaded = self.ownership_sender.loaded
        self._pauses = Pauses(self.ownership)
        self.ownership.on_committed = self._ownership_committed
        self._orphaned = OrphanedTransactions(self.logs, leaders, self.transactions, clock)
        self.broker = self._new_broker(leaders, claims, time_slices, observer)
        membership.catalog.stream_changed = self._stream_changed
        self.server = new_server(config, membership.dispatcher(self.broker, local), ports.stopwatch)
        self.server.on_closed = self._connection_closed
        self.server.lease = membership.lease

    def _new_broker(
        self,
        leaders: Leaders,
        claims: ClaimConnections,
        time_slices: TimeSlices,
        observer: Observer | None,
    ) -> Broker:
        config, membership, random = self.config, self.membership, self._ports.random
        streams = Streams(membership.controller, membership.catalog, config.partitions_max)
        return Broker(
            config=config,
            catalog=membership.catalog,
            logs=self.logs,
            settings=membership.settings,
            controller=membership.controller,
            streams=streams,
            stream_sealer=StreamSealer(
                streams, membership.catalog, membership.find_led, self._ports.clock
            ),
            stream_policy=StreamPolicy(streams, membership.catalog, membership.find_led),
            placement=membership.placement,
            elections=membership.elections,
            low_watermarks=membership.low_watermarks,
            leaders=leaders,
            transactions=self.transactions,
            versioned=self.versioned,
            writer_connections=WriterConnections(self.versioned),
            groups=self.groups,
            group_requests=GroupRequests(self.groups, clock=self._ports.clock, random=random),
            ownership=self.ownership,
            ownership_requests=OwnershipRequests(self.ownership, random),
            claims=claims,
            producer_ids=ProducerIds(self._ports.metadata, observer),
            fetch_sessions=FetchSessions(config.fetch_sessions_max, random.bytes),
            clock=self._ports.clock,
            time_slices=time_slices,
            observer=observer,
            address=(config.host, config.port),
        )

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
        broker.cluster_id = await self.membership.open(undo)
        undo.callback(broker.deadlines.stop)
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
        undo.push_async_callback(broker.stream_sealer.stop)
        undo.push_async_callback(broker.stream_policy.stop)
        undo.callback(self._pauses.stop)
        await self.membership.resume(broker, self.senders(), self._orphaned)
        broker.stream_sealer.resume()
        broker.stream_policy.resume()
        self._pauses.start()
        undo.push_async_callback(self._stop_upkeep)
        self._begin(self._keep_up())
        if config.compaction_enabled:
            self._begin(self.cleaner.run())
        undo.push_async_callback(self.server.stop)
        broker.address = await self.server.start()
        undo.callback(broker.group_requests.close)
        undo.callback(broker.streams.close)
        undo.callback(broker.ownership_requests.close)
        undo.callback(broker.claims.stop)
        await self.membership.join(broker, self.server, self._begin, undo)

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
        return self.broker.runtimes()

    def senders(self) -> Senders:
        """The senders of all coordinators' outstanding work, those of markers first."""
        return (*self.marker_senders, self.ownership_sender)

    # -- inside --------------------------------------------------------------------------------

    def _ownership_committed(self, loaded: Loaded[OwnershipShard]) -> None:
        self.ownership_sender.wake(loaded)
        self.broker.ownership_requests.committed(loaded)
        self._pauses.start()

    def _created(self, names: Collection[TopicPartition]) -> None:
        self.ownership_sender.created(names)
        for topic in sorted({name.topic for name in names}):
            self.broker.stream_policy.led(topic)

    def _stream_changed(self, topic_id: TopicId) -> None:
        self.broker.streams.changed(topic_id)
        self.broker.stream_sealer.changed(topic_id)
        self.broker.stream_policy.changed(topic_id)

    def _connection_closed(self, connection: Connection) -> None:
        self.broker.writer_connections.closed(connection)
        self.broker.claims.closed(connection)
        self.membership.connection_closed(connection)

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
        self, leaders: Leaders, time_slices: TimeSlices
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
                    await self.broker.stream_sealer.record_emptied()
            except StorageError as error:
                log.error("upkeep failed and will be retried: %s", error)  # noqa: TRY400


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
