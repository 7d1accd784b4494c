"""The offset at which each leader epoch began (F7), as in Kafka's checkpoint."""

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter

from fencelog.log.values import EpochStart
from fencelog.types import LeaderEpoch, Offset

NO_EPOCH = LeaderEpoch(-1)
FIRST_EPOCH = LeaderEpoch(0)
"""The epoch of a leader without other replicas."""

_epoch_of = attrgetter("epoch")
_offset_of = attrgetter("offset")


class LeaderEpochs:
    """Epochs with their start offsets, both increasing."""

    __slots__ = ("_entries", "latest")

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        """Start from a checkpoint's entries."""
        self._entries = list(entries)
        self.latest = LeaderEpoch(self._entries[-1].epoch) if self._entries else NO_EPOCH

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        """All epochs that have records, oldest first."""
        return tuple(self._entries)

    def begin(self, epoch: LeaderEpoch, offset: Offset) -> None:
        """Add a newer epoch, whose first batch is at this offset."""
        assert epoch > self.latest, (epoch, self.latest)
        self._entries.append(EpochStart(epoch, offset))
        self.latest = epoch

    def end_of(self, epoch: int, log_end: Offset) -> EpochStart:
        """Return the newest epoch that is not above ``epoch``, and its end offset (KIP-320).

        If every epoch here is newer, returns ``epoch`` itself, which ended before them. The last
        epoch of the log ends at ``log_end``. ``epoch`` must not be above the leader's own.
        """
        higher = bisect_right(self._entries, epoch, key=_epoch_of)
        end = self._entries[higher].offset if higher < len(self._entries) else log_end
        found = self._entries[higher - 1].epoch if higher else epoch
        return EpochStart(found, end)

    def contradicts(self, epoch: int, offset: Offset) -> bool:
        """Whether a batch of this epoch cannot be at this offset, by these entries.

        The entries may end before the log does: between two of them the epoch of every offset is
        known; from the last one on it may be newer. Before the first one it is unknown.
        """
        later = bisect_right(self._entries, offset, key=_offset_of)
        if later == 0:
            return False
        known = self._entries[later - 1].epoch
        return epoch < known or (epoch > known and later < len(self._entries))

    def truncate_start(self, log_start: Offset) -> None:
        """Forget epochs that end at or before the log's new start."""
        keep = max(bisect_right(self._entries, log_start, key=_offset_of) - 1, 0)
        if keep or (self._entries and self._entries[0].offset < log_start):
            first = self._entries[keep]
            start = max(first.offset, log_start)
            self._entries[: keep + 1] = [EpochStart(first.epoch, Offset(start))]
