"""One broker, composed from its parts and adapters, with the order in which it starts and stops."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fencelog.adapters.file_disk import DirectoryLock, FileDisk
from fencelog.adapters.sqlite_metadata import SqliteMetadata
from fencelog.adapters.system_clock import SystemClock, SystemRandom
from fencelog.broker.config import BrokerConfig
from fencelog.broker.context import Broker
from fencelog.broker.coordinators.group_requests import GroupRequests
from fencelog.broker.coordinators.marker_sender import MarkerSender
from fencelog.broker.coordinators.marker_work import transaction_work, versioned_work
from fencelog.broker.coordinators.orphaned_transactions import (
    OrphanedTransactions,
    highest_coordinator_epoch,
)
from fencelog.broker.coordinators.producer_ids import ProducerIds
from fencelog.broker.coordinators.runtime import CoordinatorRuntime, ReplayMarker
from fencelog.broker.dispatch import Dispatcher
from fencelog.broker.handlers.table import handlers
from fencelog.broker.metadata.catalog import (
    GROUP_TOPIC,
    TRANSACTION_TOPIC,
    VERSIONED_TOPIC,
    Catalog,
)
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.network.server import Server
from fencelog.broker.partitions.log_cleaner import LogCleaner
from fencelog.broker.partitions.log_flusher import LogFlusher
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.coordination.group.model import GroupLimits
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.shard import Shard
from fencelog.coordination.transaction.shard import TransactionLimits, TransactionShard
from fencelog.coordination.versioned.answers import VersionedLimits
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.errors import NotLeaderError, StorageError
from fencelog.ports import Disk, MetadataStore, Random, WallClock
from fencelog.storage.directory import DataDirectory
from fencelog.types import CoordinatorEpoch, ProducerId

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
METADATA_FILE = "metadata.sqlite"


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The world that a node lives in; the simulator has another one."""

    disk: Disk
    metadata: MetadataStore
    clock: WallClock
    random: Random


