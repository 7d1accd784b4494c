"""Produce: validate and append in one step, then wait once for the commit.

Behaviour: each partition has its own result, and the valid batches stay (F4). The first
transactional append of a producer on a partition is verified with the coordinator (E14, V5); every
other batch is appended before this returns, so a connection's pipelined requests keep their order
(E13). Where a partition has an owner, a batch that is not the owner's is refused: before anything
is asked of a coordinator, and again in the step of the append (O8). What is said of streams and of
conditions is in ``stream_writes``.

Version notes: from 7 on zstd; from 11 on TRANSACTION_ABORTABLE; from 12 on transaction version 2.
"""

from collections.abc import Sequence

from fencelog.broker.context import Broker
from fencelog.broker.coordinators.leaders import Verified
from fencelog.broker.dispatch import respond
from fencelog.broker.handlers.batch_checks import (
    Batch,
    check_at_once,
    check_in_slices,
    lacks_replicas,
)
from fencelog.broker.handlers.brokers import current_leader, endpoints_of, missing
from fencelog.broker.handlers.connection_fencing import accepted_on, refuse_stale_connection
from fencelog.broker.handlers.stream_writes import (
    count_write,
    refused_write,
    sealed_write,
)
from fencelog.broker.handlers.verifications import for_producer, verify
from fencelog.broker.network.connection import Answer, Request
from fencelog.broker.network.replies import Pending, Reply
from fencelog.broker.network.time_slices import ITEMS_PER_SLICE
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.partitions.purgatory import failure_code
from fencelog.coordination.transaction.state import ProducerIdAndEpoch
from fencelog.errors import ErrorCode, LimitError, WireError
from fencelog.log.values import Appended, Rejected
from fencelog.log.verification import VerificationGuard
from fencelog.types import Offset
from fencelog.wire.api_versions import PRODUCE_ADDS_PARTITIONS_FROM, PRODUCE_VERSION_MIN_ACCEPTED
from fencelog.wire.batch import BatchHeader, Compression, read_header, validate_produced
from fencelog.wire.hot import (
    NodeEndpoint,
    PartitionResult,
    ProduceRequest,
    read_produce_request,
    write_produce_response,
)
from fencelog.wire.hot.append_tags import NO_APPEND_TAGS
from fencelog.wire.hot.produce import LEADERS_FROM

ZSTD_FROM = 7
_Unverified = tuple[Partition, BatchHeader, memoryview, VerificationGuard]
"""A validated batch whose transaction must be verified first."""


class _Waiting:
    """One produce request between append and commit: results so far and how many still wait.

    Invariant: ``_pending`` counts the partitions whose commit is neither reached nor failed.
    """

    __slots__ = (
        "_broker",
        "_pending",
        "_promise",
        "_results",
        "acks",
        "deferred",
        "request",
        "tags",
        "transactional_id",
    )

    def __init__(self, broker: Broker, request: Request, message: ProduceRequest) -> None:
        self._broker = broker
        self.request = request
        self.acks = message.acks
        self.transactional_id = message.transactional_id
        self.tags = message.tags
        """What fencelog's own clients say of batches; of other requests it is empty."""
        self._results: dict[str, list[PartitionResult]] = {}
        self._pending = 1  # the request itself, until all of it is appended
        self._promise: Pending | None = None
        self.deferred: _Deferred | None = None
        """Batches that cannot be appended at once; most requests have none."""

    def settle(self, topic: str, result: PartitionResult) -> None:
        """Add a result that needs no wait."""
        self._results.setdefault(topic, []).append(result)

    def refuse(self, partition: Partition, header: BatchHeader, result: PartitionResult) -> None:
        """Refuse a batch for its records."""
        partition.refuse(header, result.error)
        self.settle(partition.name.topic, result)

    def wait(self, topic: str, result: PartitionResult, end: Offset, partition: Partition) -> None:
        """Add a result that is valid once ``end`` is committed, or with acks 0 and 1 at once."""
        if self.acks >= 0:
            self.settle(topic, result)  # with too few replicas in sync a wait has no end
            return
        results = self._results.setdefault(topic, [])
        position = len(results)
        results.append(result)
        self._pending += 1

        def done(error: Exception | None) -> None:
            if error is not None:
                results[position] = PartitionResult(
                    result.partition, failure_code(error), error_message=str(error)
                )
            self._wait_ended()

        partition.when_committed(end, done)

    def answer(self, timeout_ms: int) -> Reply | Pending:
        """Return the reply if there is nothing to wait for (acks 0 and 1 never wait)."""
        if self.acks == 0:
            failed = any(r.error for results in self._results.values() for r in results)
            if failed:
                raise _refused_without_acks()
            return None
        self._pending -= 1
        if self._pending == 0:
            return self._reply()
        self._promise = Pending()
        self._broker.deadlines.add(self, max(timeout_ms, 1) / 1000)
        return self._promise

    def _wait_ended(self) -> None:
        self._pending -= 1
        if self._pending == 0 and self._promise is not None and not self._promise.settled:
            self._broker.deadlines.discard(self)
            self._promise.settle(self._reply())

    def expire(self) -> None:
        """Answer with a timeout: the records stay, and may be committed later (F5)."""
        assert self._promise is not None
        assert not self._promise.settled
        for results in self._results.values():
            results[:] = [
                r._replace(error=ErrorCode.REQUEST_TIMED_OUT, base_offset=-1)
                if r.error is ErrorCode.NONE
                else r
                for r in results
            ]
        self._promise.settle(self._reply())
        # The commit may be far away: until then the wait keeps no records.
        self.request = Request(self.request.header, memoryview(b""), self.request.connection)

    def _reply(self) -> Reply:
        version, results = self.request.header.api_version, self._results
        endpoints: Sequence[NodeEndpoint] = ()
        if self._broker.placement is not None and version >= LEADERS_FROM:
            leaders = (each.current_leader for parts in results.values() for each in parts)
            endpoints = endpoints_of(self._broker, leaders)
        written = write_produce_response(version, results.items(), endpoints=endpoints)
        return respond(self.request, written)


