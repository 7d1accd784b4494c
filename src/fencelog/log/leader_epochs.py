"""The offset at which each leader epoch began (F7), as in Kafka's checkpoint."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter

from fencelog.log.values import EpochStart
from fencelog.types import LeaderEpoch, Offset

NO_EPOCH = LeaderEpoch(-1)
FIRST_EPOCH = LeaderEpoch(0)
"""The epoch of a leader without other replicas."""
KEPT_BELOW = 2
"""Epochs that began below the log start, of which a log needs to know."""

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
        """All epochs that are known, oldest first; two may have ended by the log start."""
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

    def before(self, offset: Offset) -> tuple[EpochStart, ...]:
        """Return what a log that begins at this offset needs of the epochs that began below it.

        That of the last record below it: a follower that ends there has the same records only if it
        has that epoch. And the one before: where the log start is inside a batch, a replica may
        begin with that batch, and another one may end where it does.
        """
        begun = bisect_left(self._entries, offset, key=_offset_of)
        return tuple(self._entries[max(begun - KEPT_BELOW, 0) : begun])

    def truncate_start(self, log_start: Offset) -> None:
        """Forget epochs that no follower at the log's new start, or above it, can end in."""
        begun = bisect_left(self._entries, log_start, key=_offset_of)
        del self._entries[: max(begun - KEPT_BELOW, 0)]
