"""Which segments the topic's retention gives up: whole ones, oldest first, never above HW (D4)."""

from fencelog.log.state import LogState
from fencelog.types import Offset


def retained_from(state: LogState, high_watermark: Offset, now_ms: int) -> Offset:
    """Return the offset at which retention lets the log begin; the active segment always stays."""
    config = state.config
    start = state.log_start
    if "delete" not in config.cleanup_policy:
        return start
    size = sum(segment.size for segment in state.segments)
    for segment in state.segments[:-1]:
        # A segment without timestamps has no age.
        is_old = (
            config.retention_ms >= 0
            and segment.max_timestamp >= 0
            and now_ms - segment.max_timestamp > config.retention_ms
        )
        is_surplus = 0 <= config.retention_bytes <= size - segment.size
        if segment.next_offset > high_watermark or not (is_old or is_surplus):
            break
        size -= segment.size
        start = max(start, segment.next_offset)
    return start
