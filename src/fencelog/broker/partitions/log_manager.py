"""All partitions of this broker: opens, finds, checkpoints and closes them, advances log starts."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fencelog.broker.config import BrokerConfig
from fencelog.broker.observer import Observer
from fencelog.broker.partitions.concurrency import run_bounded
from fencelog.broker.partitions.log_flusher import PARTITIONS_PER_SLICE, LogFlusher
from fencelog.broker.partitions.log_starts import advance_starts
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.partitions.role import Alone
from fencelog.broker.partitions.tail_cache import TailCache
from fencelog.errors import (
    CorruptionError,
    ErrorCode,
    ExhaustedError,
    NotLeaderError,
    StorageError,
)
from fencelog.log.config import LogConfig
from fencelog.log.partition_log import PartitionLog
from fencelog.ports import Disk
from fencelog.settings.kinds import INT64_MAX
from fencelog.storage.clean_stop import CleanStop
from fencelog.storage.directory import DataDirectory
from fencelog.storage.partition_store import PartitionStore
from fencelog.storage.recover import Durability
from fencelog.storage.topic_id import read_topic_id
from fencelog.storage.writeback import Writeback
from fencelog.types import Offset, ProducerId, TimestampMs, TopicId, TopicPartition

log = logging.getLogger(__name__)

TO_HIGH_WATERMARK = -1
"""DeleteRecords offset that stands for the high watermark."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A partition to open on this broker."""

    name: TopicPartition
    topic_id: TopicId
    config: LogConfig
    exists: bool
    """Whether its directory exists from an earlier run."""
    was_created: bool = False
    """Whether the metadata says that its files were durable: if they are missing, they are lost."""
    is_always_synced: bool = False
    """Whether an acknowledgement waits for stable storage in ``os`` mode, too (O3)."""


