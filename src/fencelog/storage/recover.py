"""Recovery of one partition: makes the files of any stop fit to be served (D2, D3, E15).

After an unclean stop the batches above the recovery checkpoint are checked and replayed; without a
checkpoint, or if a file is not as it says, all are, and side files are removed and rebuilt. What
deleted segments had of producers is in the snapshot of the first segment that is left. A crash
during a write leaves an incomplete or garbled batch, which may be truncated; a complete batch in
the wrong place is always damage. All is durable before anything is served. A crash at any point of
this leaves files that recover the same way.
"""

import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.log.config import LogConfig
from fencelog.log.leader_epochs import FIRST_EPOCH, LeaderEpochs
from fencelog.log.rebuild import LogBuilder
from fencelog.log.recovery_checkpoint import RecoveryCheckpoint, side_checksum
from fencelog.log.snapshot import decode_snapshot
from fencelog.ports import Disk
from fencelog.storage.checkpoint import is_temporary, read_file, remove_file, replace_file
from fencelog.storage.clean_stop import checksum_of, remove_side_files
from fencelog.storage.deleted_segments import (
    epochs_of,
    keep_epochs,
    keep_producers,
    remove_segments,
    write_epochs,
)
from fencelog.storage.replay import FORK, Bad, Replay, damage, wrong_epoch
from fencelog.storage.resume_point import checkpoint_below, snapshot_at
from fencelog.storage.segment import find_batch, read_first_header, walk
from fencelog.storage.side_files import SIDE_SUFFIXES, read_side_files, write_side_files
from fencelog.types import LeaderEpoch, Offset, TimestampMs
from fencelog.wire.batch import BatchHeader

Durability = Literal["fsync", "os"]
"""Where an acknowledged record is (D1): on stable storage, or in the page cache."""

_UNLIMITED = Offset(sys.maxsize)
_LEFTOVERS = (layout.CLEANED, ".deleted")


class SideState(NamedTuple):
    """The side files of a full segment: their checksum, and whether they are synced."""

    checksum: int
    is_synced: bool


