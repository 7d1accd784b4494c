"""The membership of a broker in a cluster: what it holds and leads follows the metadata store.

One ``ClusterMember`` is one life of the broker: from its registration to the loss of its lease.
After that nothing is answered, the node ends, and another life may begin.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial

from fencelog.alone import Begin, Senders
from fencelog.broker.config import BrokerConfig
from fencelog.broker.context import Broker
from fencelog.broker.coordinators.cluster_leaders import ClusterLeaders
from fencelog.broker.coordinators.coordinator_epochs import CoordinatorEpochs
from fencelog.broker.coordinators.leaders import Leaders, LocalLeaders
from fencelog.broker.coordinators.orphaned_transactions import OrphanedTransactions
from fencelog.broker.metadata.catalog import Catalog
from fencelog.broker.metadata.cluster_birth import cluster_identity
from fencelog.broker.metadata.cluster_controller import ClusterController
from fencelog.broker.metadata.cluster_feed import ClusterFeed
from fencelog.broker.metadata.cluster_state import Changed, ClusterState, PartitionKey
from fencelog.broker.metadata.cluster_topics import ClusterTopics, ReplicationFactors
from fencelog.broker.metadata.registration import (
    BrokerRegistration,
    fence,
    leave_replica_sets,
)
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.peers.identity import Identity
from fencelog.broker.peers.incoming import IncomingPeers
from fencelog.broker.peers.outgoing import OutgoingPeers
from fencelog.broker.replicas.isr import IsrWriter
from fencelog.broker.replicas.led import LedPartitions
from fencelog.broker.replicas.replica_manager import ReplicaManager
from fencelog.broker.replicas.serving import Serving
from fencelog.coordination.controller.model import PartitionState, Registration
from fencelog.errors import FencedError
from fencelog.log.config import LogConfig
from fencelog.node import NewMembership
from fencelog.ports import Disk, MetadataStore, Random
from fencelog.storage.directory import DataDirectory
from fencelog.types import NodeId, TopicId, TopicPartition

log = logging.getLogger(__name__)

INCARNATION_BYTES = 16
STOP_S = 20.0
"""How long a broker that stops waits for others to lead what it leads; orchestrators grant 30."""


class ClusterPlacement:
    """Who is alive, who holds and leads what, as the copy of the metadata has it."""

    def __init__(self, node_id: NodeId, state: ClusterState) -> None:
        """``state`` is the copy that a watch keeps."""
        self.node_id = node_id
        self._state = state

    @property
    def controller_id(self) -> NodeId:
        """This broker, while it is registered: every broker takes administrators' requests."""
        brokers = self._state.brokers
        return self.node_id if self.node_id in brokers else min(brokers, default=NodeId(-1))

    def brokers(self) -> Sequence[Registration]:
        """Return the registered brokers, by number."""
        return [self._state.brokers[each].registration for each in sorted(self._state.brokers)]

    def broker(self, node_id: NodeId) -> Registration | None:
        """Return a registered broker."""
        found = self._state.brokers.get(node_id)
        return None if found is None else found.registration

    def partition(self, topic_id: TopicId, index: int) -> PartitionState | None:
        """Return who holds and leads a partition; None if it is not known here."""
        stored = self._state.partitions.get(PartitionKey(topic_id, index))
        return None if stored is None else stored.state


