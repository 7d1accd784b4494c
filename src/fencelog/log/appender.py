"""Appends what no client sent: segments, control batches, and what a follower's leader has."""

from collections.abc import Sequence

from fencelog.errors import ErrorCode
from fencelog.log.ownership import Owner
from fencelog.log.producers import UNSEEN
from fencelog.log.retention import is_due
from fencelog.log.segment import Segment
from fencelog.log.snapshot import encode_snapshot
from fencelog.log.state import LogState
from fencelog.log.unflushed import Unflushed
from fencelog.log.validation import batch_of, changes_something, validate_marker
from fencelog.log.values import Appended, MarkerToWrite, Rejected
from fencelog.log.verification import Guards
from fencelog.types import LeaderEpoch, Offset, TimestampMs
from fencelog.wire.batch import BatchHeader, assign, read_header
from fencelog.wire.control import (
    Control,
    Marker,
    OwnershipRecord,
    Seal,
    ownership_batch,
    read_control,
    seal_batch,
)


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
        segment = self.begin_segment()
        segment.created_ms = TimestampMs(now_ms)
        if self._state.owners.size:
            self.copy_owners(epoch, segment.base_offset, timestamp_ms)

    def roll_if_due(self, epoch: LeaderEpoch, now_ms: int, *, may_roll: bool, leads: bool) -> bool:
        """Roll the active segment if its age is above the limit; tell whether it was rolled."""
        state, active = self._state, self._state.active
        if active.created_ms is None:
            # A file does not record its creation time: after a start it counts from the first call.
            active.created_ms = TimestampMs(now_ms)
        if not may_roll or not is_due(active, state.config, now_ms):
            return False
        if not leads:
            self.begin_segment()  # without ownership records: only leaders write them
        elif state.owners.fills(active.base_offset, active.next_offset):
            return False  # the next segment would begin with all that this one has
        else:
            self.roll(epoch, now_ms, now_ms)
        return True

    def begin_segment(self) -> Segment:
        """Begin an empty segment at the log's end."""
        state = self._state
        state.active.seal()
        segment = Segment(state.log_end)
        state.add_segment(segment)
        self._unflushed.roll(segment, encode_snapshot(state.snapshot()))
        return segment

    def append_replicated(
        self, epoch: LeaderEpoch, batch: memoryview, header: BatchHeader
    ) -> Appended | Rejected:
        """Append a batch of the leader of this epoch, as it is, where it belongs (F7).

        The follower's segments need not begin where the leader's do, so it copies no ownership
        records: those that the leader's log needs are in its batches.
        """
        state = self._state
        problem = state.problem(header)
        if problem is None and header.leader_epoch > epoch:
            problem = f"leader epoch {header.leader_epoch} is above {epoch}, that of the leader"
        if problem is not None:
            return Rejected(ErrorCode.CORRUPT_MESSAGE, problem)
        control = read_control(batch) if header.is_control else None
        base_offset, size, timestamp = header.base_offset, header.size, header.max_timestamp
        if state.is_full_for(size, header.last_offset, timestamp, 0) or (
            isinstance(control, Seal) and state.active.size > 0
        ):
            self.begin_segment()
        position = state.active.size
        state.replay(header, base_offset, header.leader_epoch, timestamp, control)
        self._unflushed.append(batch, position, base_offset, state.log_end, size)
        producer = state.producers.get(header.producer_id)
        if producer is not None:
            producer.seen_ms = UNSEEN  # its idle time counts from the next upkeep
        return Appended(base_offset, state.log_end)

    def append_markers(
        self, epoch: LeaderEpoch, markers: Sequence[MarkerToWrite], guards: Guards, now_ms: int
    ) -> Appended | Rejected:
        """Append the markers that change something, all of them or none (V6)."""
        state = self._state
        producers = state.producers
        for marker in markers:
            rejected = validate_marker(producers.get(marker.producer_id), marker)
            if rejected is not None:
                return rejected
        batches = []
        for marker in markers:
            guards.invalidate(marker)
            if changes_something(producers.get(marker.producer_id), marker):
                batches.append((marker, batch_of(marker, now_ms)))
        if batches:
            size = sum(len(batch) for _, batch in batches)
            last_offset = state.log_end + len(batches) - 1
            # Once for all of them: the markers of one append stay in one segment.
            if state.is_full_for(size, last_offset, now_ms, now_ms):
                self.roll(epoch, now_ms, now_ms)
        base_offset = state.log_end
        for marker, batch in batches:
            stored = Marker(marker.commit, marker.coordinator_epoch, marker.drop_state)
            self.append_control(epoch, batch, stored)
            producer = producers.get(marker.producer_id)
            if producer is not None:
                producer.seen_ms = TimestampMs(now_ms)
        return Appended(base_offset, state.log_end)

    def append_control(self, epoch: LeaderEpoch, batch: bytearray, control: Control) -> None:
        """Append a control batch that says this; the segment has room for it."""
        state = self._state
        header = read_header(batch)
        offset, position = state.log_end, state.active.size
        view = memoryview(batch)
        assign(view, offset, epoch)
        state.replay(header, offset, epoch, header.max_timestamp, control)
        self._unflushed.append(view, position, offset, state.log_end, header.size)

    def seal(self, epoch: LeaderEpoch, now_ms: int) -> Appended:
        """Append the seal, unless the log has one: then nothing is appended (R2).

        It begins a file of its own, so that retention may delete all of those below it. Its offset
        is the first in the file: the copies of the ownership records follow it.
        """
        state = self._state
        if state.sealed_at is None:
            if state.active.size > 0:
                self.begin_segment().created_ms = TimestampMs(now_ms)
            sealed_at = state.log_end
            self.append_control(epoch, seal_batch(now_ms), Seal())
            self.copy_owners(epoch, sealed_at, now_ms)
        assert state.sealed_at is not None
        return Appended(state.sealed_at, Offset(state.sealed_at + 1))

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
