"""Where a read begins and ends in a segment file, by the sparse index and without I/O."""

from fencelog.log.state import LogState
from fencelog.log.unflushed import Mark
from fencelog.log.values import ReadPlan
from fencelog.types import Offset, TimestampMs


def plan_read(
    state: LogState, offset: Offset, max_bytes: int, upper: Offset, bound: Mark
) -> ReadPlan:
    """Return where to read from ``offset``, below ``upper`` and within the log.

    ``bound``: the end of what is in the files, as far as this reader may see it; ``upper`` is not
    above it.
    """
    segment = state.segment_of(offset)
    base_offset, index, end_position = segment.base_offset, segment.index, segment.size
    if base_offset >= bound.segment_base_offset:
        end_position = bound.position if base_offset == bound.segment_base_offset else 0
    if offset >= bound.end_offset:
        position = end_position
    else:
        position = index.position(offset - base_offset)
        if upper <= offset:
            end_position = position
        elif upper < bound.end_offset:
            end_position = min(end_position, segment.end_position(upper))
    skip_to = position
    if offset < upper:
        skip_to = max(position, index.last_within(position + max_bytes, upper - base_offset))
    return ReadPlan(
        segment_base_offset=base_offset,
        position=position,
        end_position=end_position,
        offset=offset,
        upper_offset=upper,
        max_bytes=max_bytes,
        reaches_upper=upper <= segment.next_offset,
        skip_to=skip_to,
    )


def timestamp_range(
    state: LogState, timestamp: TimestampMs, start: Offset
) -> tuple[Offset, int] | None:
    """Return from where on, and in how many bytes, to look for a timestamp; None: nowhere.

    Only from ``start`` and the log's start on.
    """
    start = max(start, state.log_start)
    for segment in state.segments:
        if segment.max_timestamp >= timestamp and segment.next_offset > start:
            relative = segment.time_index.offset_before(timestamp)
            return max(Offset(segment.base_offset + relative), start), segment.size
    return None
