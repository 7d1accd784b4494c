"""Appends what the log writes by itself: segments, control batches, and who owns the partition."""

from fencelog.log.ownership import Owner
from fencelog.log.segment import Segment
from fencelog.log.snapshot import encode_snapshot
from fencelog.log.state import LogState
from fencelog.log.unflushed import Unflushed
from fencelog.log.values import Appended, Rejected
from fencelog.types import LeaderEpoch, Offset, TimestampMs
from fencelog.wire.batch import assign, read_header
from fencelog.wire.control import Marker, OwnershipRecord, ownership_batch


class Appender:
    """Appends to the state and to the unflushed batches, in one step, under a leader's epoch."""

    __slots__ = ("_state", "_unflushed")

    def __init__(self, state: LogState, unflushed: Unflushed) -> None:
        """Nothing is appended yet."""
        self._state = state
        self._unflushed = unflushed

    def roll(self, epoch: LeaderEpoch, now_ms: int, timestamp_ms: int) -> None:
        """Begin a segment with the ownership records, for a batch of this timestamp.

        They have its timestamp, so that the segment's age is that of its records.
        """
        state = self._state
        state.active.seal()
        segment = Segment(state.log_end)
        segment.created_ms = TimestampMs(now_ms)
        state.add_segment(segment)
        self._unflushed.roll(segment, encode_snapshot(state.snapshot()))
        if state.owners.size:
            self.copy_owners(epoch, segment.base_offset, timestamp_ms)

    def append_control(
        self, epoch: LeaderEpoch, batch: bytearray, control: Marker | OwnershipRecord
    ) -> None:
        """Append a control batch that says this; the segment has room for it."""
        state = self._state
        header = read_header(batch)
        offset, position = state.log_end, state.active.size
        view = memoryview(batch)
        assign(view, offset, epoch)
        state.replay(header, offset, epoch, header.max_timestamp, control)
        self._unflushed.append(view, position, offset, state.log_end, header.size)

    def set_owner(self, epoch: LeaderEpoch, owner: Owner, now_ms: int) -> Appended | Rejected:
        """Append a grant or its end, unless it is known (``Owners.judge``)."""
        state = self._state
        known = state.owners.judge(owner)
        if known is not None:
            return known
        size = len(ownership_batch(OwnershipRecord(*owner, state.log_end), now_ms))
        if state.is_full_for(size, state.log_end, now_ms, now_ms):
            self.roll(epoch, now_ms, now_ms)
        offset = state.log_end
        record = OwnershipRecord(*owner, offset)
        self.append_control(epoch, ownership_batch(record, now_ms), record)
        return Appended(offset, state.log_end)

    def copy_owners(self, epoch: LeaderEpoch, below: Offset, timestamp_ms: int) -> Offset:
        """Append a copy of each ownership record below an offset; return where all of them end."""
        owners = self._state.owners
        for stored in [each for each in owners if each.newest < below]:
            record = stored.record()
            self.append_control(epoch, ownership_batch(record, timestamp_ms), record)
        return owners.end
