"""Creates, deletes and configures topics, and changes the topic defaults: one change at a time.

Each change is stored before files or partitions change, so that a start can finish a change that a
crash interrupted. A change completes even if the client that requested it has disconnected.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from fencelog.broker.config import BrokerConfig
from fencelog.broker.metadata.catalog import INTERNAL_TOPICS, Catalog, Topic
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.metadata.topic_rules import (
    check_name_free,
    check_partition_count,
    check_partition_total,
    existing_topic,
    valid_config,
)
from fencelog.broker.partitions.log_manager import LogManager, Replica
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode, NotLeaderError, RequestError, StorageError
from fencelog.log.config import LogConfig
from fencelog.ports import Random
from fencelog.types import TopicId, TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")
Change = Callable[[Mapping[str, str]], dict[str, str]]
"""Maps the current settings to the new ones; raises RequestError."""
INTERNAL_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
"""Small enough segments that a coordinator's log is compacted long before it is slow to load."""


class Controller:
    """The only writer of the catalog and the settings; opens and removes partitions."""

    def __init__(
        self,
        config: BrokerConfig,
        catalog: Catalog,
        settings: Settings,
        logs: LogManager,
        random: Random,
    ) -> None:
        """Start without topics; ``start`` loads them."""
        self._config = config
        self._catalog = catalog
        self._settings = settings
        self._logs = logs
        self._random = random
        self._changes = asyncio.Lock()  # names are reused, so changes must not overlap
        self._changing: set[asyncio.Task[object]] = set()
        self._stopped = False

    async def start(self) -> None:
        """Finish deletions that a crash interrupted, then recover all partitions of all topics."""
        await self._settings.load()
        present = await self._logs.present()
        for deleted, topic_id in await self._catalog.load():
            named = [name for name in sorted(present) if name.topic == deleted]
            gone = [name for name in named if await self._logs.belongs_to(name, topic_id)]
            await self._logs.remove(gone, topic_id)
            present.difference_update(gone)
            await self._catalog.end_deletion(topic_id)
        replicas = []
        for topic in self._catalog.topics():
            names = [TopicPartition(topic.name, index) for index in range(topic.partitions)]
            config = topic.log_config(self._settings.topic_defaults)
            replicas += [
                Replica(
                    name,
                    topic.topic_id,
                    config,
                    exists=name in present,
                    was_created=name.partition in topic.created,
                )
                for name in names
                # A partition of an internal topic is created when it is first used.
                if name in present or name.partition in topic.created or not topic.internal
            ]
        await self._logs.open(replicas, self._created)
        for name in sorted(present - {each.name for each in replicas}):
            log.warning("%s has files in the data directory but no topic: ignored", name)

    async def stop(self) -> None:
        """Wait for changes in progress, and accept no more."""
        if self._changing:
            await asyncio.wait(list(self._changing))
        async with self._changes:
            self._stopped = True

    # -- topics --------------------------------------------------------------------------------

    def check_new_topic(self, name: str, settings: Mapping[str, str]) -> None:
        """Check that a topic may be created with these settings. Raises RequestError."""
        check_name_free(self._catalog, name)
        self.valid(settings)

    def check_partition_count(self, topic: Topic, count: int) -> None:
        """Check that a topic may get this many partitions. Raises RequestError."""
        check_partition_count(self._catalog, topic, count, self._config.partitions_max)

    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        """Create a topic durably, then its partitions. Raises RequestError."""
        return await self._change(lambda: self._create(name, partitions, settings))

    async def _create(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        check_partition_total(self._catalog, name, partitions, self._config.partitions_max)
        topic = Topic(
            name=name,
            topic_id=TopicId(self._random.bytes(16)),
            partitions=partitions,
            settings=settings,
        )
        self.check_new_topic(name, settings)
        made = [] if topic.internal else [TopicPartition(name, i) for i in range(partitions)]
        await self._logs.check_free(made)
        if not await self._catalog.create(topic):
            raise RequestError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")
        problem = await self._open_new(topic, made)
        if problem is not None:
            await self._delete(topic)
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, problem)
        return topic

    async def _open_new(self, topic: Topic, names: Sequence[TopicPartition]) -> str | None:
        """Create and open partitions; return the reason of the first failure, or None."""
        config = topic.log_config(self._settings.topic_defaults)
        # Creating a partition of an internal topic is tried again where there was no room.
        present = await self._logs.present() if topic.internal else ()
        await self._logs.open(
            [Replica(name, topic.topic_id, config, exists=name in present) for name in names],
            self._created,
        )
        offline = self._logs.offline()
        return next((str(offline[name]) for name in names if name in offline), None)

    async def _created(self, names: Sequence[TopicPartition]) -> None:
        """Store that the files of these partitions are durable. Raises StorageError."""
        for topic_name, group in groupby(sorted(names), key=attrgetter("topic")):
            topic = self._catalog.get(topic_name)
            if topic is not None:
                await self._catalog.add_created(topic, [name.partition for name in group])

    async def open_internal(self, topic_name: str, index: int) -> Partition:
        """Return the partition of an internal topic; creates topic and partition on first use."""
        assert topic_name in INTERNAL_TOPICS, topic_name
        name = TopicPartition(topic_name, index)
        self._logs.forget_exhausted(name)
        partition = self._logs.find(name)
        if partition is not None:
            return partition
        topic = self._catalog.get(topic_name)
        if topic is None:
            try:
                topic = await self.create_topic(
                    topic_name, self._config.internal_partitions, INTERNAL_SETTINGS
                )
            except RequestError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise NotLeaderError(str(error)) from error
                topic = self._catalog.get(topic_name)
                assert topic is not None
        await self._open_new(topic, [name])
        partition = self._logs.find(name)
        assert partition is not None
        return partition

    async def add_partitions(self, topic: Topic, count: int) -> None:
        """Raise a topic's partition count to ``count``, durably. Raises RequestError.

        A new partition that cannot be created is offline, and is created at the next start.
        """
        await self._change(lambda: self._add_partitions(topic.name, count))

    async def _add_partitions(self, name: str, count: int) -> None:
        topic = existing_topic(self._catalog, name)
        self.check_partition_count(topic, count)
        made = [TopicPartition(name, index) for index in range(topic.partitions, count)]
        await self._logs.check_free(made)
        topic = replace(topic, partitions=count)
        if not await self._catalog.change(topic):
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} was deleted")
        problem = await self._open_new(topic, made)
        if problem is not None:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, problem)

    async def delete_topic(self, topic: Topic) -> None:
        """Delete durably: the deletion is stored before files go, so a crash leaves no half topic.

        Raises RequestError on a disk failure; the next start then finishes the deletion.
        """
        await self._change(lambda: self._delete(topic))

    async def _delete(self, topic: Topic) -> None:
        if self._catalog.by_id(topic.topic_id) is None:
            return  # another request has deleted it already
        await self._catalog.begin_deletion(topic)
        names = [TopicPartition(topic.name, index) for index in range(topic.partitions)]
        await self._logs.remove(names, topic.topic_id)
        await self._catalog.end_deletion(topic.topic_id)

    # -- settings ------------------------------------------------------------------------------

    def valid(
        self, settings: Mapping[str, str], defaults: Mapping[str, str] | None = None
    ) -> LogConfig:
        """Return the log config of these topic settings over the defaults. Raises RequestError."""
        return valid_config(
            settings, self._settings.topic_defaults if defaults is None else defaults
        )

    async def configure_topic(self, name: str, change: Change) -> None:
        """Apply ``change`` to a topic's settings; the new ones take effect at once.

        Raises RequestError; nothing is stored then.
        """

        async def run() -> None:
            topic = existing_topic(self._catalog, name)
            topic = replace(topic, settings=change(topic.settings))
            config = self.valid(topic.settings)
            if not await self._catalog.change(topic):
                raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} was deleted")
            self._apply(topic, config)

        await self._change(run)

    async def configure_broker(self, scope: str, change: Change) -> None:
        """Change the defaults of all topics, by broker config names; as ``configure_topic``."""

        async def run() -> None:
            settings = change(self._settings.changed(scope))
            defaults = self._settings.topic_defaults_with(scope, settings)
            configs = [(t, self.valid(t.settings, defaults)) for t in self._catalog.topics()]
            self.valid({}, defaults)
            await self._settings.change(scope, settings)
            for topic, config in configs:
                self._apply(topic, config)

        await self._change(run)

    def _apply(self, topic: Topic, config: LogConfig) -> None:
        for index in range(topic.partitions):
            partition = self._logs.get(topic.name, index)
            if partition is not None:
                partition.reconfigure(config)

    # -- inside --------------------------------------------------------------------------------

    async def _change(self, change: Callable[[], Awaitable[T]]) -> T:
        """Complete one change at a time, even if the caller is cancelled.

        Raises RequestError on a disk failure.
        """

        async def run() -> T:
            async with self._changes:
                if self._stopped:
                    raise RequestError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker is stopping")
                try:
                    return await change()
                except StorageError as error:
                    raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

        task = asyncio.get_running_loop().create_task(run())
        self._changing.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: "asyncio.Task[T]") -> None:
        self._changing.discard(task)
        if not task.cancelled():
            task.exception()  # the caller gets it, unless it was cancelled
