"""The interface of all coordinators: decide, append, replay, answer once committed.

A method *decides* a request: it reads the state and returns a ``Decision``, the records to append
and the answer. The runtime appends the records of one decision as **one batch** (all or nothing
after a crash), replays them with no await in between, and sends the answer once everything that was
in the log at that moment is committed. A decision without records waits, too: its answer may reveal
what an unfinished append has changed (rule E16).

State changes in ``replay`` only. A shard is never rolled back: after a failed append, or when its
leadership moves, the runtime drops it and replays a new one from the log.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from fencelog.types import NO_PRODUCER_ID, Instant, Offset, ProducerId, TimestampMs

R = TypeVar("R", covariant=True)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a shard's log; a record without value is a tombstone of its key."""

    key: bytes
    value: bytes | None
    producer_id: ProducerId = NO_PRODUCER_ID
    """The producer of the transaction that it is part of; it counts once that is committed."""


@dataclass(frozen=True, slots=True)
class Decision(Generic[R]):
    """The records to append, all or nothing, and the answer once they are committed."""

    records: tuple[LogRecord, ...]
    response: R
    moves_deadline: bool = False
    """Whether ``next_deadline`` may be earlier now although no record says so."""
    must_sync: bool = False
    """Whether the records count as committed only once they are on stable storage, in every
    durability mode."""


class Shard(Protocol):
    """One partition of a coordinator's internal topic, as its leader holds it in memory."""

    def replay(self, record: LogRecord, offset: Offset, now: Instant) -> None:
        """Apply one record of the log; the only place where state changes.

        Deadlines are counted from ``now``, so a load restarts every clock.
        Raises CorruptionError when the record does not belong to this shard.
        """
        ...

    def next_deadline(self) -> Instant | None:
        """When ``expire`` has something to do; None while nothing can time out."""
        ...

    def expire(self, now: Instant, wall_ms: TimestampMs) -> Decision[object]:
        """Decide what has timed out by ``now``. Call it once after a load, too."""
        ...


def java_hash(text: str) -> int:
    """``String.hashCode`` of Java, as a signed 32-bit number."""
    units = text.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (value * 31 + (high << 8 | low)) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(key: str, count: int) -> int:
    """Which of ``count`` partitions of an internal topic coordinates ``key``."""
    assert count > 0, count
    return (java_hash(key) & 0x7FFF_FFFF) % count
