"""One partition's queue of batches and the task that sends them."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from fencelog.client.batches import EncodedBatch
from fencelog.client.cluster import Cluster
from fencelog.client.model import Delivery
from fencelog.client.retry import RETRIABLE, STALE_ROUTE, Backoff, again
from fencelog.errors import ErrorCode, RequestError, WireError
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import NO_SEQUENCE, TopicPartition
from fencelog.wire.api_versions import PRODUCE_ADDS_PARTITIONS_FROM, ApiKey
from fencelog.wire.batch import SEQUENCE_MODULUS
from fencelog.wire.hot import PartitionResult, read_produce_response, write_produce_request

IN_FLIGHT_MAX = 5
"""A broker recognises duplicates among the last five batches of a producer only."""
PRODUCE_VERSION_MAX = 12
PRODUCE_VERSION_MIN = 3


@dataclass(frozen=True)
class ProducerIdentity:
    """Producer id and epoch: -1 and -1 for a producer that is not idempotent.

    ``partitions_added``: AddPartitionsToTxn was sent, so writes do not add them (version 1).
    """

    producer_id: int
    producer_epoch: int
    transactional_id: str | None
    partitions_added: bool = False


class Owner(Protocol):
    """The owner, which is told the result of each batch."""

    def acknowledged(self, delivery: Delivery, size: int) -> None:
        """A batch of this many bytes is stored."""
        ...

    def failed(self, error: RequestError) -> None:
        """A batch will not be stored; nothing more is sent to this partition."""
        ...


@dataclass(slots=True)
class _Queued:
    """A batch in flight. ``first``: no unacknowledged batch was sent before it."""

    batch: EncodedBatch
    answer: "asyncio.Future[memoryview] | None" = None
    first: bool = False


class PartitionSender:
    """Sends batches in the order in which they were put."""

    def __init__(
        self,
        cluster: Cluster,
        owner: Owner,
        partition: TopicPartition,
        identity: ProducerIdentity,
        *,
        acks: int,
    ) -> None:
        """Start the task; it waits for the first batch."""
        self._cluster = cluster
        self._owner = owner
        self._partition = partition
        self._identity = identity
        self._acks = acks
        self._queue: deque[_Queued] = deque()
        self._sequence = 0
        # The first batch of a transaction is sent alone: the leader verifies it.
        self._window = 1
        self._wake = asyncio.Event()
        self._is_moved = False
        """Whether the last answer named the new leader, so that it need not be looked up."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def put(self, batch: EncodedBatch) -> None:
        """Queue a batch; its sequence is fixed from here on."""
        identity = self._identity
        sequence = NO_SEQUENCE if identity.producer_id < 0 else self._sequence
        batch.finish(
            identity.producer_id,
            identity.producer_epoch,
            sequence,
            transactional=identity.transactional_id is not None,
        )
        self._sequence = (self._sequence + batch.count) % SEQUENCE_MODULUS
        self._queue.append(_Queued(batch))
        self._wake.set()

    async def stop(self) -> None:
        """Stop sending; returns when the task has ended."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Report an internal error to the owner, which would wait forever otherwise."""
        if not task.cancelled() and (error := task.exception()) is not None:
            what = f"the sender of {self._partition} failed"
            self._owner.failed(failure(ErrorCode.UNKNOWN_SERVER_ERROR, what, repr(error)))

    async def _run(self) -> None:
        backoff = Backoff()
        deadline: Deadline | None = None
        while True:
            while not self._queue:
                deadline = None
                self._wake.clear()
                await self._wake.wait()
            left = len(self._queue)
            deadline = deadline or self._cluster.deadline()
            try:
                await self._drain(deadline)
            except RequestError as error:
                if len(self._queue) < left:
                    deadline, backoff = self._cluster.deadline(), Backoff()
                if error.code in STALE_ROUTE and not self._is_moved:
                    self._cluster.forget(self._partition.topic)
                self._is_moved = False
                if error.code not in RETRIABLE:
                    self._owner.failed(error)
                    return
                await backoff.wait(deadline)
                if deadline.passed:
                    self._owner.failed(again(error, f"; given up after {deadline}"))
                    return

    async def _drain(self, deadline: Deadline) -> None:
        """Send until the queue is empty. Raises the first failure once nothing is in flight."""
        connection = await self._cluster.leader(self._partition, deadline)
        version = self._version(connection)
        try:
            while self._queue:
                for index, queued in enumerate(self._queue):
                    if index >= self._window:
                        break
                    if queued.answer is None:
                        queued.first = index == 0
                        queued.answer = self._start(connection, version, queued.batch)
                head = self._queue[0]
                assert head.answer is not None
                # After progress the deadline starts again.
                answered = self._cluster.request_deadline(self._cluster.deadline())
                body = await connection.answer(head.answer, answered)
                offset = self._judge(head, self._result(connection, body, version), connection)
                self._queue.popleft()
                if self._identity.producer_id >= 0:
                    self._window = IN_FLIGHT_MAX
                self._owner.acknowledged(
                    Delivery(partition=self._partition, base_offset=offset, count=head.batch.count),
                    len(head.batch.buffer),
                )
        except RequestError:
            await self._settle(connection)
            raise

    async def _settle(self, connection: Connection) -> None:
        """Wait until nothing is in flight, so that a retry cannot arrive beside the original."""
        sent = [queued.answer for queued in self._queue if queued.answer is not None]
        for queued in self._queue:
            queued.answer = None
        pending = [answer for answer in sent if not answer.done()]
        if pending and not connection.closed:
            answered = self._cluster.request_deadline(self._cluster.deadline())
            await asyncio.wait(pending, timeout=answered.left_s)
            if any(not answer.done() for answer in pending):
                connection.close("answers are missing")
        for answer in sent:
            if answer.done() and not answer.cancelled():
                answer.exception()

    def _version(self, connection: Connection) -> int:
        low, high = connection.versions.get(ApiKey.PRODUCE, (1, 0))
        least, most = PRODUCE_VERSION_MIN, PRODUCE_VERSION_MAX
        if self._identity.partitions_added:
            most = PRODUCE_ADDS_PARTITIONS_FROM - 1
        elif self._identity.transactional_id is not None:
            # In a transaction the write itself adds the partition.
            least = PRODUCE_ADDS_PARTITIONS_FROM
        version = min(high, most)
        if version < max(low, least):
            raise failure(ErrorCode.UNSUPPORTED_VERSION, f"Produce to broker {connection.address}")
        return version

    def _start(
        self, connection: Connection, version: int, batch: EncodedBatch
    ) -> "asyncio.Future[memoryview]":
        body = write_produce_request(
            version,
            self._identity.transactional_id,
            self._acks,
            int(self._cluster.options.request_timeout_s * 1000),
            [(self._partition.topic, [(self._partition.partition, batch.buffer)])],
        )
        return connection.start(ApiKey.PRODUCE, version, body)

    def _result(self, connection: Connection, body: memoryview, version: int) -> PartitionResult:
        try:
            topics, _, endpoints = read_produce_response(body, version)
        except WireError as error:
            connection.close(f"malformed response to Produce: {error}")
            raise failure(
                ErrorCode.NETWORK_EXCEPTION, f"Produce to {connection.address}", str(error)
            ) from error
        for name, results in topics:
            for result in results:
                if (name, result.partition) == self._partition:
                    self._is_moved = self._cluster.learn(
                        self._partition, result.current_leader, endpoints
                    )
                    return result
        text = f"the response of broker {connection.address} lacks {self._partition}"
        connection.close(text)
        raise failure(ErrorCode.NETWORK_EXCEPTION, text)

    def _judge(self, head: _Queued, result: PartitionResult, connection: Connection) -> int:
        """Return the offset of a stored batch; raises RequestError for any error."""
        code = result.error
        # Old brokers return this error instead of the first offset; the batch is stored.
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            return result.base_offset
        text = (
            f"write of {head.batch.count} records to {self._partition} "
            f"at broker {connection.address}"
        )
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not head.first:
            # It overtook a batch that failed; sent alone, its error code is conclusive.
            code = ErrorCode.REQUEST_TIMED_OUT
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # A leader that has just started may not know it yet; metadata is authoritative.
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        raise failure(code, text, result.error_message)
