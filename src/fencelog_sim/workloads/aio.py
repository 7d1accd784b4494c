"""Workloads on aiokafka, a client that others wrote.

Its calls know no time limit of their own, so each is given one here. What it does in the background
is kept apart from its results: a call that ran out of time may still do its work.
"""

import asyncio
import importlib.util
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from fencelog.client.model import DataLossError
from fencelog.errors import FencelogError
from fencelog.types import TopicPartition
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.library import CALL_S, POLL_BYTES, Positions, Reader, Rows
from fencelog_sim.workloads.own import TRANSACTION_TIMEOUT_MS

T = TypeVar("T")
Untyped: TypeAlias = Any
"""Of aiokafka, which has no types for us."""

CLOSE_S = 2.0
POLL_MS = 100
REQUEST_MS = 3_000
BACKOFF_MS = 50
BATCH_BYTES = 1 << 20


def require_aiokafka() -> None:
    """Raise FencelogError, naming the package, where it is not installed.

    It is imported later: a simulation changes what ``time`` means before it is.
    """
    if importlib.util.find_spec("aiokafka") is None:
        raise FencelogError("this workload needs the package aiokafka: pip install aiokafka")


class _Batches(dict[Any, None]):
    """A set of batches that has an order, and that a batch may be taken from twice.

    aiokafka does that where a producer fails while a batch waits for its next try.
    """

    def add(self, batch: object) -> None:
        """Put one in."""
        self[batch] = None

    def remove(self, batch: object) -> None:
        """Take one out."""
        self.pop(batch, None)


async def _bounded(call: Awaitable[T], seconds: float = CALL_S) -> T:
    async with asyncio.timeout(seconds):
        return await call


def _forget(future: "asyncio.Future[Any]") -> None:
    """Mark an error as retrieved, so asyncio does not log it."""
    if not future.done():
        future.add_done_callback(_forget)
    elif not future.cancelled():
        future.exception()


async def _stop(client: Untyped, connections: Untyped) -> None:
    """Stop a producer or consumer; where it does not, close its connections under it."""
    from aiokafka.errors import KafkaError

    for call in (client.stop, connections.close):
        try:
            await _bounded(call(), CLOSE_S)
        except (KafkaError, TimeoutError, OSError):
            continue
        except asyncio.CancelledError:
            # It waits for tasks that it has cancelled, and not all of them keep that to themselves.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            continue
        return


class AioWriter:
    """An ``AIOKafkaProducer`` and the batches that it has not acknowledged."""

    def __init__(self, producer: Untyped, stage: Stage) -> None:
        """Take a started producer."""
        self._producer = producer
        self._stage = stage
        self._sent: list[tuple[asyncio.Future[Any], int]] = []

    async def begin(self) -> None:
        """Begin a transaction."""
        self._check()
        await _bounded(self._producer.begin_transaction())

    async def send(self, partition: TopicPartition, values: Sequence[str]) -> None:
        """Queue one batch."""
        self._check()
        batch = self._producer.create_batch()
        timestamp = int(self._stage.now() * 1000)
        for value in values:
            stored = batch.append(timestamp=timestamp, key=None, value=value.encode())
            assert stored is not None, "a batch has room for what one send carries"
        batch.close()
        sending = self._producer.send_batch(batch, partition.topic, partition=partition.partition)
        future = await _bounded(sending)
        _forget(future)
        self._sent.append((future, len(values)))

    async def flush(self) -> list[list[int]]:
        """Wait for all acknowledgements."""
        sent, self._sent = self._sent, []
        offsets = []
        async with asyncio.timeout(CALL_S):
            for future, count in sent:
                first = (await future).offset
                offsets.append([first + index for index in range(count)])
        return offsets

    async def commit(self) -> None:
        """Commit what was flushed."""
        self._check()
        await _bounded(self._producer.commit_transaction())

    async def abort(self) -> None:
        """Abort the open transaction."""
        self._sent = []
        self._check()
        await _bounded(self._producer.abort_transaction())

    async def close(self) -> None:
        """Stop it; errors that it kept for a caller are looked at here."""
        await _stop(self._producer, self._producer.client)
        manager = self._producer._txn_manager
        if manager is not None and manager._transaction_waiter is not None:
            _forget(manager._transaction_waiter)
        for batches in self._producer._message_accumulator._batches.values():
            for batch in batches:
                _forget(batch._drain_waiter)

    def _check(self) -> None:
        """Raise the error that ended it; its own calls would trip over an assertion."""
        if (failure := self._producer._message_accumulator._exception) is not None:
            raise failure


