"""Open, ended and aborted transactions of one partition, and the LSO (E10, V6)."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from fencelog.log.values import AbortedTransaction
from fencelog.types import Offset, ProducerId

_last_offset = attrgetter("last_offset")


class Transactions:
    """Transactions by their first offset; every operation is O(1), amortised."""

    __slots__ = ("_open", "_unstable", "aborted")

    def __init__(self) -> None:
        """Start without transactions."""
        self._open: OrderedDict[Offset, ProducerId] = OrderedDict()
        # First offset to the offset of the marker, None while open. In order of first offsets,
        # because a transaction begins at the log's end. An ended one is removed at the front only.
        self._unstable: OrderedDict[Offset, Offset | None] = OrderedDict()
        self.aborted: list[AbortedTransaction] = []
        """In order of their markers' offsets, as in the index files. A read keeps the list that it
        began with: what is forgotten meanwhile stays there, for the records that it has read."""

    def begin(self, producer_id: ProducerId, first_offset: Offset) -> None:
        """A transaction's first record is at this offset."""
        self._open[first_offset] = producer_id
        self._unstable[first_offset] = None

    def end(
        self, producer_id: ProducerId, first_offset: Offset, marker_offset: Offset, *, commit: bool
    ) -> None:
        """The transaction that began at ``first_offset`` has its marker."""
        del self._open[first_offset]
        self._unstable[first_offset] = marker_offset
        if not commit:
            stable = next(iter(self._open), Offset(marker_offset + 1))
            self.aborted.append(
                AbortedTransaction(producer_id, first_offset, marker_offset, stable)
            )

    def open(self) -> Iterable[tuple[ProducerId, Offset]]:
        """Return producer and first offset of each open transaction, oldest first."""
        return [(producer_id, first) for first, producer_id in self._open.items()]

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Return the first offset of the oldest unstable transaction, or the high watermark.

        A transaction is unstable until its marker is below the high watermark: until then the
        marker may be lost.
        """
        unstable = self._unstable
        while unstable:
            first_offset = next(iter(unstable))
            marker_offset = unstable[first_offset]
            if marker_offset is None or marker_offset >= high_watermark:
                return min(first_offset, high_watermark)
            del unstable[first_offset]
        return high_watermark

    def forget(self, markers: Collection[Offset]) -> None:
        """Forget the aborted transactions of these markers: no other batch of them is left."""
        if markers:
            self.aborted = [entry for entry in self.aborted if entry.last_offset not in markers]

    def truncate_start(self, log_start: Offset) -> None:
        """Forget aborted transactions that end before the log's start."""
        ended = bisect_left(self.aborted, log_start, key=_last_offset)
        if ended:
            self.aborted = self.aborted[ended:]


def aborted_between(
    aborted: Sequence[AbortedTransaction], fetch_offset: Offset, end_offset: Offset
) -> list[AbortedTransaction]:
    """Return those of a log's aborted transactions that may have records between two offsets."""
    found = []
    start = bisect_left(aborted, fetch_offset, key=_last_offset)
    for number in range(start, len(aborted)):
        transaction = aborted[number]
        if transaction.first_offset < end_offset:
            found.append(transaction)
        if transaction.last_stable_offset >= end_offset:
            break
    return found
