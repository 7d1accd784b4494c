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
from fencelog.broker.background import Background
from fencelog.broker.config import BrokerConfig
from fencelog.broker.context import Broker
from fencelog.broker.coordinators.cluster_leaders import ClusterLeaders
from fencelog.broker.coordinators.coordinator_epochs import CoordinatorEpochs
from fencelog.broker.coordinators.forgotten_topics import ForgottenTopics
from fencelog.broker.coordinators.leaders import Leaders, LocalLeaders
from fencelog.broker.coordinators.orphaned_transactions import OrphanedTransactions
from fencelog.broker.coordinators.retired_epochs import RetiredEpochs
from fencelog.broker.coordinators.segment_rates import RemoteRates
from fencelog.broker.dispatch import Dispatcher
from fencelog.broker.handlers.peers import broker_handlers
from fencelog.broker.handlers.replicas import replica_handlers
from fencelog.broker.handlers.table import handlers
from fencelog.broker.metadata.catalog import Catalog
from fencelog.broker.metadata.cluster_birth import cluster_identity
from fencelog.broker.metadata.cluster_controller import ClusterController
from fencelog.broker.metadata.cluster_feed import ClusterFeed
from fencelog.broker.metadata.cluster_placement import ClusterPlacement
from fencelog.broker.metadata.cluster_state import Changed, ClusterState, PartitionKey
from fencelog.broker.metadata.cluster_topics import ClusterTopics, ReplicationFactors
from fencelog.broker.metadata.elections import Elections
from fencelog.broker.metadata.registration import (
    BrokerRegistration,
    fence,
    leave_replica_sets,
)
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.network.connection import Connection
from fencelog.broker.network.server import Server
from fencelog.broker.network.time_slices import TimeSlices
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.peers.identity import Identity
from fencelog.broker.peers.incoming import IncomingPeers
from fencelog.broker.peers.outgoing import OutgoingPeers
from fencelog.broker.replicas.full_disk import FullDisk
from fencelog.broker.replicas.handovers import Handovers
from fencelog.broker.replicas.isr import IsrWriter
from fencelog.broker.replicas.leaders import RemoteLeaders
from fencelog.broker.replicas.led import LedPartitions
from fencelog.broker.replicas.logs import OpenLogs
from fencelog.broker.replicas.low_watermarks import LowWatermarks
from fencelog.broker.replicas.replica_manager import ReplicaManager
from fencelog.broker.replicas.serving import Serving
from fencelog.coordination.controller.model import PartitionState, Registration
from fencelog.errors import (
    FencedError,
    FencelogError,
    NotCoordinatorError,
    StorageError,
)
from fencelog.log.config import LogConfig
from fencelog.node import NewMembership
from fencelog.ports import Disk, MetadataStore, Random
from fencelog.storage.directory import DataDirectory
from fencelog.types import (
    CoordinatorEpoch,
    Instant,
    NodeId,
    ProducerId,
    TopicId,
    TopicPartition,
)

log = logging.getLogger(__name__)

INCARNATION_BYTES = 16
NO_LEASE = Instant(float("-inf"))
ORPHANED_RETRY_S = 5.0
"""After which time coordinators that were not available are asked again."""
STOP_S = 20.0
"""How long a broker that stops waits for others to lead what it leads; orchestrators grant 30."""


