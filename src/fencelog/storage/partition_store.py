"""The files of one partition: what the flusher writes, what fetches read.

One writer at a time (the flusher) calls ``write`` and ``sync``; reads may come at any time. Side
files (indexes, snapshots, leader epochs) are written when a segment is full and at a clean stop.
They are synced at a clean stop and for a recovery checkpoint, which both have a checksum over them:
where it does not match, they are rebuilt from the log.
"""

import asyncio
from bisect import bisect_right
from typing import Self

from fencelog.errors import ExhaustedError, StorageError
from fencelog.log import layout
from fencelog.log.compaction_round import Cleaned
from fencelog.log.config import LogConfig
from fencelog.log.leader_epochs import FIRST_EPOCH
from fencelog.log.partition_log import PartitionLog
from fencelog.log.recovery_checkpoint import side_checksum
from fencelog.log.values import Isolation, ReadPlan, SegmentWrite
from fencelog.ports import Disk, DiskFile
from fencelog.storage.checkpoint import parent_of, replace_file
from fencelog.storage.checkpointer import (
    Begin,
    Captured,
    Checkpointer,
    read_recovery_checkpoint,
    store_begin,
)
from fencelog.storage.clean_stop import CleanStop, synced_checksum
from fencelog.storage.open_segment import OpenSegment
from fencelog.storage.recover import Durability, Recovery
from fencelog.storage.resume_point import store_snapshot
from fencelog.storage.segment import Batches, Pause, read_batches
from fencelog.storage.segment_files import SegmentFiles
from fencelog.storage.side_files import write_side_files
from fencelog.storage.timestamp_lookup import find_in_segments
from fencelog.storage.topic_id import check_topic_id, write_topic_id
from fencelog.storage.usable import Usable
from fencelog.storage.writeback import Writeback
from fencelog.types import LeaderEpoch, Offset, TimestampMs, TopicId


