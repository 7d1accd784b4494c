"""The transaction coordinator: the rules of transactional ids.

Each rule validates the producer before the state of the transaction (KAFKA-19690): a zombie learns
that it is fenced and nothing else. Errors are those of the newest version of each API;
``for_client`` maps them to what an older version knows.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.owners import read_owner, read_producers_key, write_producers_owner
from fencelog.coordination.shard import Decision, LogRecord
from fencelog.coordination.transaction.ending import (
    EndResult,
    aborted,
    end_version_1,
    end_version_2,
    ended_in_version_2,
    validate_producer,
)
from fencelog.coordination.transaction.owned import OwnedIds
from fencelog.coordination.transaction.records import read_key, read_value, write_transaction
from fencelog.coordination.transaction.retention import ID_CHECK_S, ID_EXPIRATION_MS, Retention
from fencelog.coordination.transaction.stale_state import is_later, retired
from fencelog.coordination.transaction.state import (
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    ClientVersion,
    ProducerIdAndEpoch,
    Transaction,
    TxnState,
)
from fencelog.errors import ErrorCode
from fencelog.log.ownership import Owner
from fencelog.settings.table import default_of
from fencelog.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    CoordinatorEpoch,
    Instant,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)

TIMEOUT_MS_MAX = default_of("transaction.max.timeout.ms")

_NOT_STARTED = TimestampMs(-1)


@dataclass(frozen=True, slots=True)
class InitResult:
    """The producer id and epoch to use from now on; both -1 with an error."""

    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerTask:
    """Outstanding markers of a committed decision; without partitions it only has to complete."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool
    is_bumped: bool
    """Whether the epoch is one above that of the data (version 2)."""
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, kw_only=True)
class TransactionLimits:
    """Limits of the shard; beyond a count the answer is POLICY_VIOLATION."""

    timeout_ms_max: int = TIMEOUT_MS_MAX
    transactional_ids_max: int = 100_000
    partitions_max: int = 10_000
    id_expiration_ms: int = ID_EXPIRATION_MS
    id_check_s: float = ID_CHECK_S


def for_client(error: ErrorCode, *, knows_fenced: bool) -> ErrorCode:
    """The code that this version of the API knows (rule E2).

    PRODUCER_FENCED exists from InitProducerId 4 and from AddPartitionsToTxn and EndTxn 2 on.
    """
    if error is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