def _refused_without_acks() -> WireError:
    """Return the error that closes the connection: with acks=0 there is no response."""
    return WireError("a produce request with acks=0 was refused")


def produce(broker: Broker, request: Request) -> Answer:
    """Handle one produce request."""
    try:
        message = read_produce_request(request.body, request.header.api_version, ITEMS_PER_SLICE)
    except LimitError:
        return _in_time_slices(broker, request)
    refused = _validate_request(request, message)
    if refused is not None:
        return refused
    waiting = _Waiting(broker, request, message)
    for topic, partitions in message.topics:
        for index, records in partitions:
            _take(broker, request, waiting, topic, index, records)
    if waiting.deferred is None:
        return waiting.answer(message.timeout_ms)
    return _finish(broker, request, message, waiting, waiting.deferred)


async def _in_time_slices(broker: Broker, request: Request) -> Reply | Pending:
    """Handle a request with very many partitions without delaying other connections."""
    await broker.time_slices.next()
    message = read_produce_request(request.body, request.header.api_version)
    refused = _validate_request(request, message)
    if refused is not None:
        return refused
    waiting = _Waiting(broker, request, message)
    every = ((topic, index, records) for topic, parts in message.topics for index, records in parts)
    async for requested in broker.time_slices.each(every):
        _take(broker, request, waiting, *requested)
    return await _finish(broker, request, message, waiting, waiting.deferred or _Deferred())


def _take(
    broker: Broker,
    request: Request,
    waiting: _Waiting,
    topic: str,
    index: int,
    records: memoryview | None,
) -> None:
    """Validate and append one partition's batch, or defer it."""
    valid = _validate(broker, waiting, topic, index, records)
    if isinstance(valid, PartitionResult):
        waiting.settle(topic, valid)
        return
    partition, header, batch = valid
    owners, is_transactional = partition.owners, header.is_transactional
    if (
        owners.guards_writes
        # What most owners send is known to be theirs without a call.
        and (is_transactional or request.connection.session != owners.writer)
        and _is_not_the_owners(waiting, partition, header)
    ):
        return
    if is_transactional:
        if partition.read_error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            waiting.settle(topic, _refused(broker, topic, index, partition.read_error))
            return
        refuse_stale_connection(broker, request, header.producer_id, header.producer_epoch)
    if partition.checks_batches:
        try:
            refused = check_at_once(valid, waiting.acks)
        except LimitError:
            _deferred(waiting).unopened.append(valid)
            return
        if refused is not None:
            waiting.refuse(partition, header, refused)
            return
    if is_transactional:
        guard = _begin_verification(partition, header, request.header.api_version)
        if guard is not None:
            _deferred(waiting).unverified.append((partition, header, batch, guard))
        else:
            _append_transactional(broker, waiting, partition, header, batch, None)
    else:
        _append(broker, waiting, partition, header, batch, None)


