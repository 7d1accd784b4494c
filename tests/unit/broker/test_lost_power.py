"""A broker of a cluster whose machine has restarted counts for what it may have lost."""

from typing import Any

from fencelog.adapters.system_clock import SystemClock, SystemRandom
from fencelog.broker.config import BrokerConfig, Durability
from fencelog.broker.metadata.cluster_state import PARTITION_PREFIX
from fencelog.cluster_node import cluster_membership
from fencelog.coordination.controller.model import PartitionState
from fencelog.log import layout
from fencelog.node import Node, Ports
from fencelog.types import NodeId
from fencelog_sim.world.disk import SimDisk
from fencelog_sim.world.metadata import SimMetadata, SimStore
from tests.support.node import Peer, until

ONE = NodeId(1)


async def new_node(disk: SimDisk, store: SimStore, boot_id: str, durability: Durability) -> Node:
    values: dict[str, Any] = {"replication_factor": 1, "internal_replication_factor": 1}
    config = BrokerConfig(data_dir="memory", port=0, durability=durability, **values)
    metadata = SimMetadata(store, 1)
    ports = Ports(disk=disk, metadata=metadata, clock=SystemClock(), random=SystemRandom())
    membership = await cluster_membership(config, disk, metadata, SystemRandom(), boot_id)
    return Node(config, ports, new_membership=membership)


async def in_sync(store: SimStore) -> list[tuple[NodeId, ...]]:
    """Return the in-sync replicas of each partition."""
    cells = (await SimMetadata(store, 2).snapshot(PARTITION_PREFIX)).cells
    return [PartitionState.decode(key, value).isr for key, value, _ in cells]


async def test_who_lost_power_in_os_mode_is_not_in_sync_though_it_starts_in_fsync_mode() -> None:
    # F8: what an acknowledgement promised follows from the mode in which it was given.
    disk, store = SimDisk(), SimStore()
    node = await new_node(disk, store, "first", "os")
    await node.start()
    try:
        async with Peer.of(node) as peer:
            await peer.create_topic("t")
            await until(lambda: node.logs.get("t", 0) is not None, "it is led")
    finally:
        await node.stop()
    assert await in_sync(store) == [(ONE,)]
    await disk.remove(layout.CLEAN_SHUTDOWN)  # as after a power cut
    node = await new_node(disk, store, "second", "fsync")
    await node.start()
    try:
        assert await in_sync(store) == [()]
    finally:
        await node.stop()
