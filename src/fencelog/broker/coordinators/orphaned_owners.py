"""Orphaned owners: live in a partition's log, known to no ownership shard; ended at a start (O9).

A partition that is offline when a claim ends is not told, since others must not wait for it. In
``os`` mode a power cut may also lose what its log was told, but not the shard's record of that.
"""

from fencelog.broker.coordinators.leaders import Leaders
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.network.time_slices import TimeSlices
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.coordination.ownership.shard import OwnershipShard
from fencelog.coordination.shard import partition_for
from fencelog.log.ownership import Owner


async def end_orphaned_owners(
    logs: LogManager,
    leaders: Leaders,
    ownership: CoordinatorRuntime[OwnershipShard],
    time_slices: TimeSlices,
) -> None:
    """Tell partitions that nobody holds what their logs alone say that somebody holds.

    An owner whose shard is not available is left as it is.
    """
    shards = {each.index: each.shard for each in ownership.loaded()}

    def is_orphaned(owner: Owner) -> bool:
        index = partition_for(ownership.key_of(owner.group or ""), ownership.partition_count)
        return owner.is_live and index in shards and not shards[index].is_live(owner.session)

    async for partition in time_slices.each(logs.partitions()):
        for owner in filter(is_orphaned, partition.log.owners()):
            leaders.own_partition(partition.name, owner._replace(is_live=False))
