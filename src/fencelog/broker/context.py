"""The broker's parts as handlers use them, composed by the node."""

import logging
from dataclasses import dataclass, field

from fencelog.broker.config import BrokerConfig
from fencelog.broker.coordinators.claims import ClaimConnections
from fencelog.broker.coordinators.group_requests import GroupRequests
from fencelog.broker.coordinators.leaders import Leaders
from fencelog.broker.coordinators.ownership_requests import OwnershipRequests
from fencelog.broker.coordinators.producer_ids import ProducerIds
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.coordinators.runtimes import Runtimes
from fencelog.broker.coordinators.stream_policy import StreamPolicy
from fencelog.broker.coordinators.stream_sealer import StreamSealer
from fencelog.broker.coordinators.writer_connections import WriterConnections
from fencelog.broker.fetching.sessions import FetchSessions
from fencelog.broker.metadata.catalog import Catalog
from fencelog.broker.metadata.placement import LeaderElections, LowWatermarks, Placement
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.metadata.streams import Streams
from fencelog.broker.metadata.topic_changes import TopicChanges
from fencelog.broker.network.deadlines import Deadlines
from fencelog.broker.network.limited_log import LimitedLog
from fencelog.broker.network.stale_connections import StaleConnections
from fencelog.broker.network.time_slices import TimeSlices
from fencelog.broker.observer import Observer
from fencelog.broker.partitions.decompression import Decompression
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.ownership.shard import OwnershipShard
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.ports import WallClock

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Broker:
    """The parts of one running broker."""

    config: BrokerConfig
    catalog: Catalog
    logs: LogManager
    settings: Settings
    controller: TopicChanges
    streams: Streams
    stream_sealer: StreamSealer
    stream_policy: StreamPolicy
    leaders: Leaders
    transactions: CoordinatorRuntime[TransactionShard]
    versioned: CoordinatorRuntime[VersionedShard]
    writer_connections: WriterConnections
    groups: CoordinatorRuntime[GroupShard]
    group_requests: GroupRequests
    ownership: CoordinatorRuntime[OwnershipShard]
    ownership_requests: OwnershipRequests
    claims: ClaimConnections
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    clock: WallClock
    time_slices: TimeSlices
    deadlines: Deadlines = field(default_factory=Deadlines)
    stale_connections: StaleConnections = field(default_factory=StaleConnections)
    decompression: Decompression = field(default_factory=Decompression)
    limited_log: LimitedLog = field(default_factory=lambda: LimitedLog(log))
    """For what clients can cause at will."""
    observer: Observer | None = None
    placement: Placement | None = None
    """The other brokers, and who leads what; None for a single broker."""
    elections: LeaderElections | None = None
    """What carries out an operator's elections; None for a single broker."""
    low_watermarks: LowWatermarks | None = None
    """Where the logs of followers begin; None for a single broker."""
    cluster_id: str = ""
    """The data directory's; set when the node starts."""
    address: tuple[str, int] = ("127.0.0.1", 0)
    """The address the broker listens on; after the start, with the real port."""

    def runtimes(self) -> Runtimes:
        """The runtimes of all coordinators."""
        return (self.transactions, self.versioned, self.groups, self.ownership)