class _Deferred:
    """Deferred batches: something must be awaited before they are appended."""

    __slots__ = ("unopened", "unverified")

    def __init__(self) -> None:
        self.unopened: list[Batch] = []
        """Too large to be checked at once, or to be stored in another codec."""
        self.unverified: list[_Unverified] = []


def _deferred(waiting: _Waiting) -> _Deferred:
    waiting.deferred = waiting.deferred or _Deferred()
    return waiting.deferred


def _validate_request(request: Request, message: ProduceRequest) -> Reply:
    """Return the response to a request that is refused as a whole; None for any other."""
    if request.header.api_version < PRODUCE_VERSION_MIN_ACCEPTED:
        if message.acks == 0:
            raise _refused_without_acks()
        return _refuse_all(request, message, ErrorCode.UNSUPPORTED_VERSION)
    if message.acks not in (-1, 0, 1):
        return _refuse_all(request, message, ErrorCode.INVALID_REQUIRED_ACKS)
    return None


def _refuse_all(request: Request, message: ProduceRequest, code: ErrorCode) -> Reply:
    return respond(
        request,
        write_produce_response(
            request.header.api_version,
            [
                (topic, [PartitionResult(index, code) for index, _ in partitions])
                for topic, partitions in message.topics
            ],
        ),
    )


