"""Checks the files that replace compacted segments (D4): every record and every marker.

Written a second time, from bytes alone: each file of the log is read again, and what is missing
from the new one must be superseded, aborted, or a tombstone or marker past its retention.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fencelog.coordination.shard import LogRecord
from fencelog.types import NO_SEQUENCE
from fencelog.wire.batch import BatchHeader
from fencelog.wire.control import Marker, OwnershipRecord, Seal
from fencelog.wire.filtering import delete_horizon
from fencelog.wire.records import Headers, read_records
from fencelog_sim.monitors.ledger import Ledger

ReadBatch = Callable[["Batch"], bytes | None]


class Batch(NamedTuple):
    """A batch as it lies on disk."""

    segment: int
    """Base offset of its file."""
    position: int
    header: BatchHeader
    digest: int
    marker: Marker | None
    records: tuple[tuple[int, LogRecord], ...]
    """Of a coordinator's log only, each with its offset."""
    owner: OwnershipRecord | None = None
    seal: Seal | None = None


class _Record(NamedTuple):
    """A record of a data batch."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


@dataclass(frozen=True)
class Swap:
    """Adjacent segments and the one file that replaced them."""

    base: int
    end: int
    old: Sequence[Batch]
    new: Sequence[Batch]


@dataclass(frozen=True)
class SwapChecker:
    """What is known of the log in the step in which the new file gets its name."""

    batches: Sequence[Batch]
    """All that the log had before."""
    ledger: Ledger
    stable: int
    """The last stable offset."""
    latest_ms: int
    """The highest time that the broker's clock has shown."""
    read_old: ReadBatch
    """Its bytes; None where its file was deleted."""
    read_new: ReadBatch

    def problems(self, swap: Swap) -> Iterator[str]:
        """Yield each violation by compaction."""
        if swap.end > self.stable:
            yield f"offsets up to {swap.end} are compacted, but the LSO is {self.stable} (D4)"
        if not swap.old or swap.old[-1].header.next_offset != swap.end:
            yield f"the compacted file {swap.base} ends at {swap.end}, not where it did (D3)"
        before = {each.header.base_offset: each for each in swap.old}
        after = {each.header.base_offset: each for each in swap.new}
        for offset, made in after.items():
            known = before.get(offset)
            if known is None or not self._is_same(known, made):
                yield f"compaction made a batch at {offset} that was not there (D4)"
        newest = self._newest()
        below = [each for each in self.batches if each.segment < swap.base]
        left = [each for each in below if self.read_old(each) is not None] + list(swap.new)
        for old in swap.old:
            new = after.get(old.header.base_offset)
            if old.marker is not None:
                if new is None:
                    yield from self._lost_marker(old, left)
            elif not old.header.is_control:
                yield from self._lost_records(old, new, newest)
                if new is None:
                    yield from self._lost_producer(old)

    def _lost_records(
        self, old: Batch, new: Batch | None, newest: dict[bytes, int]
    ) -> Iterator[str]:
        had = {each.offset: each for each in _records(self.read_old(old))}
        kept = {} if new is None else {each.offset: each for each in _records(self.read_new(new))}
        horizon = delete_horizon(old.header)
        for offset, record in kept.items():
            if had.get(offset) != record:
                yield f"compaction changed the record at {offset} (D4)"
        for offset, record in had.items():
            if offset in kept or record.key is None or self._is_aborted(old.header):
                continue
            if newest.get(record.key, -1) > offset:
                continue
            if record.value is not None:
                yield f"compaction took the newest record of {record.key!r}, at {offset} (D4)"
            elif horizon is None or horizon > self.latest_ms:
                yield f"compaction took the tombstone at {offset} before its time (D4)"

    def _lost_marker(self, old: Batch, left: Sequence[Batch]) -> Iterator[str]:
        offset, producer_id = old.header.base_offset, old.header.producer_id
        horizon = delete_horizon(old.header)
        if horizon is None or horizon > self.latest_ms:
            yield f"compaction took the marker at {offset} before its time (D4)"
        for batch in reversed(left):
            header = batch.header
            if header.base_offset >= offset or header.producer_id != producer_id:
                continue
            if batch.marker is None and header.is_transactional:
                yield f"compaction took the marker at {offset}, but not {header.base_offset} (D4)"
            break

    def _lost_producer(self, old: Batch) -> Iterator[str]:
        """A producer that is known must be known again after a crash (E15)."""
        header = old.header
        producer = self.ledger.producers.get(header.producer_id)
        if producer is None or producer.last_offset != header.next_offset - 1:
            return
        if producer.epoch == header.producer_epoch and header.base_sequence >= 0:
            yield f"compaction took the last batch of producer {header.producer_id} (D4)"

    def _is_same(self, known: Batch, made: Batch) -> bool:
        was, now = known.header, made.header
        if now.base_sequence == NO_SEQUENCE and was.producer_id not in self.ledger.producers:
            was = was._replace(base_sequence=NO_SEQUENCE)  # its sequences are unknown (E5)
        return _identity(was) == _identity(now) and known.marker == made.marker

    def _is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and any(
            each.producer_id == header.producer_id
            and each.first_offset <= header.base_offset < each.marker_offset
            for each in self.ledger.aborted
        )

    def _newest(self) -> dict[bytes, int]:
        """The newest offset of each key, among the records that count and are decided."""
        newest: dict[bytes, int] = {}
        for batch in self.batches:
            header = batch.header
            if header.is_control or header.base_offset >= self.stable or self._is_aborted(header):
                continue
            for record in _records(self.read_old(batch)):
                if record.key is not None:
                    newest[record.key] = record.offset
        return newest


def _identity(header: BatchHeader) -> tuple[object, ...]:
    """What compaction leaves of a header."""
    return (
        header.base_offset,
        header.next_offset,
        header.leader_epoch,
        header.is_control,
        header.is_transactional,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )


def _records(data: bytes | None) -> list[_Record]:
    if data is None:
        return []
    return [
        _Record(each.offset, each.key, each.value, each.timestamp, each.headers)
        for each in read_records(memoryview(data))
    ]
