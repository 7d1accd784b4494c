"""Produce: judge and append in one step, then wait once for the commit.

Behaviour: each partition gets its own result and the good ones stay (F4). The first transactional
append of a producer on a partition is verified with the coordinator first (E14, V5); everything
else is appended before this returns, so pipelined requests of a connection keep their order (E13).
"""

from fencelog.broker.connection import Answer, Pending, Reply, Request
from fencelog.broker.context import Broker
from fencelog.broker.deadlines import Deadlines
from fencelog.broker.dispatch import respond
from fencelog.broker.partition import Partition
from fencelog.errors import ErrorCode, NotLeaderError, StorageError, WireError
from fencelog.log.values import Appended, Rejected
from fencelog.log.verification import VerificationGuard
from fencelog.types import Offset, TopicPartition
from fencelog.wire.api_versions import PRODUCE_VERSION_MIN_ACCEPTED
from fencelog.wire.batch import BatchHeader, Compression, read_header, validate_produced
from fencelog.wire.filtering import scan
from fencelog.wire.hot import (
    PartitionResult,
    ProduceRequest,
    read_produce_request,
    write_produce_response,
)
from fencelog.wire.own import app_of

ZSTD_VERSION_MIN = 7
RECORD_ERRORS_MAX = 100
"""Records named in one answer."""
ABORTABLE_VERSION_MIN = 11
"""From here on a client knows TRANSACTION_ABORTABLE (KIP-890)."""


class _Waiting:
    """One produce request between append and commit: results so far and how many still wait.

    Invariant: ``_pending`` counts the partitions whose commit is neither reached nor failed.
    """

    __slots__ = ("_deadlines", "_pending", "_promise", "_request", "_results")

    def __init__(self, request: Request, deadlines: Deadlines) -> None:
        self._request = request
        self._deadlines = deadlines
        self._results: dict[str, list[PartitionResult]] = {}
        self._pending = 1  # the request itself, until all of it is appended
        self._promise: Pending | None = None

    def settle(self, topic: str, result: PartitionResult) -> None:
        """Note a result that needs no wait."""
        self._results.setdefault(topic, []).append(result)

    def wait(self, topic: str, result: PartitionResult, end: Offset, partition: Partition) -> None:
        """Note a result that holds once ``end`` is committed."""
        results = self._results.setdefault(topic, [])
        position = len(results)
        results.append(result)
        self._pending += 1

        def done(error: Exception | None) -> None:
            if error is not None:
                code = (
                    ErrorCode.KAFKA_STORAGE_ERROR
                    if isinstance(error, StorageError)
                    else ErrorCode.NOT_LEADER_OR_FOLLOWER
                )
                results[position] = PartitionResult(
                    result.partition, code, error_message=str(error)
                )
            self._one_less()

        partition.purgatory.when_committed(end, done)

    def answer(self, acks: int, timeout_ms: int) -> Reply | Pending:
        """The reply if nothing is left to wait for (acks 0 and 1 never wait), else a promise."""
        if acks == 0:
            failed = any(r.error for results in self._results.values() for r in results)
            if failed:
                # The client asked for no answer: closing is the only way to be heard.
                raise WireError("a produce with acks=0 was refused")
            return None
        self._pending -= 1
        if self._pending == 0 or acks == 1:
            return self._reply()
        self._promise = Pending()
        self._deadlines.add(self, max(timeout_ms, 1) / 1000)
        return self._promise

    def _one_less(self) -> None:
        self._pending -= 1
        if self._pending == 0 and self._promise is not None and not self._promise.settled:
            self._deadlines.discard(self)
            self._promise.settle(self._reply())

    def expire(self) -> None:
        """The records stay; whether they were committed in time is not known (F5)."""
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

    def _reply(self) -> Reply:
        return respond(
            self._request,
            write_produce_response(self._request.header.api_version, self._results.items()),
        )


def produce(broker: Broker, request: Request) -> Answer:
    """Handle one produce request."""
    version = request.header.api_version
    message = read_produce_request(request.body, version)
    if version < PRODUCE_VERSION_MIN_ACCEPTED:
        return _refuse_all(request, message, ErrorCode.UNSUPPORTED_VERSION)
    if message.acks not in (-1, 0, 1):
        return _refuse_all(request, message, ErrorCode.INVALID_REQUIRED_ACKS)
    waiting = _Waiting(request, broker.deadlines)
    unverified = []
    for topic, partitions in message.topics:
        for index, records in partitions:
            judged = _judge(broker, version, topic, index, records)
            if isinstance(judged, PartitionResult):
                waiting.settle(topic, judged)
                continue
            partition, header, batch = judged
            if header.is_transactional:
                guard = partition.log.begin_verification(
                    header.producer_id, header.producer_epoch, header.base_sequence
                )
                if guard is not None:
                    unverified.append((partition, header, batch, guard))
                    continue
            _append(broker, waiting, partition, header, batch, None)
    if not unverified:
        return waiting.answer(message.acks, message.timeout_ms)
    return _verify_and_append(broker, request, message, waiting, unverified)


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


