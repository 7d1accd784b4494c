"""Recovery of one partition: makes the files of any stop fit to be served (D2, D3, E15).

After an unclean stop every batch is checked and replayed, and side files are removed and rebuilt. A
crash during a write leaves an incomplete or garbled batch, which may be truncated; a complete batch
in the wrong place is always damage.

Data above the recovery point may not be on disk although it can be read (a failed sync marks pages
clean), so it is copied into a new file, which is synced and renamed to the old name before anything
is served. A crash at any point of this leaves files that recover the same way.
"""

from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from fencelog.errors import CorruptionError, WireError
from fencelog.log import layout
from fencelog.log.config import LogConfig
from fencelog.log.leader_epochs import FIRST_EPOCH, LeaderEpochs
from fencelog.log.rebuild import LogBuilder
from fencelog.log.snapshot import decode_snapshot
from fencelog.log.values import SideFiles
from fencelog.ports import Disk
from fencelog.storage.checkpoint import is_temporary, read_file, replace_file
from fencelog.storage.clean_stop import checksum_of, is_side_file
from fencelog.storage.segment import Visit, WalkEnd, find_batch, read_first_header, walk
from fencelog.types import LeaderEpoch, Offset, TimestampMs
from fencelog.wire.batch import BatchHeader
from fencelog.wire.control import Marker, read_marker

Durability = Literal["fsync", "os"]
"""Where an acknowledged record is (D1): on stable storage, or in the page cache."""

SIDE_SUFFIXES = (layout.INDEX, layout.TIME_INDEX, layout.TXN_INDEX)
"""In the order of ``SideFiles``."""

_LEFTOVERS = (layout.CLEANED, ".deleted")
_COPY_BYTES = 4 << 20


class Recovered(NamedTuple):
    """The result of recovery: the state up to ``builder.log_end``, all of it durable."""

    builder: LogBuilder
    base_offsets: list[Offset]
    """Segments, oldest first; at least one."""
    truncated: str | None = None
    """Where the log was truncated, and why; None if it was not."""
    is_clean: bool = False
    """Whether the files are as the last clean stop left them."""


