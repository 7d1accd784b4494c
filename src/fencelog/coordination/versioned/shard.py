"""The coordinator of versioned transactions: rules V1 to V8.

An app has at most one transaction, called an incarnation of (app, version). One record decides it;
then its markers are outstanding. Until they are written the app's next join gets
CONCURRENT_TRANSACTIONS, so that markers of one incarnation never end data of another.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.shard import Decision, LogRecord
from fencelog.coordination.versioned.answers import (
    AppDescription,
    JoinResult,
    MarkerGroup,
    OpenApp,
    ProducerMarker,
    VersionedLimits,
)
from fencelog.coordination.versioned.records import (
    AppKey,
    ProducerKey,
    RunKey,
    forget,
    write_app,
    write_producer,
    write_run,
)
from fencelog.coordination.versioned.sessions import Session
from fencelog.coordination.versioned.state import (
    NO_RUN,
    NO_VERSION,
    App,
    Caller,
    Joined,
    Phase,
    Run,
    unwritten,
)
from fencelog.coordination.versioned.table import EPHEMERAL_KEPT_S, VersionedTable, partitions_of
from fencelog.errors import ErrorCode
from fencelog.types import (
    NO_PRODUCER_ID,
    CoordinatorEpoch,
    Instant,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)

_FIRST_EPOCH = ProducerEpoch(0)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A valid caller: its app with the caller's run as the newest, and the records of that."""

    app: App
    records: tuple[LogRecord, ...]
    is_changed: bool

    def write(self) -> tuple[LogRecord, ...]:
        return (*self.records, write_app(self.app)) if self.is_changed else self.records


