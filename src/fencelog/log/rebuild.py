"""Rebuilds a log's state from what is stored, for recovery.

After an unclean stop every batch goes through ``replay``, as it did when it was appended; side
files are not read but rebuilt (``side_files``). After a clean stop ``load_segment`` takes the
indexes of full segments as they are and ``restore_snapshot`` the snapshot at the newest one. With
a recovery checkpoint ``resume`` does that, and only the batches above it go through ``replay``.
"""

from collections.abc import Iterable

from fencelog.log.config import LogConfig
from fencelog.log.index import OffsetIndex, TimeIndex
from fencelog.log.layout import decode_aborted, encode_aborted
from fencelog.log.leader_epochs import FIRST_EPOCH, LeaderEpochs
from fencelog.log.partition_log import PartitionLog
from fencelog.log.recovery_checkpoint import RecoveryCheckpoint
from fencelog.log.segment import Segment
from fencelog.log.snapshot import decode_snapshot, encode_snapshot
from fencelog.log.state import LogState
from fencelog.log.values import EpochStart, SideFiles
from fencelog.types import Offset, TimestampMs
from fencelog.wire.batch import BatchHeader
from fencelog.wire.control import Control

_FIRST_OFFSET = Offset(0)


class LogBuilder:
    """Takes segments in order, each by its batches or by its side files."""

    def __init__(
        self,
        config: LogConfig,
        *,
        log_start: Offset = _FIRST_OFFSET,
        was_compacted: bool = False,
    ) -> None:
        """``log_start``: the log start offset from the checkpoint.

        ``was_compacted``: a round of compaction has begun on this log at some time.
        """
        self._state = LogState(config, log_start, was_compacted=was_compacted)

    @property
    def log_end(self) -> Offset:
        """Offset that the next batch must have."""
        return self._state.log_end

    @property
    def position(self) -> int:
        """Size in bytes of the segment that is being rebuilt: where the next batch must begin."""
        return self._state.active.size

    def open_segment(self, base_offset: Offset) -> None:
        """Begin the segment of this base offset: the batches that follow are in its file.

        Raises CorruptionError if the base offset is not the log's end.
        """
        state = self._state
        if not state.segments:
            # The first file may begin below the log's start (DeleteRecords), or above a
            # checkpoint that is older than the deletion of the files before it.
            state.log_end = base_offset
            state.log_start = max(state.log_start, base_offset)
        else:
            state.check_base(base_offset)
            state.active.seal()
        state.add_segment(Segment(base_offset))

    def problem(self, header: BatchHeader) -> str | None:
        """Return why this batch cannot be the next one (D3), or None. Does not check its CRC."""
        return self._state.problem(header)

    def replay(
        self,
        header: BatchHeader,
        control: Control | None = None,
        position: int = -1,
    ) -> None:
        """Add the next batch; raises CorruptionError if ``problem`` finds one.

        ``control`` is what ``read_control`` returns for a control batch; None for other batches.
        ``position``, if given, is checked.
        """
        state = self._state
        assert position in (-1, state.active.size), (position, state.active.size)
        state.check(header)
        state.replay(header, header.base_offset, header.leader_epoch, header.max_timestamp, control)

    def load_segment(
        self,
        base_offset: Offset,
        *,
        size: int,
        end_offset: Offset,
        side_files: SideFiles,
        first_timestamp: TimestampMs,
    ) -> None:
        """Add a segment of a cleanly stopped log without reading its batches.

        ``first_timestamp`` is the largest timestamp of its first batch, -1 without one. Raises
        CorruptionError if the side files are not valid indexes.
        """
        state = self._state
        self.open_segment(base_offset)
        segment = state.active
        segment.size = size
        segment.next_offset = end_offset
        segment.index = OffsetIndex.decode(side_files.offset_index)
        segment.time_index = TimeIndex.decode(side_files.time_index)
        segment.first_timestamp = first_timestamp
        last = segment.time_index.last()
        if last is not None:
            segment.max_timestamp = TimestampMs(last[0])
            segment.max_timestamp_offset = Offset(base_offset + last[1])
        state.transactions.aborted += decode_aborted(side_files.txn_index)
        state.log_end = end_offset

    def restore_snapshot(self, snapshot: bytes) -> None:
        """Load the snapshot at ``log_end``, with the leader epochs that a start there needs."""
        self._state.restore(decode_snapshot(snapshot))

    def restore_leader_epochs(self, entries: Iterable[EpochStart]) -> None:
        """Load the leader epoch checkpoint of a cleanly stopped log."""
        self._state.epochs = LeaderEpochs(entries)

    def resume(self, checkpoint: RecoveryCheckpoint) -> None:
        """Continue at a checkpoint's end; its full segments were loaded before.

        Raises CorruptionError if its contents are not valid.
        """
        state = self._state
        newest = checkpoint.newest
        self.restore_snapshot(checkpoint.snapshot)
        self.restore_leader_epochs(checkpoint.leader_epochs)
        self.open_segment(newest.base_offset)
        segment = state.active
        segment.size = newest.size
        segment.next_offset = state.log_end = newest.next_offset
        segment.first_timestamp = newest.first_timestamp
        segment.max_timestamp = newest.max_timestamp
        segment.max_timestamp_offset = newest.max_timestamp_offset
        segment.bytes_since_index = newest.bytes_since_index
        if newest.max_timestamp < 0:
            segment.undated_size = newest.size
        segment.index = OffsetIndex.decode(checkpoint.side_files.offset_index)
        segment.time_index = TimeIndex.decode(checkpoint.side_files.time_index)
        state.transactions.aborted += decode_aborted(checkpoint.side_files.txn_index)

    def side_files(self, base_offset: Offset) -> SideFiles:
        """Return what the side files of a segment must hold."""
        segment = self._state.segment_of(base_offset)
        assert segment.base_offset == base_offset, (segment.base_offset, base_offset)
        aborted = self._state.transactions.aborted
        return SideFiles(
            segment.index.encode(),
            segment.time_index.encode(),
            encode_aborted(
                entry for entry in aborted if base_offset <= entry.last_offset < segment.next_offset
            ),
        )

    @property
    def leader_epochs(self) -> tuple[EpochStart, ...]:
        """The leader epochs found, for their checkpoint."""
        return self._state.epochs.entries

    def snapshot(self) -> bytes:
        """Return the snapshot as of ``log_end``."""
        return encode_snapshot(self._state.snapshot())

    def finish(self, high_watermark: Offset | None = None) -> PartitionLog:
        """Return the log; every batch that was added must be durable by now (D2).

        Its leader epoch is the latest one found. Without a high watermark everything is committed.
        """
        state = self._state
        if not state.segments:
            state.add_segment(Segment(state.log_start))
        state.advance_start(min(state.log_start, state.log_end))
        return PartitionLog(state, max(state.epochs.latest, FIRST_EPOCH), high_watermark)
