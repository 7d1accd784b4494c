"""One partition's queue of batches and the task that sends them.

The partition may be a segment of a stream. Once it is sealed, this sender counts what the segment
has as stored, divides the rest by range and gives it to the senders of the successors (R2). So that
a key's records stay in order and are stored once:

- A segment's sender begins nothing new while a sender before it (``precedes``) has anything
  unsettled: one of the same producer for a segment with a lower index and some of the same range,
  which is a predecessor of any degree; after a merge there are two, and after a skipped resize
  there need not be one in between. What is sent already may be sent again.
- What it is given by those goes before what it was put otherwise. So does what comes to a sealed
  segment later, because it was divided before the seal was known: a writer never goes back to older
  ranges, so what it has given to successors since has other keys, or is newer.
- A sequence is assigned when a batch is sent first, and then kept. What is given on gets a new one
  there: sequences count from 0 in each segment.
- What the segment has is all up to the last sequence that its refusal names. The refusal is given
  once the seal is committed, so nothing that is still in flight can be stored any more.
- Of a producer that is not idempotent all that is not acknowledged is given on: what was refused is
  not stored, and what was not answered may be, as ever.

What was given on stays in the producer's epoch, and so in its transaction. ``Owner`` counts its
bytes throughout: a flush and a commit wait for it, and an abort drops it.

A topic that was created anew, or has become a stream, is treated likewise, once for each batch: by
POLICY_VIOLATION, by a partition that is missing, or by the topic's id in the metadata.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fencelog.client.batches import EncodedBatch
from fencelog.client.cluster import Cluster
from fencelog.client.model import Delivery
from fencelog.client.retry import RETRIABLE, STALE_ROUTE, Backoff, again
from fencelog.client.streams.division import divided, forgotten
from fencelog.client.streams.known import Places
from fencelog.errors import ErrorCode, FencelogError, RequestError, WireError
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import NO_SEQUENCE, TopicId, TopicPartition
from fencelog.wire.api_versions import PRODUCE_ADDS_PARTITIONS_FROM, ApiKey
from fencelog.wire.batch import SEQUENCE_MODULUS
from fencelog.wire.hot import (
    AppendTags,
    PartitionResult,
    SealedSegment,
    Successor,
    read_produce_response,
    write_produce_request,
)
from fencelog.wire.hot.append_tags import NO_TAGS
from fencelog.wire.hot.produce import FLEXIBLE_FROM

IN_FLIGHT_MAX = 5
"""A broker recognises duplicates among the last five batches of a producer only."""
PRODUCE_VERSION_MAX = 12
PRODUCE_VERSION_MIN = 3
RESIZE_PAUSE_S = 0.015
"""While a segment is being sealed a write is refused: that takes two commits, not a backoff."""
UNKNOWN_OFFSET = -1
"""The base offset of a batch of which only is known that it is stored."""


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

    async def places_after(
        self, sender: "PartitionSender", error: RequestError, sealed: SealedSegment | None
    ) -> Places | None:
        """Return where what the sender has belongs now; None if it belongs where it is."""
        ...

    def given_on(self, batch: EncodedBatch, parts: Sequence[EncodedBatch]) -> None:
        """A batch's records are sent in these batches instead, before all that is newer."""
        ...


@dataclass(slots=True)
class _Queued:
    """A batch that is not acknowledged.

    Attributes:
        first: no unacknowledged batch was sent before it.
        was_given: by a sender before this one.
        is_in_doubt: it may be stored: an attempt to send it ended without a refusal.
        sequence: of its first record, once it was sent; NO_SEQUENCE without idempotence.
    """

    batch: EncodedBatch
    answer: "asyncio.Future[memoryview] | None" = None
    first: bool = False
    was_given: bool = False
    was_sent: bool = False
    is_in_doubt: bool = False
    sequence: int = NO_SEQUENCE