class Recovered(NamedTuple):
    """The result of recovery: the state up to ``builder.log_end``, all of it durable."""

    builder: LogBuilder
    base_offsets: list[Offset]
    """Segments, oldest first; at least one."""
    side_states: dict[Offset, SideState]
    """Of each full segment."""
    truncated: str | None = None
    """Where the log was truncated, and why; None if it was not."""
    is_clean: bool = False
    """Whether the files are as the last clean stop left them."""
    checkpoint: RecoveryCheckpoint | None = None
    """From where on batches would be read if the next stop were unclean; None: from the start."""
    knows_deleted: bool = True
    """Whether producers are known whose batches are below the first segment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """What is known of a partition before its files are read.

    Everything below ``recovery_point`` was synced, everything below ``log_start`` was deleted.
    ``clean``: the checksum from the last clean stop; side files are trusted if they match it.
    ``was_compacted``: offsets may be missing between batches (D3). ``was_created``: there is a
    segment, unless it was lost. ``leader_epoch``: nothing was ever written under a newer one.
    ``checkpoint``: the stored recovery checkpoint; its segments are not read if they match it.
    ``high_watermark``: of a replica: it may not have been committed beyond. ``truncate_to``: where
    its log is to end, or at the batch before.
    """

    disk: Disk
    directory: str
    config: LogConfig
    clean: str | None
    recovery_point: Offset
    log_start: Offset
    durability: Durability
    was_compacted: bool = False
    was_created: bool = False
    leader_epoch: LeaderEpoch = FIRST_EPOCH
    checkpoint: RecoveryCheckpoint | None = None
    high_watermark: Offset | None = None
    truncate_to: Offset | None = None

    @property
    def _synced(self) -> Offset:
        """Everything below was synced: a log is synced up to a new start before it is stored."""
        covered = Offset(0) if self.checkpoint is None else self.checkpoint.end_offset
        if self.durability == "fsync" and self.high_watermark is not None:
            covered = max(covered, self.high_watermark)
        return max(self.recovery_point, self.log_start, covered)

    @property
    def _limit(self) -> Offset:
        """Recovery continues from nothing later: transactions that end above HW are unstable."""
        limits = (self.high_watermark, self.truncate_to)
        limit = min((each for each in limits if each is not None), default=_UNLIMITED)
        return max(limit, self.log_start)

    def _builder(self) -> LogBuilder:
        return LogBuilder(self.config, log_start=self.log_start, was_compacted=self.was_compacted)

    async def run(self) -> Recovered:
        """Recover the partition; raises CorruptionError naming file and offset (D3)."""
        base_offsets, epochs = await self._segments(await self._known_epochs())
        if not self.was_created:
            # A kill may have come before its names were synced; it counts as created from now on.
            await self.disk.sync_directory(self.directory)
        is_sound = self.clean is not None and self.clean == await checksum_of(
            self.disk, self.directory, base_offsets
        )
        is_limited = self.truncate_to is not None or base_offsets[-1] > self._limit
        if is_sound and not is_limited:
            loaded = await self._load(base_offsets, epochs)
            if loaded is not None:
                return loaded
        checkpoint = await self._resume_point(base_offsets, epochs if is_sound else None)
        if self.truncate_to is not None:
            await self._store_checkpoint(checkpoint)
        loaded = None if checkpoint is None else await self._resume(base_offsets, checkpoint)
        if loaded is None:
            loaded = await self._begin(base_offsets, epochs)
        return await self._recover(loaded, epochs)

    async def _resume_point(
        self, base_offsets: list[Offset], epochs: LeaderEpochs | None
    ) -> RecoveryCheckpoint | None:
        """Return where to continue from, None to read everything; ``epochs`` of a clean stop."""
        known = self.checkpoint if epochs is None else epochs
        if known is None or self._limit == _UNLIMITED:
            # Where a clean stop's newest segment is not as it was left, all of the log is read.
            return self.checkpoint if self.clean is None else None
        if isinstance(known, RecoveryCheckpoint) and known.end_offset <= self._limit:
            return known
        return await checkpoint_below(self.disk, self.directory, base_offsets, self._limit, known)

    async def _store_checkpoint(self, checkpoint: RecoveryCheckpoint | None) -> None:
        """Let no recovery continue above where the log is to end, from before it is cut."""
        path = f"{self.directory}/{layout.RECOVERY_CHECKPOINT}"
        if checkpoint is None:
            await remove_file(self.disk, path)
        else:
            await replace_file(self.disk, path, checkpoint.encode())

    async def _recover(self, loaded: Recovered, epochs: LeaderEpochs) -> Recovered:
        """Replay and make durable what is not loaded yet."""
        builder, base_offsets = loaded.builder, loaded.base_offsets
        replay = self._replay(builder, base_offsets, epochs, self._synced)
        is_begun = loaded.checkpoint is not None
        rest = base_offsets[len(loaded.side_states) :]
        bad = await replay.segments(rest, is_begun=is_begun)
        is_fork = bad is not None and bad.problem == FORK
        if is_fork:
            self._check_fork(builder.log_end)
        elif bad is not None:
            await self._check_truncation(bad, builder.log_end, base_offsets)
        elif builder.log_end < self._synced:
            raise CorruptionError(
                f"{self._path(base_offsets[-1])}: the log ends at offset {builder.log_end}, but "
                f"everything below {self._synced} was synced"
            )
        if builder.leader_epochs != epochs.entries:
            # They never have those of truncated batches: the same offsets may get others.
            await write_epochs(self.disk, self.directory, builder.leader_epochs)
        if bad is not None:
            kept = [base for base in base_offsets if base <= bad.base_offset]
            for base_offset in reversed(base_offsets[len(kept) :]):
                # One after the other: a crash leaves no gap between segments.
                await remove_segments(self.disk, self.directory, [base_offset])
            await self._truncate(kept[-1], builder.position)
            base_offsets, rest = kept, kept[len(loaded.side_states) :]
        if bad is not None or replay.has_rewritten:
            await self.disk.sync_directory(self.directory)
        written = await self._write_side_files(builder, rest)
        return loaded._replace(
            base_offsets=base_offsets,
            side_states={**loaded.side_states, **written},
            truncated=None if bad is None or is_fork else self._where(bad, builder.log_end),
        )

    def _path(self, base_offset: Offset, suffix: str = layout.LOG) -> str:
        return f"{self.directory}/{layout.file_name(base_offset, suffix)}"

    # Listing and repairing files

    async def _segments(self, epochs: LeaderEpochs) -> tuple[list[Offset], LeaderEpochs]:
        """Finish swaps and deletions after a crash, and list the segments; create a first one.

        Returns with them the leader epochs, of which those of deleted segments are kept.
        """
        names = await self.disk.list(self.directory)
        if await self._finish_swaps(names, epochs):
            names = await self.disk.list(self.directory)
        found: list[Offset] = []
        snapshots: list[Offset] = []
        for name in names:
            parsed = layout.parse_file_name(name)
            if parsed is not None and parsed[1] == layout.LOG:
                found.append(parsed[0])
            elif parsed is not None and parsed[1] == layout.SNAPSHOT:
                snapshots.append(parsed[0])
            elif is_temporary(name) or name.endswith(_LEFTOVERS):
                await self.disk.remove(f"{self.directory}/{name}")
        # Segments are deleted oldest first, after the log start is stored: those that are still
        # below it were to be deleted.
        deleted = [base for base, after in pairwise(found) if after <= self.log_start]
        segments = found[len(deleted) :]
        if deleted and self.was_compacted:
            below = await epochs_of(self.disk, self.directory, deleted, epochs, self.leader_epoch)
            epochs = await keep_epochs(self.disk, self.directory, segments[0], below, epochs)
        elif deleted:
            await keep_producers(
                self.disk, self.directory, deleted, segments[0], self.config, self.leader_epoch
            )
        await remove_segments(self.disk, self.directory, deleted)
        await self._check_newest(max(segments, default=Offset(-1)), snapshots)
        if not segments and not self.was_created and self._synced <= self.log_start:
            await (await self.disk.open(self._path(self.log_start), create=True)).close()
            await self.disk.sync_directory(self.directory)
            return [self.log_start], epochs
        if not segments or segments[0] > self.log_start:
            first = segments[0] if segments else self._synced
            lost = (
                f"offsets {self.log_start} to {first - 1} were stored and not deleted"
                if first > self.log_start
                else "the partition had one"
            )
            raise CorruptionError(f"{self._path(self.log_start)}: the segment is missing; {lost}")
        return segments, epochs

    async def _check_newest(self, newest: Offset, snapshots: list[Offset]) -> None:
        """Raise CorruptionError if a snapshot tells of a newer segment, which was lost then.

        A snapshot is written once its segment has a durable name, and removed before it.
        """
        for base_offset in snapshots:
            if base_offset <= newest:
                continue
            with suppress(CorruptionError):
                decode_snapshot(await self._read_snapshot(base_offset))
                break
        else:
            return
        raise CorruptionError(
            f"{self._path(base_offset)}: the segment is missing, but its snapshot is there"
        )

    async def _finish_swaps(self, names: list[str], epochs: LeaderEpochs) -> bool:
        """Finish each swap that compaction had begun: replace the old segments by the new one.

        Returns whether there was one.
        """
        has_swaps = False
        for name in names:
            base_offset = layout.parse_swap_name(name)
            if base_offset is None:
                continue
            if not has_swaps:  # what a killed broker has removed of the old segments stays gone
                await self.disk.sync_directory(self.directory)
            has_swaps = True
            path = f"{self.directory}/{name}"
            end = await self._end_of_swap(path, base_offset, epochs)
            parsed = [layout.parse_file_name(each) for each in names]
            replaced = [p[0] for p in parsed if p is not None and p[1] == layout.LOG]
            if end <= base_offset or end not in replaced:
                # The newest segment is never part of a round, so there always is a next one.
                raise CorruptionError(
                    f"{path}: ends at offset {end}, but no segment of {self.directory} begins there"
                )
            inside = [each for each in sorted(replaced) if base_offset < each < end]
            await remove_segments(self.disk, self.directory, inside)
            await self.disk.rename(path, self._path(base_offset))
            await self.disk.sync_directory(self.directory)
        return has_swaps

    async def _end_of_swap(self, path: str, base_offset: Offset, epochs: LeaderEpochs) -> Offset:
        end = base_offset

        def visit(header: BatchHeader, batch: memoryview, position: int) -> str | None:
            nonlocal end
            if header.base_offset < end:
                return f"base offset {header.base_offset} after {end - 1}"
            end = header.next_offset
            return wrong_epoch(header, epochs, self.leader_epoch)

        file = await self.disk.open(path)
        try:
            bad = await walk(file, visit)
        finally:
            await file.close()
        if bad.problem is not None:
            # It was synced before it got this name, and the segments it replaces may be removed.
            raise CorruptionError(f"{path}: damaged at position {bad.position}: {bad.problem}")
        return end

    async def _known_epochs(self) -> LeaderEpochs:
        """Return the checkpoint's leader epochs, to check the batches'; none if it is damaged.

        The CRC of a batch does not cover its leader epoch. The checkpoint may be older than the log
        end; it never has epochs of truncated batches, because a truncation writes it first.
        """
        path = f"{self.directory}/{layout.LEADER_EPOCH_CHECKPOINT}"
        try:
            text = await read_file(self.disk, path)
            entries = layout.decode_leader_epochs((text or b"").decode("ascii", "replace"))
        except CorruptionError:
            return LeaderEpochs()
        is_sane = all(entry.epoch <= self.leader_epoch for entry in entries)
        return LeaderEpochs(entries if is_sane else ())

    # After an unclean stop

    def _replay(
        self,
        builder: LogBuilder,
        base_offsets: list[Offset],
        epochs: LeaderEpochs,
        recovery_point: Offset | None,
    ) -> Replay:
        return Replay(
            disk=self.disk,
            directory=self.directory,
            builder=builder,
            epochs=epochs,
            leader_epoch=self.leader_epoch,
            newest=base_offsets[-1] if self.high_watermark is None else None,
            recovery_point=recovery_point,
            truncate_to=self.truncate_to,
        )

    def _where(self, bad: Bad, offset: Offset) -> str:
        return damage(self._path(bad.base_offset), bad.position, offset, bad.problem)

    async def _check_truncation(self, bad: Bad, offset: Offset, base_offsets: list[Offset]) -> None:
        """Raise CorruptionError unless the log may be truncated here (D3)."""
        path = self._path(bad.base_offset)
        where = self._where(bad, offset)
        if offset < self._synced:
            raise CorruptionError(f"{where}; everything below {self._synced} was synced")
        if self.durability != "fsync":
            return
        if bad.base_offset != base_offsets[-1]:
            # A full segment is synced before the next one is created.
            raise CorruptionError(f"{where}; segment {base_offsets[-1]} follows it")
        file = await self.disk.open(path)
        try:
            after = await find_batch(file, bad.position, offset)
        finally:
            await file.close()
        if after is not None:
            raise CorruptionError(f"{where}; a sound batch follows it at position {after}")

    def _check_fork(self, log_end: Offset) -> None:
        """Raise CorruptionError if a truncation to the fork would take committed batches (F8)."""
        if self.high_watermark is not None and log_end < self.high_watermark:
            raise CorruptionError(
                f"{self.directory}: the leader's log forks from this one at offset {log_end}, "
                f"below the high watermark, {self.high_watermark}"
            )

    async def _truncate(self, base_offset: Offset, size: int) -> None:
        """Cut off what follows the last good batch, durably, and what is known of it."""
        for suffix in SIDE_SUFFIXES:
            await self.disk.remove(self._path(base_offset, suffix))
        file = await self.disk.open(self._path(base_offset))
        try:
            await file.truncate(size)
            await file.sync()
        finally:
            await file.close()

    async def _write_side_files(
        self, builder: LogBuilder, base_offsets: list[Offset]
    ) -> dict[Offset, SideState]:
        """Write the side files of all of these segments but the newest."""
        states = {}
        for base_offset in base_offsets[:-1]:
            side_files = builder.side_files(base_offset)
            await write_side_files(self.disk, self._path(base_offset), side_files)
            states[base_offset] = SideState(side_checksum(side_files), is_synced=False)
        return states

    async def _resume(
        self, base_offsets: list[Offset], checkpoint: RecoveryCheckpoint
    ) -> Recovered | None:
        """Load what a checkpoint covers; None unless the files are as it says."""
        newest = checkpoint.newest
        # Segments below a later log start may be deleted.
        covered = {e.base_offset: e for e in checkpoint.full if e.base_offset >= base_offsets[0]}
        full = [base for base in base_offsets if base < newest.base_offset]
        if newest.base_offset not in base_offsets or full != sorted(covered):
            return None
        builder = self._builder()
        states = {}
        try:
            for base_offset, end in pairwise([*full, newest.base_offset]):
                size, checksum = await self._load_segment(builder, base_offset, end)
                if (base_offset, size, checksum) != covered[base_offset]:
                    return None
                states[base_offset] = SideState(checksum, is_synced=True)
            if await self._size_of(newest.base_offset) < newest.size:
                return None
            builder.resume(checkpoint)
        except CorruptionError:
            return None
        return Recovered(builder, base_offsets, states, checkpoint=checkpoint)

    async def _begin(self, base_offsets: list[Offset], epochs: LeaderEpochs) -> Recovered:
        """Load what is known below the first segment, all of whose batches are to be read."""
        builder, first = self._builder(), base_offsets[0]
        snapshot = await snapshot_at(self.disk, self.directory, first)
        below = () if snapshot is None else decode_snapshot(snapshot).epochs
        if self.was_compacted:  # batches that are gone without a trace may have followed it
            epochs = await keep_epochs(self.disk, self.directory, first, below, epochs)
            below, snapshot = epochs.before(first), None
        # Before the walk, so that a crash never leaves stale ones to be trusted. The leader epochs
        # are needed to check batches while there is damage.
        kept = None if snapshot is None else layout.file_name(first, layout.SNAPSHOT)
        await remove_side_files(self.disk, self.directory, (layout.LEADER_EPOCH_CHECKPOINT, kept))
        if snapshot is not None:
            builder.restore_snapshot(snapshot)
        builder.restore_leader_epochs(below or epochs.before(first))
        return Recovered(builder, base_offsets, {}, knows_deleted=snapshot is not None)

    async def _size_of(self, base_offset: Offset) -> int:
        file = await self.disk.open(self._path(base_offset))
        try:
            return file.size
        finally:
            await file.close()

    # After a clean stop

    async def _load(self, base_offsets: list[Offset], epochs: LeaderEpochs) -> Recovered | None:
        """Load full segments from their side files and walk the last; None if any is invalid."""
        builder = self._builder()
        states = {}
        try:
            for base_offset, end in pairwise(base_offsets):
                _, checksum = await self._load_segment(builder, base_offset, end)
                states[base_offset] = SideState(checksum, is_synced=True)
            if base_offsets[-1] > 0:
                # Producers and owners whose batches are below are known from the snapshot only.
                if not epochs.entries:
                    return None
                snapshot = await self._read_snapshot(base_offsets[-1])
                builder.restore_snapshot(snapshot)
                older = (each for each in epochs.entries if each.offset < base_offsets[-1])
                builder.restore_leader_epochs(older)
            builder.open_segment(base_offsets[-1])
        except CorruptionError:
            return None
        replay = self._replay(builder, base_offsets, epochs, None)
        end_of_walk = await replay.segment(base_offsets[-1])
        if end_of_walk.problem is not None or builder.log_end != self.recovery_point:
            return None
        return Recovered(builder, base_offsets, states, is_clean=True, checkpoint=self.checkpoint)

    async def _load_segment(
        self, builder: LogBuilder, base_offset: Offset, end: Offset
    ) -> tuple[int, int]:
        """Add a full segment by its side files; return its size and their checksum."""
        side_files = await read_side_files(self.disk, self._path(base_offset))
        file = await self.disk.open(self._path(base_offset))
        try:
            first = await read_first_header(file)
            builder.load_segment(
                base_offset,
                size=file.size,
                end_offset=end,
                side_files=side_files,
                first_timestamp=TimestampMs(-1) if first is None else first.max_timestamp,
            )
            return file.size, side_checksum(side_files)
        finally:
            await file.close()

    async def _read_snapshot(self, base_offset: Offset) -> bytes:
        path = self._path(base_offset, layout.SNAPSHOT)
        content = await read_file(self.disk, path)
        if content is None:
            raise CorruptionError(f"{path}: the file is missing")
        return content
