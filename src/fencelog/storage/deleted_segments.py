"""Removes segments at a start, and keeps what those below the log start tell (D4, E4, F7).

Segments are deleted after the log start is stored. Where a log was deleted up to its end, the
newest segment stays, and is below the log start once another one is begun: a crash may come before
the snapshot of that one is durable. Of a compacted log only the leader epochs are kept: batches
that are gone without a trace may have followed what else a snapshot says.
"""

from collections.abc import Sequence

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.log.config import LogConfig
from fencelog.log.leader_epochs import LeaderEpochs
from fencelog.log.rebuild import LogBuilder
from fencelog.log.values import EpochStart
from fencelog.ports import Disk
from fencelog.storage.checkpoint import replace_file
from fencelog.storage.replay import Replay, wrong_epoch
from fencelog.storage.resume_point import snapshot_at
from fencelog.storage.segment import walk
from fencelog.types import LeaderEpoch, Offset
from fencelog.wire.batch import BatchHeader


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


async def epochs_of(
    disk: Disk,
    directory: str,
    deleted: Sequence[Offset],
    known: LeaderEpochs,
    leader_epoch: LeaderEpoch,
) -> tuple[EpochStart, ...]:
    """Return the leader epochs of segments that are about to be removed, up to damage (F7).

    ``known``: those of the leader epoch checkpoint. Raises StorageError.
    """
    epochs = LeaderEpochs(known.before(deleted[0]))

    def visit(header: BatchHeader, batch: memoryview, position: int) -> str | None:
        del batch, position
        problem = wrong_epoch(header, known, leader_epoch)
        if problem is None and header.leader_epoch > epochs.latest:
            epochs.begin(LeaderEpoch(header.leader_epoch), header.base_offset)
        return problem

    for base_offset in deleted:
        file = await disk.open(f"{directory}/{layout.file_name(base_offset, layout.LOG)}")
        try:
            end = await walk(file, visit)
        finally:
            await file.close()
        if end.problem is not None:
            break
    return epochs.entries


async def keep_epochs(
    disk: Disk,
    directory: str,
    first: Offset,
    below: Sequence[EpochStart],
    known: LeaderEpochs,
) -> LeaderEpochs:
    """Make durable the leader epochs below a log's first segment, and return all of them (F7).

    ``known``: those of the leader epoch checkpoint, which is written anew if it has not the newest
    one of ``below``. Raises StorageError.
    """
    begun = known.before(first)
    if not below or (begun and begun[-1].epoch >= below[-1].epoch):
        return known
    newer = [e for e in known.entries if e.epoch > below[-1].epoch and e.offset >= first]
    kept = LeaderEpochs([*below, *newer])
    await write_epochs(disk, directory, kept.entries)
    return kept


async def write_epochs(disk: Disk, directory: str, entries: Sequence[EpochStart]) -> None:
    """Replace the leader epoch checkpoint durably. Raises StorageError."""
    content = layout.encode_leader_epochs(entries).encode("ascii")
    await replace_file(disk, f"{directory}/{layout.LEADER_EPOCH_CHECKPOINT}", content)


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