class VersionedShard:
    """The apps of one partition of ``__fencelog_versioned``."""

    def __init__(
        self, coordinator_epoch: CoordinatorEpoch, limits: VersionedLimits | None = None
    ) -> None:
        """Begin empty, for the log to be replayed."""
        self.coordinator_epoch = coordinator_epoch
        self._limits = limits or VersionedLimits()
        self._table = VersionedTable()

    def replay(self, record: LogRecord, offset: Offset, now: Instant) -> None:
        """Apply one record of ``__fencelog_versioned``. Raises CorruptionError on any other."""
        self._table.replay(record, offset, now)

    # -- what tasks and drivers ask --------------------------------------------------------------

    def join(
        self,
        caller: Caller,
        *,
        timeout_ms: int,
        new_producer_id: ProducerId,
        wall_ms: TimestampMs,
        session: Session | None = None,
    ) -> Decision[JoinResult]:
        """Open the transaction of (app, version) or join it with a new producer (V1 to V5).

        ``session``: the producer keeps its connection while the transaction is open (V7).
        ALREADY_COMMITTED: the version is committed, so there is nothing to write.
        CONCURRENT_TRANSACTIONS: markers of the previous incarnation are outstanding; retry.
        """
        if not 0 < timeout_ms <= self._limits.timeout_ms_max:
            error = ErrorCode.INVALID_TRANSACTION_TIMEOUT
            return Decision((), JoinResult(error=error))
        arrival = self._arrive(caller, wall_ms)
        if isinstance(arrival, ErrorCode):
            return Decision((), JoinResult(error=arrival))
        app = arrival.app
        if caller.version == app.last_version:
            error = ErrorCode.ALREADY_COMMITTED
            return Decision(arrival.write(), JoinResult(error=error))
        if app.phase.is_ending:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
            return Decision(arrival.write(), JoinResult(error=error))
        joined = self._join_open(arrival, caller.version, timeout_ms, new_producer_id, wall_ms)
        if joined.response.error is ErrorCode.NONE:
            self._table.sessions.joined(caller.app, session)
        return joined

    def _join_open(
        self,
        arrival: _Arrival,
        version: int,
        timeout_ms: int,
        new_producer_id: ProducerId,
        wall_ms: TimestampMs,
    ) -> Decision[JoinResult]:
        app = arrival.app
        if app.phase is Phase.IDLE:
            self._table.sessions.opened(app.app)
            opened = replace(
                app.moved(Phase.OPEN),
                incarnation=app.incarnation + 1,
                version=version,
                timeout_ms=timeout_ms,
                opened_ms=wall_ms,
            )
        elif self._table.member_count(app.app) >= self._limits.producers_max:
            return Decision((), JoinResult(error=ErrorCode.POLICY_VIOLATION))
        else:
            # The longest timeout of its members counts.
            opened = replace(app, timeout_ms=max(app.timeout_ms, timeout_ms))
        joined = Joined(
            producer_id=new_producer_id,
            producer_epoch=_FIRST_EPOCH,
            app=app.app,
            incarnation=opened.incarnation,
            partitions=frozenset(),
        )
        is_changed = arrival.is_changed or opened != app
        records = _Arrival(opened, arrival.records, is_changed).write()
        result = JoinResult(
            error=ErrorCode.NONE,
            producer_id=new_producer_id,
            producer_epoch=_FIRST_EPOCH,
            incarnation=opened.incarnation,
        )
        return Decision((*records, write_producer(joined)), result)

    def add_partitions(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, *partitions: TopicPartition
    ) -> Decision[ErrorCode]:
        """Add partitions to the producer's transaction before its first write to them (rule V5).

        The append may follow once the record is committed, under a guard that was taken before this
        call and that any marker invalidates.
        """
        joined = self._table.producers.get(producer_id)
        if joined is None or self._table.apps[joined.app].phase is not Phase.OPEN:
            return Decision((), ErrorCode.INVALID_TXN_STATE)
        if joined.producer_epoch != producer_epoch:
            return Decision((), ErrorCode.INVALID_PRODUCER_EPOCH)
        widened = joined.partitions.union(partitions)
        if len(widened) > self._limits.partitions_max:
            return Decision((), ErrorCode.POLICY_VIOLATION)
        if widened == joined.partitions:
            return Decision((), ErrorCode.NONE)
        return Decision((write_producer(replace(joined, partitions=widened)),), ErrorCode.NONE)

    def commit(
        self,
        caller: Caller,
        fingerprint: bytes,
        producer_ids: Collection[ProducerId],
        *,
        wall_ms: TimestampMs,
    ) -> Decision[ErrorCode]:
        """Commit the version: writes of the named producers commit, those of all others abort.

        A retry with the same fingerprint succeeds and changes nothing (V3). TRANSACTION_ABORTED: a
        named producer is not in the open incarnation; nothing is decided (V1).
        """
        if len(fingerprint) > self._limits.fingerprint_bytes_max:
            return Decision((), ErrorCode.INVALID_REQUEST)
        named = frozenset(producer_ids)
        if named and caller.app not in self._table.apps:
            return Decision((), ErrorCode.TRANSACTION_ABORTED)
        arrival = self._arrive(caller, wall_ms)
        if isinstance(arrival, ErrorCode):
            return Decision((), arrival)
        if caller.version == arrival.app.last_version:
            if fingerprint != arrival.app.fingerprint:
                return Decision((), ErrorCode.VERSION_CONFLICT)
            return Decision(arrival.write(), ErrorCode.NONE)
        decided = replace(arrival.app, last_version=caller.version, fingerprint=fingerprint)
        return self._decide(arrival, replace(decided, updated_ms=wall_ms), named)

    def _decide(
        self, arrival: _Arrival, decided: App, named: frozenset[ProducerId]
    ) -> Decision[ErrorCode]:
        members = self._table.members(decided.app) if decided.phase is Phase.OPEN else []
        if not named <= {each.producer_id for each in members}:
            return Decision(arrival.write(), ErrorCode.TRANSACTION_ABORTED)
        if decided.phase.is_ending:
            return Decision(arrival.write(), ErrorCode.CONCURRENT_TRANSACTIONS)
        ended, tombstones = self._ended(replace(decided, committing=named), Phase.COMMITTING)
        return Decision((*arrival.records, *tombstones, write_app(ended)), ErrorCode.NONE)

    def abort(
        self, caller: Caller, *, wall_ms: TimestampMs, ends_run: bool = False
    ) -> Decision[ErrorCode]:
        """Abort the open incarnation of (app, version), if there is one.

        A version that is committed already, or was never opened, is left as it is; the answer is
        NONE all the same (V1). ``ends_run``: no task of this run joins any more, or one that is
        late would open the version again (V2). The app of a batch write is known from then on even
        if no task has joined it; another one might be a query's, which its first task says (V4).
        """
        begins_app = ends_run and not caller.query_id
        if not begins_app and caller.app not in self._table.apps:
            return Decision((), ErrorCode.NONE)
        arrival = self._arrive(replace(caller, takeover=False), wall_ms)
        if arrival in (ErrorCode.STALE_VERSION, ErrorCode.TRANSACTION_ABORTED):
            return Decision((), ErrorCode.NONE)
        if isinstance(arrival, ErrorCode):
            return Decision((), arrival)
        app = arrival.app
        if ends_run and app.last_version != caller.version:
            app = replace(app, run_id=NO_RUN)
            arrival = replace(arrival, app=app, is_changed=True)
        if app.phase is not Phase.OPEN or app.version != caller.version:
            return Decision(arrival.write(), ErrorCode.NONE)
        ended, tombstones = self._ended(replace(app, updated_ms=wall_ms), Phase.ABORTING)
        return Decision((*arrival.records, *tombstones, write_app(ended)), ErrorCode.NONE)

    def renew(
        self, caller: Caller, now: Instant, connection: int | None = None
    ) -> Decision[ErrorCode]:
        """Restart the timeout of the open incarnation (rule V7); ``connection``: the writer's.

        No record says it, because a load restarts the timeout, too.
        TRANSACTION_ABORTED: it is not open any more; ALREADY_COMMITTED: it is committed.
        """
        app = self._table.apps.get(caller.app)
        if app is None:
            return Decision((), ErrorCode.TRANSACTION_ABORTED)
        error = self._fenced(app, replace(caller, takeover=False))
        if error is None and self._table.run(_run_key(caller)) is None:
            error = ErrorCode.TRANSACTION_ABORTED
        if error is None and caller.version == app.last_version:
            error = ErrorCode.ALREADY_COMMITTED
        if error is None and caller.version < app.last_version:
            error = ErrorCode.STALE_VERSION
        if error is None and (app.phase is not Phase.OPEN or app.version != caller.version):
            error = ErrorCode.TRANSACTION_ABORTED
        if error is not None:
            return Decision((), error)
        self._table.renew(caller.app, now)
        if connection is not None:
            self._table.sessions.renewed(caller.app, connection, now)
        return Decision((), ErrorCode.NONE, moves_deadline=True)

    def disconnected(self, connection: int, now: Instant) -> bool:
        """A connection of writers is closed; returns whether a deadline may have moved (V7)."""
        return self._table.sessions.closed(connection, now)

    # -- validation of callers -------------------------------------------------------------------

    def _arrive(self, caller: Caller, wall_ms: TimestampMs) -> _Arrival | ErrorCode:
        """Validate the caller; return its app with the caller's run as the newest (V2, V4).

        A new run aborts the open incarnation, which belongs to another run.
        """
        if not self._is_well_formed(caller):
            return ErrorCode.INVALID_REQUEST
        known = self._table.apps.get(caller.app)
        if known is None:
            if len(self._table.apps) >= self._limits.apps_max:
                return ErrorCode.POLICY_VIOLATION
            known = unwritten(caller, wall_ms)
        error = self._fenced(known, caller)
        if error is not None:
            return error
        app = known
        if app.query_id != caller.query_id:
            app = replace(app, query_id=caller.query_id, last_version=NO_VERSION, fingerprint=b"")
        is_new_run = self._table.run(_run_key(caller)) is None
        error = _validate_version(app, caller, is_open_run=not is_new_run)
        if error is not None:
            return error
        if not is_new_run:
            return _Arrival(app, (), is_changed=app != known)
        app = replace(app, run_id=caller.run_id, updated_ms=wall_ms)
        tombstones: tuple[LogRecord, ...] = ()
        if app.phase is Phase.OPEN:
            app, tombstones = self._ended(app, Phase.ABORTING)
        return _Arrival(app, (*self._registered(caller, wall_ms), *tombstones), is_changed=True)

    def _is_well_formed(self, caller: Caller) -> bool:
        names = (caller.app, caller.query_id, caller.run_id, caller.host)
        fits = all(len(name.encode()) <= self._limits.name_bytes_max for name in names)
        return fits and bool(caller.app) and bool(caller.run_id) and caller.version >= 0

    def _fenced(self, app: App, caller: Caller) -> ErrorCode | None:
        """The error where this run does not drive the app; else None (V2, V4).

        APP_IN_USE: another query does; RUN_FENCED: a newer run; TRANSACTION_ABORTED: none, since
        the last one has ended.
        """
        if app.query_id != caller.query_id and not caller.takeover:
            return ErrorCode.APP_IN_USE
        is_driver = (app.query_id, app.run_id) == (caller.query_id, caller.run_id)
        if is_driver or self._table.run(_run_key(caller)) is None:
            return None
        return ErrorCode.TRANSACTION_ABORTED if app.run_id == NO_RUN else ErrorCode.RUN_FENCED

    def _registered(self, caller: Caller, wall_ms: TimestampMs) -> tuple[LogRecord, ...]:
        """Records that make this run the newest of its app, and forget surplus old runs."""
        runs = self._table.runs(caller.app)
        surplus = max(0, len(runs) + 1 - self._limits.runs_max)
        ordinal = self._table.next_ordinal(caller.app)
        newest = Run(ordinal=ordinal, since_ms=wall_ms, host=caller.host)
        return (*(forget(run) for run in runs[:surplus]), write_run(_run_key(caller), newest))

    def _ended(self, app: App, phase: Phase) -> tuple[App, tuple[LogRecord, ...]]:
        """The app after a decision, and tombstones if it completes at once: nobody has written."""
        if app.phase is Phase.OPEN and partitions_of(self._table.members(app.app)):
            return app.moved(phase), ()
        return app.closed(), self._tombstones(app)

    def _tombstones(self, app: App) -> tuple[LogRecord, ...]:
        return tuple(forget(ProducerKey(each.producer_id)) for each in self._table.members(app.app))

    # -- markers ---------------------------------------------------------------------------------

    def outstanding_markers(self, committed: Offset) -> tuple[MarkerGroup, ...]:
        """Outstanding markers of decisions below ``committed``, the high watermark (rule E16)."""
        ending = [name for name, at in self._table.decided_at.items() if at < committed]
        return tuple(group for name in ending for group in self._groups(self._table.apps[name]))

    def _groups(self, app: App) -> Iterator[MarkerGroup]:
        members = self._table.members(app.app)
        for partition in sorted(partitions_of(members) - app.written):
            markers = tuple(
                ProducerMarker(
                    producer_id=each.producer_id,
                    producer_epoch=each.producer_epoch,
                    commit=each.producer_id in app.committing,
                )
                for each in members
                if partition in each.partitions
            )
            yield MarkerGroup(
                app=app.app, incarnation=app.incarnation, partition=partition, markers=markers
            )

    def markers_written(
        self, app: str, incarnation: int, partitions: Collection[TopicPartition]
    ) -> Decision[None]:
        """Record that these partitions' markers are committed, or that the partitions are deleted.

        The last one completes the incarnation and forgets its producers. A late report changes
        nothing.
        """
        current = self._table.apps.get(app)
        if current is None or current.incarnation != incarnation or not current.phase.is_ending:
            return Decision((), None)
        return Decision(self._with_markers(current, frozenset(partitions)), None)

    def _with_markers(self, app: App, done: frozenset[TopicPartition]) -> tuple[LogRecord, ...]:
        expected = partitions_of(self._table.members(app.app))
        written = app.written | (done & expected)
        if written == expected:
            return (*self._tombstones(app), write_app(app.closed()))
        if written == app.written:
            return ()
        return (write_app(replace(app.moved(app.phase), written=written)),)

    # -- timeouts --------------------------------------------------------------------------------

    def next_deadline(self) -> Instant | None:
        """When the first open incarnation times out, or an ephemeral app is forgotten."""
        return self._table.next_deadline()

    def expire(self, now: Instant, wall_ms: TimestampMs) -> Decision[None]:
        """Abort incarnations that have timed out or lost their writers' connections (V7).

        Forget the apps of old batch writes (V4).

        A load restarts the deadlines, so the age of a batch write counts by the wall clock, too.
        """
        records: list[LogRecord] = []
        for name in self._table.deadlines:
            if self._table.deadline(name) <= now:
                late = replace(self._table.apps[name], updated_ms=wall_ms)
                ended, tombstones = self._ended(late, Phase.ABORTING)
                records += [*tombstones, write_app(ended)]
        for name, deadline in self._table.forgotten_at.items():
            age_ms = wall_ms - self._table.apps[name].updated_ms
            if deadline <= now or age_ms >= EPHEMERAL_KEPT_S * 1000:
                records += [forget(run) for run in self._table.runs(name)]
                records.append(forget(AppKey(name)))
        return Decision(tuple(records), None)

    # -- what operators and recovery ask ---------------------------------------------------------

    def describe(self, app: str) -> AppDescription | None:
        """One app; answer once everything appended so far is committed (rule E16)."""
        known = self._table.apps.get(app)
        if known is None:
            return None
        is_open = known.phase is Phase.OPEN
        return AppDescription(
            app=app,
            query_id=known.query_id,
            run_id=known.run_id,
            run=self._table.run(RunKey(app, known.query_id, known.run_id)),
            updated_ms=known.updated_ms,
            last_version=known.last_version,
            open_version=known.version if is_open else NO_VERSION,
            incarnation=known.incarnation,
            open_producers=tuple(self._table.members(app)) if is_open else (),
        )

    def transactions(self) -> tuple[OpenApp, ...]:
        """Every open or ending transaction; answered as ``describe`` is."""
        table = self._table
        return tuple(
            OpenApp(
                app=name,
                phase=app.phase,
                timeout_ms=app.timeout_ms,
                opened_ms=app.opened_ms,
                producer_ids=tuple(each.producer_id for each in table.members(name)),
                partitions=partitions_of(table.members(name)) - app.written,
            )
            for name, app in table.apps.items()
            if app.phase is not Phase.IDLE
        )

    def highest_producer_id(self) -> ProducerId:
        """The highest producer id in this shard, or -1 (rule E7: ids are never reused)."""
        return max(self._table.producers, default=NO_PRODUCER_ID)

    def outcome(self, producer_id: ProducerId, partition: TopicPartition) -> TransactionOutcome:
        """How a transaction has to end that recovery found open on ``partition`` (rule E17)."""
        joined = self._table.producers.get(producer_id)
        if joined is None:
            return TransactionOutcome.UNKNOWN
        app = self._table.apps[joined.app]
        if partition in joined.partitions and partition not in app.written:
            return TransactionOutcome.LISTED
        return (
            TransactionOutcome.COMMIT if producer_id in app.committing else TransactionOutcome.ABORT
        )


def _run_key(caller: Caller) -> RunKey:
    return RunKey(caller.app, caller.query_id, caller.run_id)


def _validate_version(app: App, caller: Caller, *, is_open_run: bool) -> ErrorCode | None:
    """STALE_VERSION or VERSION_GAP where it is not the app's last or next version (rule V3)."""
    version, last = caller.version, app.last_version
    if last != NO_VERSION and version <= last:
        return ErrorCode.STALE_VERSION if version < last else None
    # A run that has opened a version has to commit that one.
    if app.phase is Phase.OPEN and is_open_run:
        if version == app.version:
            return None
        return ErrorCode.VERSION_GAP if version > app.version else ErrorCode.STALE_VERSION
    # The first version may be any.
    is_gap = last != NO_VERSION and version > last + 1
    return ErrorCode.VERSION_GAP if is_gap and not caller.allow_gaps else None
