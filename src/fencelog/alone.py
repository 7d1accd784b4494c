"""The membership of a broker that is alone: it holds and leads every partition."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack

from fencelog.adapters.sqlite_metadata import METADATA_FILE
from fencelog.broker.config import BrokerConfig
from fencelog.broker.context import Broker
from fencelog.broker.coordinators.coordinator_epochs import CoordinatorEpochs
from fencelog.broker.coordinators.leaders import Leaders, LocalLeaders
from fencelog.broker.coordinators.marker_sender import MarkerSender
from fencelog.broker.coordinators.orphaned_owners import end_orphaned_owners
from fencelog.broker.coordinators.orphaned_transactions import (
    OrphanedTransactions,
    highest_coordinator_epoch,
)
from fencelog.broker.coordinators.ownership_sender import OwnershipSender
from fencelog.broker.dispatch import Dispatcher
from fencelog.broker.handlers.table import handlers
from fencelog.broker.metadata.catalog import INTERNAL_TOPICS, Catalog
from fencelog.broker.metadata.controller import Controller
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.network.connection import Connection
from fencelog.broker.network.server import Server
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.errors import CorruptionError, NotLeaderError
from fencelog.ports import Disk, MetadataStore, Random
from fencelog.storage.directory import DataDirectory
from fencelog.types import ProducerId, TopicId

log = logging.getLogger(__name__)

Senders = tuple[
    MarkerSender[TransactionShard] | MarkerSender[VersionedShard] | OwnershipSender, ...
]
"""The senders of all coordinators' outstanding work, those of markers first."""
Begin = Callable[[Coroutine[None, None, None]], None]
"""Starts work that runs for as long as the broker does."""


class Alone:
    """All partitions are opened and led here, and all coordinators are loaded before it listens."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        metadata: MetadataStore,
        random: Random,
        logs: LogManager,
    ) -> None:
        """Nothing is open before ``open``."""
        self._config = config
        self._disk = disk
        self._metadata = metadata
        self._random = random
        self._logs = logs
        self.placement = None
        self.elections = None
        self.low_watermarks = None
        self.lease = None
        self.catalog = Catalog(metadata)
        self.settings = Settings(config, metadata)
        self.controller = Controller(config, self.catalog, self.settings, logs, random)
        self.coordinator_epochs = CoordinatorEpochs(metadata)
        self.open_internal = self.controller.open_internal

    def leaders(self, local: LocalLeaders) -> Leaders:
        """Return ``local``: there are no others."""
        return local

    def dispatcher(self, broker: Broker, local: LocalLeaders) -> Dispatcher:
        """Return one of the handlers of clients: there are no other brokers."""
        del local
        return Dispatcher(broker, handlers())

    def find_led(self, topic_id: TopicId, index: int) -> Partition | None:
        """Return an open partition, by its topic's id."""
        topic = self.catalog.by_id(topic_id)
        return None if topic is None else self._logs.get(topic.name, index)

    def connection_closed(self, connection: Connection) -> None:
        """Do nothing: it was a client's."""

    async def open(self, undo: AsyncExitStack) -> str:
        """Recover all partitions; return the directory's cluster id.

        Raises CorruptionError and StorageError.
        """
        await self._check_metadata()
        directory = await DataDirectory.open(self._disk, self._random, node_id=self._config.node_id)
        self._logs.start(directory)
        undo.push_async_callback(self._logs.stop)
        undo.push_async_callback(self.controller.stop)
        await self.controller.start()
        self.coordinator_epochs.seen = highest_coordinator_epoch(self._logs)
        return directory.cluster_id

    async def resume(
        self, broker: Broker, senders: Senders, orphaned: OrphanedTransactions
    ) -> None:
        """Load every shard that has records, and write the markers of decided transactions."""
        is_whole = await self._load_shards(broker)
        read = {topic for each in broker.groups.loaded() for topic in each.shard.topics()}
        gone = [each for each in sorted(read) if not self.catalog.get(each)]
        await broker.group_requests.forget_topics(gone)
        self.controller.on_deleted = broker.group_requests.forget_topics
        highest = self._logs.highest_producer_id()
        for shards in (broker.transactions.loaded(), broker.versioned.loaded()):
            for loaded in shards:
                highest = max(highest, loaded.shard.highest_producer_id())
        await broker.producer_ids.start_above(ProducerId(highest))
        # Before the markers: one of a stale coordinator would be refused, and retried.
        if not is_whole or not await orphaned.end(self._logs.partitions()):
            # Its decisions are unknown, so the last stable offsets stay where they are.
            log.error("a coordinator is offline: orphaned transactions stay open")
        await orphaned.retire()
        slices = broker.time_slices
        await end_orphaned_owners(self._logs, broker.leaders, broker.ownership, slices)
        try:
            async with asyncio.timeout(self._config.resume_timeout_s):
                for sender in senders:
                    await sender.drain()
        except TimeoutError:
            log.error(  # noqa: TRY400
                "cannot write some markers or owners yet; those transactions stay open, and those "
                "claims are not answered"
            )

    async def join(
        self, broker: Broker, server: Server, begin: Begin, undo: AsyncExitStack
    ) -> None:
        """Do nothing: there is no one to join."""

    async def _load_shards(self, broker: Broker) -> bool:
        """Load every shard that has records; False if one of them is not available."""
        is_whole = not any(name.topic in INTERNAL_TOPICS for name in self._logs.offline())
        for runtime in broker.runtimes():
            topic = self.catalog.get(runtime.topic)
            for index in range(topic.partitions if topic else 0):
                if self._logs.get(runtime.topic, index) is not None:
                    try:
                        await runtime.load(index)
                    except NotLeaderError as error:
                        log.error("%s", error)  # noqa: TRY400
                        is_whole = False
        return is_whole

    async def _check_metadata(self) -> None:
        """Raise CorruptionError if there are partitions and no metadata.

        An empty cluster would start, and hand out the same topic names and producer ids again.
        """
        held = await DataDirectory.partitions_of(self._disk)
        if held and not await self._metadata.list(""):
            raise CorruptionError(
                f"{METADATA_FILE} is missing or empty, but there are partition directories, such "
                f"as {held[0]}: restore {METADATA_FILE} and {METADATA_FILE}-wal, or the whole "
                "directory, from a backup; to begin an empty cluster, use another directory"
            )
