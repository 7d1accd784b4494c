"""Shards in a cluster: each is on the broker that leads its partition, and only there."""

from collections.abc import Mapping
from typing import Protocol

from fencelog.broker.metadata.catalog import Catalog, Topic
from fencelog.broker.metadata.placement import Placement
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.controller.model import PARTITION_PREFIX, PartitionState
from fencelog.errors import NotCoordinatorError, NotLeaderError
from fencelog.ports import MetadataStore
from fencelog.types import TopicPartition


class Sized(Protocol):
    """The shards of an internal topic; a key is mapped to one of them by their number."""

    topic: str
    partition_count: int


class LedShards:
    """Opens the partitions of shards that are led here."""

    def __init__(
        self, catalog: Catalog, placement: Placement, logs: LogManager, store: MetadataStore
    ) -> None:
        """Take what says who leads."""
        self._catalog = catalog
        self._placement = placement
        self._logs = logs
        self._store = store

    def resize(self, shards: Sized) -> None:
        """Take the stored partition count, as it was when the topic was created."""
        topic = self._catalog.get(shards.topic)
        if topic is not None:
            shards.partition_count = topic.partitions

    async def open(self, topic_name: str, index: int) -> Partition:
        """Return the partition of a shard.

        Raises NotCoordinatorError if another broker leads it, NotLeaderError if it is not known who
        does, or the leadership has not begun here.
        """
        name = TopicPartition(topic_name, index)
        topic = self._topic(name)
        state = self._placement.partition(topic.topic_id, index)
        if state is None or state.leader != self._placement.node_id:
            raise NotCoordinatorError(f"{name} is led by another broker")
        partition = self._logs.find(name)
        if partition.log.leader_epoch != state.leader_epoch:
            raise NotLeaderError(f"the leadership of {name} has not begun")
        return partition

    async def led(self, name: TopicPartition) -> Mapping[str, int]:
        """Return the metadata key and the version at which it says that this broker leads it.

        Raises NotCoordinatorError if it does not: the partition here is of an ended leadership.
        """
        key = partition_key(self._topic(name), name.partition)
        cell = await self._store.get(key)
        if cell is not None:
            state = PartitionState.decode(key, cell[0])
            is_same = state.leader_epoch == self._logs.find(name).log.leader_epoch
            if is_same and state.leader == self._placement.node_id:
                return {key: cell[1]}
        raise NotCoordinatorError(f"{name} is led by another broker")

    def _topic(self, name: TopicPartition) -> Topic:
        topic = self._catalog.get(name.topic)
        if topic is None or name.partition >= topic.partitions:
            raise NotLeaderError(f"{name} is not known")
        return topic


def partition_key(topic: Topic, index: int) -> str:
    """Return the metadata key of a partition's state."""
    return f"{PARTITION_PREFIX}{topic.topic_id.hex()}/{index}"
