"""Unflushed batches: what was appended and is not on disk yet, and how far the disk is."""

from bisect import bisect_left
from collections import deque
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from fencelog.log.layout import encode_aborted, encode_leader_epochs
from fencelog.log.leader_epochs import FIRST_EPOCH
from fencelog.log.segment import Segment
from fencelog.log.state import LogState
from fencelog.log.values import SegmentWrite
from fencelog.types import Offset

_last_offset = attrgetter("last_offset")


class Mark(NamedTuple):
    """A point in the files: an offset, and the position in a segment where it begins."""

    end_offset: Offset
    segment_base_offset: Offset
    position: int


class _Write:
    """A ``SegmentWrite`` under construction."""

    __slots__ = ("buffers", "end_offset", "first_offset", "position", "segment", "size", "snapshot")

    def __init__(self, segment: Segment, position: int, first_offset: Offset) -> None:
        self.segment = segment
        self.position = position
        self.first_offset = first_offset
        self.end_offset = first_offset
        self.size = 0
        self.buffers: list[memoryview] = []
        self.snapshot: bytes | None = None
        """Set if the write begins a new segment."""


class Unflushed:
    """Collects writes between two takes, one for each segment."""

    __slots__ = (
        "_current",
        "_epoch_taken",
        "_index_taken",
        "_marks",
        "_open",
        "_state",
        "_taken_until",
        "_time_taken",
        "_writes",
        "durable",
        "written_mark",
    )

    def __init__(self, state: LogState) -> None:
        """Start with nothing to write: all of the state is in the files."""
        self._state = state
        self._writes: list[_Write] = []
        self._open: _Write | None = None
        self._marks: deque[Mark] = deque()
        active = state.active
        self.durable = Mark(state.log_end, active.base_offset, active.size)
        self.written_mark = self.durable
        # How much of the side files was taken, for the segment that was written last.
        self._current = active
        self._index_taken = len(active.index)
        self._time_taken = len(active.time_index)
        self._taken_until = state.log_end
        self._epoch_taken = state.epochs.latest

    def append(
        self, batch: memoryview, position: int, base_offset: Offset, end_offset: Offset, size: int
    ) -> None:
        """Add a batch of the active segment."""
        write = self._open
        if write is None:
            write = self._begin(self._state.active, position, base_offset)
        write.buffers.append(batch)
        write.size += size
        write.end_offset = end_offset

    def roll(self, segment: Segment, snapshot: bytes) -> None:
        """Begin a new segment; the one before gets its last index entries."""
        self.side_files_changed()
        self._begin(segment, 0, segment.base_offset).snapshot = snapshot

    def side_files_changed(self) -> None:
        """Add a write with the last segment's new index entries if it has no batch to write."""
        last = self._current
        if self._open is None and (
            len(last.index) > self._index_taken or len(last.time_index) > self._time_taken
        ):
            self._begin(last, last.size, last.next_offset)

    def _begin(self, segment: Segment, position: int, first_offset: Offset) -> _Write:
        write = self._open = _Write(segment, position, first_offset)
        self._writes.append(write)
        return write

    @property
    def begins_segment(self) -> bool:
        """Whether a write since the last take begins a new segment."""
        writes = self._writes
        return len(writes) > 1 or (bool(writes) and writes[0].snapshot is not None)

    def take(self) -> list[SegmentWrite]:
        """Return every write since the last take."""
        writes, self._writes, self._open = self._writes, [], None
        if not writes:
            return []
        taken = [self._finish(write) for write in writes]
        epochs = self._state.epochs
        # In a log's first segment the first epoch is every batch's: a file for it would only slow
        # the first write to each of thousands of partitions.
        is_known = epochs.latest == FIRST_EPOCH and taken[-1].segment_base_offset == 0
        if epochs.latest != self._epoch_taken and not is_known:
            self._epoch_taken = epochs.latest
            taken[-1] = replace(taken[-1], leader_epochs=encode_leader_epochs(epochs.entries))
        return taken

    def _finish(self, write: _Write) -> SegmentWrite:
        segment = write.segment
        if segment is not self._current:
            self._current = segment
            self._index_taken = self._time_taken = 0
        index = segment.index.encode(self._index_taken)
        time_index = segment.time_index.encode(self._time_taken)
        self._index_taken = len(segment.index)
        self._time_taken = len(segment.time_index)
        txn_index = self._take_aborted(write.end_offset)
        self._marks.append(Mark(write.end_offset, segment.base_offset, write.position + write.size))
        return SegmentWrite(
            segment_base_offset=segment.base_offset,
            roll=write.snapshot is not None,
            snapshot=write.snapshot,
            buffers=write.buffers,
            position=write.position,
            size=write.size,
            first_offset=write.first_offset,
            end_offset=write.end_offset,
            index=index,
            time_index=time_index,
            txn_index=txn_index,
            leader_epochs=None,
        )

    def _take_aborted(self, end_offset: Offset) -> bytes:
        """Encode the transactions whose abort marker is in this write."""
        aborted = self._state.transactions.aborted
        taken_until, self._taken_until = self._taken_until, end_offset
        if not aborted or aborted[-1].last_offset < taken_until:
            return b""
        start = bisect_left(aborted, taken_until, key=_last_offset)
        stop = bisect_left(aborted, end_offset, lo=start, key=_last_offset)
        return encode_aborted(aborted[start:stop])

    def written(self, end_offset: Offset) -> None:
        """The files have everything below ``end_offset``, the end of a taken write."""
        for mark in self._marks:
            if mark.end_offset > end_offset:
                break
            self.written_mark = mark

    def flushed(self, end_offset: Offset) -> None:
        """Everything below ``end_offset``, the end of a taken write, is durable."""
        marks = self._marks
        while marks and marks[0].end_offset <= end_offset:
            self.durable = marks.popleft()
        assert self.durable.end_offset == end_offset, (self.durable, end_offset)
        if self.durable.end_offset >= self.written_mark.end_offset:
            self.written_mark = self.durable
