"""What the replica manager needs of the open logs."""

from typing import Protocol

from fencelog.broker.partitions.partition import Partition
from fencelog.broker.replicas.led import Key
from fencelog.storage.checkpointer import Begin
from fencelog.types import LeaderEpoch, Offset, TopicId, TopicPartition


class Logs(Protocol):
    """Opens, cuts and removes replicas; each method raises StorageError and CorruptionError."""

    def name_of(self, key: Key) -> TopicPartition | None:
        """Return the name of a partition; None if its topic is not known."""
        ...

    async def open_replica(self, key: Key, name: TopicPartition) -> Partition | None:
        """Open a replica, a new one if there are no files; None if it cannot be opened."""
        ...

    async def truncate(
        self, partition: Partition, offset: Offset, leader_epoch: LeaderEpoch
    ) -> Partition:
        """Close a replica and open it anew with nothing from this offset on (F7)."""
        ...

    async def begin_anew(self, partition: Partition, begin: Begin) -> Partition:
        """Remove a replica's files and begin it at another offset (E4)."""
        ...

    def raise_start(self, partition: Partition, offset: Offset) -> None:
        """Raise the log start to this offset, or to the high watermark if that is lower (D4)."""
        ...

    async def remove(self, topic_id: TopicId, name: str) -> None:
        """Remove all replicas of a deleted topic, open or not, durably."""
        ...