class LogManager:
    """Owner of every open partition. A damaged one is offline; the others serve (D3)."""

    def __init__(
        self,
        disk: Disk,
        config: BrokerConfig,
        flusher: LogFlusher,
        observer: Observer | None,
    ) -> None:
        """Nothing is open before ``start``."""
        self._disk = disk
        self._durability = config.durability
        self._producer_expiration_ms = config.producer_expiration_ms
        self._flusher = flusher
        self._observer = observer
        self._tails = TailCache(config.tail_bytes_max)
        self._writeback = Writeback(config.writeback)
        self._opened_directory: DataDirectory | None = None
        self._partitions: dict[TopicPartition, Partition] = {}
        self._offline: dict[TopicPartition, Exception] = {}
        self._has_files_to_delete = False
        self._deleting: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._starts_advancing: set[asyncio.Task[dict[Partition, StorageError]]] = set()

        self.on_created: Callable[[Collection[TopicPartition]], None] = lambda names: None
        """New partitions begin to serve, in this step."""

    def start(self, directory: DataDirectory) -> None:
        """Use this data directory."""
        self._opened_directory = directory

    def stop_upkeep(self) -> None:
        """Let a checkpoint or upkeep that is under way end early: ``stop`` syncs what is left."""
        self._is_stopping = True

    async def stop(self) -> None:
        """Close everything, and mark the directory as cleanly stopped.

        Raises StorageError if it cannot be marked; everything is closed then, too.
        """
        if self._starts_advancing:
            await asyncio.wait(list(self._starts_advancing))
        if self._deleting is not None:
            self._deleting.cancel()  # the next run deletes the rest
            await asyncio.wait([self._deleting])
        partitions = self.partitions()
        stops: dict[TopicPartition, CleanStop] = {}
        try:
            await run_bounded([_sync(each) for each in partitions if each.needs_sync])
            await self.checkpoint()
        finally:
            await run_bounded([_close(each, stops) for each in partitions])
        await self._directory.close(stops)

    @property
    def _directory(self) -> DataDirectory:
        assert self._opened_directory is not None, "``start`` comes first"
        return self._opened_directory

    async def checkpoint(self) -> None:
        """Store the recovery point of each partition.

        In ``os`` mode nothing else syncs the newest segment, so it is synced here first.
        """
        for partition in self.partitions():
            if partition.needs_sync and not self._is_stopping:
                await partition.sync()
        await self._directory.checkpoint(
            {name: each.recovery_point for name, each in self._partitions.items()},
            {name: each.log.log_start_offset for name, each in self._partitions.items()},
            {name: each.log.high_watermark for name, each in self._partitions.items()},
        )

    # -- opening and removing ------------------------------------------------------------------

    async def present(self) -> set[TopicPartition]:
        """Return the partitions that have a directory here, open or not."""
        return set(await self._directory.partitions())

    async def has_files(self, name: TopicPartition) -> bool:
        """Whether there are files of a partition here, open or not."""
        return bool(await self._disk.list(self._directory.path_of(name)))

    async def open(
        self,
        replicas: Sequence[Replica],
        created: Callable[[Sequence[TopicPartition]], Awaitable[None]],
    ) -> None:
        """Open partitions. One that cannot be opened is offline; ``offline`` gives the reason.

        ``created`` stores that the files of partitions are durable, before any of them serves. It
        may raise StorageError: those are offline then.
        """
        opened: dict[TopicPartition, Partition] = {}
        new = {each.name for each in replicas if not each.was_created}
        try:
            await run_bounded([self._open(each, opened) for each in replicas])
            await created(sorted(new & opened.keys()))
        except StorageError as error:
            for name in new & opened.keys():
                await opened.pop(name).close(clean=False)
                self._offline[name] = error
        finally:
            self._partitions.update(opened)
            self.on_created(sorted(new & opened.keys()))

    async def _open(self, replica: Replica, opened: dict[TopicPartition, Partition]) -> None:
        name = replica.name
        try:
            store, partition_log = await self._open_files(replica)
        except (CorruptionError, StorageError) as error:
            self._offline[name] = error
            if replica.exists or not isinstance(error, ExhaustedError):  # else creating is refused
                log.error("%s is offline: %s", name, error)  # noqa: TRY400
            return
        if store.truncated is not None:
            log.warning("%s: recovery truncated the log. %s", name, store.truncated)
        opened[name] = partition = Partition(
            name,
            partition_log,
            store,
            role=Alone(),
            enqueue=self._flusher.enqueue,
            observer=self._observer,
            tails=self._tails,
        )
        if replica.is_always_synced:
            partition.synced_below = Offset(INT64_MAX)

    def _open_files(
        self, replica: Replica
    ) -> Coroutine[None, None, tuple[PartitionStore, PartitionLog]]:
        name, directory = replica.name, self._directory
        durability: Durability = "fsync" if replica.is_always_synced else self._durability
        if replica.exists:
            return PartitionStore.recover(
                self._disk,
                directory.path_of(name),
                replica.config,
                clean=directory.take_clean(name),
                recovery_point=directory.recovery_point(name),
                log_start=directory.log_start(name),
                durability=durability,
                topic_id=replica.topic_id,
                was_compacted=directory.first_dirty(name) is not None,
                was_created=replica.was_created,
                writeback=self._writeback,
            )
        directory.check_new(name, was_created=replica.was_created)
        return PartitionStore.create(
            self._disk,
            directory.path_of(name),
            replica.topic_id,
            replica.config,
            durability=durability,
            writeback=self._writeback,
        )

    async def obstacles(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, str]:
        """Return why some of these new partitions would reuse files of no topic (D3)."""
        present = set(await self._disk.list(""))
        problems: dict[TopicPartition, str] = {}
        for name in names:
            path = self._directory.path_of(name)
            if path in present:
                problems[name] = (
                    f"the directory {path} exists but belongs to no topic: move it away, then "
                    "create the topic"
                )
                continue
            try:
                self._directory.check_new(name)
            except CorruptionError as error:
                problems[name] = str(error)
        return problems

    async def remove(self, deleted: Mapping[TopicPartition, TopicId]) -> None:
        """Close deleted topics' partitions and remove them durably; files go in the background."""
        for number, name in enumerate(deleted, 1):
            self._offline.pop(name, None)
            partition = self._partitions.pop(name, None)
            if partition is not None:
                partition.remove()
                await partition.close(clean=False)
            if number % PARTITIONS_PER_SLICE == 0:
                await asyncio.sleep(0)
        await self._directory.remove_partitions(deleted)
        self.delete_files()

    def delete_files(self) -> None:
        """Delete the files of removed partitions in the background, also those of earlier runs."""
        self._has_files_to_delete = True
        if self._deleting is None or self._deleting.done():
            self._deleting = asyncio.get_running_loop().create_task(self._delete_files())

    async def _delete_files(self) -> None:
        while self._has_files_to_delete:
            self._has_files_to_delete = False
            try:
                await self._directory.finish_deletions()
            except StorageError as error:
                log.error("files of deleted topics stay for the next run: %s", error)  # noqa: TRY400

    async def belongs_to(self, name: TopicPartition, topic_id: TopicId) -> bool:
        """Whether a directory belongs to this topic, and not to a later one of the same name."""
        try:
            stored = await read_topic_id(self._disk, self._directory.path_of(name))
        except CorruptionError:
            return False
        return stored is None or stored == topic_id

    # -- finding -------------------------------------------------------------------------------

    def get(self, topic: str, index: int) -> Partition | None:
        """Return an open partition, or None."""
        return self._partitions.get(TopicPartition(topic, index))

    def find(self, name: TopicPartition) -> Partition | None:
        """Return an open partition; None when there is no such partition.

        Raises NotLeaderError when it exists and is offline.
        """
        partition = self._partitions.get(name)
        if partition is None and name in self._offline:
            raise NotLeaderError(f"{name} is offline: {self._offline[name]}")
        return partition

    def forget_exhausted(self, name: TopicPartition) -> None:
        """Let a partition be opened again that is offline because something ran out."""
        if isinstance(self._offline.get(name), ExhaustedError):
            del self._offline[name]

    def missing(self, topic: str, index: int) -> ErrorCode:
        """Return the error for a partition that ``get`` does not find."""
        offline = TopicPartition(topic, index) in self._offline
        return ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def offline(self) -> Mapping[TopicPartition, Exception]:
        """Return the partitions that could not be opened, each with its reason."""
        return self._offline

    def partitions(self) -> list[Partition]:
        """Return all open partitions."""
        return list(self._partitions.values())

    def highest_producer_id(self) -> ProducerId:
        """Return the highest producer id in any log or snapshot (E7)."""
        seen = (partition.log.highest_producer_id for partition in self._partitions.values())
        return max(seen, default=ProducerId(-1))

    # -- upkeep --------------------------------------------------------------------------------

    def first_dirty(self, partition: Partition) -> Offset:
        """Return the first dirty offset; the log start if the stored one is not in the log."""
        start, end = partition.log.log_start_offset, partition.log.log_end_offset
        stored = self._directory.first_dirty(partition.name)
        return start if stored is None or not start <= stored <= end else stored

    async def checkpoint_cleaner(self, partition: Partition, first_dirty: Offset) -> None:
        """Store how far a partition is compacted; also once before the first file changes."""
        if self._is_open(partition):
            await self._directory.checkpoint_cleaner(partition.name, first_dirty)

    async def upkeep(self, now_ms: TimestampMs) -> None:
        """Expire idle producers, and delete segments by the topics' retention (D4)."""
        starts: dict[Partition, Offset] = {}
        for number, partition in enumerate(self.partitions(), 1):
            partition.log.expire_producers(now_ms, self._producer_expiration_ms)
            if partition.failure is None:
                partition.roll_if_due(now_ms)
                start = partition.log.retained_from(now_ms)
                if start > partition.log.log_start_offset:
                    log.info("%s: retention raises the log start to %d", partition.name, start)
                    starts[partition] = start
            if number % PARTITIONS_PER_SLICE == 0:
                await asyncio.sleep(0)
                await self._retain(starts)
                starts = {}
                if self._is_stopping:
                    return
        await self._retain(starts)

    async def _retain(self, starts: Mapping[Partition, Offset]) -> None:
        for partition, error in (await self._advance_starts(starts)).items():
            log.error("%s: retention could not delete segments: %s", partition.name, error)

    async def delete_records(
        self, targets: Mapping[Partition, Offset]
    ) -> dict[Partition, ErrorCode]:
        """Raise log starts to offsets, or to HW for -1; a log start never goes back (D4).

        Completes even if the caller is cancelled: a cancelled sync counts as failed (D2).
        """
        errors = dict.fromkeys(targets, ErrorCode.NONE)
        starts: dict[Partition, Offset] = {}
        for partition, offset in targets.items():
            high_watermark = partition.log.high_watermark
            target = high_watermark if offset == TO_HIGH_WATERMARK else offset
            if 0 <= target <= high_watermark:
                starts[partition] = target
            else:
                errors[partition] = ErrorCode.OFFSET_OUT_OF_RANGE
        task = asyncio.get_running_loop().create_task(self._advance_starts(starts))
        self._starts_advancing.add(task)
        task.add_done_callback(self._starts_advanced)
        try:
            failed = await asyncio.shield(task)
        except StorageError as problem:
            failed = dict.fromkeys(starts, problem)
        for partition, why in failed.items():
            log.error(
                "%s: could not delete records below %d: %s",
                partition.name,
                starts[partition],
                why,
            )
            errors[partition] = ErrorCode.KAFKA_STORAGE_ERROR
        for partition in starts:
            if errors[partition] is ErrorCode.NONE and partition.failure is not None:
                errors[partition] = self.missing(*partition.name)
        return errors

    def _advance_starts(
        self, starts: Mapping[Partition, Offset]
    ) -> Coroutine[None, None, dict[Partition, StorageError]]:
        return advance_starts(self._directory, starts, self._is_open)

    def _starts_advanced(self, task: "asyncio.Task[dict[Partition, StorageError]]") -> None:
        self._starts_advancing.discard(task)
        if not task.cancelled():
            task.exception()  # the caller gets it, unless it was cancelled

    def _is_open(self, partition: Partition) -> bool:
        return self._partitions.get(partition.name) is partition


async def _sync(partition: Partition) -> None:
    with suppress(ExhaustedError):
        await partition.sync()


async def _close(partition: Partition, stops: dict[TopicPartition, CleanStop]) -> None:
    """Close one partition's files; after a clean close, add its CleanStop to ``stops``."""
    try:
        stop = await partition.close(clean=partition.failure is None)
    except StorageError as error:
        log.error("%s could not be closed: %s", partition.name, error)  # noqa: TRY400
        return
    if stop is not None and partition.failure is None:
        stops[partition.name] = stop
