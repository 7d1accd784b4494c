"""What the shell does with a log on a single replica, for tests of the rules alone."""

from fencelog.log.partition_log import PartitionLog
from fencelog.types import Offset


def flush_and_commit(log: PartitionLog, end_offset: Offset) -> None:
    """All below is durable, and with one replica that commits it (F2)."""
    log.flushed(end_offset)
    log.advance_high_watermark(end_offset)
