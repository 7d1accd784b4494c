"""A runtime of a few lines for shards under test: a log, a high watermark, a clock, crashes.

It does what the broker's does: appends the records of a decision as one, replays them at once, and
commits on request. After each append it rebuilds the shard from its log and compares: whatever is
in the shard but not in the log shows as a difference. Before each it compares, too: a decision that
changes what only ``replay`` may change shows there. At each crash it does so from what compaction
would leave of the log: under each key the newest record has to say all (D4).
"""

from collections.abc import Callable, Collection
from typing import Any, Generic, NamedTuple, TypeVar

from fencelog.coordination.shard import Decision, LogRecord
from fencelog.types import (
    NO_PRODUCER_ID,
    CoordinatorEpoch,
    Instant,
    Offset,
    ProducerId,
    TimestampMs,
)

S = TypeVar("S", bound=Any)
R = TypeVar("R")

DECIDED = ("_decided_at", "decided_at")
CLOCKS = ("_deadlines", "deadlines", "forgotten_at", "_timers")
# Sessions and who waits, which a load does not bring back.
SOFT = ("_groups", "sessions", "_leases", "_waiting", "_pages", "_progress")


def state_of(shard: Any) -> dict[str, Any]:
    """Everything that a shard holds, but for its clocks, which a load restarts."""
    left_out = ("_limits", *CLOCKS, *SOFT)
    held = {key: value for key, value in vars(shard).items() if key not in left_out}
    held.pop("coordinator_epoch", None)
    for part in ("_table", "_offsets"):
        if part in held:
            held.update(state_of(held.pop(part)))
    return held


class Ended(NamedTuple):
    """A transaction's marker in the shard's own partition, where coordinators write in one."""

    producer_id: ProducerId
    commit: bool


class Runtime(Generic[S]):
    """One shard, its log and its clock."""

    def __init__(self, make: Callable[[CoordinatorEpoch], S], *, hold: bool = False) -> None:
        self._make = make
        self.log: list[LogRecord | Ended] = []
        self.committed = Offset(0)
        self.now = Instant(1000.0)
        self.hold = hold
        self.loads = 0
        self._producer_ids = 0
        self.shard = self._load()
        self._stored = state_of(self._replayed())

    def _load(self) -> S:
        self.loads += 1
        shard = self._replayed()
        compacted = state_of(self._replayed(self._compacted()))
        for name, value in state_of(shard).items():
            # A decision that was repeated counts from its newest record then: it is as committed.
            assert name in DECIDED or compacted[name] == value, name
        return shard

    def _compacted(self) -> set[int]:
        """The records that compaction leaves: the newest under each key, and no aborted one (D4).

        From the first record of an open transaction on it touches nothing.
        """
        newest: dict[bytes, int] = {}
        untouched: set[int] = set()
        for offset, entry in enumerate(self.log):
            if isinstance(entry, Ended):
                continue
            outcome = self._outcome(entry, offset)
            if outcome is None or untouched:
                untouched.add(offset)
            elif outcome:
                newest[entry.key] = offset
        return untouched | {at for at in newest.values() if self._value(at) is not None}

    def _value(self, offset: int) -> bytes | None:
        entry = self.log[offset]
        assert isinstance(entry, LogRecord)
        return entry.value

    def _outcome(self, record: LogRecord, offset: int) -> bool | None:
        """Whether a record counts; None while its transaction is open."""
        if record.producer_id == NO_PRODUCER_ID:
            return True
        for entry in self.log[offset + 1 :]:
            if isinstance(entry, Ended) and entry.producer_id == record.producer_id:
                return entry.commit
        return None

    def _replayed(self, kept: Collection[int] | None = None) -> S:
        shard = self._make(CoordinatorEpoch(self.loads))
        for offset, entry in enumerate(self.log):
            if isinstance(entry, Ended):
                shard.replay_marker(entry.producer_id, commit=entry.commit)
            elif kept is None or offset in kept:
                shard.replay(entry, Offset(offset), self.now)
        return shard

    def end(self, producer_id: ProducerId, *, commit: bool) -> None:
        """A producer's marker is appended to the shard's partition."""
        self.log.append(Ended(producer_id, commit))
        self.shard.replay_marker(producer_id, commit=commit)
        self._compare()
        if not self.hold:
            self.commit()

    def _compare(self) -> None:
        """Hold the shard against its log."""
        self._stored = state_of(self._replayed())
        assert state_of(self.shard) == self._stored

    @property
    def wall_ms(self) -> TimestampMs:
        return TimestampMs(round(self.now * 1000))

    @property
    def fresh_producer_id(self) -> ProducerId:
        """The id that a producer gets next; 1 first."""
        return ProducerId(self._producer_ids + 1)

    def used(self, producer_id: ProducerId) -> None:
        """A producer got this id: no other will."""
        self._producer_ids = max(self._producer_ids, producer_id)

    def append(self, decision: Decision[R]) -> R:
        """Make a decision so, and return its answer."""
        assert state_of(self.shard) == self._stored, "state changes in replay only"
        for record in decision.records:
            offset = Offset(len(self.log))
            self.log.append(record)
            self.shard.replay(record, offset, self.now)
        if decision.records:
            self._compare()
        if not self.hold:
            self.commit()
        return decision.response

    def commit(self) -> None:
        """Let the high watermark reach the end of the log."""
        self.committed = Offset(len(self.log))

    def crash(self, *, keep: int | None = None) -> None:
        """Lose what is not committed (or all but ``keep`` records), and load a new shard."""
        del self.log[self.committed if keep is None else keep :]
        self.committed = Offset(len(self.log))
        self.shard = self._load()
        self._stored = state_of(self._replayed())

    def advance(self, seconds: float) -> None:
        """Let time pass; nothing is expired by itself."""
        self.now = Instant(self.now + seconds)

    def expire(self) -> None:
        """Do what is due, as the broker does when a deadline passes."""
        self.append(self.shard.expire(self.now, self.wall_ms))