@dataclass(frozen=True, slots=True)
class _Bad:
    """The first bad batch: its segment, where it begins there, and what is wrong."""

    base_offset: Offset
    position: int
    problem: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """What is known of a partition before its files are read.

    Everything below ``recovery_point`` was synced, everything below ``log_start`` was deleted.
    ``clean``: the checksum from the last clean stop; side files are trusted if they match it.
    ``was_compacted``: offsets may be missing between batches (D3). ``was_created``: there is a
    segment, unless it was lost. ``leader_epoch``: nothing was ever written under a newer one.
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

    @property
    def _synced(self) -> Offset:
        """Everything below was synced: a log is synced up to a new start before it is stored."""
        return max(self.recovery_point, self.log_start)

    def _builder(self) -> LogBuilder:
        return LogBuilder(self.config, log_start=self.log_start, was_compacted=self.was_compacted)

    async def run(self) -> Recovered:
        """Recover the partition; raises CorruptionError naming file and offset (D3)."""
        epochs = await self._known_epochs()
        base_offsets = await self._segments(epochs)
        if self.clean and self.clean == await checksum_of(self.disk, self.directory, base_offsets):
            loaded = await self._load(base_offsets, epochs)
            if loaded is not None:
                return Recovered(loaded, base_offsets, is_clean=True)
        await self._remove_side_files()
        builder = self._builder()
        bad = await self._replay(builder, base_offsets, epochs)
        if bad is not None:
            await self._check_truncation(bad, builder.log_end, base_offsets)
            await self._forget_epochs()
            kept = [base for base in base_offsets if base <= bad.base_offset]
            await self._remove_segments(base_offsets[len(kept) :])
            base_offsets = kept
        elif builder.log_end < self._synced:
            raise CorruptionError(
                f"{self._path(base_offsets[-1])}: the log ends at offset {builder.log_end}, but "
                f"everything below {self._synced} was synced"
            )
        await self._rewrite(builder, base_offsets, truncates=bad is not None)
        await self._write_side_files(builder, base_offsets)
        truncated = None if bad is None else self._where(bad, builder.log_end)
        return Recovered(builder, base_offsets, truncated)

    def _path(self, base_offset: Offset, suffix: str = layout.LOG) -> str:
        return f"{self.directory}/{layout.file_name(base_offset, suffix)}"

    # Listing and repairing files

    async def _segments(self, epochs: LeaderEpochs) -> list[Offset]:
        """Finish swaps and deletions after a crash, and list the segments; create a first one."""
        await self._finish_swaps(epochs)
        found: list[Offset] = []
        snapshots: list[Offset] = []
        for name in await self.disk.list(self.directory):
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
        await self._remove_segments(deleted)
        segments = found[len(deleted) :]
        await self._check_newest(max(segments, default=Offset(-1)), snapshots)
        if not segments and not self.was_created and self.recovery_point <= self.log_start:
            await (await self.disk.open(self._path(self.log_start), create=True)).close()
            await self.disk.sync_directory(self.directory)
            return [self.log_start]
        if not segments or segments[0] > self.log_start:
            first = segments[0] if segments else self.recovery_point
            lost = (
                f"offsets {self.log_start} to {first - 1} were stored and not deleted"
                if first > self.log_start
                else "the partition had one"
            )
            raise CorruptionError(f"{self._path(self.log_start)}: the segment is missing; {lost}")
        return segments

    async def _check_newest(self, newest: Offset, snapshots: list[Offset]) -> None:
        """Raise CorruptionError if a snapshot tells of a newer segment, which was lost then.

        A snapshot is written once its segment has a durable name, and removed before it.
        """
        for base_offset in snapshots:
            if base_offset <= newest:
                continue
            with suppress(CorruptionError):
                decode_snapshot(await self._read(base_offset, layout.SNAPSHOT))
                break
        else:
            return
        raise CorruptionError(
            f"{self._path(base_offset)}: the segment is missing, but its snapshot is there"
        )

    async def _finish_swaps(self, epochs: LeaderEpochs) -> None:
        """Finish each swap that compaction had begun: replace the old segments by the new one."""
        names = await self.disk.list(self.directory)
        for name in names:
            base_offset = layout.parse_swap_name(name)
            if base_offset is None:
                continue
            path = f"{self.directory}/{name}"
            end = await self._end_of_swap(path, base_offset, epochs)
            parsed = [layout.parse_file_name(each) for each in names]
            replaced = [p[0] for p in parsed if p is not None and p[1] == layout.LOG]
            if end <= base_offset or end not in replaced:
                # The newest segment is never part of a round, so there always is a next one.
                raise CorruptionError(
                    f"{path}: ends at offset {end}, but no segment of {self.directory} begins there"
                )
            await self._remove_segments([b for b in sorted(replaced) if base_offset < b < end])
            await self.disk.rename(path, self._path(base_offset))
            await self.disk.sync_directory(self.directory)

    async def _end_of_swap(self, path: str, base_offset: Offset, epochs: LeaderEpochs) -> Offset:
        end = base_offset

        def visit(header: BatchHeader, batch: memoryview, position: int) -> str | None:
            nonlocal end
            if header.base_offset < end:
                return f"base offset {header.base_offset} after {end - 1}"
            end = header.next_offset
            return self._wrong_epoch(header, epochs)

        file = await self.disk.open(path)
        try:
            bad = await walk(file, visit)
        finally:
            await file.close()
        if bad.problem is not None:
            # It was synced before it got this name, and the segments it replaces may be removed.
            raise CorruptionError(f"{path}: damaged at position {bad.position}: {bad.problem}")
        return end

    async def _remove_segments(self, base_offsets: list[Offset]) -> None:
        # A snapshot without its segment means that the segment was lost.
        for suffixes in ((layout.SNAPSHOT,), layout.SEGMENT_SUFFIXES):
            for base_offset in base_offsets:
                for suffix in suffixes:
                    await self.disk.remove(self._path(base_offset, suffix))
            if base_offsets:
                await self.disk.sync_directory(self.directory)

    async def _known_epochs(self) -> LeaderEpochs:
        """Return the checkpoint's leader epochs, to check the batches'; none if it is damaged.

        The CRC of a batch does not cover its leader epoch. The checkpoint may be older than the log
        end; it never has epochs of truncated batches, because truncation removes it first.
        """
        path = f"{self.directory}/{layout.LEADER_EPOCH_CHECKPOINT}"
        try:
            text = await read_file(self.disk, path)
            entries = layout.decode_leader_epochs((text or b"").decode("ascii", "replace"))
        except CorruptionError:
            return LeaderEpochs()
        is_sane = all(entry.epoch <= self.leader_epoch for entry in entries)
        return LeaderEpochs(entries if is_sane else ())

    async def _remove_side_files(self) -> None:
        """Remove side files before the walk, so that a crash never leaves stale ones to be trusted.

        All but the leader epochs, which are needed to check batches while there is damage.
        """
        names = await self.disk.list(self.directory)
        side_files = [
            name for name in names if is_side_file(name) and name != layout.LEADER_EPOCH_CHECKPOINT
        ]
        for name in side_files:
            await self.disk.remove(f"{self.directory}/{name}")
        if side_files:
            await self.disk.sync_directory(self.directory)

    async def _forget_epochs(self) -> None:
        """Remove the leader epochs durably: after a truncation, the same offsets may get others."""
        await self.disk.remove(f"{self.directory}/{layout.LEADER_EPOCH_CHECKPOINT}")
        await self.disk.sync_directory(self.directory)

    # After an unclean stop

    async def _replay(
        self, builder: LogBuilder, base_offsets: list[Offset], epochs: LeaderEpochs
    ) -> _Bad | None:
        """Check and replay all batches; return the first bad one."""
        if len(base_offsets) > 1:
            # Snapshots are written: the names of their segments are durable before.
            await self.disk.sync_directory(self.directory)
        previous: tuple[Offset, int] | None = None
        for base_offset in base_offsets:
            if previous is not None:
                snapshot = builder.snapshot()
                await self._write(self._path(base_offset, layout.SNAPSHOT), snapshot)
            try:
                builder.open_segment(base_offset)
            except CorruptionError as error:
                assert previous is not None, base_offset
                return _Bad(*previous, problem=str(error))
            replayer = self._replayer(builder, base_offsets, epochs)
            end = await self._walk(base_offset, replayer)
            if end.problem is not None:
                return _Bad(base_offset, end.position, end.problem)
            previous = base_offset, end.position
        return None

    async def _walk(self, base_offset: Offset, visit: Visit) -> WalkEnd:
        file = await self.disk.open(self._path(base_offset))
        try:
            return await walk(file, visit)
        finally:
            await file.close()

    def _where(self, bad: _Bad, offset: Offset) -> str:
        path = self._path(bad.base_offset)
        return f"{path}: damaged at position {bad.position}, offset {offset}: {bad.problem}"

    async def _check_truncation(
        self, bad: _Bad, offset: Offset, base_offsets: list[Offset]
    ) -> None:
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

    async def _rewrite(
        self, builder: LogBuilder, base_offsets: list[Offset], *, truncates: bool
    ) -> None:
        """Copy the segments above the recovery point into new, synced files (D2)."""
        ends = [*base_offsets[1:], builder.log_end]
        copied = False
        for base_offset, end in zip(base_offsets, ends, strict=True):
            is_last = base_offset == base_offsets[-1]
            if end > self.recovery_point or (truncates and is_last):
                await self._copy(self._path(base_offset), builder.position if is_last else None)
                copied = True
        if copied:
            await self.disk.sync_directory(self.directory)

    async def _copy(self, path: str, size: int | None) -> None:
        await self.disk.remove(path + layout.CLEANED)
        old = await self.disk.open(path)
        new = await self.disk.open(path + layout.CLEANED, create=True)
        try:
            size = old.size if size is None else size
            while new.size < size:
                data = await old.read(new.size, min(_COPY_BYTES, size - new.size))
                if not data:
                    raise CorruptionError(f"{path}: the file shrank during recovery")
                await new.append([data])
            await new.sync()
        finally:
            await old.close()
            await new.close()
        await self.disk.rename(path + layout.CLEANED, path)

    async def _write_side_files(self, builder: LogBuilder, base_offsets: list[Offset]) -> None:
        for base_offset in base_offsets[:-1]:
            side_files = builder.side_files(base_offset)
            for suffix, content in zip(SIDE_SUFFIXES, side_files, strict=True):
                await self._write(self._path(base_offset, suffix), content)
        epochs = layout.encode_leader_epochs(builder.leader_epochs).encode("ascii")
        await self._write(f"{self.directory}/{layout.LEADER_EPOCH_CHECKPOINT}", epochs)

    async def _write(self, path: str, content: bytes) -> None:
        await replace_file(self.disk, path, content, durable=False)

    def _replayer(
        self, builder: LogBuilder, base_offsets: list[Offset], epochs: LeaderEpochs
    ) -> Visit:
        """Return the visitor of a walk: checks each batch's place in the log, then replays it."""
        base_offset = builder.log_end

        def visit(header: BatchHeader, batch: memoryview, position: int) -> None:
            problem = self._wrong_epoch(header, epochs) or builder.problem(header)
            if (
                problem is None
                and base_offset == base_offsets[-1]
                and header.base_offset > builder.log_end
            ):
                # Compaction never touches the newest segment.
                problem = f"offsets {builder.log_end} to {header.base_offset - 1} are missing"
            if problem is not None:
                bad = _Bad(base_offset, position, problem)
                raise CorruptionError(self._where(bad, builder.log_end))
            builder.replay(header, _marker(batch) if header.is_control else None, position)

        return visit

    def _wrong_epoch(self, header: BatchHeader, epochs: LeaderEpochs) -> str | None:
        if header.leader_epoch > self.leader_epoch:
            return f"leader epoch {header.leader_epoch} is above {self.leader_epoch}, the latest"
        if epochs.contradicts(header.leader_epoch, header.base_offset):
            known = layout.LEADER_EPOCH_CHECKPOINT
            return f"leader epoch {header.leader_epoch} does not match {known}"
        return None

    # After a clean stop

    async def _load(self, base_offsets: list[Offset], epochs: LeaderEpochs) -> LogBuilder | None:
        """Load full segments from their side files and walk the last; None if any is invalid."""
        builder = self._builder()
        try:
            for base_offset, end in pairwise(base_offsets):
                await self._load_segment(builder, base_offset, end)
            if base_offsets[-1] > 0:
                # Producers whose batches were deleted are known from the snapshot only.
                if not epochs.entries:
                    return None
                snapshot = await self._read(base_offsets[-1], layout.SNAPSHOT)
                builder.restore_producers(snapshot)
                older = (each for each in epochs.entries if each.offset < base_offsets[-1])
                builder.restore_leader_epochs(older)
            builder.open_segment(base_offsets[-1])
        except CorruptionError:
            return None
        replayer = self._replayer(builder, base_offsets, epochs)
        end_of_walk = await self._walk(base_offsets[-1], replayer)
        if end_of_walk.problem is not None or builder.log_end != self.recovery_point:
            return None
        return builder

    async def _load_segment(self, builder: LogBuilder, base_offset: Offset, end: Offset) -> None:
        contents = [await self._read(base_offset, suffix) for suffix in SIDE_SUFFIXES]
        file = await self.disk.open(self._path(base_offset))
        try:
            first = await read_first_header(file)
            builder.load_segment(
                base_offset,
                size=file.size,
                end_offset=end,
                side_files=SideFiles(*contents),
                first_timestamp=TimestampMs(-1) if first is None else first.max_timestamp,
            )
        finally:
            await file.close()

    async def _read(self, base_offset: Offset, suffix: str) -> bytes:
        path = self._path(base_offset, suffix)
        content = await read_file(self.disk, path)
        if content is None:
            raise CorruptionError(f"{path}: the file is missing")
        return content


def _marker(batch: memoryview) -> Marker | None:
    try:
        return read_marker(batch)
    except WireError:
        return None  # a control batch of another kind only takes offsets
