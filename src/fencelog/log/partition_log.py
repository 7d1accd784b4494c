"""The log of one partition: the only interface to append to it and to read from it.

How the broker and the storage use it:

1. ``append(batch, header, now_ms=...)`` -> ``Appended | Duplicate | Rejected`` validates a batch,
   writes its offsets in place and adds it to the unflushed batches, in one step. The response may
   be sent once ``high_watermark >= end_offset`` (acks=all), for a duplicate too (E4).
2. ``begin_verification(pid, epoch, sequence)`` before the first transactional append of a producer:
   its guard goes into ``append``. None: the transaction is open here already.
3. ``append_markers([...], now_ms=...)`` ends transactions: one append, one move of the LSO (V6).
4. ``set_owner(owner, now_ms=...)`` records who owns the partition, or that nobody does any more.
   ``keep_owners`` comes before ``advance_start``, so that the log always has the records (D4).
   ``seal(now_ms=...)`` ends a stream's segment: then only markers and owners are appended (R2).
5. A follower: ``follow``, ``append_replicated``. A leader begins its epoch with ``lead``.
6. The flusher: ``take_unflushed()`` -> writes, in order; ``written(end)`` when the files have them,
   ``flushed(end)`` when they are durable in the mode in force, ``failed()`` if they never will be.
   ``advance_high_watermark(end)`` when all in-sync replicas have them.
7. Readers: ``read(offset, max_bytes, isolation)`` -> ``ReadPlan | ErrorCode``, and ``aborted`` in
   the same step, for what was read by then; ``offset_for_timestamp``.
8. Upkeep: ``expire_producers``, ``roll_if_due``, ``retained_from``, ``advance_start``;
   ``checkpoint`` for recovery; ``finish`` before a segment of a stream loses its files.

A ``PartitionLog`` comes from ``PartitionLog.create`` (empty) or ``rebuild.LogBuilder.finish``.
"""

from collections.abc import Sequence

from fencelog.errors import ErrorCode
from fencelog.log.appender import Appender
from fencelog.log.compaction import KEYS_MAX
from fencelog.log.compaction_round import Cleaned, CompactionNeed, Round, need_of
from fencelog.log.config import LogConfig
from fencelog.log.leader_epochs import FIRST_EPOCH
from fencelog.log.ownership import Owner
from fencelog.log.planning import plan_read, timestamp_range
from fencelog.log.producers import PRODUCER_EXPIRATION_MS
from fencelog.log.retention import retained_from
from fencelog.log.segment import Segment
from fencelog.log.state import LogState
from fencelog.log.unflushed import Unflushed
from fencelog.log.validation import (
    refused_as_sealed,
    validate_batch,
    validate_condition,
    validate_producer,
    validate_sealed,
)
from fencelog.log.values import (
    Appended,
    Duplicate,
    EpochStart,
    Isolation,
    MarkerToWrite,
    ReadPlan,
    Rejected,
    SegmentWrite,
)
from fencelog.log.verification import Guards, VerificationGuard
from fencelog.log.view import LogView
from fencelog.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from fencelog.wire.batch import LENGTH_END, BatchHeader, assign, read_header
from fencelog.wire.control import Seal
from fencelog.wire.hot.append_tags import Revision

_FIRST_OFFSET = Offset(0)
_FINISHED = Rejected(
    ErrorCode.SEGMENT_SEALED, "the segment's records are deleted, and its files may be removed"
)


