"""A segment's sparse indexes: offset to position, and timestamp to offset.

As in Kafka, there is an entry for about every ``index.interval.bytes`` of log. An offset entry has
the last offset of a batch and the position where that batch begins, so a search for an offset finds
the batch that holds it or one before.
"""

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct

from fencelog.errors import CorruptionError

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
_TIME_ENTRY = Struct(">qi")


class OffsetIndex:
    """Relative offsets and file positions, both increasing."""

    __slots__ = ("_offsets", "_positions")

    def __init__(self) -> None:
        """Start empty."""
        self._offsets = array("i")
        self._positions = array("i")

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._offsets)

    def add(self, relative_offset: int, position: int) -> None:
        """Add an entry: the batch that ends with this offset begins at this position."""
        self._offsets.append(relative_offset)
        self._positions.append(position)

    def position(self, relative_offset: int) -> int:
        """Return a position at, or a little before, the batch that holds the offset."""
        # An entry has its batch's last offset: if that is not above the wanted one, the batch that
        # holds it is this one or a later one.
        found = bisect_right(self._offsets, relative_offset) - 1
        return self._positions[found] if found >= 0 else 0

    def end_position(self, relative_offset: int) -> int | None:
        """Return a position at, or a little after, the end of the batches below the offset.

        None: there is no entry above it.
        """
        found = bisect_left(self._offsets, relative_offset)
        return self._positions[found] if found < len(self._positions) else None

    def last_within(self, position: int, relative_offset: int) -> int:
        """Return where the last indexed batch begins up to a position, with offsets below one."""
        found = bisect_right(self._positions, position)
        found = bisect_left(self._offsets, relative_offset, hi=found) - 1
        return self._positions[found] if found >= 0 else 0

    def encode(self, start: int = 0) -> bytes:
        """Return the file bytes of the entries from number ``start``."""
        count = len(self._offsets) - start
        if not count:
            return b""
        entries = array("i", bytes(OFFSET_ENTRY_BYTES * count))
        entries[0::2] = self._offsets[start:]
        entries[1::2] = self._positions[start:]
        entries.byteswap()
        return entries.tobytes()

    @classmethod
    def decode(cls, data: bytes) -> "OffsetIndex":
        """Return the index of file bytes; raises CorruptionError unless its entries increase."""
        if len(data) % OFFSET_ENTRY_BYTES:
            raise CorruptionError(f"offset index of {len(data)} bytes ends with a partial entry")
        entries = array("i", data)
        entries.byteswap()
        index = cls()
        index._offsets = entries[0::2]
        index._positions = entries[1::2]
        if not (_grows(index._offsets) and _grows(index._positions)):
            raise CorruptionError("the entries of the offset index do not increase")
        return index


class TimeIndex:
    """The largest timestamp so far and its offset, both increasing."""

    __slots__ = ("_offsets", "_timestamps")

    def __init__(self) -> None:
        """Start empty."""
        self._timestamps = array("q")
        self._offsets = array("i")

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._offsets)

    def add(self, timestamp: int, relative_offset: int) -> None:
        """Add the largest timestamp so far; does nothing if it has not increased."""
        if timestamp > (self._timestamps[-1] if self._timestamps else -1):
            self._timestamps.append(timestamp)
            self._offsets.append(relative_offset)

    def offset_before(self, timestamp: int) -> int:
        """Return a relative offset before which every timestamp is below this one."""
        found = bisect_left(self._timestamps, timestamp) - 1
        return self._offsets[found] if found >= 0 else 0

    def last(self) -> tuple[int, int] | None:
        """Return the last entry: timestamp and relative offset."""
        return (self._timestamps[-1], self._offsets[-1]) if self._offsets else None

    def encode(self, start: int = 0) -> bytes:
        """Return the file bytes of the entries from number ``start``."""
        if start == len(self._offsets):
            return b""
        pairs = zip(self._timestamps[start:], self._offsets[start:], strict=True)
        return b"".join(_TIME_ENTRY.pack(timestamp, offset) for timestamp, offset in pairs)

    @classmethod
    def decode(cls, data: bytes) -> "TimeIndex":
        """Return the index of file bytes; raises CorruptionError unless its entries increase."""
        if len(data) % TIME_ENTRY_BYTES:
            raise CorruptionError(f"time index of {len(data)} bytes ends with a partial entry")
        index = cls()
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            index._timestamps.append(timestamp)
            index._offsets.append(offset)
        if not (_grows(index._timestamps) and _grows(index._offsets)):
            raise CorruptionError("the entries of the time index do not increase")
        return index


def _grows(values: "array[int]") -> bool:
    return all(map(int.__lt__, values, values[1:]))
