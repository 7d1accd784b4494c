"""A broker of a simulated cluster: how it is made, and what the monitor asks it."""

from collections.abc import Iterator, Mapping, Sequence

from fencelog.broker.config import BrokerConfig
from fencelog.broker.metadata.cluster_state import PartitionKey
from fencelog.cluster_node import ClusterMember, cluster_membership
from fencelog.coordination.controller.model import PARTITION_PREFIX, PartitionState
from fencelog.log.producers import ProducerState
from fencelog.node import Node, Ports
from fencelog.types import ProducerId, TopicPartition
from fencelog_sim.monitors.committed import ShownOffsets
from fencelog_sim.world.host import BrokerHost
from fencelog_sim.world.metadata import SimStore


async def clustered(host: BrokerHost, config: BrokerConfig, ports: Ports) -> Node:
    """Make the next life of a host's broker."""
    membership = await cluster_membership(
        config, ports.disk, ports.metadata, ports.random, host.boot_id
    )
    return Node(config, ports, observer=host.watcher, new_membership=membership)


def failed_alone(hosts: Sequence[BrokerHost], store: SimStore) -> set[BrokerHost]:
    """Return the brokers with failed replicas that all of them would have to replace.

    Nobody else has all that is committed: what they have is there again once they start anew.
    """
    failed = {host.number: _failed(host) for host in hosts}
    found: set[int] = set()
    for key, (value, _) in store.values.items():
        if key.startswith(PARTITION_PREFIX):
            state = PartitionState.decode(key, value)
            members = {*state.isr, *state.eligible}
            if all(failed[each] is None or key in (failed[each] or ()) for each in members):
                found |= members
    return {host for host in hosts if host.number in found}


def _failed(host: BrokerHost) -> set[str] | None:
    """Return the keys of the partitions that have failed on a host; None if it is down."""
    if host.node is None:
        return None
    member = getattr(host.node, "membership", None)
    if not isinstance(member, ClusterMember):
        return set()
    failed = set()
    for partition in host.node.logs.partitions():
        topic = member.catalog.get(partition.name.topic)
        if partition.failure is not None and topic is not None:
            failed.add(PartitionKey(topic.topic_id, partition.name.partition).text)
    return failed


def led_epoch(node: Node, name: TopicPartition) -> int | None:
    """Return the leader epoch in which a broker leads a partition; None if it does not."""
    member = node.membership
    assert isinstance(member, ClusterMember)
    topic = member.catalog.get(name.topic)
    led = None if topic is None else member.led.get((topic.topic_id, name.partition))
    return None if led is None else led.progress.leader_epoch


def other_producers(leader: Node, replicas: Sequence[Node], name: TopicPartition) -> Iterator[str]:
    """Yield which producers a replica knows otherwise than its leader does (E4).

    One that is not open, as it begins anew right now, will have them from its leader.
    """
    leading = _producers(leader, name)
    for replica in replicas:
        following = _producers(replica, name)
        if leading is None or following is None:
            continue
        for each in sorted(leading.keys() | following.keys()):
            here, there = leading.get(each), following.get(each)
            if here != there:
                number = replica.config.node_id
                yield f"producer {each} is {there} on broker {number}, and leading {here}"


def _producers(node: Node, name: TopicPartition) -> Mapping[ProducerId, ProducerState] | None:
    replica = node.broker.logs.replica(name)
    return None if replica is None else replica.log._state.producers


def shown_offsets(node: Node, name: TopicPartition) -> ShownOffsets | None:
    """Return what a broker's replica of a partition would show; None if it is not open."""
    replica = node.broker.logs.replica(name)
    if replica is None:
        return None
    log = replica.log
    seal = -1 if log.sealed_at is None else log.sealed_at
    return ShownOffsets(
        log.log_start_offset,
        log.last_stable_offset,
        log.high_watermark,
        seal,
        is_compacted="compact" in log.config.cleanup_policy,
    )