class PartitionLog(LogView):
    """Rules and offsets of one replica: of its leader, unless it is told to ``follow``.

    Attributes:
        has_files: False for a segment of a stream whose files are removed: only its seal is left.
        is_finished: nothing follows: no marker, because none has a transaction to end, no owner.
    """

    __slots__ = (
        "_append_refusal",
        "_appender",
        "_failed",
        "_following",
        "_guards",
        "_log_append_time",
        "_refusal",
        "_refused",
        "_unflushed",
        "config",
        "has_files",
        "high_watermark",
        "is_finished",
        "last_stable_offset",
        "leader_epoch",
    )

    def __init__(
        self, state: LogState, leader_epoch: LeaderEpoch, high_watermark: Offset | None = None
    ) -> None:
        """Start from a state whose every batch is durable; use ``create`` or ``LogBuilder``.

        ``high_watermark``: what is known to be committed; None: everything is (one replica).
        """
        super().__init__(state)
        self._unflushed = Unflushed(state)
        self._appender = Appender(state, self._unflushed)
        self._guards = Guards()
        self._failed = False
        self._following: Rejected | None = None
        """Why a follower appends nothing of its own; None on a leader."""
        self.has_files, self.is_finished = True, False
        self._refuse(None)
        self.config = state.config
        self._log_append_time = state.config.message_timestamp_type == "LogAppendTime"
        self.leader_epoch = leader_epoch
        committed = state.log_end if high_watermark is None else high_watermark
        self.high_watermark = max(min(committed, state.log_end), state.log_start)
        self.last_stable_offset = state.log_start
        self._move_last_stable_offset()

    @classmethod
    def create(cls, config: LogConfig) -> "PartitionLog":
        """Return an empty log with its first, empty segment."""
        state = LogState(config, _FIRST_OFFSET, was_compacted=False)
        state.add_segment(Segment(_FIRST_OFFSET))
        return cls(state, FIRST_EPOCH)

    @classmethod
    def of_seal(cls, config: LogConfig, batch: bytes) -> "PartitionLog":
        """Return the log of a segment whose files are removed; ``batch``: its ``last_seal``."""
        header = read_header(batch)
        state = LogState(config, header.base_offset, was_compacted=True)
        state.add_segment(Segment(header.base_offset))
        epoch, newest = header.leader_epoch, header.max_timestamp
        state.replay(header, header.base_offset, epoch, newest, Seal())
        log = cls(state, epoch)
        log.has_files = False
        log.go_on()
        return log

    def finish(self) -> bool:
        """Let nothing follow in a sealed log that may lose its files; False if it may not (R2).

        Its records are deleted, and the rest is committed; no producer is known whose sequence may
        come again (E4), no transaction is open, nobody owns it. ``go_on`` takes it back, and so
        does a later leadership.
        """
        state = self._state
        if (
            self._refusal is None
            and self.is_emptied
            and self.last_stable_offset == state.log_end
            and not state.producers
            and not any(each.owner.is_live for each in state.owners)
        ):
            self.is_finished = True
            self._refuse(None)
        return self.is_finished

    def go_on(self) -> None:
        """Take ``finish`` back, unless the files are gone."""
        self.is_finished = not self.has_files
        self._refuse(self._refused)

    # Offsets

    @property
    def start_limit(self) -> Offset:
        """The highest log start that there may be: HW (D4), or the seal."""
        sealed_at = self._state.sealed_at
        return self.high_watermark if sealed_at is None else min(sealed_at, self.high_watermark)

    @property
    def is_emptied(self) -> bool:
        """Whether the log is sealed for good and nothing is left below its seal."""
        return self._state.log_start == self._state.sealed_at != self.high_watermark

    # Appending

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        *,
        now_ms: int,
        guard: VerificationGuard | None = None,
        condition: Revision | None = None,
        internal: bool = False,
    ) -> Appended | Duplicate | Rejected:
        """Validate one batch, whose form and CRC are checked, and store it at the log's end.

        ``batch`` must be writable and is kept until it is written. ``guard`` is what
        ``begin_verification`` returned. ``condition``: how far the sender has read; it is stored
        only if nothing was appended since (R4). ``internal``: without the limits for clients.
        """
        state = self._state
        if self._append_refusal is not None:
            return self._refusal or validate_sealed(state, header) or self._append_refusal
        if not internal and (rejected := validate_batch(self.config, header, now_ms)) is not None:
            self.refused(header)
            return rejected
        producer_id = header.producer_id
        if producer_id >= 0:
            producer = state.producers.get(producer_id)
            verdict = validate_producer(producer, header, self._guards, guard)
            if verdict is not None:
                return verdict
        if condition is not None and (stale := validate_condition(state, condition)) is not None:
            self.refused(header)
            return stale
        timestamp, append_time = header.max_timestamp, None
        if self._log_append_time and not internal:
            timestamp = append_time = TimestampMs(now_ms)
        size = LENGTH_END + header.length
        last_offset = state.log_end + header.last_offset_delta
        if state.is_full_for(size, last_offset, timestamp, now_ms):
            self._appender.roll(self.leader_epoch, now_ms, timestamp)
        base_offset, position = state.log_end, state.active.size
        assign(batch, base_offset, self.leader_epoch, append_time)
        state.replay(header, base_offset, self.leader_epoch, timestamp, None)
        self._unflushed.append(batch, position, base_offset, state.log_end, size)
        if producer_id >= 0:
            state.producers[producer_id].seen_ms = TimestampMs(now_ms)
            if self._guards:
                self._guards.stored(producer_id, opens=header.is_transactional)
        return Appended(base_offset, state.log_end)

    def refused(self, header: BatchHeader) -> None:
        """The batch of this header was refused before ``append`` (for its CRC, say).

        If no sequence of its producer is known (it is new, or known from a marker only), no later
        batch of it is stored before this one (E13).
        """
        producer_id, sequence = header.producer_id, header.base_sequence
        if producer_id >= 0 and sequence >= 0 and not self._state.producers.knows(producer_id):
            self._guards.refused(producer_id, header.producer_epoch, sequence)

    # Replication

    def lead(self, leader_epoch: LeaderEpoch) -> None:
        """Append under this epoch from now on; verifications of an earlier one are void (E14)."""
        assert leader_epoch >= self.last_epoch, (leader_epoch, self.last_epoch)
        self.leader_epoch, self._guards, self._following = leader_epoch, Guards(), None
        self.accept_appends()
        self.go_on()

    def follow(self, leader_epoch: LeaderEpoch) -> None:
        """Append nothing but the batches of the leader of this epoch from now on."""
        problem = f"another broker leads it in leader epoch {leader_epoch}"
        self._following = Rejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, problem)
        self.leader_epoch, self._guards = leader_epoch, Guards()
        self.accept_appends()
        self.go_on()

    def append_replicated(self, batch: memoryview, header: BatchHeader) -> Appended | Rejected:
        """Store a batch of the leader as it is, on a follower; the caller has checked its CRC (D3).

        ``batch`` is kept until it is written. CORRUPT_MESSAGE where it cannot be the next one: its
        base offset is not the log's end (or above it, where compaction made a gap), or its leader
        epoch is below that of the one before it or above the leader's.
        """
        assert self._following is not None, "a leader appends no batches of another"
        if self._refusal is not self._following:
            return self._refusal or self._following
        return self._appender.append_replicated(self.leader_epoch, batch, header)

    def end_of_epoch(self, epoch: int) -> EpochStart | None:
        """Return the newest epoch up to this one and its end offset; None: unknown epoch (F7).

        Without files no epoch ends before the log: who misses the last ones is to cut nothing.
        """
        if not 0 <= epoch <= self.leader_epoch:
            return None
        end = self.log_end_offset
        is_own = epoch == self.leader_epoch or not self.has_files
        return EpochStart(epoch, end) if is_own else self._state.epochs.end_of(epoch, end)

    # Transactions

    def begin_verification(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        sequence: int = -1,
        *,
        from_zero: bool = False,
    ) -> VerificationGuard | None:
        """Return the guard to take before the verification request; None: not needed (E14).

        ``sequence`` is the first sequence of the batch that waits for the response. ``from_zero``:
        its epoch has one transaction, so if no sequence is known here it begins at 0 (E5).
        """
        state = self._state.producers.get(producer_id)
        if state is not None and state.open_offset >= 0 and state.epoch == producer_epoch:
            return None
        if self._state.sealed_at is not None:
            return None  # nothing is appended that would need it
        guard = self._guards.begin(producer_id, producer_epoch, sequence)
        guard.from_zero = guard.from_zero or from_zero
        return guard

    def append_markers(
        self, markers: Sequence[MarkerToWrite], *, now_ms: int
    ) -> Appended | Rejected:
        """End the transactions of these producers: all markers in one append, or none (V6).

        A marker that would change nothing (a repeated one) is not written again; ``end_offset``
        then covers the one it repeats, so the caller waits for the same commit. Every marker
        invalidates its producer's verification guards, except one for the transaction after it.
        A finished log has nothing to end.
        """
        if self.is_finished:
            return Appended(self._state.log_end, self._state.log_end)
        return self._refusal or self._appender.append_markers(
            self.leader_epoch, markers, self._guards, now_ms
        )

    # Owners

    def set_owner(self, owner: Owner, *, now_ms: int) -> Appended | Rejected:
        """Record a grant or its end (O9); ``base_offset`` of a grant is its fence offset.

        A repeated one appends nothing and has the offsets of the first. Rejected with OWNER_FENCED
        where a later grant of the group is known, or the end of this one, and with POLICY_VIOLATION
        where too many groups have owners. Without files there is nothing to own.
        """
        if not self.has_files:
            return Appended(self._state.log_end, self._state.log_end)
        return self._refusal or self._appender.set_owner(self.leader_epoch, owner, now_ms)

    def keep_owners(self, log_start: Offset) -> Offset | Rejected:
        """Append copies of ownership records that the log would lose by this log start (D4).

        Returns what must be committed and on stable storage before the log may begin there.
        """
        if self._state.owners.lowest >= log_start:
            return self._state.owners.end
        newest = self.max_timestamp
        return self._refusal or self._appender.copy_owners(self.leader_epoch, log_start, newest)

    def seal(self, *, now_ms: int) -> Appended | Rejected:
        """Append the seal (R2); ``end_offset`` is that of the seal, copies of owners may follow.

        A repeated one appends nothing and has the offsets of the first.
        """
        if self._refusal is not None:
            return self._refusal
        appended = self._appender.seal(self.leader_epoch, now_ms)
        self._guards = Guards()
        self._refuse(None)
        return appended

    # Producers

    def expire_producers(
        self, now_ms: int, expiration_ms: int = PRODUCER_EXPIRATION_MS
    ) -> list[ProducerId]:
        """Forget producers that were idle for so long and have no open transaction."""
        return self._state.producers.expire(TimestampMs(now_ms), expiration_ms)

    # Unflushed batches and the watermarks

    @property
    def begins_segment(self) -> bool:
        """Whether the next ``take_unflushed`` begins a new segment."""
        return self._unflushed.begins_segment

    def take_unflushed(self) -> list[SegmentWrite]:
        """Return everything appended since the last take, in the order to write it."""
        return self._unflushed.take()

    def written(self, end_offset: Offset) -> None:
        """Everything below is in the files, durable or not: ``TAIL`` readers may see it."""
        self._unflushed.written(end_offset)

    def flushed(self, end_offset: Offset) -> None:
        """Everything below is durable in the mode in force. Ignored after a failure (D2)."""
        if self._failed or end_offset < self._unflushed.durable.end_offset:
            return
        assert end_offset <= self._state.log_end, (end_offset, self._state.log_end)
        self._unflushed.flushed(end_offset)

    def advance_high_watermark(self, offset: Offset) -> None:
        """Everything below is committed (F2); never goes back. Ignored after a failure (D2)."""
        if self._failed or offset <= self.high_watermark:
            return
        assert offset <= self._state.log_end, (offset, self._state.log_end)
        self.high_watermark = offset
        self._move_last_stable_offset()

    def failed(self) -> None:
        """A write or a sync failed: nothing is appended or acknowledged any more (D2)."""
        self._failed = True
        self.refuse_appends("an earlier write failed: restart the broker to recover the partition")

    def refuse_appends(self, reason: str) -> None:
        """Append nothing until ``accept_appends``."""
        self._refuse(Rejected(ErrorCode.KAFKA_STORAGE_ERROR, reason))

    def accept_appends(self) -> None:
        """Append again, after ``refuse_appends``; not after a failure (D2)."""
        if not self._failed:
            self._refuse(self._following)

    def _refuse(self, refusal: Rejected | None) -> None:
        self._refused = refusal
        self._append_refusal = refusal or refused_as_sealed(self._state.sealed_at)
        """Why no producer's batch is appended: also because of the seal."""
        self._refusal = _FINISHED if self.is_finished else refusal
        """Why nothing is."""

    def _move_last_stable_offset(self) -> None:
        stable = self._state.transactions.last_stable_offset(self.high_watermark)
        self.last_stable_offset = max(stable, self._state.log_start)  # D4

    # Reading

    def read(self, offset: Offset, max_bytes: int, isolation: Isolation) -> ReadPlan | ErrorCode:
        """Return where to read from ``offset``; an empty plan if nothing may be read there yet.

        OFFSET_OUT_OF_RANGE only below the log's start or above its end.
        """
        state = self._state
        if not state.log_start <= offset <= state.log_end:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if isolation is Isolation.TRANSACTIONAL:
            upper, bound = self.last_stable_offset, self._unflushed.durable
        elif isolation is Isolation.REPLICATED:
            upper, bound = self.high_watermark, self._unflushed.durable
        else:
            upper, bound = self._unflushed.written_mark.end_offset, self._unflushed.written_mark
        return plan_read(state, offset, max_bytes, upper, bound)

    def offset_for_timestamp(
        self,
        timestamp: TimestampMs,
        isolation: Isolation = Isolation.REPLICATED,
        start: Offset = _FIRST_OFFSET,
    ) -> ReadPlan | None:
        """Return where to look for the first record at or after a timestamp; None: there is none.

        The record is the first one with such a timestamp in the plan's range. If the range has none
        (compaction removed it and left its batch), call again with the next segment as ``start``.
        """
        sought = timestamp_range(self._state, timestamp, start)
        plan = None if sought is None else self.read(*sought, isolation)
        assert not isinstance(plan, ErrorCode), plan
        return None if plan is None or plan.is_empty else plan

    # Upkeep

    def reconfigure(self, config: LogConfig) -> None:
        """Use the topic's new settings from the next append and the next upkeep on."""
        self.config = self._state.config = config
        self._log_append_time = config.message_timestamp_type == "LogAppendTime"

    def retained_from(self, now_ms: int) -> Offset:
        """Return the log start that the topic's retention asks for; never above HW (D4)."""
        written = self._unflushed.written_mark
        return retained_from(self._state, self.high_watermark, written.segment_base_offset, now_ms)

    def roll_if_due(self, now_ms: int) -> bool:
        """Roll the active segment if its age is above the limit; True: there is a write to take.

        Appends roll by themselves; this is for partitions that get none.
        """
        may_roll, epoch = self._refusal is self._following, self.leader_epoch
        leads = self._following is None
        return self._appender.roll_if_due(epoch, now_ms, may_roll=may_roll, leads=leads)

    def compaction_need(self, first_dirty: Offset, synced: Offset, now_ms: int) -> CompactionNeed:
        """Return what a round of compaction would do below the LSO and what is synced (D4)."""
        limit, written = min(self.last_stable_offset, synced), self._unflushed.durable
        return need_of(self._state, first_dirty, limit, written.segment_base_offset, now_ms)

    def compaction(
        self, first_dirty: Offset, end: Offset, now_ms: int, keys_max: int = KEYS_MAX
    ) -> Round:
        """Begin a round of compaction up to the ``end`` of ``compaction_need``."""
        return Round(self._state, first_dirty, end, now_ms, keys_max)

    def replace_segments(self, cleaned: Cleaned) -> None:
        """Put the cleaned segment in the place of those that it was made of."""
        self._state.replace_segments(cleaned.replaced, cleaned.segment, cleaned.forgotten)

    def advance_start(self, offset: Offset) -> list[Offset] | ErrorCode:
        """Begin the log at ``offset`` (D4); return the base offsets of segments to delete.

        It begins at its seal where the offset is above it.
        """
        state = self._state
        if not state.log_start <= offset <= self.high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        offset = min(offset, self.start_limit)
        gone = [s.base_offset for s in state.segments[:-1] if s.next_offset <= offset]
        state.advance_start(offset)
        del state.segments[: len(gone)]
        self._move_last_stable_offset()
        return gone
