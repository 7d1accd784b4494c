"""Replays the batches of segment files after a stop: each is checked, applied, and made durable.

Data above the recovery point may not be on disk although it can be read: a failed sync marks pages
clean. So each of its batches is written once more in its place, with the very bytes that were
checked, before the file is synced (D2, ADR 16). Nothing below the recovery point is written.
"""

from dataclasses import dataclass

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.log.leader_epochs import LeaderEpochs
from fencelog.log.rebuild import LogBuilder
from fencelog.ports import Disk
from fencelog.storage.checkpoint import replace_file
from fencelog.storage.segment import WalkEnd, walk
from fencelog.types import LeaderEpoch, Offset
from fencelog.wire.batch import BatchHeader
from fencelog.wire.control import read_control

FORK = "the log is truncated here"
"""The problem of the first batch that ends above the offset to truncate to."""


@dataclass(frozen=True, slots=True)
class Bad:
    """The first bad batch: its segment, where it begins there, and what is wrong."""

    base_offset: Offset
    position: int
    problem: str


@dataclass(kw_only=True, slots=True)
class Replay:
    """The log under construction, and what its batches must agree with."""

    disk: Disk
    directory: str
    builder: LogBuilder
    epochs: LeaderEpochs
    leader_epoch: LeaderEpoch
    newest: Offset | None
    """Base offset of the newest segment, which has no gaps; None: a replica's may have."""
    recovery_point: Offset | None
    """None after a clean stop: nothing is written."""
    truncate_to: Offset | None = None
    """Where the log is to end."""
    has_rewritten: bool = False
    """Whether batches above the recovery point were found, and are durable now."""

    async def segments(self, base_offsets: list[Offset], *, is_begun: bool) -> Bad | None:
        """Replay these segments; return the first bad batch.

        ``is_begun``: the log is already loaded up to within the first of them.
        """
        if len(base_offsets) > 1:
            # Snapshots are written: the names of their segments are durable before.
            await self.disk.sync_directory(self.directory)
        previous: tuple[Offset, int] | None = None
        for base_offset in base_offsets:
            if previous is not None:
                snapshot = f"{self.directory}/{layout.file_name(base_offset, layout.SNAPSHOT)}"
                await replace_file(self.disk, snapshot, self.builder.snapshot(), durable=False)
            try:
                if previous is not None or not is_begun:
                    self.builder.open_segment(base_offset)
            except CorruptionError as error:
                assert previous is not None, base_offset
                return Bad(*previous, problem=str(error))
            end = await self.segment(base_offset)
            if end.problem is not None:
                return Bad(base_offset, end.position, end.problem)
            previous = base_offset, end.position
        return None

    async def segment(self, base_offset: Offset) -> WalkEnd:
        """Replay the rest of the segment that is being built; return where its good batches end."""
        path = f"{self.directory}/{layout.file_name(base_offset, layout.LOG)}"
        builder, synced = self.builder, self.recovery_point
        unsynced: int | None = None

        def visit(header: BatchHeader, batch: memoryview, position: int) -> str | None:
            nonlocal unsynced
            if self.truncate_to is not None and header.next_offset > self.truncate_to:
                return FORK
            problem = wrong_epoch(header, self.epochs, self.leader_epoch) or builder.problem(header)
            if (
                problem is None
                and base_offset == self.newest
                and header.base_offset > builder.log_end
            ):
                # Compaction never touches the newest segment.
                problem = f"offsets {builder.log_end} to {header.base_offset - 1} are missing"
            if problem is not None:
                raise CorruptionError(damage(path, position, builder.log_end, problem))
            builder.replay(header, read_control(batch) if header.is_control else None, position)
            if unsynced is None and synced is not None and header.next_offset > synced:
                unsynced = position
            return None

        async def rewrite(position: int, good: memoryview) -> None:
            if unsynced is not None:
                start = max(unsynced - position, 0)
                await file.rewrite(position + start, good[start:])

        file = await self.disk.open(path)
        try:
            end = await walk(file, visit, start=builder.position, passed=rewrite)
            if unsynced is not None:
                await file.sync()
                self.has_rewritten = True
        finally:
            await file.close()
        return end


def damage(path: str, position: int, offset: Offset, problem: str) -> str:
    """Return the message that names a damaged place."""
    return f"{path}: damaged at position {position}, offset {offset}: {problem}"


def wrong_epoch(header: BatchHeader, epochs: LeaderEpochs, newest: LeaderEpoch) -> str | None:
    """Return why a batch cannot have its leader epoch, which its CRC does not cover; or None."""
    if header.leader_epoch > newest:
        return f"leader epoch {header.leader_epoch} is above {newest}, the latest"
    if epochs.contradicts(header.leader_epoch, header.base_offset):
        known = layout.LEADER_EPOCH_CHECKPOINT
        return f"leader epoch {header.leader_epoch} does not match {known}"
    return None
