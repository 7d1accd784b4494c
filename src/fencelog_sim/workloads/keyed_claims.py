"""What must hold of tables that are compacted and deleted from, as their clients saw them.

Every acknowledged record is there, or its key was written again later, or it lies below the log's
start. Nothing is there that was aborted, nothing twice, nothing elsewhere than acknowledged, and
whoever reads an offset twice reads the same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fencelog.check.history import Event

Row: TypeAlias = list[Any]
"""Offset, key, value; the value of a tombstone is None."""
PROBLEMS_MAX = 20


@dataclass(frozen=True)
class Table:
    """What a topic may forget."""

    is_compacted: bool


@dataclass
class _Partition:
    """All that is known of one partition."""

    table: Table
    sent: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Key and outcome by value."""
    told: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    """Key and value of every acknowledged record by its offset."""
    tombstones: dict[str, int] = field(default_factory=dict)
    """The last offset that a tombstone of a key may have: it may have gone since."""
    seen: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def show(self, name: str, rows: list[Row]) -> None:
        """Take over what a reader was shown, in this order."""
        last = -1
        for offset, key, value in rows:
            if offset <= last:
                self.problems.append(f"reads back: {name} shows {offset} after {last}")
            last = offset
            known = self.seen.setdefault(offset, (key, value))
            if known != (key, value):
                self.problems.append(f"reads twice: {name} at {offset}: {known}, {(key, value)}")
            told = self.told.get(offset, (key, value))
            if told != (key, value):
                self.problems.append(f"elsewhere: {name} at {offset}: {(key, value)}, told {told}")
            if value is not None:
                sent = self.sent.get(value)
                if sent is None or sent[0] != key:
                    self.problems.append(f"from nowhere: {name} at {offset}: {(key, value)}")
                elif sent[1] == "failed":
                    self.problems.append(f"aborted: {name} at {offset}: {(key, value)}")

    def missing(self, name: str, start: int, rows: list[Row]) -> Iterator[str]:
        """Yield what was acknowledged, is gone, and was not superseded."""
        left = {offset: (key, value) for offset, key, value in rows}
        newest: dict[str, int] = dict(self.tombstones)
        for offset, (key, _) in left.items():
            newest[key] = max(newest.get(key, -1), offset)
        for offset, (key, value) in sorted(self.told.items()):
            if offset < start or offset in left:
                continue
            is_superseded = newest.get(key, -1) > offset or value is None
            if not (self.table.is_compacted and is_superseded):
                yield f"lost: {name} at {offset}: {(key, value)}, of {start} and later"
        values = [value for _, value in left.values() if value is not None]
        twice = {value for value in values if values.count(value) > 1}
        yield from (f"twice: {value} in {name}" for value in sorted(twice))


def claims(events: list[Event], tables: Mapping[str, Table]) -> list[str]:
    """Return what does not hold."""
    partitions: dict[str, _Partition] = {}

    def partition(name: str) -> _Partition:
        if name not in partitions:
            partitions[name] = _Partition(tables[name.rpartition("-")[0]])
        return partitions[name]

    notes: list[Any] = [event for event in events if event["type"] == "meta"]
    ended = {(each["process"], each["number"]): each for each in notes if each["what"] == "wrote"}
    for note in notes:
        if note["what"] == "write":
            end = ended.get((note["process"], note["number"]), {"outcome": "indeterminate"})
            for name, pairs in note["batches"].items():
                _take(partition(name), pairs, end["outcome"], end.get("offsets", {}).get(name))
    problems: list[str] = []
    for note in notes:
        if note["what"] in ("read", "left"):
            partition(note["partition"]).show(note["partition"], note["rows"])
        if note["what"] == "left":
            name = note["partition"]
            problems += partition(name).missing(name, note["start"], note["rows"])
    for each in partitions.values():
        problems += each.problems
    return problems[:PROBLEMS_MAX]


def _take(
    partition: _Partition, pairs: list[list[str | None]], outcome: str, base: int | None
) -> None:
    """Note one batch that was written, or tried."""
    for number, (key, value) in enumerate(pairs):
        assert key is not None
        if value is not None:
            partition.sent[value] = key, outcome
        if outcome == "ok" and base is not None:
            partition.told[base + number] = key, value
        if value is None and outcome != "failed":
            at = (1 << 62) if base is None else base + number
            partition.tombstones[key] = max(partition.tombstones.get(key, -1), at)
