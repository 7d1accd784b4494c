"""Offsets of groups: committed ones, and pending ones of open transactions.

State changes by ``replay`` and ``end_transaction`` only, in the order of the log: live, and the
same way in a load (rules E8, E10, E15).
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from fencelog.coordination.group.records import CommittedOffset
from fencelog.types import Offset, ProducerId, TopicPartition


class Kept(NamedTuple):
    """An offset and the place of its record: the later record counts, whoever wrote it."""

    committed: CommittedOffset
    at: Offset


Offsets = dict[TopicPartition, Kept]
Outer = TypeVar("Outer")
Inner = TypeVar("Inner")
Value = TypeVar("Value")


class OffsetTable:
    """Offsets by group. Invariant: no empty dictionary is kept."""

    def __init__(self) -> None:
        """No group has an offset."""
        self._committed: dict[str, Offsets] = {}
        self._pending: dict[str, dict[ProducerId, Offsets]] = {}
        self._groups_of: dict[ProducerId, dict[str, None]] = {}

    # -- questions -------------------------------------------------------------------------------

    def groups(self) -> Iterator[str]:
        """Every group that has an offset, pending ones included."""
        yield from self._committed
        yield from (group for group in self._pending if group not in self._committed)

    def __contains__(self, group: str) -> bool:
        """Tell whether a group has an offset, committed or pending."""
        return group in self._committed or group in self._pending

    def __len__(self) -> int:
        """Count the groups."""
        return len(self._committed) + sum(each not in self._committed for each in self._pending)

    def committed(self, group: str) -> Offsets:
        """The committed offsets of a group; not to be changed."""
        return self._committed.get(group, {})

    def partitions(self, group: str) -> frozenset[TopicPartition]:
        """Every partition that a group has an offset on, pending ones included."""
        return frozenset(self._committed.get(group, ())) | self.pending(group)

    def pending(self, group: str) -> frozenset[TopicPartition]:
        """The partitions on which an open transaction has an offset of this group."""
        found: set[TopicPartition] = set()
        for offsets in self._pending.get(group, {}).values():
            found.update(offsets)
        return frozenset(found)

    def has_pending(self, group: str) -> bool:
        """Whether an open transaction has any offset of this group."""
        return group in self._pending

    # -- the only places where state changes -----------------------------------------------------

    def store(self, group: str, partition: TopicPartition, kept: Kept) -> None:
        """Store an offset outside of transactions."""
        self._committed.setdefault(group, {})[partition] = kept

    def store_pending(
        self, producer_id: ProducerId, group: str, partition: TopicPartition, kept: Kept
    ) -> None:
        """Store an offset that counts once its transaction is committed."""
        by_producer = self._pending.setdefault(group, {})
        by_producer.setdefault(producer_id, {})[partition] = kept
        self._groups_of.setdefault(producer_id, {})[group] = None

    def forget(self, group: str, partition: TopicPartition) -> None:
        """Remove the group's offset on a partition, and pending ones."""
        _drop(self._committed, group, partition)
        by_producer = self._pending.get(group, {})
        for producer_id in [*by_producer]:
            _drop(by_producer, producer_id, partition)
            if producer_id not in by_producer:
                _drop(self._groups_of, producer_id, group)
        if group in self._pending and not by_producer:
            del self._pending[group]

    def end_transaction(self, producer_id: ProducerId, *, commit: bool) -> None:
        """Apply a marker: pending offsets of this producer become committed, or are dropped."""
        for group in self._groups_of.pop(producer_id, {}):
            by_producer = self._pending[group]
            offsets = by_producer.pop(producer_id)
            if not by_producer:
                del self._pending[group]
            if commit:
                self._settle(group, offsets)

    def _settle(self, group: str, offsets: Offsets) -> None:
        committed = self._committed.setdefault(group, {})
        for partition, kept in offsets.items():
            known = committed.get(partition)
            if known is None or known.at < kept.at:
                committed[partition] = kept


def _drop(table: dict[Outer, dict[Inner, Value]], outer: Outer, inner: Inner) -> None:
    """Remove an entry from a table of tables, and the inner table when it is empty."""
    entries = table.get(outer)
    if entries is not None:
        entries.pop(inner, None)
        if not entries:
            del table[outer]
