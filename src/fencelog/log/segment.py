"""One segment of a log in memory: its range, its indexes, and when it is full."""

from fencelog.log.config import LogConfig
from fencelog.log.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex
from fencelog.settings.kinds import INT32_MAX
from fencelog.types import Offset, TimestampMs

_NO_TIMESTAMP = TimestampMs(-1)


class Segment:
    """Positions and indexes of a segment's batches, without their bytes."""

    __slots__ = (
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "first_timestamp",
        "index",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "size",
        "time_index",
        "undated_size",
    )

    def __init__(self, base_offset: Offset) -> None:
        """Start an empty segment."""
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.index = OffsetIndex()
        self.time_index = TimeIndex()
        self.bytes_since_index = 0
        self.max_timestamp = _NO_TIMESTAMP
        """The largest timestamp of a record; a batch that compaction has emptied counts as none."""
        self.max_timestamp_offset = base_offset
        """Last offset of the batch that has the largest timestamp."""
        self.first_timestamp = _NO_TIMESTAMP
        self.undated_size = 0
        """Bytes of undated batches at its beginning: the first one after them sets its age."""
        self.created_ms: TimestampMs | None = None

    @property
    def newest_timestamp(self) -> TimestampMs:
        """Largest timestamp of its records, or of its first batch if compaction removed them."""
        return max(self.first_timestamp, self.max_timestamp)

    def append(
        self,
        size: int,
        last_offset: Offset,
        max_timestamp: TimestampMs,
        interval_bytes: int,
        *,
        has_records: bool,
        is_undated: bool = False,
    ) -> None:
        """Add a batch at the end, and an index entry if the last one is far enough back.

        ``is_undated``: its timestamp says nothing of the segment's records.
        """
        begins = self.size == self.undated_size
        # A search for a timestamp finds no record in an emptied batch.
        if has_records and not is_undated and max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if begins:
            self.first_timestamp = max_timestamp
        elif self.bytes_since_index > interval_bytes:
            base_offset = self.base_offset
            self.index.add(last_offset - base_offset, self.size)
            self.time_index.add(self.max_timestamp, self.max_timestamp_offset - base_offset)
            self.bytes_since_index = 0
        self.bytes_since_index += size
        self.size += size
        if begins and is_undated:
            self.undated_size = self.size
        self.next_offset = Offset(last_offset + 1)

    def position(self, offset: Offset) -> int:
        """Return a position at, or a little before, the batch that has an offset."""
        return self.index.position(max(offset - self.base_offset, 0))

    def end_position(self, offset: Offset) -> int:
        """Return a position at, or a little after, the end of the batches below an offset."""
        if offset >= self.next_offset:
            return self.size
        position = self.index.end_position(offset - self.base_offset)
        return self.size if position is None else position

    def seal(self) -> None:
        """Add the last entry of the time index: a full segment's largest timestamp."""
        self.time_index.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def is_full_for(
        self,
        config: LogConfig,
        size: int,
        last_offset: int,
        max_timestamp: int,
        now_ms: int,
    ) -> bool:
        """Tell whether this batch must go to a new segment: bytes, offsets, indexes, then age."""
        if self.size == 0:
            return False
        return (
            self.size + size > config.segment_bytes
            or last_offset - self.base_offset > INT32_MAX
            or len(self.index) >= config.segment_index_bytes // OFFSET_ENTRY_BYTES
            or len(self.time_index) >= config.segment_index_bytes // TIME_ENTRY_BYTES
            or self._age_ms(max_timestamp, now_ms) > config.segment_ms
        )

    def _age_ms(self, max_timestamp: int, now_ms: int) -> int:
        # As in Kafka, age is by the records' timestamps if there are any, so that a segment holds
        # a span of event time also when old records are loaded.
        if self.first_timestamp >= 0 and max_timestamp >= 0:
            return max_timestamp - self.first_timestamp
        return 0 if self.created_ms is None else now_ms - self.created_ms
