"""Where recovery may continue if not at its checkpoint: at the newest snapshot up to an offset.

A replica is truncated at a fork, or knows its high watermark only: what was stored of the log at a
later offset says too much (F7). Snapshots are taken where segments begin, and have a checksum.
"""

from collections.abc import Sequence

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.log.leader_epochs import LeaderEpochs
from fencelog.log.partition_log import PartitionLog
from fencelog.log.producers import Producers
from fencelog.log.recovery_checkpoint import (
    FullSegment,
    RecoveryCheckpoint,
    checkpoint_at,
    side_checksum,
)
from fencelog.log.snapshot import Snapshot, decode_snapshot, encode_snapshot
from fencelog.ports import Disk
from fencelog.storage.checkpoint import read_file, replace_file
from fencelog.storage.side_files import read_side_files
from fencelog.types import NO_PRODUCER_ID, Offset

_EMPTY = encode_snapshot(Snapshot(Producers(), NO_PRODUCER_ID))


async def checkpoint_below(
    disk: Disk,
    directory: str,
    base_offsets: Sequence[Offset],
    limit: Offset,
    known: RecoveryCheckpoint | LeaderEpochs,
) -> RecoveryCheckpoint | None:
    """Return a recovery checkpoint at the newest sound snapshot up to an offset, None without one.

    ``known``: a checkpoint whose segments may be trusted, as far as it goes; or the leader epochs
    of a cleanly stopped log, all of whose files may be. Raises StorageError.
    """
    if isinstance(known, RecoveryCheckpoint):
        limit = min(limit, known.newest.base_offset)
    for number in reversed(range(len(base_offsets))):
        base_offset = base_offsets[number]
        if base_offset > limit:
            continue
        snapshot = await snapshot_at(disk, directory, base_offset)
        if snapshot is None:
            continue
        if isinstance(known, RecoveryCheckpoint):
            epochs = known.leader_epochs
            full = [each for each in known.full if each.base_offset < base_offset]
        else:
            epochs = known.entries
            full = [await _full(disk, directory, base) for base in base_offsets[:number]]
        if base_offset > 0 and not epochs:
            return None
        begun = (each for each in epochs if each.offset < base_offset)
        return checkpoint_at(base_offset, full, snapshot, begun)
    return None


async def store_snapshot(disk: Disk, directory: str, first: Offset, log: PartitionLog) -> None:
    """Make durable what the segments below ``first`` tell of producers: its snapshot.

    A start that reads all batches begins there. Where there is no sound one, the log's own is
    stored. Raises StorageError.
    """
    snapshot = await snapshot_at(disk, directory, first)
    if snapshot is None:
        snapshot, _ = log.start_snapshot(first)
    await replace_file(disk, f"{directory}/{layout.file_name(first, layout.SNAPSHOT)}", snapshot)


async def snapshot_at(disk: Disk, directory: str, base_offset: Offset) -> bytes | None:
    """Return the snapshot where a segment begins; None if there is none, or it is damaged."""
    if base_offset == 0:
        return _EMPTY
    try:
        content = await read_file(
            disk, f"{directory}/{layout.file_name(base_offset, layout.SNAPSHOT)}"
        )
        if content is not None:
            decode_snapshot(content)
    except CorruptionError:
        return None
    return content


async def _full(disk: Disk, directory: str, base_offset: Offset) -> FullSegment:
    path = f"{directory}/{layout.file_name(base_offset, layout.LOG)}"
    checksum = side_checksum(await read_side_files(disk, path))
    file = await disk.open(path)
    try:
        return FullSegment(base_offset, file.size, checksum)
    finally:
        await file.close()
