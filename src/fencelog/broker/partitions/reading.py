"""Reads of one partition: the batches that a reader of some isolation level gets."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from fencelog.broker.partitions.tail_cache import Tail
from fencelog.errors import CorruptionError, ErrorCode, ExhaustedError, StorageError
from fencelog.log.partition_log import PartitionLog
from fencelog.log.transactions import aborted_between
from fencelog.log.values import AbortedTransaction, Isolation, ReadPlan
from fencelog.storage.partition_store import PartitionStore
from fencelog.storage.seal_store import SealStore
from fencelog.storage.segment import Pause
from fencelog.types import Offset, TimestampMs


class Fetched(NamedTuple):
    """The result of a read: whole batches, and the log's offsets when the read began."""

    error: ErrorCode
    high_watermark: Offset = Offset(-1)
    last_stable_offset: Offset = Offset(-1)
    log_start_offset: Offset = Offset(-1)
    parts: Sequence[memoryview] = ()
    """The batches, one or more in each part."""
    end_offset: Offset = Offset(-1)
    """The offset at which the next batches begin."""
    aborted: Sequence[AbortedTransaction] = ()
    """The aborted transactions in ``records``; only for a transactional reader (E10)."""
    plan: ReadPlan | None = None
    """Where was read; None after an error."""

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return sum(map(len, self.parts))

    @property
    def records(self) -> memoryview:
        """All batches in one piece."""
        return self.parts[0] if len(self.parts) == 1 else memoryview(b"".join(self.parts))

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing that may be read by now follows these batches."""
        assert self.plan is not None, self
        return not self.parts or self.end_offset >= self.plan.upper_offset


class Reads:
    """Reads the newest batches from memory, and all others from the files."""

    __slots__ = ("_failed", "_log", "_store", "_tail")

    def __init__(
        self,
        log: PartitionLog,
        store: PartitionStore | SealStore,
        tail: Tail,
        failed: Iterable[Callable[[Exception], None]],
    ) -> None:
        """Read this log. ``failed`` are told why the files cannot be read."""
        self._log = log
        self._store = store
        self._tail = tail
        self._failed = failed

    async def refused(self, error: ErrorCode) -> Fetched:
        """Return what a reader gets that may not read now."""
        return Fetched(error)

    async def read(
        self,
        offset: Offset,
        max_bytes: int,
        isolation: Isolation,
        *,
        at_least_one: bool,
        to_send: bool,
    ) -> Fetched:
        """Read as ``Partition.read`` says."""
        partition_log = self._log
        plan = partition_log.read(offset, max(max_bytes, 0), isolation)
        # Taken before the data is read, so that they match the plan.
        ends = (
            partition_log.high_watermark,
            partition_log.last_stable_offset,
            partition_log.log_start_offset,
        )
        known_aborted = partition_log.aborted
        if isinstance(plan, ErrorCode):
            return Fetched(plan, *ends)
        if plan.is_empty or (max_bytes <= 0 and not at_least_one):
            return Fetched(ErrorCode.NONE, *ends, (), plan.offset, (), plan)
        found = self._tail.read(plan)
        if found is None:
            with self._telling():
                stored = await self._store.read(plan, to_send=to_send)
            found = [stored.data] if stored.data else [], stored.end_offset
        parts, end_offset = found
        self._tail.wanted = self._tail.wanted or end_offset >= plan.upper_offset
        aborted: Sequence[AbortedTransaction] = ()
        if isolation is Isolation.TRANSACTIONAL and parts:
            aborted = aborted_between(known_aborted, plan.offset, end_offset)
        return Fetched(ErrorCode.NONE, *ends, parts, end_offset, aborted, plan)

    async def find_timestamp(
        self, timestamp: TimestampMs, isolation: Isolation, pause: Pause
    ) -> tuple[Offset, TimestampMs] | None:
        """Search as ``Partition.find_timestamp`` says."""
        with self._telling():
            return await self._store.find_timestamp(timestamp, isolation, pause)

    def tell(self, error: Exception) -> None:
        """The files cannot be read: tell who repairs or replaces them (D3)."""
        for tell in self._failed:
            tell(error)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell why the files cannot be read, unless only something ran out."""
        try:
            yield
        except ExhaustedError:
            raise
        except (CorruptionError, StorageError) as error:
            self.tell(error)
            raise
