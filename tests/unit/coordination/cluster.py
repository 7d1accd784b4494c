"""Brokers and partitions of a cluster, as the metadata store has them."""

from collections.abc import Mapping

from fencelog.coordination.controller.model import PartitionState, Registration
from fencelog.coordination.controller.rules import LiveBroker, StoredPartition
from fencelog.types import LeaderEpoch, NodeId

ONE, TWO, THREE, FOUR = NodeId(1), NodeId(2), NodeId(3), NodeId(4)
OLD, STORED, NEW = 10, 20, 30
"""Versions: of a registration that the stored state has seen, of that state, and of a newer one."""


def life(node: NodeId, number: int = 1) -> str:
    return f"{node}/{number}"


def broker(
    node: NodeId,
    version: int = OLD,
    *,
    number: int = 1,
    rack: str | None = None,
    is_stopping: bool = False,
    is_full: bool = False,
    begun_at: int = OLD,
) -> LiveBroker:
    registration = Registration(
        node, "localhost", 9092, life(node, number), f"dir-{node}", rack, is_stopping, is_full
    )
    if is_stopping or is_full:  # it was written again
        registration = registration._replace(begun_at=begun_at)
    return LiveBroker(registration, version)


def full(node: NodeId) -> LiveBroker:
    """A broker that has stored since that its disk is full."""
    return broker(node, NEW, is_full=True)


def live(*brokers: LiveBroker | NodeId) -> Mapping[NodeId, LiveBroker]:
    """These brokers are registered; a bare number is one in its first life."""
    known = [each if isinstance(each, LiveBroker) else broker(each) for each in brokers]
    return {each.registration.node_id: each for each in known}


def state(
    leader: NodeId,
    isr: tuple[NodeId, ...],
    eligible: tuple[NodeId, ...] = (),
    *,
    epoch: int = 5,
    replicas: tuple[NodeId, ...] = (ONE, TWO, THREE),
) -> PartitionState:
    return PartitionState(
        replicas, leader, LeaderEpoch(epoch), isr, eligible, life(leader) if leader >= 0 else ""
    )


def stored(of: PartitionState, min_isr: int = 2, version: int = STORED) -> StoredPartition:
    return StoredPartition(of, version, min_isr)
