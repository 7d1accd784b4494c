"""Creates, deletes and configures topics, and changes the topic defaults: one change at a time.

Each change is stored before files or partitions change, so that a start can finish a change that a
crash interrupted. A change completes even if the client that requested it has disconnected.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from fencelog.broker.config import BrokerConfig
from fencelog.broker.metadata.catalog import (
    INTERNAL_TOPICS,
    OWNERSHIP_TOPIC,
    Catalog,
    Topic,
    folded,
)
from fencelog.broker.metadata.changes import Changes
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.metadata.topic_rules import (
    check_name_free,
    check_no_collision,
    check_partition_count,
    check_partition_total,
    existing_topic,
    valid_config,
)
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.opening import Replica
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.streams.model import Stream
from fencelog.errors import ErrorCode, ExhaustedError, NotLeaderError, RequestError, StorageError
from fencelog.log.config import LogConfig
from fencelog.ports import Random
from fencelog.types import NodeId, TopicId, TopicPartition

log = logging.getLogger(__name__)

Change = Callable[[Mapping[str, str]], dict[str, str]]
"""Maps the current settings to the new ones; raises RequestError."""
TopicChange = Callable[[Topic], Topic]
"""Maps a topic to what it shall be, the same one for no change; raises RequestError."""
INTERNAL_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
"""Small enough segments that a coordinator's log is compacted long before it is slow to load."""