class PartitionStore:
    """The directory of one partition."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        log: PartitionLog,
        durability: Durability,
        writeback: Writeback,
    ) -> None:
        """Start without segments; use ``create`` or ``recover``."""
        self._disk = disk
        self._directory = directory
        self._log = log
        self._durability = durability
        self._segments = SegmentFiles(disk, directory)
        self._written_end = log.log_end_offset
        self._recovery_point = log.log_end_offset
        self._writeback = writeback
        self._checkpointer = Checkpointer(disk, directory, self._segments)
        self._checkpointing: asyncio.Task[None] | None = None
        self._syncing: dict[Offset, asyncio.Task[None]] = {}
        """Background syncs of full segments, by base offset."""
        self._write_lock, self._sync_lock = asyncio.Lock(), asyncio.Lock()
        self._snapshot_lock = asyncio.Lock()
        self._kept = Offset(-1)
        """The segment whose snapshot is durable, as those below it were deleted."""
        self._usable = Usable(directory, when_failed=lambda: writeback.closed(self))
        self.truncated: str | None = None
        """Where recovery truncated the log after the last sound batch, and why (D3)."""
        self.is_rebuilt = False
        """Whether recovery read all batches."""
        self.knows_deleted = True
        """Whether it knows the producers of deleted segments."""
        self.clean_stop: CleanStop | None = None
        """How the last clean close left the files; None once they have changed since."""

    @classmethod
    async def create(
        cls,
        disk: Disk,
        directory: str,
        topic_id: TopicId,
        config: LogConfig,
        durability: Durability,
        writeback: Writeback | None = None,
        begin: Begin | None = None,
    ) -> tuple[Self, PartitionLog]:
        """Create an empty partition, durably.

        ``writeback`` is what all partitions of a broker share; ``begin`` is for a replica that
        begins above 0. A crash leaves a directory that ``recover`` accepts. Raises StorageError.
        """
        await disk.make_directory(directory)
        if any(name.endswith(layout.LOG) for name in await disk.list(directory)):
            raise StorageError(f"{directory}: already has segment files")
        # Before there are files: where they cannot all be made, ``recover`` does the rest later.
        await disk.sync_directory(parent_of(directory))
        if begin is not None:
            await store_begin(disk, directory, begin)
            opened = await cls.recover(
                disk,
                directory,
                config,
                clean=None,
                recovery_point=begin.offset,
                log_start=begin.offset,
                durability=durability,
                topic_id=topic_id,
                writeback=writeback,
            )
            path = f"{directory}/{layout.file_name(begin.offset, layout.SNAPSHOT)}"
            await replace_file(disk, path, begin.snapshot)
            return opened
        log = PartitionLog.create(config)
        store = cls(disk, directory, log, durability, writeback or Writeback())
        try:
            await store._segments.make_newest(log.log_end_offset)
            await write_topic_id(disk, directory, topic_id)  # syncs the directory for both files
        except BaseException:
            await store.close(clean=False)
            raise
        store._segments.names_are_durable()
        return store, log

    @classmethod
    async def recover(  # noqa: PLR0913 - all that an earlier run stored of a partition
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        clean: str | None,
        recovery_point: Offset,
        log_start: Offset,
        durability: Durability,
        topic_id: TopicId | None = None,
        was_compacted: bool = False,
        was_created: bool = False,
        leader_epoch: LeaderEpoch = FIRST_EPOCH,
        writeback: Writeback | None = None,
        high_watermark: Offset | None = None,
        truncate_to: Offset | None = None,
    ) -> tuple[Self, PartitionLog]:
        """Open a partition of an earlier run, whatever its end was (D2, D3, E15).

        ``clean`` is from ``DataDirectory.take_clean``. ``topic_id``, if given, must be the stored
        one, and is stored if a crash left none. ``was_created``: its first segment was durable.
        No batch has a newer epoch than ``leader_epoch``. ``high_watermark`` is that of a replica,
        as far as it is known; None: everything is committed.

        ``truncate_to`` is where a replica's log forks from its leader's (F7): a recovery point not
        above it was stored before, and ``clean`` is of the last ``close``. A crash leaves files
        that ``recover`` accepts. Raises CorruptionError naming file and offset, also if the fork is
        below the high watermark, and StorageError.
        """
        if topic_id is not None:
            await check_topic_id(disk, directory, topic_id)
        checkpoint = await read_recovery_checkpoint(disk, directory)
        log_start = log_start if checkpoint is None else max(log_start, checkpoint.start_offset)
        recovered = await Recovery(
            disk=disk,
            directory=directory,
            config=config,
            clean=clean,
            recovery_point=recovery_point,
            log_start=log_start,
            durability=durability,
            was_compacted=was_compacted,
            was_created=was_created,
            leader_epoch=leader_epoch,
            checkpoint=checkpoint,
            high_watermark=high_watermark,
            truncate_to=truncate_to,
        ).run()
        builder = recovered.builder
        active_files = builder.side_files(recovered.base_offsets[-1])
        log = builder.finish(high_watermark)
        store = cls(disk, directory, log, durability, writeback or Writeback())
        store.truncated = recovered.truncated
        store.is_rebuilt = not recovered.is_clean and recovered.checkpoint is None
        store.knows_deleted = recovered.knows_deleted
        for base_offset, side in recovered.side_states.items():
            segment = store._segments.add(base_offset)
            segment.checksum, segment.are_side_files_synced = side
        newest = store._segments.add(recovered.base_offsets[-1])
        newest.extend_side_files(active_files)
        if recovered.is_clean and clean is not None:
            store._segments.names_are_durable()
            store.clean_stop = CleanStop(log.log_end_offset, clean)
        checkpoint = recovered.checkpoint
        covered = 0 if checkpoint is None else checkpoint.size_from(recovered.base_offsets[0])
        store._writeback.moved(store, max(log.size - covered, 0))
        return store, log

    @property
    def recovery_point(self) -> Offset:
        """The offset below which everything is on stable storage."""
        return self._recovery_point

    @property
    def failure(self) -> str | None:
        """Why the store accepts no more writes, or None."""
        return self._usable.failure

    @property
    def must_sync(self) -> bool:
        """Whether to sync before the next write: the kernel would let it wait, and all others."""
        return self._writeback.must_sync(self)

    async def write(self, unflushed: list[SegmentWrite]) -> None:
        """Write what ``PartitionLog.take_unflushed`` returned to the page cache, in order.

        Raises ExhaustedError: ``unflushed`` has what is left to write, later. Raises StorageError;
        the store then accepts no more writes or syncs (D2).
        """
        async with self._write_lock:
            self._usable.check()
            self.clean_stop = None
            done = 0
            try:
                for write in unflushed:
                    await self._write_one(write)
                    done += 1
            except ExhaustedError:
                del unflushed[:done]
                raise
            except BaseException as error:
                self._usable.fail(error)
                raise

    async def sync(self) -> None:
        """Return when everything written before the call is on stable storage, its name included.

        Raises ExhaustedError if it could not begin, and StorageError: then nothing is ever
        acknowledged from here again (D2).
        """
        # Concurrent calls wait for each other: one must not rely on another's unfinished sync.
        async with self._sync_lock:
            self._usable.check()
            end, unsynced = self._written_end, self._writeback.unsynced(self)
            with self._usable.fails_on_error():
                for segment in self._segments:
                    if segment.is_dirty:
                        await segment.sync()
                await self._segments.sync_names()
                while self._syncing:
                    await next(iter(self._syncing.values()))
            self._writeback.synced(self, unsynced)
            self._usable.check()
            self._recovery_point = max(self._recovery_point, end)

    async def read(self, plan: ReadPlan, *, to_send: bool = False) -> Batches:
        """Return the whole batches of a plan, the first one even above ``max_bytes``.

        ``to_send``: they are not looked at, so large ones need no copy. Empty if the segment was
        deleted meanwhile. Raises CorruptionError if the file has no batches there, StorageError.
        """
        segment = self._segments.get(plan.segment_base_offset)
        file = None if segment is None else await self._segments.begin_read(segment)
        if segment is None or file is None:
            return Batches(memoryview(b""), plan.offset)
        try:
            return await read_batches(file, segment.path, plan, to_send=to_send)
        finally:
            await self._segments.end_read(segment, file)

    async def find_timestamp(
        self, timestamp: TimestampMs, isolation: Isolation, pause: Pause
    ) -> tuple[Offset, TimestampMs] | None:
        """Return the first record at or after a timestamp; awaits ``pause`` between pieces."""
        return await find_in_segments(self._log, self._segments, timestamp, isolation, pause)

    async def delete_segments_below(self, offset: Offset) -> None:
        """Remove the segments that end at or below an offset, never the newest.

        ``offset`` must be stored as the log start before: above it a missing segment is damage.
        What they tell of producers is made durable first (E4). Raises StorageError.
        """
        async with self._sync_lock:
            self._usable.check()
            self.clean_stop = None
            base_offsets = self._segments.base_offsets
            gone = max(bisect_right(base_offsets, offset) - 1, 0)
            if gone:
                await self._segments.sync_names()  # a snapshot tells that there is its segment
                async with self._snapshot_lock:
                    await store_snapshot(self._disk, self._directory, base_offsets[gone], self._log)
                    self._kept = base_offsets[gone]
            for base_offset in base_offsets[:gone]:
                await self._segments.remove(base_offset)
            await self._segments.sync_directory()

    async def open_segment(self, base_offset: Offset) -> DiskFile:
        """Open a full segment for reading; raises as ``SegmentFiles.open`` does."""
        return await self._segments.open(base_offset)

    async def open_cleaned(self, base_offset: Offset) -> DiskFile:
        """Create the file that will replace a segment; removes one that a crash left."""
        path = self._segments.path(base_offset) + layout.CLEANED
        await self._disk.remove(path)
        return await self._disk.open(path, create=True)

    async def drop_cleaned(self, base_offset: Offset) -> None:
        """Remove the file of ``open_cleaned``."""
        await self._disk.remove(self._segments.path(base_offset) + layout.CLEANED)

    async def swap(self, cleaned: Cleaned) -> bool:
        """Replace segments by the cleaned file, which is written and synced.

        The file is first renamed to ``.swap``: a crash before leaves the old files, a crash after
        leaves the new one. A reader continues in the file in which it began. False: a segment was
        deleted meanwhile, and nothing is changed. Raises StorageError; the store has then failed.
        """
        async with self._sync_lock:
            self._usable.check()
            self.clean_stop = None
            if not self._log.has_segments(cleaned.replaced):
                await self.drop_cleaned(cleaned.segment.base_offset)
                return False
            try:
                async with self._checkpointer.removed():
                    is_swapped = await self._swap(cleaned)
            except BaseException as error:  # also if something ran out: half of a swap is done
                self._usable.fail(error)
                raise
            self._writeback.moved(self, self._log.size)
            return is_swapped

    async def _swap(self, cleaned: Cleaned) -> bool:
        base_offset = cleaned.segment.base_offset
        path = self._segments.path(base_offset)
        old = [segment for segment in self._segments if segment.base_offset in cleaned.replaced]
        new = OpenSegment(base_offset, path)
        await self._disk.rename(path + layout.CLEANED, path + layout.SWAP)
        await self._segments.sync_directory()
        new.file = await self._disk.open(path + layout.SWAP)
        if not self._log.has_segments(cleaned.replaced):
            # The log start has passed some of them meanwhile; retention deletes their files.
            await self._segments.retire(new)
            await self._disk.remove(path + layout.SWAP)
            await self._segments.sync_directory()
            return False
        self._log.replace_segments(cleaned)
        self._segments.replace(cleaned.replaced, new)
        for segment in old:
            await self._segments.retire(segment)
        for base in cleaned.replaced[1:]:
            await self._segments.remove_files(base)
        if len(old) > 1:
            # None of them may reappear after a crash beside the file that replaces it.
            await self._segments.sync_directory()
        await self._disk.rename(path + layout.SWAP, path)
        await self._segments.sync_directory()
        await write_side_files(self._disk, path, cleaned.side_files)
        new.checksum = side_checksum(cleaned.side_files)
        await self._segments.retire(new)
        return True

    async def close(self, *, clean: bool) -> None:
        """Close the files. ``clean``: sync everything, side files too, so that they may be trusted.

        Unflushed batches must be written before, or they are lost: a write or sync in progress ends
        first, and a later one is refused. Raises StorageError if this store failed or fails now:
        the partition then does not count as cleanly closed. A second close does nothing.
        """
        try:
            if clean and self._segments:
                async with self._write_lock:
                    self._usable.check()
                    self.clean_stop = self.clean_stop or await self._stop_cleanly()
        finally:
            self._usable.close()
            if self._checkpointing is not None:
                await asyncio.wait([self._checkpointing])
            async with self._write_lock, self._sync_lock:
                for task in list(self._syncing.values()):
                    await asyncio.wait([task])
                await self._segments.close()
            self._writeback.closed(self)

    async def _stop_cleanly(self) -> CleanStop:
        """Make durable what a clean start reads: all but the newest segment's indexes."""
        await self.sync()
        with self._usable.fails_on_error():
            newest = self._segments.newest
            if any(newest.side_files):
                await newest.write_side_files(self._disk)
            checksum = await synced_checksum(
                self._disk, self._directory, self._segments.base_offsets
            )
            return CleanStop(self._recovery_point, checksum)

    # Writing

    async def _write_one(self, write: SegmentWrite) -> None:
        """Write one piece; after an ExhaustedError it may be called again with the same piece."""
        if write.roll:
            await self._roll(write)
        if write.leader_epochs is not None:
            path = f"{self._directory}/{layout.LEADER_EPOCH_CHECKPOINT}"
            content = write.leader_epochs.encode("ascii")
            await replace_file(self._disk, path, content, durable=False)
        segment = self._segments.get(write.segment_base_offset)
        assert segment is not None, write.segment_base_offset
        if write.buffers:
            file = await self._segments.open_to_write(segment)
            assert file.size == write.position, (file.size, write.position)
            segment.is_dirty = True
            await file.append(write.buffers)
            self._written_end = write.end_offset
        if write.index or write.time_index or write.txn_index:
            segment.extend_side_files((write.index, write.time_index, write.txn_index))
        if write.buffers:
            self._writeback.wrote(self, write.size, len(write.buffers))

    async def _roll(self, write: SegmentWrite) -> None:
        """Finish the newest segment and begin the next.

        In ``fsync`` mode the old one and its name are synced before the new one exists (D3): a bad
        batch in a segment with a successor, or a gap between two, is then damage, not an unflushed
        batch that was lost. In ``os`` mode that sync may be of a gigabyte and no response waits for
        it: it runs in the background.
        """
        if write.segment_base_offset not in self._segments:
            full = self._segments.newest
            if not full.is_complete:
                await full.write_side_files(self._disk)
                full.is_complete = True
            if self._durability == "os":
                await self._segments.make_newest(write.segment_base_offset)
                task = asyncio.create_task(self._sync_beside(full, write))
                self._syncing[full.base_offset] = task
            else:
                if full.is_dirty:
                    await full.sync()
                await self._segments.sync_names()
                await self._segments.make_newest(write.segment_base_offset)
                await self._segments.retire(full)
        if self._durability == "fsync":
            await self._write_snapshot(write)

    async def _write_snapshot(self, write: SegmentWrite) -> None:
        """Write a new segment's snapshot once its name is durable: it tells that there is one."""
        await self._segments.sync_names()
        async with self._snapshot_lock:
            # One that is durable is not replaced: a power cut might leave neither.
            if write.snapshot is not None and write.segment_base_offset > self._kept:
                path = self._segments.path(write.segment_base_offset, layout.SNAPSHOT)
                await replace_file(self._disk, path, write.snapshot, durable=False)

    async def _sync_beside(self, full: OpenSegment, write: SegmentWrite) -> None:
        """Sync a full segment in the background; the next write or sync reports a failure."""
        try:
            with self._usable.fails_on_error():
                if full.is_dirty:
                    await full.sync()
                await self._segments.retire(full)
                await self._write_snapshot(write)
            if self._usable.failure is None and min(self._syncing) == full.base_offset:
                self._recovery_point = max(self._recovery_point, write.segment_base_offset)
        except StorageError:
            return  # kept in ``failure``
        finally:
            del self._syncing[full.base_offset]

    # Recovery checkpoints

    def begin_checkpoint(self) -> bool:
        """Begin to store a recovery checkpoint; False while the log is ahead of the files."""
        log = self._log
        if (
            not self._usable
            or log.log_end_offset != self._written_end
            or log.segment_base_offsets[-1] not in self._segments
        ):
            return False
        captured = self._checkpointer.capture(log)
        if captured is None:
            return False
        self._checkpointing = asyncio.create_task(self._checkpoint(captured))
        return True

    async def _checkpoint(self, captured: Captured) -> None:
        """Sync what a checkpoint covers, then store it; the next write or sync reports a failure.

        Nothing waits for this but a close.
        """
        try:
            await self.sync()
            with self._usable.fails_on_error():
                is_stored = await self._checkpointer.store(captured)
        except StorageError:
            self._writeback.failed(self)
        else:
            self._writeback.ended(self, is_stored=is_stored)
