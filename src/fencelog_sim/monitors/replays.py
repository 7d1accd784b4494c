"""Whether live state is what a replay of its log gives: coordinator shards and partition logs."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.coordination.group.offsets import OffsetTable
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.ownership.table import OwnershipTable
from fencelog.coordination.shard import LogRecord, Shard
from fencelog.coordination.versioned.table import VersionedTable
from fencelog.errors import CorruptionError
from fencelog.log.config import LogConfig
from fencelog.log.partition_log import PartitionLog
from fencelog.log.producers import UNKNOWN_SEQUENCE, ProducerState
from fencelog.log.rebuild import LogBuilder
from fencelog.log.state import LogState
from fencelog.log.transactions import aborted_between
from fencelog.log.values import MarkerToWrite
from fencelog.types import Instant, Offset, ProducerId
from fencelog_sim.monitors.ledger import UNKNOWN
from fencelog_sim.monitors.observed_log import LogOracle

GIVEN = frozenset({"coordinator_epoch", "_limits"})
"""What a shard is made with: no record says it."""
SOFT = frozenset(
    {"_retention", "_timers", "_groups", "sessions", "_leases", "_waiting", "_pages", "_progress"}
)
"""When to look again, sessions, who waits: it lasts as long as the shard, unrecorded."""
CLOCKS = frozenset({"_deadlines", "deadlines", "forgotten_at"})
"""A load restarts them, so only is compared who has one."""
DECISIONS = frozenset({"_decided_at", "decided_at"})
"""Where what is decided and not done was first recorded, by name."""

_CONFIG = LogConfig(cleanup_policy=frozenset({"compact"}), index_interval_bytes=1 << 30)


def state_of(holder: object) -> dict[str, object]:
    """Everything that a shard holds and that its log says."""
    state: dict[str, object] = {}
    for name, value in vars(holder).items():
        if isinstance(value, VersionedTable | OffsetTable | OwnershipTable):
            state.update(state_of(value))
        elif name in CLOCKS:
            state[name] = sorted(value, key=repr)  # compaction keeps no order of ids
        elif name not in GIVEN | SOFT and not callable(value):
            state[name] = value
    return state


def difference(live: dict[str, object], replayed: dict[str, object]) -> str | None:
    """The first thing in which two states differ."""
    for name in sorted(live.keys() | replayed.keys()):
        mine, theirs = live.get(name), replayed.get(name)
        if mine == theirs:
            continue
        if isinstance(mine, dict) and isinstance(theirs, dict):
            for key in sorted(mine.keys() | theirs.keys(), key=repr):
                if mine.get(key) != theirs.get(key):
                    return f"{name}[{key!r}] is {mine.get(key)}, its log says {theirs.get(key)}"
        return f"{name} is {mine}, its log says {theirs}"
    return None


def _forgive_later_records(live: dict[str, object], replayed: dict[str, object]) -> None:
    """A decision may be known by a later record than its first: compaction leaves the newest.

    The last record about a resource may be gone, where what it said is over.
    """
    for name in DECISIONS & replayed.keys():
        places, known = replayed[name], live[name]
        assert isinstance(places, dict)
        assert isinstance(known, dict)
        replayed[name] = {each: min(at, known.get(each, at)) for each, at in places.items()}
    for state in (live, replayed):
        groups = state.get("groups")
        if isinstance(groups, dict):
            state["groups"] = {
                (group, name): (each.generation, each.epoch, each.session, each.ending)
                for group, known_group in groups.items()
                for name, each in known_group.resources.items()
            }


Entry: TypeAlias = tuple[LogRecord, ...] | MarkerToWrite
"""The records of one decision, or the end of a transaction that wrote to the shard's log."""


