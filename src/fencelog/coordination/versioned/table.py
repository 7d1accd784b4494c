"""The replayed state of a versioned shard: apps, their runs, producers and deadlines.

Only ``replay`` changes it; the rules in ``shard`` read it. Clocks and sessions, which a load begins
anew, are the exception: a rule may move them without a record.
"""

from collections.abc import Iterable

from fencelog.coordination.shard import LogRecord
from fencelog.coordination.versioned.records import (
    AppKey,
    ProducerKey,
    RunKey,
    read_app,
    read_key,
    read_producer,
    read_run,
)
from fencelog.coordination.versioned.sessions import Sessions
from fencelog.coordination.versioned.state import App, Joined, Phase, Run
from fencelog.types import Instant, Offset, ProducerId, TopicPartition

EPHEMERAL_KEPT_S = 7 * 24 * 3600
"""Seconds for which the app of a batch write is kept (rule V4)."""


class VersionedTable:
    """The stored state of one shard, indexed for the rules."""

    def __init__(self) -> None:
        """Begin empty."""
        self.apps: dict[str, App] = {}
        self.producers: dict[ProducerId, Joined] = {}
        self.deadlines: dict[str, Instant] = {}  # of the apps with an open transaction
        self.sessions = Sessions()  # of their writers
        self.decided_at: dict[str, Offset] = {}  # of the apps whose transaction is ending
        self.forgotten_at: dict[str, Instant] = {}  # of the idle ephemeral apps
        self._runs: dict[str, dict[RunKey, Run]] = {}
        self._members: dict[str, dict[ProducerId, None]] = {}

    def replay(self, record: LogRecord, offset: Offset, now: Instant) -> None:
        """Apply one record. Raises CorruptionError on a record of another kind."""
        match read_key(record.key):
            case AppKey(app):
                self._replay_app(app, record.value, offset, now)
            case RunKey() as key:
                self._replay_run(key, record.value)
            case ProducerKey(producer_id):
                self._replay_producer(producer_id, record.value, now)

    def _replay_app(self, name: str, value: bytes | None, offset: Offset, now: Instant) -> None:
        if value is None:
            for index in (self.apps, self.deadlines, self.decided_at, self.forgotten_at):
                index.pop(name, None)
            self.sessions.forget(name)
            return
        app = read_app(name, value)
        self.apps[name] = app
        if app.phase is Phase.OPEN:
            self.deadlines[name] = Instant(now + app.timeout_ms / 1000)
        else:
            self.deadlines.pop(name, None)
            self.sessions.forget(name)
        if app.phase.is_ending:
            self.decided_at.setdefault(name, offset)
        else:
            self.decided_at.pop(name, None)
        self.forgotten_at.pop(name, None)
        if app.phase is Phase.IDLE and app.is_ephemeral:
            self.forgotten_at[name] = Instant(now + EPHEMERAL_KEPT_S)

    def _replay_run(self, key: RunKey, value: bytes | None) -> None:
        runs = self._runs.setdefault(key.app, {})
        if value is None:
            runs.pop(key, None)
        else:
            runs[key] = read_run(value)
        if not runs:
            del self._runs[key.app]

    def _replay_producer(self, producer_id: ProducerId, value: bytes | None, now: Instant) -> None:
        known = self.producers.pop(producer_id, None)
        if value is not None:
            joined = read_producer(producer_id, value)
            self.producers[producer_id] = joined
            self._members.setdefault(joined.app, {})[producer_id] = None
            # V7: a join restarts the timeout; adding a partition does not.
            if known is None and joined.app in self.deadlines:
                self.renew(joined.app, now)
        elif known is not None:
            members = self._members[known.app]
            del members[producer_id]
            if not members:
                del self._members[known.app]

    def renew(self, app: str, now: Instant) -> None:
        """Restart the timeout of the app's open transaction."""
        self.deadlines[app] = Instant(now + self.apps[app].timeout_ms / 1000)

    def members(self, app: str) -> list[Joined]:
        """The producers of the app's open or ending transaction, in the order they joined."""
        return [self.producers[producer_id] for producer_id in self._members.get(app, ())]

    def member_count(self, app: str) -> int:
        """How many producers ``members`` returns."""
        return len(self._members.get(app, ()))

    def next_deadline(self) -> Instant | None:
        """The earliest deadline; those of ephemeral apps, which may be many, are in order."""
        forgotten_at = next(iter(self.forgotten_at.values()), None)
        deadlines = [self.deadline(app) for app in self.deadlines]
        return min(deadlines if forgotten_at is None else (*deadlines, forgotten_at), default=None)

    def deadline(self, app: str) -> Instant:
        """When the app's open transaction is aborted: its timeout, or its writers' session."""
        timeout = self.deadlines[app]
        session = self.sessions.deadline(app)
        return timeout if session is None else min(timeout, session)

    def runs(self, app: str) -> list[RunKey]:
        """The runs of the app, oldest first."""
        runs = self._runs.get(app, {})
        return sorted(runs, key=lambda run: runs[run].ordinal)

    def run(self, key: RunKey) -> Run | None:
        """This run, if it is or was the newest of its app."""
        return self._runs.get(key.app, {}).get(key)

    def next_ordinal(self, app: str) -> int:
        """The ordinal of the app's next run."""
        return max((run.ordinal for run in self._runs.get(app, {}).values()), default=0) + 1


def partitions_of(members: Iterable[Joined]) -> frozenset[TopicPartition]:
    """Every partition that one of the producers may have written to."""
    return frozenset(partition for each in members for partition in each.partitions)
