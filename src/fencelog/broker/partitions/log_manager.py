"""All partitions of this broker: opens, finds, checkpoints and closes them, advances log starts."""

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import replace

from fencelog.broker.config import BrokerConfig
from fencelog.broker.observer import Observer
from fencelog.broker.partitions.concurrency import run_bounded
from fencelog.broker.partitions.log_flusher import PARTITIONS_PER_SLICE, LogFlusher
from fencelog.broker.partitions.log_starts import LogStarts, starts_of
from fencelog.broker.partitions.opening import (
    How,
    Replica,
    close_one,
    obstacles,
    open_files,
    sync_or_skip,
)
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.partitions.purgatory import failure_code
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
from fencelog.ports import Disk
from fencelog.settings.kinds import INT64_MAX
from fencelog.storage.checkpointer import Begin
from fencelog.storage.clean_stop import CleanStop
from fencelog.storage.directory import DataDirectory
from fencelog.storage.newer_epoch import newer_epoch
from fencelog.storage.topic_id import read_topic_id
from fencelog.storage.writeback import Writeback
from fencelog.types import (
    LeaderEpoch,
    Offset,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicPartition,
)

log = logging.getLogger(__name__)


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
        self._led: dict[TopicPartition, Partition] = {}
        """Those that this broker leads: the only ones that requests find."""
        self._replicas: dict[TopicPartition, Replica] = {}
        """What to open anew, if the broker is one of several."""
        self._offline: dict[TopicPartition, Exception] = {}
        self._has_files_to_delete = False
        self._deleting: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.starts = LogStarts(lambda: self._directory, self._is_open)
        self.raise_start = self.starts.follow

        self.on_created: Callable[[Collection[TopicPartition]], None] = lambda names: None
        """New partitions begin to serve, in this step."""
        self.is_elsewhere: Callable[[TopicPartition], bool] = lambda name: False
        """Whether other brokers have a partition that is not here."""
        self.is_everywhere: Callable[[TopicPartition], bool] = lambda name: True
        """Whether each replica of a partition has all that is committed."""

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
        await self.starts.ended()
        if self._deleting is not None:
            self._deleting.cancel()  # the next run deletes the rest
            await asyncio.wait([self._deleting])
        partitions = self.partitions()
        stops: dict[TopicPartition, CleanStop] = {}
        try:
            await run_bounded([sync_or_skip(each) for each in partitions if each.needs_sync])
            await self.checkpoint()
        finally:
            await run_bounded([close_one(each, stops) for each in partitions])
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
        stored = {name: each for name, each in self._partitions.items() if each.log.has_files}
        await self._directory.checkpoint(
            {name: each.recovery_point for name, each in stored.items()},
            {name: each.log.log_start_offset for name, each in stored.items()},
            {name: each.log.high_watermark for name, each in stored.items()},
        )

    # -- opening and removing ------------------------------------------------------------------

    async def present(self) -> set[TopicPartition]:
        """Return the partitions that have a directory here, open or not."""
        return set(await self._directory.partitions())

    async def has_files(self, name: TopicPartition) -> bool:
        """Whether there are files of a partition here, open or not."""
        return bool(await self._disk.list(self._directory.path_of(name)))

    async def newer_epoch(self, name: TopicPartition, newest: LeaderEpoch) -> LeaderEpoch | None:
        """Return the last epoch of a partition's log, as ``storage.newer_epoch`` does."""
        return await newer_epoch(self._disk, self._directory.path_of(name), newest)

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
        new = {each.name for each in replicas if not each.was_created and each.seal is None}
        try:
            await run_bounded([self._open(each, opened) for each in replicas])
            await created(sorted(new & opened.keys()))
        except StorageError as error:
            for name in new & opened.keys():
                await opened.pop(name).close(clean=False)
                self._offline[name] = error
        finally:
            self._partitions.update(opened)
            for partition in opened.values():
                self._show(partition)
            self.on_created(sorted(new & opened.keys()))

    async def _open(self, replica: Replica, opened: dict[TopicPartition, Partition]) -> None:
        name = replica.name
        try:
            opened[name] = await self._open_one(replica, How())
        except (CorruptionError, StorageError) as error:
            self._offline[name] = error
            if replica.exists or not isinstance(error, ExhaustedError):  # else creating is refused
                log.error("%s is offline: %s", name, error)  # noqa: TRY400

    async def _open_one(self, replica: Replica, how: How) -> Partition:
        name, directory = replica.name, self._directory
        is_replica = directory.high_watermark(name) is not None
        if is_replica:
            self._replicas[name] = replica
        shared = self._durability, self._writeback
        store, partition_log = await open_files(self._disk, directory, replica, how, shared)
        if replica.seal is not None and replica.exists:
            self.delete_files()
        if store.truncated is not None:
            log.warning("%s: recovery truncated the log. %s", name, store.truncated)
        partition = Partition(
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
        if is_replica:
            partition.reconfigure(self._replicas[name].config)
            partition.follow(partition_log.leader_epoch)  # until it is known who leads
        partition.role_changed = self._show
        return partition

    def _show(self, partition: Partition) -> None:
        """Let requests find an open partition where it is led here."""
        if not partition.leads:
            self._led.pop(partition.name, None)
        elif self._is_open(partition):
            self._led[partition.name] = partition

    # -- one replica at a time -----------------------------------------------------------------

    async def open_replica(self, replica: Replica) -> Partition | None:
        """Open one replica, a follower until it is told to lead; None: it is offline."""
        partition = self.replica(replica.name)
        if partition is None:
            self._offline.pop(replica.name, None)
            await self.open([replica], _nothing_to_store)
        return self.replica(replica.name)

    async def truncate(
        self, name: TopicPartition, offset: Offset, leader_epoch: LeaderEpoch
    ) -> Partition:
        """Open a replica anew with nothing from this offset on, its leader's fork (F7).

        Whoever waits on it is told that it does not lead. The recovery point goes down before the
        files are cut. Raises CorruptionError and StorageError; the replica is offline then.
        """
        async with self._reopening(name) as partition:
            assert partition is not None, name
            stop = await partition.close(clean=True)
            point, high_watermark = partition.recovery_point, partition.log.high_watermark
            points = {name: min(point, offset)}
            await self._directory.checkpoint(points, {}, {name: high_watermark})
            known = self._replicas[name]
            replica = replace(known, exists=True, was_created=True, leader_epoch=leader_epoch)
            how = How(None if stop is None else stop.checksum, truncate_to=offset)
            opened = self._partitions[name] = await self._open_one(replica, how)
            return opened

    async def begin_anew(self, name: TopicPartition, begin: Begin | None) -> Partition:
        """Replace a replica, open or damaged (D3), by a new one; its files are removed.

        ``begin`` is where it begins; None: at offset 0. The caller makes sure that another broker
        has all that is committed. Raises as ``truncate`` does.
        """
        async with self._reopening(name) as partition:
            if partition is not None:
                await partition.close(clean=False)
            replica = replace(self._replicas[name], exists=False, was_created=False)
            await self._directory.remove_partitions({name: replica.topic_id})
            self.delete_files()
            opened = await self._open_one(replica, How(begin=begin))
            if begin is not None and opened.log.has_files:
                await self._directory.begin_replica(name, begin.offset)
            self._partitions[name] = opened
            return opened

    async def remove_files(self, replica: Replica) -> Partition:
        """Open a segment anew with its seal alone; its files are removed.

        The metadata say so already: the next start does it, if this one cannot.
        """
        async with self._reopening(replica.name) as partition:
            if partition is not None:
                await partition.close(clean=False)
            opened = self._partitions[replica.name] = await self._open_one(replica, How())
            self._show(opened)
            return opened

    @asynccontextmanager
    async def _reopening(self, name: TopicPartition) -> AsyncIterator[Partition | None]:
        """Have a partition closed to everybody; it is offline if this fails."""
        partition = self._partitions.pop(name, None)
        self._led.pop(name, None)
        self._offline[name] = NotLeaderError("it is opened anew")
        if partition is not None:
            partition.remove("is opened anew")
        try:
            yield partition
        except (CorruptionError, StorageError) as error:
            self._offline[name] = error
            raise
        del self._offline[name]

    def reconfigure(self, name: TopicPartition, config: LogConfig) -> None:
        """Apply a topic's new settings to a replica, also while it is opened anew."""
        if name in self._replicas:
            self._replicas[name] = replace(self._replicas[name], config=config)
        if name in self._partitions:
            self._partitions[name].reconfigure(config)

    async def obstacles(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, str]:
        """Return why some of these new partitions would reuse files of no topic (D3)."""
        return await obstacles(self._disk, self._directory, names)

    def withdraw(self, names: Iterable[TopicPartition]) -> None:
        """Let no request find partitions of a deleted topic, whose name another may have now."""
        for name in names:
            self._led.pop(name, None)

    async def remove(self, deleted: Mapping[TopicPartition, TopicId]) -> None:
        """Close deleted topics' partitions and remove them durably; files go in the background."""
        for number, name in enumerate(deleted, 1):
            self._offline.pop(name, None)
            self._led.pop(name, None)
            self._replicas.pop(name, None)
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
        """Return an open partition that this broker leads, or None."""
        return self._led.get(TopicPartition(topic, index))

    def replica(self, name: TopicPartition) -> Partition | None:
        """Return an open partition, whoever leads it; None if it is not open here."""
        return self._partitions.get(name)

    def find(self, name: TopicPartition) -> Partition:
        """Return an open partition that this broker leads.

        Raises NotLeaderError when it is offline or not here: whether it exists, the catalog says.
        """
        partition = self._led.get(name)
        if partition is not None:
            return partition
        if name in self._offline:
            raise NotLeaderError(f"{name} is offline: {self._offline[name]}")
        raise NotLeaderError(f"{name} is not here")

    def forget_offline(self, name: TopicPartition, kind: type[StorageError]) -> None:
        """Let a partition be opened again that is offline because of such an error."""
        if isinstance(self._offline.get(name), kind):
            del self._offline[name]

    def missing(self, topic: str, index: int) -> ErrorCode:
        """Return the error for a partition that ``get`` does not find."""
        name = TopicPartition(topic, index)
        if name in self._offline:
            is_led = isinstance(self._offline[name], NotLeaderError)
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if is_led else ErrorCode.KAFKA_STORAGE_ERROR
        if name in self._partitions or self.is_elsewhere(name):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

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
                if partition.leads and start > partition.log.log_start_offset:
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
        for partition, error in (await self.starts.advance(starts)).items():
            log.error("%s: retention could not delete segments: %s", partition.name, error)

    async def delete_records(
        self, targets: Mapping[Partition, Offset]
    ) -> dict[Partition, ErrorCode]:
        """Raise log starts to offsets, or to HW for -1; none goes back, or above a seal (D4, R2).

        Completes even if the caller is cancelled: a cancelled sync counts as failed (D2).
        """
        starts, errors = starts_of(targets)
        try:
            failed = await self.starts.delete(starts)
        except StorageError as problem:
            failed = dict[Partition, Exception].fromkeys(starts, problem)
        for partition, why in failed.items():
            text = "%s: could not delete records below %d: %s"
            log.error(text, partition.name, starts[partition], why)
            errors[partition] = failure_code(why)
        for partition in starts:
            if errors[partition] is ErrorCode.NONE and partition.failure is not None:
                errors[partition] = self.missing(*partition.name)
        return errors

    def _is_open(self, partition: Partition) -> bool:
        return self._partitions.get(partition.name) is partition


async def _nothing_to_store(names: Sequence[TopicPartition]) -> None:
    """The metadata of a cluster do not tell whether a replica has files."""
    del names