class ClusterMember:
    """One life of a broker in a cluster."""

    def __init__(
        self,
        identity: Identity,
        boot_id: str,
        place: str,
        config: BrokerConfig,
        disk: Disk,
        metadata: MetadataStore,
        random: Random,
        logs: LogManager,
    ) -> None:
        """Nothing is open before ``open``; nobody knows of it before ``join``."""
        self._identity = identity
        self._boot_id = boot_id
        self._place = place
        self._config = config
        self._disk = disk
        self._metadata = metadata
        self._random = random
        self._logs = logs
        self._directory: DataDirectory | None = None
        self._is_lost = False
        self._leaders: ClusterLeaders | None = None
        self._orphaned: OrphanedTransactions | None = None
        self._background = Background()
        self._registration: BrokerRegistration | None = None
        self.state = ClusterState(metadata)
        self.placement = ClusterPlacement(identity.node_id, self.state)
        self.catalog = Catalog(metadata)
        self.settings = Settings(config, metadata)
        self._feed = ClusterFeed(self.state, self.catalog, self.settings, logs)
        self.elections = Elections(metadata, self.state, self._feed.min_isr)
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
        self.coordinator_epochs = CoordinatorEpochs(metadata, self._leading)
        self.open_internal = self.controller.open_internal
        self._peers = OutgoingPeers(identity, random, self._gone)
        self._incoming = IncomingPeers(identity, random, self._registered_life)
        self.led = LedPartitions()
        """The partitions that this broker leads."""
        self.low_watermarks = LowWatermarks(self.led)
        self.lease = self
        self._serving = Serving(self.led, TimeSlices())

    def leaders(self, local: LocalLeaders) -> Leaders:
        """Return the leaders on all brokers."""
        self._leaders = ClusterLeaders(
            local, self._peers, self.catalog, self.placement, self._metadata
        )
        self._leaders.open_internal = self.open_internal
        return self._leaders

    @property
    def deadline(self) -> Instant:
        """When the broker's lease may have ended; nothing is answered before it has one."""
        return NO_LEASE if self._registration is None else self._registration.deadline

    def dispatcher(self, broker: Broker, local: LocalLeaders) -> Dispatcher:
        """Return one for clients and for other brokers."""
        of_brokers = {
            **broker_handlers(self._incoming, local),
            **replica_handlers(self._incoming, self._serving, self.led),
        }
        return Dispatcher(broker, handlers(), of_brokers)

    def find_led(self, topic_id: TopicId, index: int) -> Partition | None:
        """Return an open partition that this broker leads, by its topic's id."""
        led = self.led.get((topic_id, index))
        return None if led is None else led.partition

    def connection_closed(self, connection: Connection) -> None:
        """What another broker has asked for on this connection is carried out no further."""
        self._incoming.closed(connection)

    async def open(self, undo: AsyncExitStack) -> str:
        """Open the data directory, and read what the metadata store has; return the cluster's id.

        Raises CorruptionError, StorageError, and FencedError if its number is another broker's.
        """
        directory = self._directory = await DataDirectory.open(
            self._disk,
            self._random,
            node_id=self._config.node_id,
            cluster_id=self._identity.cluster_id,
            boot_id=self._boot_id,
        )
        self._logs.start(directory)
        self._logs.is_elsewhere = self.catalog.has
        self._logs.is_everywhere = self._is_everywhere
        undo.push_async_callback(self._logs.stop)
        undo.push_async_callback(self.controller.stop)
        if directory.may_lack_records or not await directory.partitions():
            left = await leave_replica_sets(
                self._metadata, self._identity.node_id, self._registered_directory()
            )
            if left:
                log.warning(
                    "this broker may have lost records (the machine has restarted, or the data "
                    "directory is new): %d partitions are in sync again once it has caught up",
                    left,
                )
        self.coordinator_epochs.seen = CoordinatorEpoch(directory.granted.coordinator_epoch)
        await directory.know_run(self._boot_id, self._config.durability)
        await self.state.start()
        return directory.cluster_id

    async def resume(
        self, broker: Broker, senders: Senders, orphaned: OrphanedTransactions
    ) -> None:
        """Load nothing yet: shards are loaded where their partitions are led."""
        del senders
        self._orphaned = orphaned
        assert self._directory is not None, "``open`` comes first"
        known = ProducerId(self._directory.granted.producer_ids - 1)
        with suppress(StorageError):  # then the next block is reserved above it
            await broker.producer_ids.start_above(known)

    async def join(
        self, broker: Broker, server: Server, begin: Begin, undo: AsyncExitStack
    ) -> None:
        """Register, and follow the metadata: replicas, elections, other brokers.

        Raises StorageError, and FencedError while another broker has the same number.
        """
        self._incoming.responses = server.reserve_for_brokers()  # before anybody knows of it
        registration = self._registration = self._new_registration(broker, server)
        await registration.begin()
        isr = IsrWriter(
            self._metadata,
            self.state,
            self.led,
            self._identity.incarnation,
            self._serving.life_of,
            self._min_isr,
            self._config.replica_lag_s,
        )
        replicas = self._replica_manager(broker, isr)
        full_disk = FullDisk(self._disk, registration.announce_full)
        replicas.exhausted = full_disk.noticed
        controller = ClusterController(
            self._metadata,
            self.state,
            registration,
            self._feed.min_isr,
            self._config.internal_replication_factor,
        )
        broker.stream_policy.ask_rate = RemoteRates(self._peers, self.placement).ask
        self._follow(broker, undo)
        stopped = asyncio.Event()
        works = (
            self.state.run(),
            registration.run(),
            controller.run(),
            replicas.run(),
            isr.run(),
            Handovers(self._metadata, self.state, self.led, replicas.resign).run(),
            full_disk.run(),
            stopped.wait(),
        )
        loop = asyncio.get_running_loop()
        begin(self._take_part([loop.create_task(each) for each in works]))
        undo.callback(stopped.set)
        undo.push_async_callback(self._leave)
        with suppress(StorageError):  # a lease lost by then ends the watch with the life
            await self.state.until(lambda: self._identity.node_id in self.state.brokers)

    async def _take_part(self, works: Sequence["asyncio.Task[object]"]) -> None:
        """Go on until one of these ends: the broker stops, or its lease is lost.

        Raises FencedError in the latter case, and what ended one of them otherwise.
        """
        try:
            done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
            if self._is_lost:
                raise FencedError("the broker's lease is lost: it answers nothing any more")
        finally:
            for each in works:
                each.cancel()
            await asyncio.wait(works)
            self._peers.close()

    # -- inside --------------------------------------------------------------------------------

    def _registered_directory(self) -> str:
        """Return what a registration says of the data directory; that of a copy says otherwise."""
        assert self._directory is not None, "``open`` comes first"
        return f"{self._directory.directory_id}{self._place}"

    def _new_registration(self, broker: Broker, server: Server) -> BrokerRegistration:
        host, port = broker.address
        return BrokerRegistration(
            self._metadata,
            self.state,
            Registration(
                node_id=self._identity.node_id,
                host=self._config.advertised_host or host,
                port=self._config.advertised_port or port,
                incarnation=self._identity.incarnation,
                directory=self._registered_directory(),
                rack=self._config.rack or None,
            ),
            ttl_s=self._config.session_timeout_s,
            on_lost=lambda: self._lease_lost(server),
        )

    def _replica_manager(self, broker: Broker, isr: IsrWriter) -> ReplicaManager:
        coordinators = {each.topic: each for each in broker.runtimes()}

        def led_here(name: TopicPartition) -> None:
            if name.topic in coordinators:
                coordinators[name.topic].lead(name.partition)
            else:
                self._background.begin(self._end_orphaned(self._logs.find(name)))
                broker.stream_sealer.led(name)
                broker.stream_policy.led(name.topic)

        def resigned(name: TopicPartition) -> None:
            if name.topic in coordinators:
                coordinators[name.topic].resign(name.partition)

        replicas = ReplicaManager(
            self._identity,
            self.state,
            OpenLogs(self._logs, self.catalog, self.settings),
            self.led,
            isr,
            self._min_isr,
            RemoteLeaders(self._peers),
            all_replicas=self._config.replication_commit == "all",
        )
        replicas.led_here, replicas.resigned = led_here, resigned
        replicas.removed = self.controller.files_removed
        self.controller.opened = replicas.opened
        return replicas

    async def _leave(self) -> None:
        """Let others lead, then end the registration: nobody waits for the lease to end.

        A life that was lost leads nothing, and no watch would show it what others do.
        """
        registration = self._registration
        assert registration is not None, "``join`` comes first"
        if not self._is_lost:
            with suppress(TimeoutError, StorageError):
                async with asyncio.timeout(STOP_S):
                    await registration.announce_stop()
                    await self.state.until(lambda: not self._leads_for_others())
        with suppress(StorageError):
            await registration.end()

    def _leads_for_others(self) -> bool:
        """Whether a partition is led here that another in-sync replica takes over.

        One that stops as well takes over nothing.
        """
        node_id = self._identity.node_id
        staying = {
            number
            for number, broker in self.state.brokers.items()
            if number != node_id and not broker.registration.is_stopping
        }
        return any(
            stored.state.leader == node_id and not staying.isdisjoint(stored.state.isr)
            for stored in self.state.partitions.values()
        )

    def _min_isr(self, topic_id: TopicId) -> int:
        """Return ``min.insync.replicas`` of a topic, the default for one that is not known."""
        found = self._feed.min_isr(topic_id)
        return LogConfig().min_insync_replicas if found is None else found

    def _lease_lost(self, server: Server) -> None:
        """Answer nothing any more, not even what has waited."""
        self._is_lost = True
        server.abort_connections("the broker's lease has ended")

    def _follow(self, broker: Broker, undo: AsyncExitStack) -> None:
        """Bring what the cluster's metadata says to the coordinators and the connections."""
        assert self._leaders is not None, "``leaders`` comes first"
        forgotten = ForgottenTopics(broker.groups, self.catalog, self._metadata, self.state.deleted)
        retired = RetiredEpochs(
            broker.transactions, self.catalog, self.state, self._metadata, broker.clock
        )
        undo.push_async_callback(self._leaders.stop)
        undo.push_async_callback(forgotten.stop)
        undo.push_async_callback(retired.stop)
        undo.push_async_callback(self._background.stop)

        def changed(what: Changed) -> None:
            if what.brokers:
                self._peers.update(self.placement.brokers())
            for runtime in broker.runtimes():
                # The stored partition count maps keys to shards, whatever the setting is here.
                topic = self.catalog.get(runtime.topic)
                if topic is not None:
                    runtime.partition_count = topic.partitions
            forgotten.changed(what.deleted)
            if what.granted:
                self._background.begin(self._know_granted())

        changed(Changed(brokers={self._identity.node_id}, granted=True))
        self.state.subscribe(changed)

    async def _know_granted(self) -> None:
        """Keep what was granted, for the case that the store is restored from an older copy."""
        assert self._directory is not None, "``open`` comes first"
        with suppress(StorageError):  # a full disk: the store has it
            await self._directory.know_granted(self.state.granted)

    async def _end_orphaned(self, partition: Partition) -> None:
        """End what is open on a partition that is led from now on and that no coordinator lists."""
        assert self._orphaned is not None, "``resume`` comes first"
        with suppress(FencelogError):
            while partition.leads:
                await partition.committed(partition.log.log_end_offset)
                if not partition.log.open_transactions() or await self._orphaned.end([partition]):
                    return
                await asyncio.sleep(ORPHANED_RETRY_S)

    def _is_everywhere(self, name: TopicPartition) -> bool:
        topic = self.catalog.get(name.topic)
        if topic is None:
            return False
        state = self.placement.partition(topic.topic_id, name.partition)
        return state is not None and {*state.isr} == {*state.replicas}

    def _registered_life(self, node_id: NodeId) -> str | None:
        found = self.placement.broker(node_id)
        return None if found is None else found.incarnation

    async def _gone(self, gone: Registration) -> None:
        """End the registration of a broker whose process is gone."""
        known = self.state.brokers.get(gone.node_id)
        if known is not None and known.registration.incarnation == gone.incarnation:
            await fence(self._metadata, self.state, gone.node_id, known.version)

    async def _leading(self, name: TopicPartition) -> Mapping[str, int]:
        """Return the key and version that say that this broker leads a partition.

        Raises NotCoordinatorError where another one does.
        """
        topic = self.catalog.get(name.topic)
        key = None if topic is None else PartitionKey(topic.topic_id, name.partition)
        led = None if key is None else self.led.get(key)
        if key is None or led is None:
            raise NotCoordinatorError(f"{name} is not led by this broker")
        # From the store: the copy may not have what an earlier attempt has run into.
        cell = await self._metadata.get(key.text)
        if (
            cell is None
            or PartitionState.decode(key.text, cell[0]).leader_epoch != led.progress.leader_epoch
        ):
            raise NotCoordinatorError(f"{name} is led by another broker")
        return {key.text: cell[1]}


async def cluster_membership(
    config: BrokerConfig,
    disk: Disk,
    metadata: MetadataStore,
    random: Random,
    boot_id: str,
    place: str = "",
) -> NewMembership:
    """Read the cluster's identity, or make it; return how a node becomes a member.

    ``boot_id`` says which start of the machine this is. ``place`` says where the data directory is:
    the same one elsewhere is a copy, which is not locked while this one is used. Raises
    FencedError for a data directory of another cluster, CorruptionError and StorageError.
    """
    of_directory = await DataDirectory.cluster_of(disk, config.node_id)
    found = await cluster_identity(metadata, random, directory_cluster_id=of_directory, secret=None)
    identity = Identity(
        found.cluster_id,
        NodeId(config.node_id),
        random.bytes(INCARNATION_BYTES).hex(),
        found.secret,
    )
    return partial(ClusterMember, identity, boot_id, place)
