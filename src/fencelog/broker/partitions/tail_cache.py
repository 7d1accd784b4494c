"""The newest batches of partitions in memory, for readers that follow their producers.

What a producer sent is still in the frame that it came in; a reader at the end of the log gets it
from there, without a read. A view of a frame keeps all of it, also in an answer that a slow reader
does not take: so a batch that is less than half of its frame is copied. Batches are added when they
are in the file, and readers are bounded by their plans, so the cache never holds more than the
file, nor shows more. Only partitions with such readers have a tail.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence

from fencelog.log.values import ReadPlan, SegmentWrite
from fencelog.types import Offset
from fencelog.wire.batch import next_offset_of

WRITE_BYTES, BATCH_BYTES = 500, 200
"""Memory of the objects that stand for a write and for each of its batches."""


class _Write:
    """Adjacent batches."""

    __slots__ = ("buffers", "bytes", "first_offset", "tail", "was_read")

    def __init__(self, tail: "Tail", write: SegmentWrite) -> None:
        self.tail = tail
        self.first_offset = write.first_offset
        self.buffers = list(map(_alone, write.buffers))
        self.bytes = WRITE_BYTES + BATCH_BYTES * len(self.buffers)
        """Memory that it keeps, whole frames included."""
        self.bytes += sum(map(_held_by, self.buffers))
        self.was_read = False


def _alone(batch: memoryview) -> memoryview:
    """Return the batch, in memory of its own unless it is most of its frame."""
    return batch if 2 * len(batch) >= _held_by(batch) else memoryview(bytes(batch))


def _held_by(batch: memoryview) -> int:
    frame = batch.obj
    assert isinstance(frame, (bytes, bytearray)), type(frame)
    return len(frame)


class TailCache:
    """The tails of all partitions, within one limit: the oldest writes go first."""

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max``: memory that all cached batches may keep."""
        self._bytes_max = bytes_max
        self._writes: OrderedDict[_Write, None] = OrderedDict()
        """The oldest first."""
        self.bytes = 0

    def add(self, write: _Write) -> None:
        """Cache a write, and evict older ones if there is no room."""
        self._writes[write] = None
        self.bytes += write.bytes
        while self.bytes > self._bytes_max:
            oldest = next(iter(self._writes))
            oldest.tail.evicted(oldest)
            self.remove(oldest)

    def remove(self, write: _Write) -> None:
        """Forget a write."""
        del self._writes[write]
        self.bytes -= write.bytes


class Tail:
    """The cached writes of one partition: adjacent, the newest last."""

    __slots__ = ("_cache", "wanted", "writes")

    def __init__(self, cache: TailCache) -> None:
        """Start without writes, which are kept once they are ``wanted``."""
        self._cache = cache
        self.wanted = False
        """Whether a reader was at the end of the log not long ago."""
        self.writes: deque[_Write] = deque()

    def add(self, unflushed: Sequence[SegmentWrite]) -> None:
        """Cache what was written to the file just now."""
        if not self.wanted:
            self.clear()  # writes that are not adjacent are of no use
            return
        for each in unflushed:
            if each.buffers:
                write = _Write(self, each)
                self.writes.append(write)
                self._cache.add(write)

    def clear(self) -> None:
        """Forget everything: the files have changed, or there is nothing to read any more."""
        for write in self.writes:
            self._cache.remove(write)
        self.writes.clear()
        self.wanted = False

    def evicted(self, write: _Write) -> None:
        """The oldest write goes. Nobody read it: then no reader follows any more."""
        assert self.writes[0] is write, write.first_offset
        self.writes.popleft()
        self.wanted = self.wanted and write.was_read

    def read(self, plan: ReadPlan) -> tuple[list[memoryview], Offset] | None:
        """Return a plan's batches and the offset of what follows; None if they are not all here."""
        writes = self.writes
        if not writes or plan.offset < writes[0].first_offset:
            return None
        number = len(writes) - 1
        while writes[number].first_offset > plan.offset:
            number -= 1
        found: list[memoryview] = []
        size, end_offset = 0, plan.offset
        for each in range(number, len(writes)):
            write = writes[each]
            write.was_read = True
            for buffer in write.buffers:
                next_offset = next_offset_of(buffer)
                if next_offset <= plan.offset:
                    continue
                size += len(buffer)
                if next_offset > plan.upper_offset or (found and size > plan.max_bytes):
                    return found, (end_offset if found else plan.offset)
                found.append(buffer)
                end_offset = next_offset
        return found, end_offset
