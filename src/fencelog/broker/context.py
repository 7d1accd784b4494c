"""What a handler reaches: the broker's parts, composed by the node."""

from dataclasses import dataclass, field

from fencelog.broker.catalog import Catalog
from fencelog.broker.config import BrokerConfig
from fencelog.broker.coordinator_runtime import CoordinatorRuntime
from fencelog.broker.deadlines import Deadlines
from fencelog.broker.group_requests import GroupRequests
from fencelog.broker.log_flusher import LogFlusher
from fencelog.broker.log_manager import LogManager
from fencelog.broker.newest_connections import NewestConnections
from fencelog.broker.producer_ids import ProducerIds
from fencelog.broker.settings import Settings
from fencelog.broker.turns import Turns
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.ports import WallClock


@dataclass(slots=True, kw_only=True)
class Broker:
    """The parts of one running broker."""

    config: BrokerConfig
    cluster_id: str
    catalog: Catalog
    logs: LogManager
    settings: Settings
    flusher: LogFlusher
    transactions: CoordinatorRuntime[TransactionShard]
    versioned: CoordinatorRuntime[VersionedShard]
    groups: CoordinatorRuntime[GroupShard]
    members: GroupRequests
    producer_ids: ProducerIds
    clock: WallClock
    deadlines: Deadlines = field(default_factory=Deadlines)
    turns: Turns = field(default_factory=Turns)
    newest_connections: NewestConnections = field(default_factory=NewestConnections)
    address: tuple[str, int] = ("127.0.0.1", 0)
    """Where the broker listens; the port is the real one once it does."""