class Node:
    """A broker from its first file to its last answer.

    Start: directory, logs recovered, coordinators replayed, outstanding markers written, listen: so
    no reader is served while half of a decided transaction is marked (V6).
    """

    def __init__(
        self,
        config: BrokerConfig,
        ports: Ports,
        *,
        new_server: Callable[[BrokerConfig, Dispatcher], Server] = Server,
    ) -> None:
        """Compose; nothing runs before ``start``. ``new_server`` makes what stands at the port."""
        self._config = config
        self._ports = ports
        self._new_server = new_server
        self._flusher = LogFlusher(sync=config.durability == "fsync")
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self.address: tuple[str, int] = (config.host, config.port)

    async def start(self) -> None:
        """Recover and serve. Raises CorruptionError or StorageError for an unusable directory."""
        ports, config = self._ports, self._config
        directory = await DataDirectory.open(ports.disk, ports.random, node_id=config.node_id)
        catalog = Catalog(ports.metadata)
        settings = Settings(config, ports.metadata)
        await settings.load()
        self._logs = LogManager(
            ports.disk, directory, catalog, config, settings, ports.random, self._flusher
        )
        await self._logs.start()
        self._coordinator_epoch_seen = highest_coordinator_epoch(self._logs)
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._flusher.run()))
        limits = TransactionLimits(
            timeout_ms_max=config.transaction_timeout_ms_max,
            id_expiration_ms=config.transactional_id_expiration_ms,
            id_check_s=config.transactional_id_check_s,
        )
        self._transactions = self._runtime(
            catalog, TRANSACTION_TOPIC, lambda epoch: TransactionShard(epoch, limits)
        )
        versioned_limits = VersionedLimits(timeout_ms_max=config.transaction_timeout_ms_max)
        self._versioned = self._runtime(
            catalog, VERSIONED_TOPIC, lambda epoch: VersionedShard(epoch, versioned_limits)
        )
        self._groups = self._group_runtime(catalog)
        self._senders = self._marker_senders()
        producer_ids = ProducerIds(ports.metadata)
        await self._resume(catalog, producer_ids)
        self.broker = Broker(
            config=config,
            cluster_id=directory.cluster_id,
            catalog=catalog,
            logs=self._logs,
            settings=settings,
            flusher=self._flusher,
            transactions=self._transactions,
            versioned=self._versioned,
            groups=self._groups,
            group_requests=self._group_requests,
            producer_ids=producer_ids,
            clock=ports.clock,
        )
        self._server = self._new_server(config, Dispatcher(self.broker, handlers()))
        self.address = self.broker.address = await self._server.start()
        self.cleaner = LogCleaner(self._logs, ports.clock, config.compaction_interval_s)
        self._upkeep = [loop.create_task(self._keep_up())]
        if config.compaction_enabled:
            self._upkeep.append(loop.create_task(self.cleaner.run()))
        self._tasks += self._upkeep

    def _marker_senders(
        self,
    ) -> tuple[MarkerSender[TransactionShard], MarkerSender[VersionedShard]]:
        clock = self._ports.clock
        return (
            MarkerSender(
                self._transactions,
                lambda shard, committed: transaction_work(shard, committed, clock),
                find=self._logs.find,
                flusher=self._flusher,
                clock=clock,
            ),
            MarkerSender(
                self._versioned,
                versioned_work,
                find=self._logs.find,
                flusher=self._flusher,
                clock=clock,
            ),
        )

    async def stop(self) -> None:
        """Answer what was begun, flush, and close so that the next start trusts the files."""
        self._group_requests.close()
        await self._server.stop()
        transactions, versioned = self._senders
        await transactions.stop()
        await versioned.stop()
        for runtime in self._runtimes():
            await runtime.stop()
        await self._flusher.drained()
        # Not cancelled: a sync that is cut short ends its partition's clean stop.
        self._stopping.set()
        self.cleaner.stop()
        await asyncio.wait(self._upkeep)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # noqa: TID251 - all are cancelled
        await self._logs.stop()
        await self._ports.metadata.close()

    def failure(self) -> BaseException | None:
        """Why a task that must run for ever has ended, or None."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                return task.exception()
        return None

    async def wait_failed(self) -> None:
        """Return when the node cannot go on."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    # -- inside --------------------------------------------------------------------------------

    def _runtimes(
        self,
    ) -> tuple[
        CoordinatorRuntime[TransactionShard],
        CoordinatorRuntime[VersionedShard],
        CoordinatorRuntime[GroupShard],
    ]:
        return (self._transactions, self._versioned, self._groups)

    def _group_runtime(self, catalog: Catalog) -> CoordinatorRuntime[GroupShard]:
        limits = _group_limits(self._config)
        groups = self._runtime(
            catalog,
            GROUP_TOPIC,
            lambda epoch: GroupShard(epoch, limits),
            lambda shard, producer_id, commit: shard.replay_marker(producer_id, commit=commit),
        )
        ports = self._ports
        self._group_requests = GroupRequests(groups, clock=ports.clock, random=ports.random)
        return groups

    def _runtime(
        self,
        catalog: Catalog,
        topic: str,
        new_shard: Callable[[CoordinatorEpoch], S],
        replay_marker: ReplayMarker[S] | None = None,
    ) -> CoordinatorRuntime[S]:
        # What a key is stored under must be found again, whatever the setting says by now.
        existing = catalog.get(topic)
        return CoordinatorRuntime(
            topic,
            existing.partitions if existing else self._config.internal_partitions,
            new_shard,
            open_partition=self._logs.open_internal,
            next_epoch=self._next_coordinator_epoch,
            flusher=self._flusher,
            clock=self._ports.clock,
            replay_marker=replay_marker,
        )

    async def _next_coordinator_epoch(self, shard: str) -> CoordinatorEpoch:
        """A number that grows with every load of a shard, stored before it is used (E17).

        It is above every one that a log has at the start: the metadata may be an older copy.
        """
        key = f"coordinator-epoch/{shard}"
        while True:
            cell = await self._ports.metadata.get(key)
            stored, version = (int(cell[0]), cell[1]) if cell else (-1, 0)
            value = max(stored, self._coordinator_epoch_seen) + 1
            if await self._ports.metadata.put(key, b"%d" % value, expected_version=version):
                return CoordinatorEpoch(value)

    async def _resume(self, catalog: Catalog, producer_ids: ProducerIds) -> None:
        """Load every shard that has records, and finish what they had decided."""
        is_whole = not self._logs.internal_offline()
        for runtime in self._runtimes():
            topic = catalog.get(runtime.topic)
            for index in range(topic.partitions if topic else 0):
                if self._logs.get(runtime.topic, index) is not None:
                    try:
                        await runtime.load(index)
                    except NotLeaderError as error:
                        log.error("%s", error)  # noqa: TRY400
                        is_whole = False
        read = {topic for each in self._groups.loaded() for topic in each.shard.topics()}
        await self._group_requests.forget_topics(
            [each for each in sorted(read) if not catalog.get(each)]
        )
        highest = self._logs.highest_producer_id()
        for shards in (self._transactions.loaded(), self._versioned.loaded()):
            for loaded in shards:
                highest = max(highest, loaded.shard.highest_producer_id())
        await producer_ids.start_above(ProducerId(highest))
        recovered = OrphanedTransactions(
            self._transactions, self._versioned, flusher=self._flusher, clock=self._ports.clock
        )
        # First: a marker of a coordinator that was set back would be refused, and waited for.
        if not is_whole or not await recovered.settle(self._logs):
            # What a coordinator decided is not known then, and the last stable offsets wait for it.
            log.error("a coordinator is offline: transactions that none lists stay as they are")
        await recovered.retire(self._logs)
        try:
            async with asyncio.timeout(self._config.resume_timeout_s):
                transactions, versioned = self._senders
                await transactions.drain()
                await versioned.drain()
        except TimeoutError:
            log.error("some markers cannot be written yet; their transactions stay open")  # noqa: TRY400

    async def _keep_up(self) -> None:
        """What is due at intervals. A disk that fails here fails the writers, not this task."""
        loop = asyncio.get_running_loop()
        interval_s = self._config.upkeep_interval_s
        checkpoint_s = self._config.checkpoint_interval_s
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
            try:
                await self._logs.checkpoint()
                if is_due:
                    await self._logs.upkeep(self._ports.clock.now_ms())
            except StorageError as error:
                log.error("upkeep is put off: %s", error)  # noqa: TRY400


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


@asynccontextmanager
async def open_node(config: BrokerConfig) -> AsyncIterator[Node]:
    """A node on the real world: started on entering, cleanly stopped on leaving.

    Raises CorruptionError, and StorageError: a DirectoryInUseError names the broker that has it.
    """
    disk = FileDisk(config.data_dir)
    lock = DirectoryLock.acquire(config.data_dir)
    try:
        metadata = await SqliteMetadata.open(Path(config.data_dir) / METADATA_FILE)
        ports = Ports(disk=disk, metadata=metadata, clock=SystemClock(), random=SystemRandom())
        node = Node(config, ports)
        await node.start()
        try:
            yield node
        finally:
            await node.stop()
    finally:
        disk.close()
        lock.release()
