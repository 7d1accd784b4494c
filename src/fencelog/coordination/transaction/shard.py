"""The transaction coordinator: what may happen to a transactional id, decided and replayed.

Every check of an identity comes before any look at the state (KAFKA-19690): a zombie learns that it
is fenced and nothing else. Refusals are Kafka's codes as the newest version of each API has them;
``for_client`` turns them into what an older version knows.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.shard import Decision, LogRecord
from fencelog.coordination.transaction.ending import (
    EndResult,
    end_version_1,
    end_version_2,
    ended_in_version_2,
    wrong_identity,
)
from fencelog.coordination.transaction.records import read_key, read_value, write_transaction
from fencelog.coordination.transaction.retention import ID_CHECK_S, ID_EXPIRATION_MS, Retention
from fencelog.coordination.transaction.stale_state import is_later, retired
from fencelog.coordination.transaction.state import (
    EPOCH_EXHAUSTED,
    ClientVersion,
    ProducerIdAndEpoch,
    Transaction,
    TxnState,
)
from fencelog.errors import ErrorCode
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
    """The identity that a producer goes on with; -1 and -1 beside an error."""

    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerTask:
    """Markers that a committed decision still owes. No partitions: only the completion is owed."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool
    is_bumped: bool
    """Whether the epoch is one above that of the data (version 2)."""
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, kw_only=True)
class TransactionLimits:
    """What bounds the shard; beyond a count the answer is POLICY_VIOLATION."""

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
        """Begin empty; the log is replayed into it."""
        self.coordinator_epoch = coordinator_epoch
        self._limits = limits or TransactionLimits()
        self._retention = Retention(self._limits.id_expiration_ms, self._limits.id_check_s)
        self._transactions: dict[str, Transaction] = {}
        self._deadlines: dict[str, Instant] = {}  # of those that are ongoing
        self._decided_at: dict[str, Offset] = {}  # of those that are prepared

    # -- the only place where state changes ------------------------------------------------------

    def replay(self, record: LogRecord, offset: Offset, now: Instant) -> None:
        """Apply one record of ``__transaction_state``.

        A transaction's clock starts with the first record that shows it ongoing, so partitions that
        are added later do not prolong it. Raises CorruptionError on a foreign record.
        """
        transactional_id = read_key(record.key)
        if record.value is None:
            for index in (self._transactions, self._deadlines, self._decided_at):
                index.pop(transactional_id, None)
            return
        transaction = read_value(transactional_id, record.value)
        self._transactions[transactional_id] = transaction
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

        ``producer_id`` and ``producer_epoch`` are what the producer has now, or both -1.
        ``new_producer_id`` is used only where a fresh one is due. An open transaction is aborted
        with a fencing epoch first: CONCURRENT_TRANSACTIONS until its markers are in.
        """
        if not transactional_id or (producer_id < 0) != (producer_epoch < 0):
            return _refused(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._limits.timeout_ms_max:
            return _refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        asked = ProducerIdAndEpoch(producer_id, producer_epoch) if producer_id >= 0 else None
        current = self._transactions.get(transactional_id)
        if current is None:
            if len(self._transactions) >= self._limits.transactional_ids_max:
                return _refused(ErrorCode.POLICY_VIOLATION)
            current = _unwritten(transactional_id, wall_ms)
            granted = ProducerIdAndEpoch(new_producer_id, ProducerEpoch(0))
        elif asked is not None and asked not in _knowing(current):
            return _refused(ErrorCode.PRODUCER_FENCED)
        elif current.state is TxnState.ONGOING or current.state.is_prepared:
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
        """Open a transaction, or widen the open one. Partitions that are in it cost no record.

        A client of version 1 asks for it, for one of version 2 the partition's leader does, at its
        first append there: after the answer, which says that the record is committed (E14).
        """
        current = self._identified(transactional_id, producer_id, producer_epoch)
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
            previous=None,  # It uses its identity, so it knows it: no retry can be under way.
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
        current = self._identified(transactional_id, producer_id, producer_epoch)
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
        """Decide an open transaction: the point of no return (rule E9).

        ``new_producer_id`` is needed in version 2 from epoch EPOCH_EXHAUSTED on.
        """
        current = self._transactions.get(transactional_id)
        asked = ProducerIdAndEpoch(producer_id, producer_epoch)
        if client_version is ClientVersion.V1:
            return end_version_1(current, asked, commit=commit, wall_ms=wall_ms)
        return end_version_2(
            current, asked, commit=commit, new_producer_id=new_producer_id, wall_ms=wall_ms
        )

    def _identified(
        self, transactional_id: str, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> Transaction | ErrorCode:
        current = self._transactions.get(transactional_id)
        error = wrong_identity(current, ProducerIdAndEpoch(producer_id, producer_epoch))
        if current is None or error is not ErrorCode.NONE:
            return error
        return current

    # -- markers ---------------------------------------------------------------------------------

    def outstanding_markers(self, committed: Offset) -> tuple[MarkerTask, ...]:
        """What is owed by decisions that lie below ``committed``, the high watermark (rule E16).

        Send the tasks of one id one after the other: while a marker may still be on its way, its
        partition must not be reported as written.
        """
        owing = [
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
            for each in owing
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
        """Record that these partitions' markers are committed, or that the partitions are gone.

        The last one completes the transaction (rule E17). A report that comes late, for a
        transaction that is not the prepared one, changes nothing.
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
        """When the first open transaction runs out of time, or old ids are looked for."""
        look = self._retention.next_look
        deadlines = self._deadlines.values()
        return min(deadlines if look is None else (*deadlines, look), default=None)

    def expire(self, now: Instant, wall_ms: TimestampMs) -> Decision[None]:
        """Abort, with a fencing epoch, every open transaction that is past its timeout (E12).

        Forget ids that nobody has used for long.
        """
        late = [
            self._transactions[transactional_id]
            for transactional_id, deadline in self._deadlines.items()
            if deadline <= now
        ]
        aborting = [
            replace(
                each.moved(TxnState.PREPARE_ABORT, wall_ms),
                producer=each.fenced(),
                previous=None,
                client_version=ClientVersion.V1,
            )
            for each in late
        ]
        forgotten = self._retention.expired(self._transactions.values(), now, wall_ms)
        return Decision((*map(write_transaction, aborting), *forgotten), None)

    # -- what operators and recovery ask ---------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction | None:
        """One transactional id; answer it once everything appended so far is committed (E16)."""
        return self._transactions.get(transactional_id)

    def transactions(self) -> tuple[Transaction, ...]:
        """Every transactional id, in no particular order; answered as ``describe`` is."""
        return tuple(self._transactions.values())

    def highest_producer_id(self) -> ProducerId:
        """The highest producer id that this shard knows, or -1 (rule E7: ids are never reused)."""
        identities = [
            identity.producer_id
            for each in self._transactions.values()
            for identity in _knowing(each)
        ]
        return max(identities, default=NO_PRODUCER_ID)

    def outcome(
        self, producer: ProducerIdAndEpoch, partition: TopicPartition
    ) -> TransactionOutcome:
        """What becomes of a transaction that recovery found open on ``partition`` (rule E17)."""
        for each in self._transactions.values():
            if producer.producer_id in _who_wrote(each):
                if is_later(each, producer):
                    return TransactionOutcome.ABORT
                is_live = each.state is TxnState.ONGOING or each.state.is_prepared
                if is_live and partition in each.partitions:
                    return TransactionOutcome.LISTED
                return (
                    TransactionOutcome.COMMIT if each.state.is_commit else TransactionOutcome.ABORT
                )
        return TransactionOutcome.UNKNOWN

    def retire(
        self, seen: Mapping[ProducerId, ProducerEpoch], *, wall_ms: TimestampMs
    ) -> Decision[None]:
        """Give out nothing more under producer ids of which a log has seen a later epoch (E7)."""
        found = (retired(each, seen, wall_ms) for each in self._transactions.values())
        return Decision(tuple(write_transaction(each) for each in found if each is not None), None)


def _refused(error: ErrorCode) -> Decision[InitResult]:
    return Decision((), InitResult(error))


def _fence_open(
    current: Transaction, asked: ProducerIdAndEpoch | None, wall_ms: TimestampMs
) -> Decision[InitResult]:
    """Abort what is open under a fencing epoch; what is decided already is left to complete."""
    if current.state.is_prepared:
        return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    aborting = replace(
        current.moved(TxnState.PREPARE_ABORT, wall_ms),
        producer=current.fenced(),
        previous=asked,
        client_version=ClientVersion.V1,
    )
    refusal = InitResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    return Decision((write_transaction(aborting),), refusal)


def _knowing(current: Transaction) -> tuple[ProducerIdAndEpoch, ...]:
    """The identities under which its producer may know itself: now, from here on, before."""
    previous = () if current.previous is None else (current.previous,)
    return (current.producer, current.successor, *previous)


def _who_wrote(current: Transaction) -> tuple[ProducerId, ...]:
    """Whose transaction it is or was; a new producer id takes over once all markers are in."""
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
    """The identity after ``current``, or ``current``'s own when ``asked`` repeats its request.

    Only an Empty one was granted: the epoch that fenced an open transaction is given to nobody.
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