class NewTopic(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int
    settings: Mapping[str, str]
    replication_factor: int = -1
    """-1: the broker's default. Of a cluster only, and so is the next."""
    assignment: Sequence[Sequence[NodeId]] = ()
    """The replicas of each partition, if the request names them."""
    stream: Stream | None = None
    """Its segments, one for each partition, if it is a stream (R1)."""


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
        self._changes = Changes()  # names are reused, so changes must not overlap
        self.on_deleted: Callable[[Collection[str]], Awaitable[None]] = _nobody_is_told
        """Topics of these names are deleted, in this step; none has the name before this ends."""

    async def start(self) -> None:
        """Finish deletions that a crash interrupted, then recover all partitions of all topics.

        The files of deleted topics go in the background.
        """
        await self._settings.load()
        present = await self._logs.present()
        deleted = await self._catalog.load()
        if deleted:
            present -= await self._finish_deletions(deleted, present)
        replicas = []
        for topic in self._catalog.topics():
            config = topic.log_config(self._settings.topic_defaults)
            replicas += [
                _replica(topic, name, config, exists=name in present)
                for name in topic.partition_names
                # A partition of an internal topic is created when it is first used.
                if name in present or name.partition in topic.created or not topic.internal
            ]
        await self._logs.open(replicas, self._created)
        for name in sorted(present - {each.name for each in replicas}):
            log.warning("%s has files in the data directory but no topic: ignored", name)
        self._logs.delete_files()

    async def _finish_deletions(
        self, deleted: Mapping[TopicId, str], present: Collection[TopicPartition]
    ) -> set[TopicPartition]:
        """Remove the partitions of topics whose deletion is stored; return their names."""
        by_name: dict[str, list[TopicId]] = {}
        for topic_id, name in deleted.items():
            by_name.setdefault(name, []).append(topic_id)
        gone = {
            name: topic_id
            for name in sorted(present)
            for topic_id in by_name.get(name.topic, ())
            if await self._logs.belongs_to(name, topic_id)
        }
        await self._logs.remove(gone)
        await self._catalog.end_deletion(deleted)
        return set(gone)

    async def stop(self) -> None:
        """Wait for changes in progress, and accept no more."""
        await self._changes.stop()

    # -- topics --------------------------------------------------------------------------------

    async def refresh(self, names: Iterable[str]) -> None:
        """Return: nobody else changes topics."""

    def check_new_topic(self, new: NewTopic) -> None:
        """Check that a topic may be created with its settings. Raises RequestError."""
        check_name_free(self._catalog, new.name)
        self.valid(new.settings, is_stream=new.stream is not None)

    def check_partition_count(self, topic: Topic, count: int) -> None:
        """Check that a topic may get this many partitions. Raises RequestError."""
        check_partition_count(self._catalog, topic, count, self._config.partitions_max)

    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        """Create a topic durably, then its partitions. Raises RequestError."""
        (created,) = await self.create_topics([NewTopic(name, partitions, settings)])
        if isinstance(created, RequestError):
            raise created
        return created

    async def create_topics(self, requested: Sequence[NewTopic]) -> list[Topic | RequestError]:
        """Create topics, each of which succeeds or fails alone; all are stored at once.

        Raises RequestError if none could be stored.
        """
        return await self._changes.run(lambda: self._create(requested))

    async def _create(self, requested: Sequence[NewTopic]) -> list[Topic | RequestError]:
        results: list[Topic | RequestError] = []
        names: dict[str, str] = {}
        partitions = 0
        for each in requested:
            name, count, settings = each.name, each.partitions, each.settings
            try:
                check_partition_total(
                    self._catalog, name, partitions + count, self._config.partitions_max
                )
                self.check_new_topic(each)
                check_no_collision(name, names.get(folded(name)))
            except RequestError as error:
                results.append(error)
                continue
            names[folded(name)] = name
            partitions += count
            topic_id = TopicId(self._random.bytes(16))
            results.append(
                Topic(
                    name=name,
                    topic_id=topic_id,
                    partitions=count,
                    settings=settings,
                    stream=each.stream,
                )
            )
        new = [each for each in results if isinstance(each, Topic)]
        problems = await self._store_and_open(new) if new else {}
        return [
            problems.get(each.name, each) if isinstance(each, Topic) else each for each in results
        ]

    async def _store_and_open(self, topics: Sequence[Topic]) -> dict[str, RequestError]:
        """Store new topics and open their partitions; return the problems by topic."""
        # A partition of an internal topic is created when it is first used.
        names = [name for topic in topics if not topic.internal for name in topic.partition_names]
        in_the_way = {
            name.topic: text for name, text in (await self._logs.obstacles(names)).items()
        }
        free = [topic for topic in topics if topic.name not in in_the_way]
        stored = free
        if free and not await self._catalog.create(free):
            # A name is taken in the store: by a write that failed, and was stored all the same.
            stored = [topic for topic in free if await self._catalog.create([topic])]
        failed = await self._open_new(
            [(topic, [] if topic.internal else topic.partition_names) for topic in stored]
        )
        await self._delete([topic for topic in stored if topic.name in failed])
        return {
            topic.name: RequestError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name} exists already"
            )
            for topic in free
            if topic not in stored
        } | {
            name: RequestError(ErrorCode.KAFKA_STORAGE_ERROR, text)
            for name, text in (in_the_way | failed).items()
        }

    async def _open_new(
        self, new: Sequence[tuple[Topic, Sequence[TopicPartition]]]
    ) -> dict[str, str]:
        """Create and open partitions of topics; return why some failed, by topic."""
        defaults = self._settings.topic_defaults
        # Creating a partition of an internal topic is tried again where there was no room, that of
        # a stream's segment after any failure.
        replicas = [
            Replica(
                name,
                topic.topic_id,
                config,
                exists=is_retry and await self._logs.has_files(name),
                is_always_synced=topic.name == OWNERSHIP_TOPIC,
            )
            for topic, names in new
            for config in [topic.log_config(defaults)]
            for is_retry in [topic.internal or topic.stream is not None]
            for name in names
        ]
        await self._logs.open(replicas, self._created)
        offline = self._logs.offline()
        return {
            name.topic: str(offline[name]) for _, names in new for name in names if name in offline
        }

    async def _created(self, names: Sequence[TopicPartition]) -> None:
        """Store that the files of these partitions are durable. Raises StorageError."""
        created: dict[TopicId, list[int]] = {}
        for name in names:
            topic = self._catalog.get(name.topic)
            if topic is not None:
                created.setdefault(topic.topic_id, []).append(name.partition)
        await self._catalog.add_created(created)

    async def open_internal(self, topic_name: str, index: int) -> Partition:
        """Return the partition of an internal topic; creates topic and partition on first use."""
        assert topic_name in INTERNAL_TOPICS, topic_name
        name = TopicPartition(topic_name, index)
        self._logs.forget_offline(name, ExhaustedError)
        if self._logs.get(*name) is not None or name in self._logs.offline():
            return self._logs.find(name)
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
        await self._open_new([(topic, [name])])
        return self._logs.find(name)

    async def add_partitions(
        self, topic: Topic, count: int, assignment: Sequence[Sequence[NodeId]] = ()
    ) -> None:
        """Raise a topic's partition count to ``count``, durably. Raises RequestError.

        ``assignment`` is of a cluster only: here each partition is on this broker.

        A new partition that cannot be created is offline, and is created at the next start.
        """
        del assignment

        def added(stored: Topic) -> Topic:
            self.check_partition_count(stored, count)
            return replace(stored, partitions=count)

        async def run() -> None:
            _, problem = await self._change(topic.name, added)
            if problem is not None:
                raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, problem)

        await self._changes.run(run)

    async def change_topic(
        self, name: str, change: TopicChange, *, led: Collection[int] = ()
    ) -> Topic:
        """Store what ``change`` makes of a topic, in one step, and open partitions that it adds.

        One that cannot be created is offline; ``open_partitions`` tries it again. No other broker
        leads any (``led``). Raises RequestError; nothing is stored then.
        """
        del led

        async def run() -> Topic:
            changed, problem = await self._change(name, change)
            if problem is not None:
                log.error("topic %s: %s", name, problem)
            return changed

        return await self._changes.run(run)

    async def _change(self, name: str, change: TopicChange) -> tuple[Topic, str | None]:
        """Store a change; return the topic, and why some of its new partitions are offline."""
        topic = existing_topic(self._catalog, name)
        changed = change(topic)
        made = changed.partition_names[topic.partitions :]
        for problem in (await self._logs.obstacles(made)).values() if made else ():
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, problem)
        if changed is not topic and not await self._catalog.change(changed):
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} was deleted")
        problems = await self._open_new([(changed, made)]) if made else {}
        for index in sorted(changed.without_files - topic.without_files):
            config = changed.log_config(self._settings.topic_defaults)
            replica = _replica(changed, TopicPartition(name, index), config, exists=True)
            await self._logs.remove_files(replica)
        return changed, problems.get(name)

    async def open_partitions(self, topic_id: TopicId, indexes: Collection[int]) -> bool:
        """Open partitions that could not be created, as far as that is so; whether all are open.

        False for a topic that was deleted. Raises RequestError on a disk failure.
        """

        async def run() -> bool:
            topic = self._catalog.by_id(topic_id)
            if topic is None:
                return False
            names = [
                name
                for name in (TopicPartition(topic.name, index) for index in indexes)
                if self._logs.get(*name) is None
            ]
            if any(name.partition in topic.created for name in names):
                return False  # it had records, perhaps: it is offline until the next start (D3)
            for name in names:
                self._logs.forget_offline(name, StorageError)
            return not names or not await self._open_new([(topic, names)])

        return await self._changes.run(run)

    async def delete_topic(self, topic: Topic) -> None:
        """Delete one topic; see ``delete_topics``."""
        await self.delete_topics([topic])

    async def delete_topics(self, topics: Sequence[Topic]) -> None:
        """Delete durably: the deletion is stored before files go, so a crash leaves no half topic.

        Raises RequestError on a disk failure; the next start then finishes the deletion.
        """
        await self._changes.run(lambda: self._delete(topics))

    async def _delete(self, topics: Sequence[Topic]) -> None:
        # Another request may have deleted some of them already.
        topics = [each for each in topics if self._catalog.by_id(each.topic_id) is not None]
        if not topics:
            return
        await self._catalog.begin_deletion(topics)
        await self.on_deleted([each.name for each in topics])
        await self._logs.remove(
            {name: topic.topic_id for topic in topics for name in topic.partition_names}
        )
        await self._catalog.end_deletion([topic.topic_id for topic in topics])

    # -- settings ------------------------------------------------------------------------------

    def valid(
        self,
        settings: Mapping[str, str],
        defaults: Mapping[str, str] | None = None,
        *,
        is_stream: bool = False,
    ) -> LogConfig:
        """Return the log config of these topic settings over the defaults. Raises RequestError."""
        defaults = self._settings.topic_defaults if defaults is None else defaults
        return valid_config(settings, defaults, is_stream=is_stream)

    async def configure_topic(self, name: str, change: Change) -> None:
        """Apply ``change`` to a topic's settings; the new ones take effect at once.

        Raises RequestError; nothing is stored then.
        """

        async def run() -> None:
            topic = existing_topic(self._catalog, name)
            topic = replace(topic, settings=change(topic.settings))
            config = self.valid(topic.settings, is_stream=topic.stream is not None)
            if not await self._catalog.change(topic):
                raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} was deleted")
            self._apply(topic, config)

        await self._changes.run(run)

    async def configure_broker(self, scope: str, change: Change) -> None:
        """Change the defaults of all topics, by broker config names; as ``configure_topic``."""

        async def run() -> None:
            settings = change(self._settings.changed(scope))
            defaults = self._settings.topic_defaults_with(scope, settings)
            configs = [
                (t, self.valid(t.settings, defaults, is_stream=t.stream is not None))
                for t in self._catalog.topics()
            ]
            self.valid({}, defaults)
            await self._settings.change(scope, settings)
            for topic, config in configs:
                self._apply(topic, config)

        await self._changes.run(run)

    def _apply(self, topic: Topic, config: LogConfig) -> None:
        for name in topic.partition_names:
            partition = self._logs.get(*name)
            if partition is not None:
                partition.reconfigure(config)


async def _nobody_is_told(names: Collection[str]) -> None:
    del names


def _replica(topic: Topic, name: TopicPartition, config: LogConfig, *, exists: bool) -> Replica:
    return Replica(
        name,
        topic.topic_id,
        config,
        exists=exists,
        was_created=name.partition in topic.created,
        is_always_synced=topic.name == OWNERSHIP_TOPIC,
        seal=topic.seal_of(name.partition),
    )
