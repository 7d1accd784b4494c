"""Compaction: which records of a log are kept, and which part of the log a round may change.

The newest record of each key is kept. The other rules keep the log's meaning (D4):

- A round changes nothing at or above the last stable offset, nothing in the active segment, nothing
  that may not be on stable storage, and nothing younger than ``min.compaction.lag.ms``.
- A tombstone is kept until its batch's delete horizon has passed: ``delete.retention.ms`` after the
  first round that saw it, so that a reader that began before sees the deletion (KIP-534). It is
  kept for longer while a replica is not in sync: one that has an older record of the key and never
  gets the tombstone would bring that record back as a leader.
- Records of aborted transactions are removed. A marker stays for as long as a batch of its
  transaction is in the log, and then until a delete horizon of its own.
- The last batch of each live producer stays, emptied if necessary, because it carries the
  producer's last sequence. If only a marker is left of a producer, the marker stays, because it
  carries the epoch.
- A batch of an expired producer loses its sequence: later batches of it may be removed, and a load
  that took this one for the last would refuse the producer's next batch as out of order (E5).
- Of the ownership records of a group the newest one in the round stays, as if the group were a key:
  a newer one above the round may not be on stable storage yet.
- A seal stays: it is no record of a key.
- The last batch of each file stays, emptied if necessary: the next file begins where it ends, so
  recovery can tell compacted offsets from lost ones.

A round (``compaction_round``) has two passes. ``KeyMapper`` reads the dirty part and maps each key
to its newest offset; ``Compactor`` then reads everything up to there and decides on each batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from fencelog.errors import WireError
from fencelog.log.state import LogState
from fencelog.log.transactions import Transactions, aborted_between
from fencelog.types import Buffer, Offset, ProducerEpoch, ProducerId, TimestampMs
from fencelog.wire.batch import BatchHeader
from fencelog.wire.control import OwnershipRecord, Seal, read_control
from fencelog.wire.filtering import (
    ScannedRecord,
    delete_horizon,
    emptied,
    scan,
    with_records,
    without_sequence,
)

KEYS_MAX = 500_000
"""Keys in one round, about 100 MB; the batches after them are left for the next round."""
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class LastOfProducer:
    """What must be kept of a live producer: its last batch, or its markers if it has none."""

    epoch: ProducerEpoch
    last_offset: Offset | None


def live_producers(state: LogState) -> dict[ProducerId, LastOfProducer]:
    """Return what must be kept of each known producer."""
    return {
        producer_id: LastOfProducer(
            producer.epoch, producer.batches[-1].last_offset if producer.batches else None
        )
        for producer_id, producer in state.producers.items()
    }


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()


def _is_aborted(transactions: Transactions, header: BatchHeader) -> bool:
    offset = header.base_offset
    return header.is_transactional and any(
        entry.producer_id == header.producer_id and entry.first_offset <= offset < entry.last_offset
        for entry in aborted_between(transactions.aborted, offset, Offset(offset + 1))
    )


class KeyMapper:
    """First pass: the newest offset of each key in the dirty part."""

    def __init__(self, transactions: Transactions, start: Offset, keys_max: int = KEYS_MAX) -> None:
        """Batches come in order; those below ``start`` were mapped by an earlier round."""
        self._transactions = transactions
        self._keys_max = keys_max
        self.newest: dict[bytes, Offset] = {}
        self.owners: dict[str | None, Offset] = {}
        """The newest ownership record of each group."""
        self.end = start
        """Everything below is mapped."""

    @property
    def is_full(self) -> bool:
        """Whether this round takes no further batch."""
        return len(self.newest) >= self._keys_max

    def visit(self, header: BatchHeader, batch: memoryview) -> None:
        """Map the keys of one batch."""
        if header.next_offset <= self.end or self.is_full:
            return
        if header.is_control:
            control = read_control(batch)
            if isinstance(control, OwnershipRecord):
                self.owners[control.group] = header.base_offset
        elif not _is_aborted(self._transactions, header):
            try:
                _, records = scan(header, batch)
            except WireError:
                records = []  # an unreadable batch supersedes nothing, and stays
            for record in records:
                if record.key is not None:
                    self.newest[_digest(record.key)] = Offset(
                        header.base_offset + record.offset_delta
                    )
        self.end = header.next_offset


class Compactor:
    """Second pass: what to write for each batch, from the log start to the first pass's end."""

    def __init__(
        self,
        state: LogState,
        mapped: KeyMapper,
        live: Mapping[ProducerId, LastOfProducer],
        now_ms: int,
        *,
        keeps_deletions: bool,
    ) -> None:
        """Every batch from the log start on must be visited, in order.

        ``keeps_deletions``: tombstones and markers stay, although their delete horizon has passed.
        """
        self._transactions = state.transactions
        self._newest = mapped.newest
        self._owners = mapped.owners
        self._end = mapped.end
        self._live = live
        self._keeps_deletions = keeps_deletions
        self._now_ms = now_ms
        self._horizon = TimestampMs(now_ms + state.config.delete_retention_ms)
        self._open: set[ProducerId] = set()
        self.forgotten: set[Offset] = set()
        """Abort markers whose transactions have no other batch left."""

    def visit(self, header: BatchHeader, batch: memoryview, *, is_last: bool) -> Buffer | None:
        """Return what to write for a batch; None: nothing. The last one of a file always stays."""
        if header.base_offset >= self._end:
            return batch
        if header.is_control:
            return self._control(header, batch, is_last=is_last)
        kept = self._data(header, batch, is_last=is_last)
        is_forgotten = header.producer_id >= 0 and header.producer_id not in self._live
        return without_sequence(kept) if kept is not None and is_forgotten else kept

    def _data(self, header: BatchHeader, batch: memoryview, *, is_last: bool) -> Buffer | None:
        is_void = _is_aborted(self._transactions, header)
        if header.is_transactional:
            self._open.add(header.producer_id)
        try:
            plain, records = scan(header, batch)
        except WireError:
            return batch
        kept = [] if is_void else [each for each in records if self._survives(header, each)]
        if not kept:
            must_stay = is_last or self._is_last_of_producer(header)
            return (batch if not records else emptied(header)) if must_stay else None
        needs_horizon = delete_horizon(header) is None and any(not r.has_value for r in kept)
        if len(kept) == len(records) and not needs_horizon:
            return batch
        return with_records(header, plain, kept, self._horizon if needs_horizon else None)

    def _survives(self, header: BatchHeader, record: ScannedRecord) -> bool:
        offset = header.base_offset + record.offset_delta
        if offset >= self._end:
            return True
        if record.key is None or offset < self._newest.get(_digest(record.key), -1):
            return False
        return record.has_value or not self._has_passed(header)

    def _has_passed(self, header: BatchHeader) -> bool:
        horizon = delete_horizon(header)
        return not self._keeps_deletions and horizon is not None and horizon <= self._now_ms

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._live.get(header.producer_id)
        return last is not None and last.last_offset == header.last_offset

    def _control(self, header: BatchHeader, batch: memoryview, *, is_last: bool) -> Buffer | None:
        marker = read_control(batch)
        if marker is None or isinstance(marker, Seal):
            return batch  # also one of an unknown kind
        if isinstance(marker, OwnershipRecord):
            is_newest = header.base_offset >= self._owners.get(marker.group, -1)
            return batch if is_newest or is_last else None
        producer_id = header.producer_id
        if producer_id in self._open:
            self._open.discard(producer_id)
            return batch
        if not marker.commit:
            self.forgotten.add(header.base_offset)
        last = self._live.get(producer_id)
        tells_epoch = (
            last is not None and last.last_offset is None and last.epoch == (header.producer_epoch)
        )
        if tells_epoch or is_last:
            return batch
        if delete_horizon(header) is None:
            plain, records = scan(header, batch)
            return with_records(header, plain, records, self._horizon)
        return None if self._has_passed(header) else batch
