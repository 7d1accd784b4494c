"""Blocking writers: of Arrow batches (Spark's sink) and of Python records (CLI, scripts).

Encoding happens in the caller's thread, sending in the loop's; bytes that wait for an
acknowledgement are bounded, so a fast writer waits for a slow broker.
"""

import os
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fencelog.client.batches import EncodedBatch
from fencelog.client.cluster import Cluster
from fencelog.client.loop_thread import LoopThread
from fencelog.client.model import Delivery
from fencelog.client.records_buffer import RecordsBuffer, checked_partition
from fencelog.client.retry import again
from fencelog.client.sender import Sender
from fencelog.errors import FencelogError, RequestError

if TYPE_CHECKING:
    import pyarrow as pa

ENCODE_BYTES = 4 << 20
"""Arrow bytes that are buffered before encoding, so that small batches are combined."""


class _Writer:
    """The common part of both writers: the thread, the sender, and the owning process."""

    def __init__(self, loop: LoopThread, cluster: Cluster, sender: Sender) -> None:
        self._loop = loop
        self._cluster = cluster
        self._sender = sender
        self._pid = os.getpid()
        self._closed = False

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise FencelogError(
                "this writer was created in the parent process; create one in this process"
            )
        if self._closed:
            raise FencelogError("this writer is closed")

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def close(self) -> None:
        """Close and drop unsent records; call ``flush`` first to send them. May be called twice."""
        if not self._closed and self._pid == os.getpid():
            self._closed = True
            self._loop.run(self._sender.close())


class ArrowWriter(_Writer):
    """Writes Arrow batches: value, and optionally key, topic, partition, headers, timestamp.

    A row's partition is its ``partition`` if not null, else Kafka's default for its key (murmur2),
    else one that changes with every batch.
    """

    def __init__(
        self,
        loop: LoopThread,
        cluster: Cluster,
        sender: Sender,
        *,
        topic: str | None,
        batch_bytes: int,
    ) -> None:
        """Made by ``Client.versioned_writer`` and ``Client.arrow_writer``."""
        from fencelog.client.arrow_encode import Encoder

        super().__init__(loop, cluster, sender)
        self._encoder = Encoder(
            topic=topic, batch_bytes=batch_bytes, compression=sender.compression
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._records = 0
        self._failure: BaseException | None = None
        """Why rows were dropped."""

    @property
    def records(self) -> int:
        """Rows written so far."""
        return self._records

    def write(self, batch: "pa.RecordBatch") -> None:
        """Queue a batch; returns before it is acknowledged, and waits while too much is queued.

        Raises RequestError of an earlier batch, and ValueError for columns that cannot be written.
        """
        self._check()
        self._encoder.check(batch.schema)
        self._records += batch.num_rows
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= ENCODE_BYTES:
            self._encode()

    def flush(self) -> int:
        """Wait until all rows are acknowledged; return their number. Raises if one failed."""
        self._check()
        self._encode()
        self._loop.run(self._sender.flush())
        return self._records

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush after success, then close."""
        try:
            if kind is None and not self._closed:
                self.flush()
        finally:
            self.close()

    def _check(self) -> None:
        super()._check()
        if isinstance(self._failure, RequestError):
            raise again(self._failure) from self._failure
        if self._failure is not None:
            raise FencelogError(
                f"rows were dropped, as an earlier call failed ({self._failure!r}); write all that "
                "was not flushed with another writer"
            ) from self._failure

    def _encode(self) -> None:
        """Send the rows that wait. Where that fails, or is interrupted, some may be sent."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        try:
            self._send(waiting)
        except BaseException as error:
            self._failure = error
            raise

    def _send(self, waiting: "list[pa.RecordBatch]") -> None:
        topics, highest = self._encoder.topics(waiting), self._encoder.highest_partition(waiting)
        places = self._loop.run(self._cluster.places(topics, highest))
        for batches in self._encoder.encode(waiting, places):
            self._loop.run(self._sender.enqueue(batches))


class Producer(_Writer):
    """Writes Python records; collects them into batches per partition."""

    def __init__(
        self, loop: LoopThread, cluster: Cluster, sender: Sender, *, batch_bytes: int
    ) -> None:
        """Made by ``Client.producer``."""
        super().__init__(loop, cluster, sender)
        self._buffer = RecordsBuffer(batch_bytes=batch_bytes, compression=sender.compression)
        self._encoded: deque[EncodedBatch] = deque()
        """What is not queued yet: the loop's thread takes it out, the caller may be interrupted."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Add one record; it is sent when a batch is full, at ``flush`` and at ``commit``.

        Raises TypeError or ValueError for what is no record (``timestamp_ms`` is 0 or more, or -1
        for none) and if the topic has no such partition, ExplicitPartitionError if it is a
        stream, where a record's key chooses its segment, the RequestError of an earlier batch, and
        FencelogError where nothing can be written: after ``close``, outside a transaction, and
        after a commit whose outcome is unknown.
        """
        self._check()
        partition = checked_partition(partition)
        highest = -1 if partition is None else partition
        places = self._cluster.known_places(topic, highest)
        if places is None:
            places = self._loop.run(self._cluster.places([topic], highest))[topic]
        if self._sender.is_full:
            self._loop.run(self._sender.room())
        self._sender.check()
        self._buffer.add(topic, places, key, value, partition, headers, timestamp_ms)
        if self._buffer.full:
            self._encode()
            self._loop.run(self._put())

    def flush(self) -> list[Delivery]:
        """Send the buffered records; return what was acknowledged since the last flush."""
        self._check()
        self._encode()
        return self._loop.run(self._flush())

    def begin(self) -> None:
        """Begin a transaction. Raises FencelogError without a transactional id or inside one."""
        self._check()
        self._loop.run(self._sender.begin())

    def commit(self) -> list[Delivery]:
        """Flush, and commit the transaction; returns once the decision is durable.

        Where it is interrupted, or fails without an answer, the outcome may be unknown; then all
        but ``abort`` and ``close`` raise FencelogError.
        """
        self._check()
        self._encode()
        return self._loop.run(self._commit())

    def abort(self) -> None:
        """Drop the buffered records and abort the transaction.

        After a commit whose outcome is unknown it settles the outcome: nothing can change it later.
        """
        self._check()
        self._buffer.clear()
        self._encoded.clear()
        self._loop.run(self._sender.end(commit=False))

    def _encode(self) -> None:
        self._encoded.extend(self._buffer.take())

    # --- in the loop's thread

    async def _put(self) -> None:
        self._sender.put(self._encoded)

    async def _flush(self) -> list[Delivery]:
        self._sender.put(self._encoded)
        return await self._sender.flush()

    async def _commit(self) -> list[Delivery]:
        self._sender.put(self._encoded)
        return await self._sender.end(commit=True)

    # --- as a context manager

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush after success, then close. An open transaction is aborted."""
        try:
            if self._closed:
                return
            if self._sender.in_transaction:
                self.abort()
            elif kind is None:
                self.flush()
        finally:
            self.close()