@dataclass(eq=False)
class ShardReplay:
    """A loaded shard, and another one that replays the bytes on disk."""

    runtime: CoordinatorRuntime[Shard]
    loaded: Loaded[Shard]
    pending: deque[tuple[int, Entry]] = field(default_factory=deque)
    """What was appended and may not be on disk yet, by its offset."""
    due: bool = True
    _other: Shard | None = None
    _fed: int = 0
    _rebuilt: int = -1
    _seen: LogOracle | None = None

    def compare(self, log: LogOracle, now: Instant, *, to_the_end: bool = False) -> str | None:
        """What is wrong; the log must be on disk, or ``to_the_end`` the rest is fed, and all ends.

        The rest is what the runtime appended.
        """
        other = self._feed(log, now)
        if to_the_end:
            while self.pending and self.pending[0][0] < log.end:
                self.pending.popleft()
            for base_offset, entry in self.pending:
                if isinstance(entry, MarkerToWrite):
                    _end(other, entry.producer_id, commit=entry.commit)
                else:
                    _replay(other, entry, base_offset, now)
        else:
            self.pending.clear()
        live, replayed = state_of(self.loaded.shard), state_of(other)
        if log.compacted:
            _forgive_later_records(live, replayed)
        return difference(live, replayed)

    def _feed(self, log: LogOracle, now: Instant) -> Shard:
        if self._other is None or self._seen is not log or self._rebuilt != log.rebuilt:
            epoch = vars(self.loaded.shard)["coordinator_epoch"]
            self._other, self._fed = self.runtime._new_shard(epoch), 0
            self._seen, self._rebuilt = log, log.rebuilt
        for batch in log.batches[self._fed :]:
            for offset, record in batch.records:
                self._other.replay(record, Offset(offset), now)
            if batch.marker is not None:
                _end(self._other, batch.header.producer_id, commit=batch.marker.commit)
        self._fed = len(log.batches)
        return self._other


def _replay(shard: Shard, records: tuple[LogRecord, ...], base_offset: int, now: Instant) -> None:
    for position, record in enumerate(records):
        shard.replay(record, Offset(base_offset + position), now)


def _end(shard: Shard, producer_id: ProducerId, *, commit: bool) -> None:
    """Groups take part in transactions; no other coordinator's log has markers."""
    assert isinstance(shard, GroupShard), shard
    shard.replay_marker(producer_id, commit=commit)


class LogReplay:
    """A partition's state made anew from the bytes on disk, by fencelog's own replay."""

    def __init__(self) -> None:
        """Nothing replayed yet."""
        self._builder = LogBuilder(_CONFIG)
        self._fed = 0
        self._segment = -1
        self._seen: LogOracle | None = None
        self._rebuilt = -1

    def compare(self, log: LogOracle, live: PartitionLog) -> Iterator[str]:
        """What is wrong; all of the log must be on disk."""
        if log.swaps and not _has_taken_over(log, live):
            return
        try:
            state = self._feed(log)
        except CorruptionError as error:
            yield f"its log cannot be replayed: {error}"
            return
        yield from _ledger_difference(log, live)
        mine = live._state
        if mine.producers != state.producers:
            actual, seen = dict(mine.producers), dict(state.producers)
            if log.compacted:
                actual = {
                    pid: each for pid, each in actual.items() if not _says_less(seen, pid, each)
                }
                seen = {pid: each for pid, each in seen.items() if pid in actual}
            problem = difference({"producers": actual}, {"producers": seen})
            if problem is not None:
                yield problem
        if list(mine.transactions.open()) != list(state.transactions.open()):
            yield (
                f"open transactions are {mine.transactions.open()}, "
                f"its log says {state.transactions.open()}"
            )
        aborted = [
            each for each in state.transactions.aborted if each.last_offset >= mine.log_start
        ]
        if _aborted(log, mine.transactions.aborted) != _aborted(log, aborted):
            yield f"aborted are {mine.transactions.aborted}, its log says {aborted}"
        owners, stored = ({each.owner.group: each for each in one.owners} for one in (mine, state))
        if (problem := difference({"owners": owners}, {"owners": stored})) is not None:
            yield problem
        end = state.log_end if log.batches else log.end
        epoch = _latest_epoch(log, state)
        if (mine.epochs.latest, mine.log_end) != (epoch, end):
            yield (
                f"leader epoch and end are {mine.epochs.latest}, {mine.log_end}, its log says "
                f"{epoch}, {end}"
            )

    def _feed(self, log: LogOracle) -> LogState:
        if self._seen is not log or self._rebuilt != log.rebuilt:
            self._builder, self._fed, self._segment = LogBuilder(_CONFIG), 0, -1
            self._seen, self._rebuilt = log, log.rebuilt
        for batch in log.batches[self._fed :]:
            if batch.segment != self._segment:
                self._segment = batch.segment
                self._builder.open_segment(Offset(batch.segment))
            self._builder.replay(batch.header, batch.marker or batch.owner or batch.seal)
        self._fed = len(log.batches)
        return self._builder._state


