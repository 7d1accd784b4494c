"""Raises the log start offsets of many partitions, for retention and DeleteRecords (D4)."""

from collections.abc import Callable, Mapping

from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode, NotLeaderError, StorageError
from fencelog.log.values import Rejected
from fencelog.storage.directory import DataDirectory
from fencelog.types import Offset

TO_HIGH_WATERMARK = -1
"""DeleteRecords offset that stands for the high watermark."""


async def advance_starts(
    directory: DataDirectory,
    starts: Mapping[Partition, Offset],
    is_open: Callable[[Partition], bool],
) -> dict[Partition, StorageError]:
    """Raise log starts: stored first, visible to readers after, so that they never go back.

    Each log is synced up to its new start before, or a power cut could leave its end below its
    start. Ownership records below the start are copied, and the copies synced, before; so is what
    is known of producers whose segments will be deleted. Returns the partitions that failed. Raises
    StorageError if none could be stored.
    """
    failed: dict[Partition, StorageError] = {}
    later = {each: start for each, start in starts.items() if start > each.log.log_start_offset}
    # A follower gets the copies from its leader.
    kept = {each: each.keep_owners(start) if each.leads else start for each, start in later.items()}
    for partition, end in kept.items():
        problem = await _keep(partition, later[partition], end)
        if problem is not None:
            del later[partition]
            if is_open(partition):  # else it was deleted meanwhile
                failed[partition] = problem
    ready: dict[Partition, Offset] = {}
    for partition, start in later.items():
        if partition.failure is None:
            ready[partition] = start
        elif is_open(partition):
            failed[partition] = StorageError(f"{partition.name} has failed: {partition.failure}")
    if ready:
        await directory.checkpoint({}, {each.name: start for each, start in ready.items()})
    for partition, start in ready.items():
        if is_open(partition) and (problem := await _advance(partition, start)):
            failed[partition] = problem
    return failed


def starts_of(
    targets: Mapping[Partition, Offset],
) -> tuple[dict[Partition, Offset], dict[Partition, ErrorCode]]:
    """Return the log starts that DeleteRecords asks for, and an error code for each target."""
    starts: dict[Partition, Offset] = {}
    errors = dict.fromkeys(targets, ErrorCode.NONE)
    for partition, offset in targets.items():
        limit = partition.log.start_limit
        if TO_HIGH_WATERMARK <= offset <= partition.log.high_watermark:
            starts[partition] = limit if offset == TO_HIGH_WATERMARK else min(offset, limit)
        else:
            errors[partition] = ErrorCode.OFFSET_OUT_OF_RANGE
    return starts, errors


async def _keep(partition: Partition, start: Offset, end: Offset | Rejected) -> StorageError | None:
    """Make durable what a log keeps of its owners and producers, and all below its new start."""
    if isinstance(end, Rejected):
        return StorageError(end.message)
    try:
        if end > start:
            await partition.committed(end)
        if partition.recovery_point < max(start, end):
            await partition.sync()
        bases = partition.log.segment_base_offsets
        if len(bases) > 1 and bases[1] <= start:  # else no segment will be deleted
            await partition.files.keep_producers(start)
    except NotLeaderError:
        return None  # it was deleted
    except StorageError as error:
        return error
    return None


async def _advance(partition: Partition, start: Offset) -> StorageError | None:
    gone = partition.advance_start(start)
    if isinstance(gone, list) and gone:
        try:
            await partition.files.delete_segments_below(start)
        except StorageError as error:
            return error
    return None
