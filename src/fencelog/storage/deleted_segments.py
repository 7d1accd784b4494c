"""Removes segments at a start, and keeps what those below the log start tell of producers (D4, E4).

Segments are deleted after the log start is stored. Where a log was deleted up to its end, the
newest segment stays, and is below the log start once another one is begun: a crash may come before
the snapshot of that one is durable.
"""

from collections.abc import Sequence

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.log.config import LogConfig
from fencelog.log.leader_epochs import LeaderEpochs
from fencelog.log.rebuild import LogBuilder
from fencelog.ports import Disk
from fencelog.storage.checkpoint import replace_file
from fencelog.storage.replay import Replay
from fencelog.storage.resume_point import snapshot_at
from fencelog.types import LeaderEpoch, Offset


async def remove_segments(disk: Disk, directory: str, base_offsets: Sequence[Offset]) -> None:
    """Remove these segments durably; a snapshot goes first: without its segment, that was lost."""
    for suffixes in ((layout.SNAPSHOT,), layout.SEGMENT_SUFFIXES):
        for base_offset in base_offsets:
            for suffix in suffixes:
                await disk.remove(f"{directory}/{layout.file_name(base_offset, suffix)}")
        if base_offsets:
            await disk.sync_directory(directory)


async def keep_producers(
    disk: Disk,
    directory: str,
    deleted: Sequence[Offset],
    first: Offset,
    config: LogConfig,
    leader_epoch: LeaderEpoch,
) -> None:
    """Make durable what segments tell of producers that are about to be removed.

    ``first``: the segment that stays. If it has no sound snapshot, the batches of ``deleted`` are
    read; where they are damaged or incomplete, the producers stay unknown. Raises StorageError.
    """
    snapshot = await snapshot_at(disk, directory, first)
    if snapshot is None:
        snapshot = await _snapshot_of(disk, directory, deleted, first, config, leader_epoch)
    if snapshot is not None:
        await disk.sync_directory(directory)  # a snapshot tells that there is its segment
        path = f"{directory}/{layout.file_name(first, layout.SNAPSHOT)}"
        await replace_file(disk, path, snapshot)


async def _snapshot_of(
    disk: Disk,
    directory: str,
    deleted: Sequence[Offset],
    end: Offset,
    config: LogConfig,
    leader_epoch: LeaderEpoch,
) -> bytes | None:
    """Return the snapshot at the end of segments; None if they do not tell it."""
    begin = await snapshot_at(disk, directory, deleted[0])
    if begin is None:
        return None
    builder = LogBuilder(config, log_start=deleted[0])
    builder.restore_snapshot(begin)
    replay = Replay(
        disk=disk,
        directory=directory,
        builder=builder,
        epochs=LeaderEpochs(),
        leader_epoch=leader_epoch,
        newest=None,
        recovery_point=None,
    )
    try:
        for base_offset in deleted:
            builder.open_segment(base_offset)
            if (await replay.segment(base_offset)).problem is not None:
                return None
    except CorruptionError:
        return None
    return builder.snapshot() if builder.log_end == end else None
