"""Which segments the topic's retention deletes, and when the active one must be rolled.

Whole segments are deleted, oldest first, never above HW (D4). The active segment is never deleted:
if its records are due it is rolled first, so that an idle partition keeps nothing for longer. A
seal stays: once all below it is due, the log begins with it.
"""

from fencelog.log.config import LogConfig
from fencelog.log.segment import Segment
from fencelog.log.state import LogState
from fencelog.types import Offset


def retained_from(
    state: LogState, high_watermark: Offset, written_base: Offset, now_ms: int
) -> Offset:
    """Return the log start that retention asks for.

    ``written_base`` is the base offset of the newest segment that has a file: that segment and
    those above it stay.
    """
    config = state.config
    start = state.log_start
    if "delete" not in config.cleanup_policy:
        return start
    size = state.size
    for segment in state.segments[:-1]:
        is_surplus = 0 <= config.retention_bytes <= size - segment.size
        may_go = segment.next_offset <= high_watermark and segment.base_offset < written_base
        if not may_go or not (is_surplus or _is_old(segment, config, now_ms)):
            break
        size -= segment.size
        start = max(start, segment.next_offset)
    return start if state.sealed_at is None else min(start, state.sealed_at)


def _is_old(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    # A segment without timestamps has no age.
    return (
        config.retention_ms >= 0
        and segment.newest_timestamp >= 0
        and now_ms - segment.newest_timestamp > config.retention_ms
    )


def is_due(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    """Tell whether the active segment must be rolled without an append."""
    if segment.size == 0:
        return False
    if "delete" in config.cleanup_policy and (
        config.retention_bytes == 0 or _is_old(segment, config, now_ms)
    ):
        return True
    if "compact" in config.cleanup_policy and (
        0 <= segment.first_timestamp < now_ms - config.max_compaction_lag_ms
    ):
        return True
    return segment.created_ms is not None and now_ms - segment.created_ms > config.segment_ms