class ClusterMember:
    """One life of a broker in a cluster."""

    def __init__(
        self,
        identity: Identity,
        boot_id: str,
        config: BrokerConfig,
        disk: Disk,
        metadata: MetadataStore,
        random: Random,
        logs: LogManager,
    ) -> None:
        """Nothing is open before ``open``; nobody knows of it before ``join``."""
        self._identity = identity
        self._boot_id = boot_id
        self._config = config
        self._disk = disk
        self._metadata = metadata
        self._random = random
        self._logs = logs
        self._directory: DataDirectory | None = None
        self._lost: asyncio.Future[None] | None = None
        self._registration: BrokerRegistration | None = None
        self.state = ClusterState(metadata)
        self.placement = ClusterPlacement(identity.node_id, self.state)
        self.catalog = Catalog(metadata)
        self.settings = Settings(config, metadata)
        self._feed = ClusterFeed(self.state, self.catalog, self.settings, logs)
        self.controller = ClusterTopics(
            config,
            self.catalog,
            self.settings,
            self.state,
            metadata,
            logs,
            random,
            ReplicationFactors(config.replication_factor, config.internal_replication_factor),
        )
        self.coordinator_epochs = CoordinatorEpochs(metadata, self._led_here)
        self.open_internal = self.controller.open_internal
        self.peers = OutgoingPeers(identity, random, self._gone)
        self.incoming = IncomingPeers(identity, random)
        self._led = LedPartitions()

    def leaders(self, local: LocalLeaders) -> Leaders:
        """Return the leaders on all brokers."""
        return ClusterLeaders(local, self.peers, self.catalog, self.placement, self._metadata)

    def min_isr(self, topic_id: TopicId) -> int:
        """Return ``min.insync.replicas`` of a topic, the default for one that is not known."""
        found = self._feed.min_isr(topic_id)
        return LogConfig().min_insync_replicas if found is None else found

    async def open(self, undo: AsyncExitStack) -> str:
        """Open the data directory, and read what the metadata store has; return the cluster's id.

        Raises CorruptionError and StorageError.
        """
        directory = self._directory = await DataDirectory.open(
            self._disk,
            self._random,
            node_id=self._config.node_id,
            cluster_id=self._identity.cluster_id,
            boot_id=self._boot_id,
        )
        self._logs.start(directory)
        undo.push_async_callback(self._logs.stop)
        undo.push_async_callback(self.controller.stop)
        if not await directory.partitions() or (
            directory.lost_power and self._config.durability == "os"
        ):
            left = await leave_replica_sets(self._metadata, self._identity.node_id)
            if left:
                log.warning(
                    "this broker may have lost records (the machine has restarted, or the data "
                    "directory is new): %d partitions are in sync again once it has caught up",
                    left,
                )
        await directory.know_boot(self._boot_id)
        await self.state.start()
        return directory.cluster_id

    async def resume(
        self, broker: Broker, senders: Senders, orphaned: OrphanedTransactions
    ) -> None:
        """Do nothing: shards are loaded where their partitions are led."""

    async def join(self, broker: Broker, begin: Begin, undo: AsyncExitStack) -> None:
        """Register, and follow the metadata: replicas, elections, the others. Raises StorageError.

        Raises FencedError while another broker has the same number.
        """
        assert self._directory is not None
        self._lost = asyncio.get_running_loop().create_future()
        host, port = broker.address
        registration = self._registration = BrokerRegistration(
            self._metadata,
            self.state,
            Registration(
                node_id=self._identity.node_id,
                host=self._config.advertised_host or host,
                port=self._config.advertised_port or port,
                incarnation=self._identity.incarnation,
                directory=self._directory.directory_id,
                rack=self._config.rack or None,
            ),
            ttl_s=self._config.session_timeout_s,
            on_lost=self._lease_lost,
        )
        await registration.begin()
        serving = Serving(self._led, broker.time_slices)
        isr = IsrWriter(
            self._metadata,
            self.state,
            self._led,
            self._identity.incarnation,
            serving.life_of,
            self.min_isr,
            self._config.replica_lag_s,
        )
        replicas = self._replicas(broker, isr)
        controller = ClusterController(self._metadata, self.state, registration, self._feed.min_isr)
        self.state.subscribe(self._brokers_changed)
        self._brokers_changed(Changed(brokers={self._identity.node_id}))
        stopped = asyncio.Event()

        async def run() -> None:
            """Take part until the broker stops; raises FencedError when its lease is lost."""
            works = [
                asyncio.get_running_loop().create_task(each)
                for each in (
                    self.state.run(),
                    registration.run(),
                    controller.run(),
                    replicas.run(),
                    isr.run(),
                    stopped.wait(),
                )
            ]
            try:
                done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
            finally:
                for each in works:
                    each.cancel()
                await asyncio.wait(works)
                self.peers.close()
            if not stopped.is_set():
                raise FencedError("the broker's lease is lost: it serves nothing any more")

        begin(run())
        undo.callback(stopped.set)
        undo.push_async_callback(self._leave)

    # -- inside --------------------------------------------------------------------------------

    def _replicas(self, broker: Broker, isr: IsrWriter) -> ReplicaManager:
        raise NotImplementedError

    async def _leave(self) -> None:
        """Let others lead, then end the registration: no one waits for the lease to end."""
        registration = self._registration
        assert registration is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await registration.announce_stop()
                await self.state.until(lambda: not self._leads_for_others())
        await registration.end()

    def _leads_for_others(self) -> bool:
        """Whether a partition is led here that another in-sync replica could lead."""
        node_id = self._identity.node_id
        return any(
            stored.state.leader == node_id
            and any(each != node_id and each in self.state.brokers for each in stored.state.isr)
            for stored in self.state.partitions.values()
        )

    def _lease_lost(self) -> None:
        """Nothing is answered any more; the node ends."""

    def _brokers_changed(self, changed: Changed) -> None:
        if changed.brokers:
            self.peers.update(self.placement.brokers())

    async def _gone(self, gone: Registration) -> None:
        """End the registration of a broker whose process is gone."""
        known = self.state.brokers.get(gone.node_id)
        if known is not None and known.registration.incarnation == gone.incarnation:
            await fence(self._metadata, self.state, gone.node_id, known.version)

    async def _led_here(self, name: TopicPartition) -> Mapping[str, int]:
        """Return the key and version that say that this broker leads a partition."""
        raise NotImplementedError


async def cluster_membership(
    config: BrokerConfig, disk: Disk, metadata: MetadataStore, random: Random, boot_id: str
) -> NewMembership:
    """Read the cluster's identity, or make it; return how a node becomes a member.

    ``boot_id`` says which start of the machine this is. Raises FencedError for a data directory of
    another cluster, CorruptionError and StorageError.
    """
    of_directory = await DataDirectory.cluster_of(disk, config.node_id)
    found = await cluster_identity(metadata, random, directory_cluster_id=of_directory, secret=None)
    identity = Identity(
        found.cluster_id,
        NodeId(config.node_id),
        random.bytes(INCARNATION_BYTES).hex(),
        found.secret,
    )
    return partial(ClusterMember, identity, boot_id)
