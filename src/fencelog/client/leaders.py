"""Which leaders a client believes in: those of the highest leader epoch, whoever has told of them.

Any broker answers Metadata, also one that has not heard of the last election.
"""

from dataclasses import replace
from typing import NamedTuple

from fencelog.client.model import PartitionDescription, TopicDescription
from fencelog.types import TopicId, TopicPartition


class _Known(NamedTuple):
    topic_id: TopicId
    leader: int
    leader_epoch: int


class KnownLeaders:
    """The newest leader that was told of each partition."""

    def __init__(self) -> None:
        """Know of none yet."""
        self._known: dict[TopicPartition, _Known] = {}

    def newest(self, topic: TopicDescription) -> TopicDescription:
        """Return a topic as it was answered, with newer leaders where they are known."""
        partitions = tuple(self._newest(topic, each) for each in topic.partitions)
        return topic if partitions == topic.partitions else replace(topic, partitions=partitions)

    def _newest(self, topic: TopicDescription, told: PartitionDescription) -> PartitionDescription:
        name = TopicPartition(topic.name, told.partition)
        known = self._known.get(name)
        is_newer = (
            known is not None
            and known.topic_id == topic.topic_id
            and known.leader_epoch > told.leader_epoch >= 0
        )
        if known is not None and is_newer:
            return replace(told, leader=known.leader, leader_epoch=known.leader_epoch)
        self._known[name] = _Known(topic.topic_id, told.leader, told.leader_epoch)
        return told

    def learn(
        self, topic: TopicDescription, partition: int, leader: int, leader_epoch: int
    ) -> TopicDescription | None:
        """Return a topic with the leader that a broker has named; None if that is not news."""
        name = TopicPartition(topic.name, partition)
        known = self._known.get(name)
        if known is None or known.leader_epoch >= leader_epoch:
            return None
        self._known[name] = _Known(topic.topic_id, leader, leader_epoch)
        return self.newest(topic)