def _validate(
    broker: Broker, waiting: _Waiting, topic: str, index: int, records: memoryview | None
) -> Batch | PartitionResult:
    """Find the partition and validate the batch; return an error as its result."""
    partition, known = broker.logs.get(topic, index), broker.catalog.get(topic)
    if partition is None:
        return _refused(broker, topic, index, missing(broker, topic, index))
    if known is None or known.internal:
        return PartitionResult(
            index,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            error_message=f"topic {topic} is internal: clients cannot write to it",
        )
    if records is None:
        return PartitionResult(
            index, ErrorCode.INVALID_RECORD, error_message="exactly one record batch is expected"
        )
    header = validate_produced(records)
    if isinstance(header, ErrorCode):
        _refuse_damaged(partition, records, header)
        return PartitionResult(
            index, header, error_message=f"the record batch for {topic}-{index} is not valid"
        )
    refused, version = None, waiting.request.header.api_version
    if version < ZSTD_FROM and header.compression is Compression.ZSTD:
        refused = PartitionResult(index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    elif known.stream is not None or waiting.tags:
        tags = waiting.tags.get((topic, index), NO_APPEND_TAGS)
        refused = refused_write(known, partition, header, tags)
    if refused is not None:
        if refused.error is not ErrorCode.UNKNOWN_TOPIC_ID:  # else it is no batch of this log (E13)
            partition.refuse(header, refused.error)
        return refused
    return partition, header, records


def _refused(
    broker: Broker, topic: str, index: int, error: ErrorCode, message: str | None = None
) -> PartitionResult:
    """Return the result of a batch that is not taken; it names the leader if that is another."""
    leader = None
    if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        leader = current_leader(broker, topic, index)
    return PartitionResult(index, error, error_message=message, current_leader=leader)


def _refuse_damaged(partition: Partition, records: memoryview, error: ErrorCode) -> None:
    """Refuse a damaged batch; record its sequence if its header can be read."""
    try:
        header = read_header(records)
    except WireError:
        return
    partition.refuse(header, error)


def _is_not_the_owners(waiting: _Waiting, partition: Partition, header: BatchHeader) -> bool:
    """Refuse a batch that is not the owner's; return whether it was refused."""
    refused = partition.owners.refused_write(
        waiting.request.connection.session,
        waiting.transactional_id,
        is_transactional=header.is_transactional,
    )
    if refused is None:
        return False
    number = partition.name.partition
    result = PartitionResult(number, refused.error, error_message=refused.message)
    waiting.refuse(partition, header, result)
    return True


def _is_refused_now(waiting: _Waiting, partition: Partition, header: BatchHeader) -> bool:
    """Refuse a deferred batch if its partition has changed meanwhile; return whether it has."""
    lacking = lacks_replicas(partition, waiting.acks)
    if lacking is not None:
        waiting.refuse(partition, header, lacking)
        return True
    return partition.owners.guards_writes and _is_not_the_owners(waiting, partition, header)


def _append_transactional(
    broker: Broker,
    waiting: _Waiting,
    partition: Partition,
    header: BatchHeader,
    batch: memoryview,
    guard: VerificationGuard | None,
) -> None:
    """Append a batch of a transaction: its producer now uses this connection."""
    if _append(broker, waiting, partition, header, batch, guard):
        accepted_on(broker, waiting.request, header.producer_id, header.producer_epoch)


def _append(
    broker: Broker,
    waiting: _Waiting,
    partition: Partition,
    header: BatchHeader,
    batch: memoryview,
    guard: VerificationGuard | None,
) -> bool:
    """Append a batch, or settle why not; returns whether it is in the log.

    Its owner was checked since the last ``await`` (O8).
    """
    topic, index = partition.name
    now_ms = broker.clock.now_ms()
    tags = waiting.tags.get(partition.name) if waiting.tags else None
    condition = None if tags is None else tags.condition
    outcome = partition.append(batch, header, now_ms=now_ms, guard=guard, condition=condition)
    if isinstance(outcome, Rejected):
        if outcome.error is ErrorCode.SEGMENT_SEALED:
            refused = sealed_write(broker.catalog.get(topic), partition, header)
        else:
            refused = _refused(broker, topic, index, outcome.error, outcome.message)
        waiting.settle(topic, refused)
        return False
    if tags is not None and isinstance(outcome, Appended):
        count_write(partition, header, tags)
    append_time_ms = now_ms if partition.stamps_on_append else -1
    log_start = partition.log.log_start_offset
    # ``_make`` takes half the time of a call.
    result = PartitionResult._make(
        (
            index,
            ErrorCode.NONE,
            outcome.base_offset,
            append_time_ms,
            log_start,
            None,
            (),
            None,
            None,
        )
    )
    waiting.wait(topic, result, outcome.end_offset, partition)
    return True


def _begin_verification(
    partition: Partition, header: BatchHeader, version: int
) -> VerificationGuard | None:
    return partition.log.begin_verification(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        from_zero=version >= PRODUCE_ADDS_PARTITIONS_FROM,
    )


async def _finish(
    broker: Broker,
    request: Request,
    message: ProduceRequest,
    waiting: _Waiting,
    deferred: _Deferred,
) -> Reply | Pending:
    """Append the deferred batches, and answer."""
    version = request.header.api_version
    for unopened in deferred.unopened:
        partition, header, _ = unopened
        # Taken before the records are checked: a marker that is appended meanwhile invalidates it.
        guard = _begin_verification(partition, header, version) if header.is_transactional else None
        checked = await check_in_slices(broker, unopened)
        if isinstance(checked, PartitionResult):
            waiting.refuse(partition, header, checked)
            continue
        _, header, batch = checked
        if _is_refused_now(waiting, partition, header):
            continue
        if header.is_transactional:
            refuse_stale_connection(broker, request, header.producer_id, header.producer_epoch)
        if guard is not None:
            deferred.unverified.append((partition, header, batch, guard))
        elif header.is_transactional:
            _append_transactional(broker, waiting, partition, header, batch, None)
        else:
            _append(broker, waiting, partition, header, batch, None)
    by_producer: dict[ProducerIdAndEpoch, list[_Unverified]] = {}
    for each in deferred.unverified:
        producer = ProducerIdAndEpoch(each[1].producer_id, each[1].producer_epoch)
        by_producer.setdefault(producer, []).append(each)
    for producer, batches in by_producer.items():
        names = [partition.name for partition, *_ in batches]
        # A marker that is appended meanwhile invalidates the guard.
        verified = await verify(broker, message.transactional_id, producer, names, version)
        async for each in broker.time_slices.each(batches):
            _append_verified(broker, waiting, each, verified, version)
    return waiting.answer(message.timeout_ms)


def _append_verified(
    broker: Broker,
    waiting: _Waiting,
    requested: _Unverified,
    verified: Verified,
    version: int,
) -> None:
    partition, header, batch, guard = requested
    error = verified.errors[partition.name]
    if error is ErrorCode.NONE and verified.is_stale(partition.log, header.producer_id):
        error = ErrorCode.NOT_ENOUGH_REPLICAS  # retriable: it is verified again
    if error is ErrorCode.NONE:
        if _is_refused_now(waiting, partition, header):
            return
        _append_transactional(broker, waiting, partition, header, batch, guard)
        return
    waiting.settle(
        partition.name.topic,
        PartitionResult(
            partition.name.partition,
            for_producer(error, version),
            error_message=f"{partition.name} is not in an open transaction of producer "
            f"{header.producer_id} (epoch {header.producer_epoch})",
        ),
    )
