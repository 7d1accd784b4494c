"""A broker of a simulated cluster: how it is made, and what the monitor asks it."""

from fencelog.broker.config import BrokerConfig
from fencelog.cluster_node import ClusterMember, cluster_membership
from fencelog.node import Node, Ports
from fencelog.types import TopicPartition
from fencelog_sim.world.host import BrokerHost


async def clustered(host: BrokerHost, config: BrokerConfig, ports: Ports) -> Node:
    """Make the next life of a host's broker."""
    membership = await cluster_membership(
        config, ports.disk, ports.metadata, ports.random, host.boot_id
    )
    return Node(config, ports, observer=host.watcher, new_membership=membership)


def led_epoch(node: Node, name: TopicPartition) -> int | None:
    """Return the leader epoch in which a broker leads a partition; None if it does not."""
    member = node.membership
    assert isinstance(member, ClusterMember)
    topic = member.catalog.get(name.topic)
    led = None if topic is None else member.led.get((topic.topic_id, name.partition))
    return None if led is None else led.progress.leader_epoch
