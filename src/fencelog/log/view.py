"""What anybody may ask of a partition's log; nothing here changes it."""

from collections.abc import Collection, Mapping, Sequence

from fencelog.log.ownership import Owner
from fencelog.log.recovery_checkpoint import RecoveryCheckpoint, checkpoint_of
from fencelog.log.snapshot import encode_snapshot
from fencelog.log.state import LogState
from fencelog.log.values import (
    AbortedTransaction,
    EpochStart,
    OpenTransaction,
    ProducerView,
    SideFiles,
)
from fencelog.types import LeaderEpoch, Offset, ProducerId, TimestampMs


class LogView:
    """The state of a log, to be read."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        """The state is the log's own: what is read is as of now."""
        self._state = state

    @property
    def log_start_offset(self) -> Offset:
        """First offset that may be read."""
        return self._state.log_start

    @property
    def log_end_offset(self) -> Offset:
        """Offset of the next record."""
        return self._state.log_end

    @property
    def segment_base_offsets(self) -> list[Offset]:
        """Base offset of each segment, oldest first."""
        return [segment.base_offset for segment in self._state.segments]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._state.size

    def end_of_segment(self, base_offset: Offset) -> Offset:
        """Offset that follows the segment that holds this one."""
        return self._state.segment_of(base_offset).next_offset

    @property
    def highest_producer_id(self) -> ProducerId:
        """Highest producer id ever stored here, of expired producers too; -1 without one (E7)."""
        return self._state.highest_producer_id

    @property
    def max_timestamp(self) -> TimestampMs:
        """Largest timestamp of any record, -1 if there is none."""
        return max(each.max_timestamp for each in self._state.segments)

    @property
    def sealed_at(self) -> Offset | None:
        """Offset of the seal, below which the segment of the stream ends; None without one (R2)."""
        return self._state.sealed_at

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Leader epoch of the newest batch; -1 without one."""
        return self._state.epochs.latest

    def open_transactions(self) -> list[OpenTransaction]:
        """Return each transaction that has records here and no marker, oldest first."""
        return self._state.open_transactions()

    @property
    def aborted(self) -> Sequence[AbortedTransaction]:
        """The aborted transactions of which records may be left, for ``aborted_between``.

        Taken before records are read: their transactions stay in it, whatever is forgotten since.
        """
        return self._state.transactions.aborted

    def owner(self, group: str | None) -> Owner | None:
        """Return the last grant in a group, or its end; None: there was none (O8)."""
        return self._state.owners.get(group)

    def owners(self) -> list[Owner]:
        """Return the last grant, or its end, in each group."""
        return [stored.owner for stored in self._state.owners]

    def has_room_for_owner(self, group: str | None) -> bool:
        """Tell whether an owner of this group could be recorded: there are not too many."""
        return self._state.owners.has_room(group)

    def producers(self) -> list[ProducerView]:
        """Return the state of each producer (DescribeProducers)."""
        return self._state.producers.views()

    def producer(self, producer_id: ProducerId) -> ProducerView | None:
        """Return the state of one producer; None: it is not known here."""
        return self._state.producers.view(producer_id)

    def has_segments(self, base_offsets: Collection[Offset]) -> bool:
        """Tell whether the segments of these base offsets are all still part of the log."""
        return set(base_offsets) <= set(self.segment_base_offsets)

    def bytes_from(self, offset: Offset) -> int:
        """Return the stored bytes from the batch that has an offset to the end.

        By the index, so up to an interval too many, and 0 at the end. Below the log start: from
        the first segment on.
        """
        state = self._state
        if offset >= state.log_end:
            return 0
        first = state.segment_of(max(offset, state.segments[0].base_offset))
        later = sum(each.size for each in state.segments if each.base_offset > first.base_offset)
        return first.size - first.position(offset) + later

    def start_snapshot(self, first: Offset) -> tuple[bytes, tuple[EpochStart, ...]]:
        """Return the producer snapshot and the leader epochs of a replica that begins here (E4).

        ``first`` is the log start, or where the batch begins that holds it.
        """
        return encode_snapshot(self._state.snapshot_before(first)), self._state.epochs_before(first)

    def checkpoint(
        self, checksums: Mapping[Offset, int], side_files: SideFiles
    ) -> RecoveryCheckpoint:
        """Return the recovery checkpoint of the log's end, see ``checkpoint_of``."""
        return checkpoint_of(self._state, checksums, side_files)