def _judge(
    broker: Broker, version: int, topic: str, index: int, records: memoryview | None
) -> tuple[Partition, BatchHeader, memoryview] | PartitionResult:
    """Find the partition and check the batch; what is wrong comes back as the result."""
    partition = broker.logs.get(topic, index)
    if partition is None:
        return PartitionResult(index, broker.logs.missing(topic, index))
    known = broker.catalog.get(topic)
    if known is None or known.internal:
        return PartitionResult(
            index,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            error_message=f"{topic} is internal: no client writes to it",
        )
    if records is None:
        return PartitionResult(
            index, ErrorCode.INVALID_RECORD, error_message="exactly one record batch is expected"
        )
    header = validate_produced(records)
    if isinstance(header, ErrorCode):
        _note_refusal(partition, records)
        return PartitionResult(
            index, header, error_message=f"the record batch for {topic}-{index} is not valid"
        )
    if header.compression is Compression.ZSTD and version < ZSTD_VERSION_MIN:
        partition.log.refused(header)
        return PartitionResult(index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    refused = _refuse_keyless(partition, header, records) if partition.is_compacted else None
    return (partition, header, records) if refused is None else refused


def _refuse_keyless(
    partition: Partition, header: BatchHeader, batch: memoryview
) -> PartitionResult | None:
    """Under no key nothing is ever newest: a compacted topic takes no such record (F4)."""
    topic, index = partition.name
    try:
        _, records = scan(header, batch)
    except WireError as error:
        partition.log.refused(header)
        return PartitionResult(index, ErrorCode.INVALID_RECORD, error_message=str(error))
    keyless = [position for position, record in enumerate(records) if record.key is None]
    if not keyless:
        return None
    partition.log.refused(header)
    reason = f"{topic} is compacted: a record needs a key"
    return PartitionResult(
        index,
        ErrorCode.INVALID_RECORD,
        error_message=f"{reason}, and {len(keyless)} of {len(records)} have none",
        record_errors=tuple((position, reason) for position in keyless[:RECORD_ERRORS_MAX]),
    )


def _note_refusal(partition: Partition, records: memoryview) -> None:
    """A new producer's batch that was damaged on the way: no later one may be stored before it."""
    try:
        header = read_header(records)
    except WireError:
        return
    partition.log.refused(header)


def _append(
    broker: Broker,
    waiting: _Waiting,
    partition: Partition,
    header: BatchHeader,
    batch: memoryview,
    guard: VerificationGuard | None,
) -> None:
    topic, index = partition.name
    now_ms = broker.clock.now_ms()
    outcome = partition.log.append(batch, header, now_ms=now_ms, guard=guard)
    if isinstance(outcome, Rejected):
        waiting.settle(topic, PartitionResult(index, outcome.error, error_message=outcome.message))
        return
    if isinstance(outcome, Appended):
        broker.flusher.dirty(partition)
    result = PartitionResult(
        index,
        ErrorCode.NONE,
        base_offset=outcome.base_offset,
        log_append_time_ms=now_ms if partition.stamps_on_append else -1,
        log_start_offset=partition.log.log_start_offset,
    )
    waiting.wait(topic, result, outcome.end_offset, partition)


async def _verify_and_append(
    broker: Broker,
    request: Request,
    message: ProduceRequest,
    waiting: _Waiting,
    unverified: list[tuple[Partition, BatchHeader, memoryview, VerificationGuard]],
) -> Reply | Pending:
    """Ask the coordinator, then append under the guard that any marker meanwhile makes void."""
    version = request.header.api_version
    for partition, header, batch, guard in unverified:
        error = await _verify(broker, message.transactional_id, partition.name, header)
        if error is ErrorCode.NONE:
            _append(broker, waiting, partition, header, batch, guard)
            continue
        error = _for_producer(error, version)
        waiting.settle(
            partition.name.topic,
            PartitionResult(
                partition.name.partition,
                error,
                error_message=f"{partition.name} is not in an open transaction of producer "
                f"{header.producer_id} (epoch {header.producer_epoch})",
            ),
        )
    return waiting.answer(message.acks, message.timeout_ms)


def _for_producer(error: ErrorCode, version: int) -> ErrorCode:
    """The coordinator's refusal in the codes that a produce request may be answered with."""
    if error in (ErrorCode.PRODUCER_FENCED, ErrorCode.RUN_FENCED):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.CONCURRENT_TRANSACTIONS:
        return ErrorCode.NOT_ENOUGH_REPLICAS  # the markers are on their way: try again
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION_MIN:
        return ErrorCode.INVALID_TXN_STATE
    return error


async def _verify(
    broker: Broker, transactional_id: str | None, name: TopicPartition, header: BatchHeader
) -> ErrorCode:
    """Whether the producer's transaction is open and has this partition (E14); V5 enlists it."""
    if transactional_id is None:
        return ErrorCode.TRANSACTION_ABORTABLE
    producer_id, epoch = header.producer_id, header.producer_epoch
    app = app_of(transactional_id)
    try:
        if app is not None:
            return await broker.versioned.decide(
                transactional_id, lambda shard, now: shard.enlist(producer_id, epoch, name)
            )
        return await broker.transactions.read(
            transactional_id,
            lambda shard: shard.verify(transactional_id, producer_id, epoch, name),
        )
    except NotLeaderError:
        return ErrorCode.NOT_ENOUGH_REPLICAS
