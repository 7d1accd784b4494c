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


class OrphanedOwners:
    """Tells partitions that nobody holds what their logs say that somebody holds."""

    def __init__(
        self,
        logs: LogManager,
        leaders: Leaders,
        ownership: CoordinatorRuntime[OwnershipShard],
        time_slices: TimeSlices,
    ) -> None:
        """Look at these; nothing is done before ``end``."""
        self._logs = logs
        self._leaders = leaders
        self._ownership = ownership
        self._time_slices = time_slices

    async def end(self) -> None:
        """End every orphaned owner; one whose shard is not available is left as it is."""
        shards = {each.index: each.shard for each in self._ownership.loaded()}
        async for partition in self._time_slices.each(self._logs.partitions()):
            for owner in partition.log.owners():
                if owner.is_live and self._is_orphaned(owner, shards):
                    ended = owner._replace(is_live=False)
                    self._leaders.own_partition(partition.name, ended)

    def _is_orphaned(self, owner: Owner, shards: dict[int, OwnershipShard]) -> bool:
        runtime = self._ownership
        index = partition_for(runtime.key_of(owner.group or ""), runtime.partition_count)
        return index in shards and not shards[index].is_live(owner.session)
