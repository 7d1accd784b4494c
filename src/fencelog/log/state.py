"""The state that follows from a log's batches, and the one method that changes it.

Accepted appends, markers and batches found by recovery all go through ``replay``, so a state that
is rebuilt from the files equals the one that was lost (E15).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from operator import attrgetter

from fencelog.errors import CorruptionError
from fencelog.log.config import LogConfig
from fencelog.log.leader_epochs import LeaderEpochs
from fencelog.log.ownership import Owners
from fencelog.log.producers import (
    NO_OFFSET,
    Producers,
    ProducerState,
    StoredBatch,
    last_sequence,
)
from fencelog.log.segment import Segment
from fencelog.log.snapshot import Snapshot
from fencelog.log.transactions import Transactions
from fencelog.log.values import EpochStart, OpenTransaction
from fencelog.settings.kinds import INT32_MAX
from fencelog.types import (
    NO_PRODUCER_ID,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)
from fencelog.wire.batch import CONTROL, LENGTH_END, TRANSACTIONAL, BatchHeader
from fencelog.wire.control import Control, Marker, OwnershipRecord, Seal

_base_offset = attrgetter("base_offset")


class LogState:
    """Segments, leader epochs, producers, transactions, owners and the seal up to the log's end."""

    __slots__ = (
        "active",
        "config",
        "epochs",
        "highest_producer_id",
        "log_end",
        "log_start",
        "owners",
        "producers",
        "sealed_at",
        "segments",
        "transactions",
        "was_compacted",
    )

    def __init__(self, config: LogConfig, log_start: Offset, *, was_compacted: bool) -> None:
        """Start without segments; call ``add_segment`` first.

        ``was_compacted``: offsets may be missing, whatever the cleanup policy is now.
        """
        self.config = config
        self.was_compacted = was_compacted
        self.log_start = log_start
        self.log_end = log_start
        self.segments: list[Segment] = []
        self.active = Segment(log_start)
        self.epochs = LeaderEpochs()
        self.producers = Producers()
        self.highest_producer_id = NO_PRODUCER_ID
        self.transactions = Transactions()
        self.owners = Owners()
        self.sealed_at: Offset | None = None
        """Where the seal is, None without one (R2); the log start never passes it."""

    def add_segment(self, segment: Segment) -> None:
        """Make this the active segment; it begins where the log ends."""
        assert not self.segments or segment.base_offset >= self.log_end
        self.segments.append(segment)
        self.active = segment
        self.log_end = max(self.log_end, segment.next_offset)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    def replace_segments(
        self, base_offsets: Sequence[Offset], segment: Segment, forgotten: Collection[Offset]
    ) -> None:
        """Replace adjacent segments by the one that was made of them; never the active one.

        ``forgotten``: abort markers whose transactions have no other batch left.
        """
        first = bisect_left(self.segments, base_offsets[0], key=_base_offset)
        last = first + len(base_offsets)
        assert [s.base_offset for s in self.segments[first:last]] == list(base_offsets)
        assert last < len(self.segments), "the active segment is never replaced"
        self.segments[first:last] = [segment]
        self.transactions.forget(forgotten)

    def segment_of(self, offset: Offset) -> Segment:
        """Return the segment whose range has the offset."""
        active = self.active
        if offset >= active.base_offset:
            return active
        return self.segments[bisect_right(self.segments, offset, key=_base_offset) - 1]

    def is_full_for(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Tell whether a batch of this size must go to a new segment.

        The ownership records that a segment begins with do not count towards its size: many of them
        would leave no room for anything else.
        """
        if self.owners.size:
            size -= min(self.owners.size, INT32_MAX - self.config.segment_bytes)
        return self.active.is_full_for(self.config, size, last_offset, max_timestamp, now_ms)

    def replay(
        self,
        header: BatchHeader,
        base_offset: Offset,
        leader_epoch: LeaderEpoch,
        max_timestamp: TimestampMs,
        control: Control | None,
    ) -> None:
        """Apply a batch that is in the log at ``base_offset``: the only change of state.

        Offset, leader epoch and timestamp are separate from the header because a live append
        assigns them after the header was read. ``control`` is what ``read_control`` returns for a
        control batch; those for which it is None only take offsets.
        """
        last_offset = Offset(base_offset + header.last_offset_delta)
        if leader_epoch > self.epochs.latest:
            self.epochs.begin(leader_epoch, base_offset)
        producer_id, epoch = header.producer_id, header.producer_epoch
        self.active.append(
            LENGTH_END + header.length,
            last_offset,
            max_timestamp,
            self.config.index_interval_bytes,
            has_records=header.record_count > 0,
            is_undated=producer_id < 0 and header.is_undated,  # few batches need the call
        )
        self.log_end = Offset(last_offset + 1)
        if producer_id < 0:
            if control is not None:
                self._replay_control(control, base_offset, LENGTH_END + header.length)
            return
        self.highest_producer_id = max(self.highest_producer_id, producer_id)
        if header.attributes & CONTROL:
            if isinstance(control, Marker):
                self._end_transaction(producer_id, epoch, base_offset, control)
            return
        state = self.producers.get(producer_id)
        if state is None:
            state = self.producers[producer_id] = ProducerState(epoch)
        elif state.epoch != epoch:
            state.adopt(epoch)
        sequence = header.base_sequence
        if sequence >= 0:
            state.store(
                # ``_make`` takes half the time of a call.
                StoredBatch._make(
                    (
                        sequence,
                        last_sequence(sequence, header.last_offset_delta),
                        base_offset,
                        last_offset,
                        max_timestamp,
                    )
                )
            )
        if header.attributes & TRANSACTIONAL and state.open_offset < 0:
            state.open_offset = base_offset
            self.transactions.begin(producer_id, base_offset)

    def _replay_control(self, control: Control, base_offset: Offset, size: int) -> None:
        if isinstance(control, OwnershipRecord):
            self.owners.replay(control, base_offset, size)
        elif isinstance(control, Seal) and self.sealed_at is None:
            self.sealed_at = base_offset

    def _end_transaction(
        self, producer_id: ProducerId, epoch: ProducerEpoch, offset: Offset, marker: Marker
    ) -> None:
        state = self.producers.get(producer_id)
        if state is None:
            if marker.drops_state:
                return
            state = self.producers[producer_id] = ProducerState(epoch)
        if state.open_offset >= 0:
            self.transactions.end(producer_id, state.open_offset, offset, commit=marker.commit)
            state.open_offset = NO_OFFSET
        if marker.drops_state:
            del self.producers[producer_id]  # V5
            return
        if epoch > state.epoch:
            state.adopt(epoch)  # the coordinator fenced the older epoch
        state.coordinator_epoch = marker.coordinator_epoch

    def snapshot(self) -> Snapshot:
        """Return what a snapshot of the log's end has."""
        owners, epochs = tuple(self.owners), self.epochs.before(self.log_end)
        return Snapshot(self.producers, self.highest_producer_id, owners, self.sealed_at, epochs)

    def snapshot_before(self, first: Offset) -> Snapshot:
        """Return what the batches from ``first`` on do not say (E4): replay them after it.

        ``first`` is the log start, or where the batch begins that holds it. Every ownership record
        that counts is among those batches (D4), and the seal, which the log start never passes.
        """
        before = {each: state.before(first) for each, state in self.producers.items()}
        epochs = self.epochs.before(first)
        return Snapshot(Producers(before), self.highest_producer_id, epochs=epochs)

    def epochs_before(self, first: Offset) -> tuple[EpochStart, ...]:
        """Return the leader epochs that began up to ``first``, as ``snapshot_before`` has it.

        Some checkpoints have that of the log start from there on only (Kafka's do): it began with
        its batch or before.
        """
        begun = (each for each in self.epochs.entries if each.offset <= self.log_start)
        return tuple(EpochStart(each.epoch, min(each.offset, first)) for each in begun)

    def open_transactions(self) -> list[OpenTransaction]:
        """Return each transaction that has records here and no marker, oldest first."""
        states = self.producers
        return [
            OpenTransaction(each, states[each].epoch, first, states[each].coordinator_epoch)
            for each, first in self.transactions.open()
        ]

    def restore(self, snapshot: Snapshot) -> None:
        """Load a snapshot: producers and open transactions, owners, the seal, leader epochs."""
        self.producers = producers = snapshot.producers
        self.highest_producer_id = max(self.highest_producer_id, snapshot.highest_producer_id)
        self.owners, self.sealed_at = Owners(snapshot.owners), snapshot.sealed_at
        self.epochs = LeaderEpochs(snapshot.epochs)
        open_transactions = sorted(
            (state.open_offset, producer_id)
            for producer_id, state in producers.items()
            if state.open_offset >= 0
        )
        for first_offset, producer_id in open_transactions:
            self.transactions.begin(producer_id, first_offset)

    def advance_start(self, log_start: Offset) -> None:
        """Raise the log start; forget what ended before it of epochs and aborted transactions."""
        self.log_start = log_start
        self.epochs.truncate_start(log_start)
        self.transactions.truncate_start(log_start)

    def problem(self, header: BatchHeader) -> str | None:
        """Return why this stored batch cannot follow the log's end (D3), or None."""
        if header.base_offset < self.log_end:
            return f"base offset {header.base_offset} is below the log end, {self.log_end}"
        if header.base_offset > self.log_end and not self._may_have_gaps():
            return f"offsets {self.log_end} to {header.base_offset - 1} are missing"
        if header.last_offset_delta < 0:
            return f"last offset delta {header.last_offset_delta} is negative"
        if header.leader_epoch < self.epochs.latest:
            return f"leader epoch {header.leader_epoch} after epoch {self.epochs.latest}"
        return None

    def check_base(self, base_offset: Offset) -> None:
        """Raise CorruptionError if no segment can begin at this offset after those before it.

        Compaction keeps the last batch of each file, so each segment begins where the one before
        ends.
        """
        if base_offset != self.log_end:
            raise CorruptionError(
                f"the next segment begins at offset {base_offset}, but the log ends at "
                f"{self.log_end}"
            )

    def _may_have_gaps(self) -> bool:
        return self.was_compacted or "compact" in self.config.cleanup_policy

    def check(self, header: BatchHeader) -> None:
        """Raise CorruptionError if ``problem`` finds one."""
        problem = self.problem(header)
        if problem is not None:
            raise CorruptionError(problem)
