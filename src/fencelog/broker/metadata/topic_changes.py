"""What handlers ask to change of topics and settings, alone or in a cluster."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.controller import Change, NewTopic, TopicChange
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import RequestError
from fencelog.log.config import LogConfig
from fencelog.types import NodeId, TopicId


class TopicChanges(Protocol):
    """Creates, deletes and configures topics; each method raises RequestError."""

    async def refresh(self, names: Iterable[str]) -> None:
        """Wait until this broker knows these topics as they are stored now.

        What a client asks of a topic is decided from that: another broker may have created or
        deleted it a moment ago.
        """

    def check_new_topic(self, new: NewTopic) -> None:
        """Check that a topic may be created with its settings."""

    def check_partition_count(self, topic: Topic, count: int) -> None:
        """Check that a topic may get this many partitions."""

    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        """Create a topic."""

    async def create_topics(self, requested: Sequence[NewTopic]) -> list[Topic | RequestError]:
        """Create topics, each of which succeeds or fails alone."""

    async def open_internal(self, topic_name: str, index: int) -> Partition:
        """Return the partition of a shard; creates the topic when it is first used.

        Raises NotLeaderError while it is not available here.
        """

    async def add_partitions(
        self, topic: Topic, count: int, assignment: Sequence[Sequence[NodeId]] = ()
    ) -> None:
        """Raise a topic's partition count; ``assignment``: the replicas of each new one."""

    async def change_topic(
        self, name: str, change: TopicChange, *, led: Collection[int] = ()
    ) -> Topic:
        """Store what ``change`` makes of a topic, in one step, and open partitions that it adds.

        ``change`` may be called more than once, with what is stored then; it may raise
        RequestError. ``led``: nothing is stored if another broker has begun to lead one of these
        partitions since ``change`` was called.
        """

    async def open_partitions(self, topic_id: TopicId, indexes: Collection[int]) -> bool:
        """Open partitions that could not be created here; whether none of them is left so.

        In a cluster each broker opens what it holds by itself.
        """

    async def delete_topics(self, topics: Sequence[Topic]) -> None:
        """Delete topics."""

    def valid(
        self,
        settings: Mapping[str, str],
        defaults: Mapping[str, str] | None = None,
        *,
        is_stream: bool = False,
    ) -> LogConfig:
        """Return the log config of these topic settings over the defaults."""

    async def configure_topic(self, name: str, change: Change) -> None:
        """Apply ``change`` to a topic's settings."""

    async def configure_broker(self, scope: str, change: Change) -> None:
        """Apply ``change`` to the defaults of all topics, by broker config names."""
