"""All partitions of this broker: recovers, creates, finds, deletes and checkpoints them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TypeVar

from fencelog.broker.config import BrokerConfig
from fencelog.broker.metadata.catalog import INTERNAL_TOPICS, Catalog, Topic
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.partitions.concurrency import run_bounded
from fencelog.broker.partitions.log_flusher import LogFlusher
from fencelog.broker.partitions.log_starts import begin_at, sync
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import CorruptionError, ErrorCode, NotLeaderError, RequestError, StorageError
from fencelog.log.config import InvalidConfigError, LogConfig
from fencelog.ports import Disk, Random
from fencelog.storage.directory import DataDirectory
from fencelog.storage.partition_store import PartitionStore
from fencelog.storage.topic_id import read_topic_id
from fencelog.types import Offset, ProducerId, TimestampMs, TopicId, TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")
Change = Callable[[Mapping[str, str]], dict[str, str]]
"""From the settings that are made to those that shall be; raises RequestError."""
INTERNAL_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
"""Small enough segments that a coordinator's log is compacted long before it is slow to load."""
TO_HIGH_WATERMARK = -1
"""As an offset to delete to."""


class LogManager:
    """Owner of every open partition. A damaged one is offline; the others serve (D3)."""

    def __init__(
        self,
        disk: Disk,
        directory: DataDirectory,
        catalog: Catalog,
        config: BrokerConfig,
        settings: Settings,
        random: Random,
        flusher: LogFlusher,
    ) -> None:
        """Nothing is open before ``start``."""
        self._settings = settings
        self._flusher = flusher
        self._disk = disk
        self._directory = directory
        self._catalog = catalog
        self._config = config
        self._random = random
        self._changes = asyncio.Lock()  # one creation or deletion at a time: names are reused
        self._changing: set[asyncio.Task[object]] = set()
        self._stopped = False
        self._partitions: dict[TopicPartition, Partition] = {}
        self._offline: dict[TopicPartition, Exception] = {}

    async def start(self) -> None:
        """Finish begun deletions, then recover every partition that the catalog names."""
        present = set(await self._directory.partitions())
        for doomed, topic_id in await self._catalog.load():
            named = [name for name in sorted(present) if name.topic == doomed]
            gone = [name for name in named if await self._is_of(name, topic_id)]
            await self._directory.remove_partitions(gone, topic_id)
            present.difference_update(gone)
            await self._catalog.end_deletion(topic_id)
        wanted = []
        for topic in self._catalog.topics():
            names = [TopicPartition(topic.name, index) for index in range(topic.partitions)]
            wanted += [(topic, each) for each in names if each in present or not topic.internal]
        await run_bounded(
            [self._open(topic, name, exists=name in present) for topic, name in wanted]
        )
        for name in sorted(present - self._partitions.keys() - self._offline.keys()):
            log.warning("%s has files here and no topic: left as it is", name)

    async def stop(self) -> None:
        """Close everything and mark the directory as cleanly stopped."""
        if self._changing:
            await asyncio.wait(list(self._changing))
        async with self._changes:
            self._stopped = True
            await self._close()

    async def _close(self) -> None:
        every = list(self._partitions.values())
        await run_bounded([sync(each) for each in every if self._is_behind(each)])
        await self.checkpoint()
        await run_bounded([self._close_one(each) for each in every])
        stops = {each.name: each.store.clean_stop for each in every if each.failure is None}
        await self._directory.close({n: stop for n, stop in stops.items() if stop is not None})

    @staticmethod
    async def _close_one(partition: Partition) -> None:
        try:
            await partition.store.close(clean=partition.failure is None)
        except StorageError as error:
            log.error("%s could not be closed: %s", partition.name, error)  # noqa: TRY400

    @staticmethod
    def _is_behind(partition: Partition) -> bool:
        return partition.store.recovery_point < partition.log.high_watermark

    async def checkpoint(self) -> None:
        """Write down how far each partition is on stable storage; recovery begins there.

        In ``os`` mode nothing else syncs the newest segment, so that is done here first.
        """
        for partition in list(self._partitions.values()):
            if self._is_behind(partition):
                await sync(partition)
        await self._directory.checkpoint(
            self._recovery_points(),
            {name: p.log.log_start_offset for name, p in self._partitions.items()},
        )

    async def upkeep(self, now_ms: TimestampMs) -> None:
        """Forget idle producers, and delete what the topics' retention lets go (D4)."""
        starts: dict[Partition, Offset] = {}
        for name, partition in list(self._partitions.items()):
            partition.log.expire_producers(now_ms, self._config.producer_expiration_ms)
            if partition.failure is not None:
                continue
            if partition.log.roll_if_due(now_ms):
                self._flusher.dirty(partition)
            start = partition.log.retained_from(now_ms)
            if start > partition.log.log_start_offset:
                log.info("%s: retention ends at offset %d", name, start)
                starts[partition] = start
        for partition, error in (await self._begin_at(starts)).items():
            log.error("%s: what retention lets go stays: %s", partition.name, error)

    async def delete_records(self, asked: Mapping[Partition, Offset]) -> dict[Partition, ErrorCode]:
        """Begin partitions at offsets, or at HW where that is -1; nothing goes back (D4)."""
        errors = dict.fromkeys(asked, ErrorCode.NONE)
        starts: dict[Partition, Offset] = {}
        for partition, offset in asked.items():
            high_watermark = partition.log.high_watermark
            target = high_watermark if offset == TO_HIGH_WATERMARK else offset
            if 0 <= target <= high_watermark:
                starts[partition] = target
            else:
                errors[partition] = ErrorCode.OFFSET_OUT_OF_RANGE
        try:
            # To its end, if who asked has hung up: a sync that is cut short counts as failed (D2).
            failed = await self._to_its_end(self._begin_at(starts))
        except StorageError as problem:
            failed = dict.fromkeys(starts, problem)
        for partition, why in failed.items():
            log.error("%s: records below %d stay: %s", partition.name, starts[partition], why)
            errors[partition] = ErrorCode.KAFKA_STORAGE_ERROR
        for partition in starts:
            if errors[partition] is ErrorCode.NONE and partition.failure is not None:
                errors[partition] = self.missing(*partition.name)
        return errors

    async def _begin_at(self, starts: Mapping[Partition, Offset]) -> dict[Partition, StorageError]:
        return await begin_at(
            self._directory, starts, lambda each: self._partitions.get(each.name) is each
        )

    def _recovery_points(self) -> dict[TopicPartition, Offset]:
        return {name: p.store.recovery_point for name, p in self._partitions.items()}

    # -- finding -------------------------------------------------------------------------------

    def first_dirty(self, partition: Partition) -> Offset:
        """Where compaction goes on; at the log start where the note of it makes no sense."""
        start, end = partition.log.log_start_offset, partition.log.log_end_offset
        noted = self._directory.first_dirty(partition.name)
        return start if noted is None or not start <= noted <= end else noted

    async def note_compacted(self, partition: Partition, first_dirty: Offset) -> None:
        """Store how far a partition is compacted; once before the first of its files changes."""
        if self._partitions.get(partition.name) is partition:
            await self._directory.checkpoint_cleaner(partition.name, first_dirty)

    def get(self, topic: str, index: int) -> Partition | None:
        """An open partition, or None."""
        return self._partitions.get(TopicPartition(topic, index))

    def find(self, name: TopicPartition) -> Partition | None:
        """An open partition; None when there is no such partition.

        Raises NotLeaderError when it exists and is offline.
        """
        partition = self._partitions.get(name)
        if partition is None and name in self._offline:
            raise NotLeaderError(f"{name} is offline: {self._offline[name]}")
        return partition

    def missing(self, topic: str, index: int) -> ErrorCode:
        """The error for a partition that ``get`` does not find."""
        offline = TopicPartition(topic, index) in self._offline
        return ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def internal_offline(self) -> bool:
        """Whether a partition of a coordinator is damaged, so that its decisions are not known."""
        return any(name.topic in INTERNAL_TOPICS for name in self._offline)

    def partitions(self) -> list[Partition]:
        """All open partitions."""
        return list(self._partitions.values())

    def highest_producer_id(self) -> ProducerId:
        """The highest producer id that any log or snapshot holds (E7)."""
        seen = (partition.log.highest_producer_id for partition in self._partitions.values())
        return max(seen, default=ProducerId(-1))

    # -- creating and deleting -----------------------------------------------------------------

    async def _whole(self, change: Callable[[], Awaitable[T]]) -> T:
        """Make a change to its end, in its turn, even if who asked for it has hung up meanwhile.

        Raises RequestError where the disk does not let it.
        """

        async def run() -> T:
            async with self._changes:
                if self._stopped:
                    raise RequestError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker is stopping")
                try:
                    return await change()
                except StorageError as error:
                    raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

        return await self._to_its_end(run())

    async def _to_its_end(self, work: Coroutine[None, None, T]) -> T:
        """Go on with it even if who asked is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._changing.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: "asyncio.Task[T]") -> None:
        self._changing.discard(task)
        if not task.cancelled():
            task.exception()  # told to who asked, if anybody still listens

    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        """Create a topic durably, then its partitions. Raises RequestError."""
        return await self._whole(lambda: self._create(name, partitions, settings))

    async def _create(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        self._check_total(name, partitions)
        topic = Topic(
            name=name,
            topic_id=TopicId(self._random.bytes(16)),
            partitions=partitions,
            settings=settings,
        )
        self.valid(settings)
        self.check_free(name)
        made = [] if topic.internal else [TopicPartition(name, i) for i in range(partitions)]
        await self._check_room(made)
        if not await self._catalog.create(topic):
            raise RequestError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")
        await run_bounded([self._open(topic, each, exists=False) for each in made])
        problems = [str(self._offline[each]) for each in made if each in self._offline]
        if problems:
            await self._delete(topic)
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, problems[0])
        return topic

    def check_free(self, name: str) -> None:
        """Raise RequestError where a topic of this name exists, or one too much like it."""
        if self._catalog.get(name) is not None:
            raise RequestError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")
        other = self._catalog.colliding(name)
        if other is not None:
            raise RequestError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name} collides with {other}: . and _ count as the same",
            )

    async def _check_room(self, names: list[TopicPartition]) -> None:
        """Refuse to make partitions where others, of no topic, have left something (D3)."""
        present = set(await self._directory.partitions())
        for name in names:
            if name in present:
                raise RequestError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"the directory {self._directory.path_of(name)} belongs to no topic: "
                    "move it away to make one of its name",
                )
            try:
                self._directory.check_new(name)
            except CorruptionError as error:
                raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    async def open_internal(self, topic_name: str, index: int) -> Partition:
        """The partition of an internal topic; makes topic and partition on first use."""
        assert topic_name in INTERNAL_TOPICS, topic_name
        name = TopicPartition(topic_name, index)
        partition = self.find(name)
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
        await self._open(topic, name, exists=False)
        partition = self.find(name)
        assert partition is not None
        return partition

    async def add_partitions(self, topic: Topic, count: int) -> None:
        """Raise a topic's partition count to ``count``, durably. Raises RequestError.

        Where a new partition cannot be made it is offline, and made at the next start.
        """
        await self._whole(lambda: self._add_partitions(topic.name, count))

    async def _add_partitions(self, name: str, count: int) -> None:
        topic = self._present(name)
        self.check_count(topic, count)
        made = [TopicPartition(name, index) for index in range(topic.partitions, count)]
        await self._check_room(made)
        topic = replace(topic, partitions=count)
        if not await self._catalog.change(topic):
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} was deleted")
        await run_bounded([self._open(topic, each, exists=False) for each in made])
        problems = [self._offline[each] for each in made if each in self._offline]
        if problems:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, str(problems[0]))

    def check_count(self, topic: Topic, count: int) -> None:
        """Raise RequestError where a topic may not have so many partitions."""
        if topic.internal:
            # The partition of a key follows from their number.
            raise RequestError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"the partitions of {topic.name} are fixed"
            )
        if count <= topic.partitions:
            raise RequestError(
                ErrorCode.INVALID_PARTITIONS,
                f"{topic.name} has {topic.partitions} partitions: {count} would not be more",
            )
        self._check_total(topic.name, count - topic.partitions)

    def _check_total(self, name: str, more: int) -> None:
        total = self._catalog.partition_total() + more
        # Not held against the internal ones: without them nobody could commit.
        if total > self._config.partitions_max and name not in INTERNAL_TOPICS:
            raise RequestError(
                ErrorCode.POLICY_VIOLATION,
                f"{name} with {more} more partitions would make {total} in all; "
                f"fencelog.max.partitions is {self._config.partitions_max}",
            )

    def _present(self, name: str) -> Topic:
        topic = self._catalog.get(name)
        if topic is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return topic

    async def configure_topic(self, name: str, change: Change) -> None:
        """Give a topic the settings that ``change`` makes of its own; they hold at once.

        Raises RequestError, and stores nothing then.
        """

        async def run() -> None:
            topic = self._present(name)
            topic = replace(topic, settings=change(topic.settings))
            config = self.valid(topic.settings)
            if not await self._catalog.change(topic):
                raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} was deleted")
            self._apply(topic, config)

        await self._whole(run)

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

        await self._whole(run)

    def valid(
        self, settings: Mapping[str, str], defaults: Mapping[str, str] | None = None
    ) -> LogConfig:
        """What these settings of a topic make, over the broker's. Raises RequestError."""
        under = self._settings.topic_defaults if defaults is None else defaults
        try:
            return LogConfig.from_topic_config({**under, **settings})
        except InvalidConfigError as error:
            raise RequestError(ErrorCode.INVALID_CONFIG, str(error)) from error

    def _apply(self, topic: Topic, config: LogConfig) -> None:
        for index in range(topic.partitions):
            partition = self.get(topic.name, index)
            if partition is not None:
                partition.reconfigure(config)

    async def delete_topic(self, topic: Topic) -> None:
        """Delete durably: noted first, files after, so that a crash leaves no half topic.

        Raises RequestError where the disk does not let it; the next start goes on with it.
        """
        await self._whole(lambda: self._delete(topic))

    async def _delete(self, topic: Topic) -> None:
        if self._catalog.by_id(topic.topic_id) is None:
            return  # another request was faster
        await self._catalog.begin_deletion(topic)
        names = [TopicPartition(topic.name, index) for index in range(topic.partitions)]
        for name in names:
            self._offline.pop(name, None)
            partition = self._partitions.pop(name, None)
            if partition is not None:
                partition.removed()
                await partition.store.close(clean=False)
        await self._directory.remove_partitions(names, topic.topic_id)
        await self._catalog.end_deletion(topic.topic_id)

    async def _is_of(self, name: TopicPartition, topic_id: TopicId) -> bool:
        """Whether a directory is this topic's, and not of a later one of the same name."""
        try:
            stored = await read_topic_id(self._disk, self._directory.path_of(name))
        except CorruptionError:
            return False
        return stored is None or stored == topic_id

    async def _open(self, topic: Topic, name: TopicPartition, *, exists: bool) -> None:
        config: LogConfig = topic.log_config(self._settings.topic_defaults)
        try:
            if exists:
                store, partition_log = await PartitionStore.recover(
                    self._disk,
                    self._directory.path_of(name),
                    config,
                    clean=self._directory.take_clean(name),
                    recovery_point=self._directory.recovery_point(name),
                    log_start=self._directory.log_start(name),
                    durability=self._config.durability,
                    topic_id=topic.topic_id,
                    was_compacted=self._directory.first_dirty(name) is not None,
                )
            else:
                self._directory.check_new(name)
                store, partition_log = await PartitionStore.create(
                    self._disk,
                    self._directory.path_of(name),
                    topic.topic_id,
                    config,
                    durability=self._config.durability,
                )
        except (CorruptionError, StorageError) as error:
            log.error("%s is offline: %s", name, error)  # noqa: TRY400
            self._offline[name] = error
            return
        if store.cut is not None:
            log.warning("%s: what follows was cut off. %s", name, store.cut)
        self._partitions[name] = Partition(
            name=name, topic_id=topic.topic_id, log=partition_log, store=store
        )