class PartitionSender:
    """Sends batches in the order in which they were put.

    Attributes:
        partition: where it sends them.
        topic_id: of the stream that it is a segment of; None of any other topic.
        range: the segment's hashes; None without a stream.
    """

    def __init__(
        self,
        cluster: Cluster,
        owner: Owner,
        partition: TopicPartition,
        identity: ProducerIdentity,
        *,
        acks: int,
        topic_id: TopicId | None = None,
        range_: Successor | None = None,
    ) -> None:
        """Start the task; it waits for the first batch."""
        self.partition, self.topic_id, self.range = partition, topic_id, range_
        self._cluster = cluster
        self._owner = owner
        self._identity = identity
        self._acks = acks
        self._queue: deque[_Queued] = deque()
        self._given: deque[_Queued] = deque()
        """What senders before this one have given; it goes before what was not sent yet."""
        self._after: list[PartitionSender] = []
        self._blockers = 0
        """How many of the senders before this one have anything unsettled."""
        self._places: Places | None = None
        """Where all that is not stored belongs, once it does not belong here."""
        self._sealed: SealedSegment | None = None
        self._sequence = 0
        self._stored: int = NO_SEQUENCE
        """The last sequence that is known to be stored here."""
        self._former: PartitionSender | None = None
        self._turn = partition.partition
        # The first batch of a transaction is sent alone: the leader verifies it.
        self._window = 1
        self._wake = asyncio.Event()
        self._is_moved = False
        """Whether the last answer named the new leader, so that it need not be looked up."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def put(self, batch: EncodedBatch) -> None:
        """Queue a batch."""
        self._unsettle()
        self._queue.append(_Queued(batch))
        self._wake.set()

    def give(self, batch: EncodedBatch) -> None:
        """Queue a batch before all that was put and not sent yet, behind what was given before."""
        self._unsettle()
        self._given.append(_Queued(batch, was_given=True))
        self._wake.set()

    def precedes(self, other: "PartitionSender") -> None:
        """Let another sender wait for what this one has, now and later."""
        self._after.append(other)
        if self._queue or self._given:
            other.block()

    def block(self) -> None:
        """Begin nothing new: a sender before this one has something unsettled."""
        self._blockers += 1

    def unblock(self) -> None:
        """One of the senders before this one has settled all that it had."""
        self._blockers -= 1
        self._wake.set()

    @property
    def next_sequence(self) -> int:
        """The sequence of the next record that is sent first."""
        return self._sequence

    def continue_sequences_of(self, former: "PartitionSender") -> None:
        """Begin where a sender of the same partition ends: its topic was created anew."""
        self._former = former

    def cancel(self) -> None:
        """Stop sending, and give nothing on any more."""
        self._task.cancel()

    async def ended(self) -> None:
        """Wait until the task has ended."""
        await asyncio.wait([self._task])

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Report an internal error to the owner, which would wait forever otherwise."""
        if not task.cancelled() and (error := task.exception()) is not None:
            what = f"the sender of {self.partition} failed"
            why = str(error) if isinstance(error, FencelogError) else repr(error)
            self._owner.failed(failure(ErrorCode.UNKNOWN_SERVER_ERROR, what, why))

    async def _run(self) -> None:
        backoff = Backoff()
        deadline: Deadline | None = None
        while True:
            while not self._has_work():
                deadline = None
                self._wake.clear()
                await self._wake.wait()
            if self._places is not None:
                try:
                    await self._give_on(self._queue[0], self._places)
                except RequestError as error:
                    self._owner.failed(error)
                    return
                continue
            left = len(self._queue)
            deadline = deadline or self._cluster.deadline()
            try:
                await self._drain(deadline)
            except RequestError as error:
                if len(self._queue) < left:
                    deadline, backoff = self._cluster.deadline(), Backoff()
                if not await self._goes_on(error, backoff, deadline):
                    return

    async def _goes_on(self, error: RequestError, backoff: Backoff, deadline: Deadline) -> bool:
        """Wait before the next attempt; tell the owner if there is none."""
        if error.code in STALE_ROUTE and not self._is_moved:
            self._cluster.forget(self.partition.topic)
        self._is_moved = False
        if await self._belongs_elsewhere(error):
            return True
        if error.code not in RETRIABLE:
            self._owner.failed(error)
            return False
        if error.code is ErrorCode.RESIZE_IN_PROGRESS:
            await asyncio.sleep(min(RESIZE_PAUSE_S, deadline.left_s))
        else:
            await backoff.wait(deadline)
        if deadline.passed:
            self._owner.failed(again(error, f"; given up after {deadline}"))
            return False
        return True

    def _has_work(self) -> bool:
        """Whether the head of the queue may be sent, or given on."""
        if self._blockers:
            return bool(self._queue) and self._queue[0].was_sent
        if self._given:
            before = [each for each in self._queue if each.was_sent or each.was_given]
            behind = [each for each in self._queue if not (each.was_sent or each.was_given)]
            self._queue = deque([*before, *self._given, *behind])
            self._given.clear()
        return bool(self._queue)

    def _unsettle(self) -> None:
        if self._after and not self._queue and not self._given:
            for each in self._after:
                each.block()

    def _settled(self) -> None:
        """Remove the head of the queue: it is stored, or another sender's."""
        self._queue.popleft()
        if self._after and not self._queue and not self._given:
            for each in self._after:
                each.unblock()

    async def _belongs_elsewhere(self, error: RequestError) -> bool:
        """Find out whether a refusal means that the queue belongs to other senders."""
        sealed, self._sealed = self._sealed, None
        if sealed is None and any(each.batch.is_divided_again for each in self._queue):
            return False
        try:
            self._places = await self._owner.places_after(self, error, sealed)
        except RequestError as failed:
            if sealed is not None:
                self._owner.failed(failed)
            return False  # else the error that it follows is what is told
        self._sealed = sealed
        return self._places is not None

    async def _give_on(self, head: _Queued, places: Places) -> None:
        """Count the head as stored, if the sealed segment has it; else give it to other senders.

        Raises RequestError if the segment does not know any more whether it has it.
        """
        batch = head.batch
        if self._sealed is not None and _has_forgotten(self._sealed, head, self._stored):
            is_transactional = self._identity.transactional_id is not None
            raise forgotten(self.partition, batch.count, is_transactional=is_transactional)
        if self._sealed is not None and _has_stored(self._sealed, head):
            delivery = Delivery(
                partition=self.partition, base_offset=UNKNOWN_OFFSET, count=batch.count
            )
            self._owner.acknowledged(delivery, len(batch.buffer))
        else:
            self._turn += 1
            parts = await divided(batch, places, self._turn)
            for each in parts:
                each.is_divided_again = batch.is_divided_again or self._sealed is None
            self._owner.given_on(batch, parts)
        self._settled()

    async def _drain(self, deadline: Deadline) -> None:
        """Send until nothing may be sent. Raises the first failure once nothing is in flight."""
        connection = await self._cluster.leader(self.partition, deadline)
        if self.topic_id is not None and self._cluster.topic_id(self.partition.topic) not in (
            None,
            self.topic_id,
        ):
            raise failure(ErrorCode.UNKNOWN_TOPIC_ID, f"stream {self.partition.topic} is another")
        version = self._version(connection)
        try:
            while self._has_work():
                for index, queued in enumerate(self._queue):
                    if index >= self._window or (self._blockers and not queued.was_sent):
                        break
                    if queued.answer is None:
                        queued.first = index == 0
                        queued.answer = self._start(connection, version, queued)
                head = self._queue[0]
                assert head.answer is not None
                # After progress the deadline starts again.
                answered = self._cluster.request_deadline(self._cluster.deadline())
                body = await connection.answer(head.answer, answered)
                offset = self._judge(head, self._result(connection, body, version), connection)
                self._stored = _last_sequence(head)
                self._settled()
                if self._identity.producer_id >= 0:
                    self._window = IN_FLIGHT_MAX
                self._owner.acknowledged(
                    Delivery(partition=self.partition, base_offset=offset, count=head.batch.count),
                    len(head.batch.buffer),
                )
        except RequestError as error:
            if self._sealed is None and error.code is not ErrorCode.RESIZE_IN_PROGRESS:
                for queued in self._queue:
                    queued.is_in_doubt = queued.is_in_doubt or queued.answer is not None
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
        if self.topic_id is not None:
            least = max(least, FLEXIBLE_FROM)  # older versions have no room for tags
        version = min(high, most)
        if version < max(low, least):
            raise failure(ErrorCode.UNSUPPORTED_VERSION, f"Produce to broker {connection.address}")
        return version

    def _start(
        self, connection: Connection, version: int, queued: _Queued
    ) -> "asyncio.Future[memoryview]":
        if not queued.was_sent:
            self._number(queued)
        batch, tags = queued.batch, NO_TAGS
        if self.topic_id is not None:
            tags = {self.partition: AppendTags(batch.median_hash, topic_id=self.topic_id)}
        body = write_produce_request(
            version,
            self._identity.transactional_id,
            self._acks,
            int(self._cluster.options.request_timeout_s * 1000),
            [(self.partition.topic, [(self.partition.partition, batch.buffer)])],
            tags,
        )
        return connection.start(ApiKey.PRODUCE, version, body)

    def _number(self, queued: _Queued) -> None:
        """Assign the next sequence to a batch, and complete its header."""
        identity, batch = self._identity, queued.batch
        queued.was_sent = True
        if self._former is not None:
            self._sequence, self._former = self._former.next_sequence, None
        if identity.producer_id >= 0:
            queued.sequence = self._sequence
            self._sequence = (self._sequence + batch.count) % SEQUENCE_MODULUS
        batch.finish(
            identity.producer_id,
            identity.producer_epoch,
            queued.sequence,
            transactional=identity.transactional_id is not None,
        )

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
                if (name, result.partition) == self.partition:
                    self._is_moved = self._cluster.learn(
                        self.partition, result.current_leader, endpoints
                    )
                    return result
        text = f"the response of broker {connection.address} lacks {self.partition}"
        connection.close(text)
        raise failure(ErrorCode.NETWORK_EXCEPTION, text)

    def _judge(self, head: _Queued, result: PartitionResult, connection: Connection) -> int:
        """Return the offset of a stored batch; raises RequestError for any error."""
        code = result.error
        # Old brokers return this error instead of the first offset; the batch is stored.
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            return result.base_offset
        text = (
            f"write of {head.batch.count} records to {self.partition} "
            f"at broker {connection.address}"
        )
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not head.first:
            # It overtook a batch that failed; sent alone, its error code is conclusive.
            code = ErrorCode.REQUEST_TIMED_OUT
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # A leader that has just started may not know it yet; metadata is authoritative.
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._sealed = result.sealed
        raise failure(code, text, result.error_message)


def _last_sequence(queued: _Queued) -> int:
    """Return the sequence of a batch's last record; NO_SEQUENCE without idempotence."""
    if queued.sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (queued.sequence + queued.batch.count - 1) % SEQUENCE_MODULUS


def _has_stored(sealed: SealedSegment, queued: _Queued) -> bool:
    """Whether a sealed segment has a batch: its sequences are not above the last one there."""
    if not queued.was_sent or queued.sequence == NO_SEQUENCE or sealed.last_sequence < 0:
        return False
    return _has_sequence(sealed, _last_sequence(queued))


def _has_forgotten(sealed: SealedSegment, queued: _Queued, stored: int) -> bool:
    """Whether a sealed segment lacks a sequence that it had, and so may lack a batch in doubt."""
    if not queued.is_in_doubt or stored == NO_SEQUENCE:
        return False
    return sealed.last_sequence < 0 or not _has_sequence(sealed, stored)


def _has_sequence(sealed: SealedSegment, sequence: int) -> bool:
    """Sequences wrap, and far fewer than half of them are on their way."""
    return (sealed.last_sequence - sequence) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2