def _latest_epoch(log: LogOracle, state: LogState) -> int:
    """The leader epoch of the last batch; where nothing is left of the log, of a deleted one."""
    is_deleted = not log.batches and log.forgotten
    return log.forgotten[-1].header.leader_epoch if is_deleted else state.epochs.latest


def _has_taken_over(log: LogOracle, live: PartitionLog) -> bool:
    """Whether the broker reads the compacted files already, not what they were made of."""
    bases = set(live.segment_base_offsets)
    return all(swap.base in bases for swap in log.swaps if swap.base >= min(bases)) and not any(
        swap.base < base < swap.end for swap in log.swaps for base in bases
    )


def _says_less(
    seen: Mapping[ProducerId, ProducerState], producer_id: ProducerId, actual: ProducerState
) -> bool:
    """Whether what compaction left of a producer is a part of what the log knows of it.

    Its last batch, or the epoch of a marker, and what is open: the rest may be gone with its
    batches.
    """
    left = seen.get(producer_id)
    if left is None or (left.epoch, left.open_offset) != (actual.epoch, actual.open_offset):
        return False
    batches, known = (
        [(b.first_sequence, b.last_sequence, b.last_offset) for b in each.batches]
        for each in (left, actual)
    )
    is_part = known[len(known) - len(batches) :] == batches and bool(batches) == bool(known)
    is_next = left.next_sequence in (actual.next_sequence, UNKNOWN_SEQUENCE)
    return is_part and is_next and left.coordinator_epoch <= actual.coordinator_epoch


def _aborted(log: LogOracle, found: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Aborted transactions by producer, first record and marker.

    Where compaction was, the first records may be gone, and what follows from their places; and
    a transaction of which nothing is left may be named or not.
    """
    if not log.compacted:
        return [tuple(each) for each in found]
    return [(each[0], each[2]) for each in found if _has_data(log, each[0], each[1], each[2])]


def _ledger_difference(log: LogOracle, live: PartitionLog) -> Iterator[str]:
    """The log's own state, compared with the oracle's ledger."""
    live_aborted = aborted_between(live.aborted, live.log_start_offset, live.log_end_offset)
    seen_aborted = [
        each for each in log.ledger.aborted if each.marker_offset >= live.log_start_offset
    ]
    actual: dict[str, object] = {
        "producers": {
            each.producer_id: (
                each.producer_epoch,
                each.last_sequence,
                -1 if each.open_offset is None else each.open_offset,
                _coordinator_epoch(log, each.producer_id, each.coordinator_epoch),
            )
            for each in live.producers()
        },
        "open": {each.producer_id: each.first_offset for each in live.open_transactions()},
        "aborted": _aborted(log, [each[:3] for each in live_aborted]),
        "seal": UNKNOWN if live.sealed_at is None else live.sealed_at,
    }
    ledger = log.ledger
    seen: dict[str, object] = {
        "producers": {
            pid: (each.epoch, each.last_sequence, each.open_offset, each.coordinator_epoch)
            for pid, each in ledger.producers.items()
        },
        "open": dict(ledger.open),
        "aborted": _aborted(log, seen_aborted),
        "seal": ledger.sealed_at,
    }
    problem = difference(actual, seen)
    if problem is not None:
        yield problem


def _has_data(log: LogOracle, producer_id: int, first: int, marker: int) -> bool:
    """Whether anything of a transaction is left, so that readers need it as aborted."""
    return any(
        batch.marker is None
        and batch.header.producer_id == producer_id
        and first <= batch.header.base_offset < marker
        and batch.header.next_offset > log.log_start
        for batch in log.batches
    )


def _coordinator_epoch(log: LogOracle, producer_id: int, actual: int) -> int:
    """The epoch to expect in the ledger; compaction may have removed its marker."""
    producer = log.ledger.producers.get(producer_id)
    if log.compacted and producer is not None and actual < producer.coordinator_epoch:
        return producer.coordinator_epoch
    return actual
