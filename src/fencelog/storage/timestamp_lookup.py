"""The first record at or after a timestamp, in a log whose segments may go during the lookup."""

from fencelog.log.partition_log import PartitionLog
from fencelog.log.values import Isolation
from fencelog.storage.segment import Pause, find_timestamp
from fencelog.storage.segment_files import SegmentFiles
from fencelog.types import Offset, TimestampMs


async def find_in_segments(
    log: PartitionLog,
    segments: SegmentFiles,
    timestamp: TimestampMs,
    isolation: Isolation,
    pause: Pause,
) -> tuple[Offset, TimestampMs] | None:
    """Return offset and timestamp of that record; None: there is none, or the store was closed.

    ``pause`` is awaited between pieces of work. Raises CorruptionError, StorageError, WireError.
    """
    start = log.log_start_offset
    while True:
        plan = log.offset_for_timestamp(timestamp, isolation, start)
        segment = None if plan is None else segments.get(plan.segment_base_offset)
        if plan is None or segment is None:
            return None
        end = log.end_of_segment(plan.segment_base_offset)
        file = await segments.begin_read(segment)
        if file is None:  # it was deleted or swapped while it was opened: the plan is another now
            continue
        try:
            found = await find_timestamp(file, segment.path, plan, timestamp, pause)
        finally:
            await segments.end_read(segment, file)
        if found is not None or end >= plan.upper_offset:
            return found
        start = end
