"""A broker of a cluster whose machine has restarted counts for what it may have lost."""

from fencelog.broker.metadata.cluster_state import PARTITION_PREFIX
from fencelog.coordination.controller.model import PartitionState
from fencelog.log import layout
from fencelog.types import NodeId
from fencelog_sim.world.disk import SimDisk
from fencelog_sim.world.metadata import SimMetadata, SimStore
from tests.support.node import Peer, life_in_a_cluster, until

ONE = NodeId(1)


async def in_sync(store: SimStore) -> list[tuple[NodeId, ...]]:
    """Return the in-sync replicas of each partition."""
    cells = (await SimMetadata(store, 2).snapshot(PARTITION_PREFIX)).cells
    return [PartitionState.decode(key, value).isr for key, value, _ in cells]


async def test_who_lost_power_in_os_mode_is_not_in_sync_though_it_starts_in_fsync_mode() -> None:
    # F8: what an acknowledgement promised follows from the mode in which it was given.
    disk, store = SimDisk(), SimStore()
    async with life_in_a_cluster(disk, store, "first", "os") as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await until(lambda: node.logs.get("t", 0) is not None, "it is led")
    assert await in_sync(store) == [(ONE,)]
    await disk.remove(layout.CLEAN_SHUTDOWN)  # as after a power cut
    async with life_in_a_cluster(disk, store, "second", "fsync"):
        assert await in_sync(store) == [()]
