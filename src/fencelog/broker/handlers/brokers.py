"""What handlers say of the cluster's brokers: their addresses, and who leads a partition."""

from collections.abc import Iterable

from fencelog.broker.context import Broker
from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.network.connection import Connection
from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.errors import ErrorCode
from fencelog.types import NodeId, TopicPartition
from fencelog.wire.hot import CurrentLeader, NodeEndpoint

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


def advertised(broker: Broker, connection: Connection) -> tuple[str, int]:
    """Return the address to give this client: the configured one, or the one it connected to."""
    config = broker.config
    if config.advertised_host is not None:
        return config.advertised_host, config.advertised_port or broker.address[1]
    host = connection.local[0] if config.host in WILDCARDS else config.host
    return host, broker.address[1]


def endpoints(broker: Broker, connection: Connection) -> list[NodeEndpoint]:
    """Return the live brokers; in a cluster at the addresses that they have registered."""
    if broker.placement is None:
        return [NodeEndpoint(broker.config.node_id, *advertised(broker, connection))]
    return [
        NodeEndpoint(each.node_id, each.host, each.port, each.rack)
        for each in broker.placement.brokers()
    ]


def controller_id(broker: Broker) -> int:
    """Return a broker that takes requests of administrators."""
    return broker.config.node_id if broker.placement is None else broker.placement.controller_id


def missing(broker: Broker, topic: str, index: int) -> ErrorCode:
    """Return the error for a partition that is not open here."""
    error = broker.logs.missing(topic, index)
    is_elsewhere = broker.placement is not None and error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if is_elsewhere and broker.catalog.has(TopicPartition(topic, index)):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return error


def state_of(broker: Broker, topic: Topic, index: int) -> PartitionState | None:
    """Return who holds and leads a partition of a cluster; None where nobody leads it now."""
    assert broker.placement is not None
    state = broker.placement.partition(topic.topic_id, index)
    if state is None or state.leader == NO_LEADER or broker.placement.broker(state.leader) is None:
        return None
    return state


def current_leader(broker: Broker, topic_name: str, index: int) -> CurrentLeader | None:
    """Return who leads a partition instead of this broker (KIP-951); None if it is not known."""
    topic = broker.catalog.get(topic_name)
    if broker.placement is None or topic is None:
        return None
    state = state_of(broker, topic, index)
    if state is None or state.leader == broker.placement.node_id:
        return None
    return CurrentLeader(state.leader, state.leader_epoch)


def endpoints_of(broker: Broker, leaders: Iterable[CurrentLeader | None]) -> list[NodeEndpoint]:
    """Return where the leaders are that a response names."""
    named = sorted({each.leader_id for each in leaders if each is not None})
    if not named or broker.placement is None:
        return []
    found = [broker.placement.broker(NodeId(each)) for each in named]
    return [
        NodeEndpoint(each.node_id, each.host, each.port, each.rack)
        for each in found
        if each is not None
    ]