class AioReader:
    """An ``AIOKafkaConsumer`` that is assigned partitions."""

    def __init__(self, stage: Stage) -> None:
        """Connect at the first assignment."""
        self._stage = stage
        self._consumer: Untyped = None
        self.positions: Positions = {}

    async def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions, from these offsets."""
        from aiokafka import TopicPartition as Place

        consumer = await self._started()
        consumer.assign([Place(*partition) for partition in positions])
        self.positions = dict(positions)
        self._seek(positions)

    async def end(self, partition: TopicPartition) -> int:
        """Return the last stable offset."""
        from aiokafka import TopicPartition as Place

        consumer = await self._started()
        place = Place(*partition)
        ends: dict[Any, int] = await _bounded(consumer.end_offsets([place]))
        return ends[place]

    async def poll(self) -> dict[TopicPartition, Rows]:
        """Take what was fetched meanwhile. Raises DataLossError where the log lacks a position."""
        from aiokafka.errors import OffsetOutOfRangeError

        try:
            taken = await _bounded(self._consumer.getmany(timeout_ms=POLL_MS))
        except OffsetOutOfRangeError as error:
            raise DataLossError(f"the log does not have what was asked for: {error}") from error
        found: dict[TopicPartition, Rows] = {}
        for place, messages in taken.items():
            partition = TopicPartition(place.topic, place.partition)
            found[partition] = [(each.offset, each.value.decode()) for each in messages]
            self.positions[partition] = messages[-1].offset + 1
        return found

    def rewind(self, positions: Positions) -> None:
        """Seek to where the operation began."""
        moved = {each: at for each, at in positions.items() if at != self.positions[each]}
        self.positions = dict(positions)
        self._seek(moved)

    async def close(self) -> None:
        """Stop it."""
        if self._consumer is not None:
            await _stop(self._consumer, self._consumer._client)

    def _seek(self, positions: Mapping[TopicPartition, int]) -> None:
        from aiokafka import TopicPartition as Place

        for partition, position in positions.items():
            self._consumer.seek(Place(*partition), position)

    async def _started(self) -> Untyped:
        from aiokafka import AIOKafkaConsumer

        if self._consumer is None:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._stage.bootstrap,
                client_id=self._stage.history.process,
                group_id=None,
                isolation_level="read_committed",
                auto_offset_reset="none",
                enable_auto_commit=False,
                max_partition_fetch_bytes=POLL_BYTES,
                request_timeout_ms=REQUEST_MS,
                retry_backoff_ms=BACKOFF_MS,
            )
            try:
                await _bounded(consumer.start())
            except BaseException:
                await _stop(consumer, consumer._client)
                raise
            self._consumer = consumer
        return self._consumer


class AioLibrary:
    """aiokafka, for one client of a workload."""

    reader: Reader

    def __init__(self, stage: Stage) -> None:
        """Connect lazily."""
        self._stage = stage
        self._reader = AioReader(stage)
        self.reader = self._reader

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """All that aiokafka raises when the cluster is to blame, and our time limit.

        Its own task may have given the transaction up since it was last looked at: what was begun
        is then no transaction any more.
        """
        from aiokafka.errors import IllegalOperation, KafkaError

        return (KafkaError, IllegalOperation, TimeoutError, ConnectionError)

    async def writer(self, transactional_id: str | None) -> AioWriter:
        """Start a producer; this fences the one before."""
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=self._stage.bootstrap,
            client_id=self._stage.history.process,
            acks="all",
            enable_idempotence=True,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            max_batch_size=BATCH_BYTES,
            request_timeout_ms=REQUEST_MS,
            retry_backoff_ms=BACKOFF_MS,
        )
        producer._message_accumulator._pending_batches = _Batches()
        try:
            await _bounded(producer.start())
        except BaseException:
            await _stop(producer, producer.client)
            raise
        return AioWriter(producer, self._stage)

    async def close(self) -> None:
        """Stop the consumer."""
        await self._reader.close()
