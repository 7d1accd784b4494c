"""Leaderships that move between live brokers, as an operator's tools move them.

An operator makes another in-sync replica the first of a partition and asks for it, as
``kafka-reassign-partitions`` and ``kafka-leader-election`` do. The old leader hands over and goes
on as a follower, in the same process: what it has kept of its leadership, and what is still on its
way to it, meets the next one.
"""

from collections.abc import Iterator, Mapping

from fencelog.coordination.controller.model import (
    BROKER_PREFIX,
    PARTITION_PREFIX,
    PartitionState,
    Registration,
)
from fencelog.coordination.controller.rules import LiveBroker, StoredPartition, preferred, reordered
from fencelog.ports import MetadataWrite
from fencelog.types import NodeId
from fencelog_sim.world.metadata import SimStore


def lead(store: SimStore, leaders: Mapping[str, NodeId]) -> None:
    """Ask that these brokers lead these partitions, by key, where they can."""
    brokers = {}
    for key, value, version in store.cells(BROKER_PREFIX):
        registered = Registration.decode(key, value)
        brokers[registered.node_id] = LiveBroker(registered, version)
    for key, leader in leaders.items():
        value, version = store.values.get(key, (b"", 0))
        if not version:
            continue  # its topic was deleted
        state = PartitionState.decode(key, value)
        others = (each for each in state.replicas if each != leader)
        ordered = reordered(state, (leader, *others))
        found = preferred(StoredPartition(ordered, version, len(state.isr)), brokers)
        if isinstance(found, PartitionState):
            store.commit([MetadataWrite(key, found.encode(), version)])


def others_in_sync(store: SimStore, leader: NodeId) -> Iterator[tuple[str, tuple[NodeId, ...]]]:
    """Yield the key of each partition that a broker leads, with the others that are in sync."""
    for key, value, _ in store.cells(PARTITION_PREFIX):
        state = PartitionState.decode(key, value)
        others = tuple(each for each in state.isr if each != leader)
        if state.leader == leader and others:
            yield key, others