class TransactionShard:
    """The transactional ids of one partition of ``__transaction_state``."""

    def __init__(
        self, coordinator_epoch: CoordinatorEpoch, limits: TransactionLimits | None = None
    ) -> None:
        """Begin empty, for the log to be replayed."""
        self.coordinator_epoch = coordinator_epoch
        self._limits = limits or TransactionLimits()
        self._retention = Retention(self._limits.id_expiration_ms, self._limits.id_check_s)
        self._transactions: dict[str, Transaction] = {}
        self._owned = OwnedIds()
        self._deadlines: dict[str, Instant] = {}  # of those that are ongoing
        self._decided_at: dict[str, Offset] = {}  # of those that are prepared

    # -- the only place where state changes ------------------------------------------------------

    def replay(self, record: LogRecord, offset: Offset, now: Instant) -> None:
        """Apply one record of ``__transaction_state``.

        The timeout counts from the first record that shows the transaction ongoing, so partitions
        that are added later do not prolong it. Raises CorruptionError on any other record.
        """
        key = read_producers_key(record.key)
        if key is not None:
            self._owned.owners[key] = read_owner(record.value)
            return
        transactional_id = read_key(record.key)
        if record.value is None:
            self._owned.forgotten(transactional_id)
            for index in (self._transactions, self._deadlines, self._decided_at):
                index.pop(transactional_id, None)
            return
        transaction = read_value(transactional_id, record.value)
        self._transactions[transactional_id] = transaction
        self._owned.stored(transactional_id)
        if transaction.state is TxnState.ONGOING:
            deadline = Instant(now + transaction.timeout_ms / 1000)
            self._deadlines.setdefault(transactional_id, deadline)
        else:
            self._deadlines.pop(transactional_id, None)
        if transaction.state.is_prepared:
            self._decided_at.setdefault(transactional_id, offset)
        else:
            self._decided_at.pop(transactional_id, None)

    # -- what producers ask ----------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        *,
        new_producer_id: ProducerId,
        wall_ms: TimestampMs,
    ) -> Decision[InitResult]:
        """Register the next incarnation of a producer (rules E2, E7; KIP-360).

        ``producer_id`` and ``producer_epoch``: what the producer has now, or both -1.
        ``new_producer_id``: used only where a new id is needed. An open transaction is first
        aborted with a fencing epoch: CONCURRENT_TRANSACTIONS until its markers are written.
        """
        if not transactional_id or (producer_id < 0) != (producer_epoch < 0):
            return _refused(ErrorCode.INVALID_REQUEST)
        is_bounded = 0 < timeout_ms <= self._limits.timeout_ms_max
        unbounded = ErrorCode.INVALID_TRANSACTION_TIMEOUT
        error = self._owned.judge(transactional_id) if is_bounded else unbounded
        if error:
            return _refused(error)
        asked = ProducerIdAndEpoch(producer_id, producer_epoch) if producer_id >= 0 else None
        current = self._transactions.get(transactional_id)
        if current is None:
            if len(self._transactions) >= self._limits.transactional_ids_max:
                return _refused(ErrorCode.POLICY_VIOLATION)
            current = _unwritten(transactional_id, wall_ms)
            granted = ProducerIdAndEpoch(new_producer_id, ProducerEpoch(0))
        elif asked is not None and asked not in _identities(current):
            return _refused(ErrorCode.PRODUCER_FENCED)
        elif current.state.is_active:
            return _fence_open(current, asked, wall_ms)
        else:
            granted = _next_identity(current, asked, new_producer_id)
        registered = replace(
            current.moved(TxnState.EMPTY, wall_ms),
            producer=granted,
            previous=asked,
            client_version=ClientVersion.V1,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            started_ms=_NOT_STARTED,
        )
        return Decision((write_transaction(registered),), InitResult(ErrorCode.NONE, *granted))

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: Collection[TopicPartition],
        *,
        client_version: ClientVersion = ClientVersion.V1,
        wall_ms: TimestampMs,
    ) -> Decision[ErrorCode]:
        """Add partitions to the open transaction, or open one; no record if all are in it already.

        A client of version 1 sends this request itself. For a client of version 2 the partition's
        leader asks before its first append there, and appends once the record is committed (E14).
        """
        current = self._validated(transactional_id, producer_id, producer_epoch)
        if isinstance(current, ErrorCode):
            return Decision((), current)
        if current.state.is_prepared:
            return Decision((), ErrorCode.CONCURRENT_TRANSACTIONS)
        is_open = current.state is TxnState.ONGOING
        widened = (current.partitions if is_open else frozenset()) | frozenset(partitions)
        if len(widened) > self._limits.partitions_max:
            return Decision((), ErrorCode.POLICY_VIOLATION)
        if is_open and widened == current.partitions:
            return Decision((), ErrorCode.NONE)
        ongoing = replace(
            current.moved(TxnState.ONGOING, wall_ms),
            previous=None,  # The producer uses its epoch: no retry to get it can be under way.
            client_version=client_version,
            partitions=widened,
            started_ms=current.started_ms if is_open else wall_ms,
        )
        return Decision((write_transaction(ongoing),), ErrorCode.NONE)

    def verify(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partition: TopicPartition,
    ) -> ErrorCode:
        """Whether this producer's transaction is open and has the partition in it (rule E14).

        The answer reveals state: it may be used once everything appended so far is committed (E16).
        TRANSACTION_ABORTABLE when the partition is not in an open transaction.
        """
        current = self._validated(transactional_id, producer_id, producer_epoch)
        if isinstance(current, ErrorCode):
            return current
        if current.state.is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if current.state is TxnState.ONGOING and partition in current.partitions:
            return ErrorCode.NONE
        return ErrorCode.TRANSACTION_ABORTABLE

    def end_transaction(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        commit: bool,
        *,
        client_version: ClientVersion = ClientVersion.V1,
        new_producer_id: ProducerId = NO_PRODUCER_ID,
        wall_ms: TimestampMs,
    ) -> Decision[EndResult]:
        """Commit or abort an open transaction: the record decides it for good (rule E9).

        ``new_producer_id``: needed in version 2 from epoch EPOCH_EXHAUSTED on.
        """
        current = self._transactions.get(transactional_id)
        asked = ProducerIdAndEpoch(producer_id, producer_epoch)
        refusal = self._owned.judge(transactional_id)
        if refusal:
            return Decision((), EndResult(refusal))
        if client_version is ClientVersion.V1:
            return end_version_1(current, asked, commit=commit, wall_ms=wall_ms)
        return end_version_2(
            current, asked, commit=commit, new_producer_id=new_producer_id, wall_ms=wall_ms
        )

    def _validated(
        self, transactional_id: str, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> Transaction | ErrorCode:
        current = self._transactions.get(transactional_id)
        error = self._owned.judge(transactional_id) or validate_producer(
            current, ProducerIdAndEpoch(producer_id, producer_epoch)
        )
        if current is None or error is not ErrorCode.NONE:
            return error
        return current

    # -- claims ----------------------------------------------------------------------------------

    def set_owner(self, key: str, owner: Owner, *, wall_ms: TimestampMs) -> Decision[ErrorCode]:
        """Raise the epoch of a name, or end it, and the transactions of claims that are over (O8).

        ``key``: the ``producers_key``; the owner's transactional id selects the shard.
        CONCURRENT_TRANSACTIONS while markers of those are outstanding: repeat it. Once all are
        written NONE or, for an older epoch than the known one, which has ended its transactions,
        PRODUCER_FENCED. The claim's shard counts both as done for good, so no power cut may take
        this back.
        """
        known = self._owned.owners.get(key)
        over = [self._transactions[each] for each in self._owned.ended_by(key, owner)]
        is_news = owner.follows(known)
        records = [write_producers_owner(key, owner)] if is_news else []
        records += [
            write_transaction(aborted(each, wall_ms))
            for each in over
            if each.state is TxnState.ONGOING
        ]
        is_older = known is not None and owner.epoch < known.epoch
        error = ErrorCode.PRODUCER_FENCED if is_older else ErrorCode.NONE
        if any(each.state.is_active for each in over):
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        return Decision(tuple(records), error, must_sync=is_news)

    # -- markers ---------------------------------------------------------------------------------

    def outstanding_markers(self, committed: Offset) -> tuple[MarkerTask, ...]:
        """Outstanding markers of decisions below ``committed``, the high watermark (rule E16).

        Send the tasks of one id one after the other: while a marker may still be in flight, its
        partition must not be reported as written.
        """
        prepared = [
            self._transactions[transactional_id]
            for transactional_id, decided_at in self._decided_at.items()
            if decided_at < committed
        ]
        return tuple(
            MarkerTask(
                transactional_id=each.transactional_id,
                producer_id=each.producer.producer_id,
                producer_epoch=each.producer.producer_epoch,
                commit=each.state.is_commit,
                is_bumped=each.client_version is ClientVersion.V2,
                partitions=each.partitions,
            )
            for each in prepared
        )

    def markers_written(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: Collection[TopicPartition],
        *,
        wall_ms: TimestampMs,
    ) -> Decision[None]:
        """Record that these partitions' markers are committed, or that the partitions are deleted.

        The last one completes the transaction (rule E17). A late report, for a transaction that is
        not the prepared one, changes nothing.
        """
        current = self._transactions.get(transactional_id)
        if (
            current is None
            or not current.state.is_prepared
            or current.producer != (producer_id, producer_epoch)
        ):
            return Decision((), None)
        return Decision(_with_markers(current, frozenset(partitions), wall_ms), None)

    # -- timeouts --------------------------------------------------------------------------------

    def next_deadline(self) -> Instant | None:
        """When the first open transaction times out, or the next check for old ids is due."""
        check = self._retention.next_check
        deadlines = self._deadlines.values()
        return min(deadlines if check is None else (*deadlines, check), default=None)

    def expire(self, now: Instant, wall_ms: TimestampMs) -> Decision[None]:
        """Abort, with a fencing epoch, every open transaction that has timed out (E12).

        Forget transactional ids that have expired.
        """
        late = [
            self._transactions[transactional_id]
            for transactional_id, deadline in self._deadlines.items()
            if deadline <= now
        ]
        aborting = [aborted(each, wall_ms) for each in late]
        forgotten = self._retention.expired(self._transactions.values(), now, wall_ms)
        return Decision((*map(write_transaction, aborting), *forgotten), None)

    # -- what operators and recovery ask ---------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction | None:
        """One transactional id; answer once everything appended so far is committed (E16)."""
        return self._transactions.get(transactional_id)

    def transactions(self) -> tuple[Transaction, ...]:
        """Every transactional id, in no particular order; answered as ``describe`` is."""
        return tuple(self._transactions.values())

    def highest_producer_id(self) -> ProducerId:
        """The highest producer id in this shard, or -1 (rule E7: ids are never reused)."""
        identities = [
            identity.producer_id
            for each in self._transactions.values()
            for identity in _identities(each)
        ]
        return max(identities, default=NO_PRODUCER_ID)

    def outcome(
        self, producer: ProducerIdAndEpoch, partition: TopicPartition
    ) -> TransactionOutcome:
        """How a transaction has to end that recovery found open on ``partition`` (rule E17)."""
        for each in self._transactions.values():
            if producer.producer_id in _producer_ids(each):
                if is_later(each, producer):
                    return TransactionOutcome.ABORT
                if each.state.is_active and partition in each.partitions:
                    return TransactionOutcome.LISTED
                return (
                    TransactionOutcome.COMMIT if each.state.is_commit else TransactionOutcome.ABORT
                )
        return TransactionOutcome.UNKNOWN

    def retire(
        self, seen: Mapping[ProducerId, ProducerEpoch], *, wall_ms: TimestampMs
    ) -> Decision[None]:
        """Give out no more epochs of producer ids of which a log has ``seen`` a later one (E7)."""
        found = (retired(each, seen, wall_ms) for each in self._transactions.values())
        return Decision(tuple(write_transaction(each) for each in found if each is not None), None)

    def retire_all(self, *, wall_ms: TimestampMs) -> Decision[None]:
        """Give out no more epochs of any of its producer ids: logs may have later ones (E7)."""
        ids = [each.producer.producer_id for each in self._transactions.values()]
        return self.retire(dict.fromkeys(ids, EPOCH_MAX), wall_ms=wall_ms)


def _refused(error: ErrorCode) -> Decision[InitResult]:
    return Decision((), InitResult(error))


def _fence_open(
    current: Transaction, asked: ProducerIdAndEpoch | None, wall_ms: TimestampMs
) -> Decision[InitResult]:
    """Abort an open transaction under a fencing epoch; a decided one has to complete first."""
    if current.state.is_prepared:
        return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    refusal = InitResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    return Decision((write_transaction(aborted(current, wall_ms, asked)),), refusal)


def _identities(current: Transaction) -> tuple[ProducerIdAndEpoch, ...]:
    """The ids and epochs that its producer may use: the current, the next, the previous."""
    previous = () if current.previous is None else (current.previous,)
    return (current.producer, current.successor, *previous)


def _producer_ids(current: Transaction) -> tuple[ProducerId, ...]:
    """The producer ids that the current or last transaction may have written under."""
    if current.previous is not None and ended_in_version_2(current):
        return (current.producer.producer_id, current.previous.producer_id)
    return (current.producer.producer_id,)


def _unwritten(transactional_id: str, wall_ms: TimestampMs) -> Transaction:
    return Transaction(
        transactional_id=transactional_id,
        producer=ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH),
        previous=None,
        timeout_ms=0,
        state=TxnState.EMPTY,
        partitions=frozenset(),
        updated_ms=wall_ms,
        started_ms=_NOT_STARTED,
    )


def _next_identity(
    current: Transaction, asked: ProducerIdAndEpoch | None, new_producer_id: ProducerId
) -> ProducerIdAndEpoch:
    """The next producer id and epoch, or the current ones when ``asked`` repeats its request.

    Only those of an Empty state were given out: nobody gets the epoch that fenced a transaction.
    """
    if asked is not None and asked == current.previous and current.state is TxnState.EMPTY:
        return current.producer
    if current.producer.producer_epoch >= EPOCH_EXHAUSTED:
        return ProducerIdAndEpoch(new_producer_id, ProducerEpoch(0))
    return current.fenced()


def _with_markers(
    current: Transaction, done: frozenset[TopicPartition], wall_ms: TimestampMs
) -> tuple[LogRecord, ...]:
    remaining = current.partitions - done
    if not remaining:
        complete = TxnState.COMPLETE_COMMIT if current.state.is_commit else TxnState.COMPLETE_ABORT
        completed = replace(
            current.moved(complete, wall_ms),
            producer=current.successor,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
        )
        return (write_transaction(completed),)
    if remaining == current.partitions:
        return ()
    progressed = replace(current.moved(current.state, wall_ms), partitions=remaining)
    return (write_transaction(progressed),)
