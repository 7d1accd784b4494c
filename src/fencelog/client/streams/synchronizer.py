"""State that several programs share, over a topic with one partition (R4).

Each has a copy, and changes it by a function from the state to updates. They are appended only if
nothing else was since that state; otherwise the function runs again on the newer one. So updates
are one after the other, and everybody's copy goes through the same states.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Generic, TypeVar

from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.client.model import DataLossError
from fencelog.client.reader import Chunk, FetchOptions, PartitionReader
from fencelog.client.retry import RETRIABLE, Backoff, again
from fencelog.client.streams.conditional import append_if_unchanged
from fencelog.client.topic_changes import TopicChanges
from fencelog.coordination.synchronizer.records import (
    SynchronizerError,
    UpdateId,
    UpdateTooLargeError,
    encode_mark,
    encode_updates,
)
from fencelog.coordination.synchronizer.replica import Answer, Replica, Schema, after
from fencelog.errors import ErrorCode, RequestError, WireError
from fencelog.rpc.deadline import Deadline
from fencelog.types import Buffer, TopicId, TopicPartition
from fencelog.wire.batch import HEADER_BYTES
from fencelog.wire.records import Record, read_records

S = TypeVar("S")
R = TypeVar("R")
FETCH_BYTES_MAX = 4 << 20
VIEWS_OF_A_TOPIC = 4
"""How often metadata must show another topic, from one look to a later one."""
Update = Callable[[S], Sequence[object] | None]
"""From the state to updates, which are JSON values; None or nothing: nothing is to be changed."""


class StateSynchronizer(Generic[S]):
    """A copy of a shared state. Belongs to one event loop; calls wait for each other.

    The state is of the newest update that was read or written by this copy.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        schema: Schema[S],
        writer: str | None = None,
        incarnation: int = 0,
    ) -> None:
        """Nothing is read before the first call. ``writer``: a name that nobody else has."""
        self._cluster = cluster
        self._partition = TopicPartition(topic, 0)
        self._replica = Replica(self._partition, schema)
        self._writer = os.urandom(8).hex() if writer is None else writer
        self._incarnation = incarnation
        self._number = 0
        self._bytes_max = 0
        self._options = FetchOptions(isolation="replicated", max_bytes=FETCH_BYTES_MAX)
        self._is_begun = False
        self._lock = asyncio.Lock()

    @property
    def state(self) -> S:
        """The state as it was last read or written here."""
        return self._replica.state

    @property
    def offset(self) -> int:
        """Up to where the topic was read: the offset after the newest update, or later."""
        return self._replica.revision.offset

    @property
    def topic_id(self) -> TopicId:
        """The id of the topic, once it was read."""
        assert self._options.topic_id is not None, "it is read first"
        return self._options.topic_id

    @property
    def updates_since_mark(self) -> int:
        """How many updates a late joiner reads now, beside the mark."""
        return self._replica.updates

    async def fetch(self) -> S:
        """Read all that is committed, and return the state.

        Raises SynchronizerError for a topic that is none of such a state, and RequestError.
        """
        async with self._lock:
            deadline = self._cluster.deadline()
            if not await self._begin(deadline):
                await self._fetch(deadline)
            return self.state

    async def update(self, function: Update[S]) -> int | None:
        """Change the state; return the offset of the update, None where nothing is to be changed.

        The function gets the state and returns updates, which are stored all or none. If anything
        was stored since that state, they are not, and the function runs again on the newer one, as
        it does before nothing is changed and before it fails. So it depends on nothing else, and
        has no effects. An update is applied once, also if the
        answer to it is lost. Raises what the function raises, ValueError for an update that the
        schema refuses, UpdateTooLargeError, SynchronizerError, and RequestError; if that is
        retriable, the update may be stored or not.
        """
        async with self._lock:
            deadline = self._cluster.deadline()
            await self._begin(deadline)
            number, tried = self._next_number(), 0

            async def attempt() -> int | None:
                nonlocal tried
                replica = self._replica
                identity = UpdateId(self._writer, self._incarnation, number)
                if tried and (stored := replica.offset_of(identity)) is not None:
                    return stored
                values = await self._decided(function, deadline)
                if not values:
                    return None
                tried = max(tried, len(values))
                self._number = max(self._number, number + tried - 1)
                after_them = replica.prepare(values)
                batch = encode_updates(identity, values, _now_ms())
                epoch = await self._append(batch, "update", deadline)
                offset = replica.revision.offset
                replica.wrote(identity, len(values), after_them, epoch)
                return offset

            return await self._settled(attempt, deadline)

    async def compact(self) -> int:
        """Store the whole state as a mark, and delete what is before it; return its offset.

        Late joiners begin there. Any copy may do it at any time. A crash before the deletion only
        leaves records that the next one deletes.
        """
        async with self._lock:
            deadline = self._cluster.deadline()
            await self._begin(deadline)

            async def attempt() -> int:
                replica = self._replica
                identity = UpdateId(self._writer, self._incarnation, 0)
                batch = encode_mark(
                    identity, replica.schema.dump(replica.state), replica.writers, _now_ms()
                )
                epoch = await self._append(batch, "mark", deadline)
                replica.wrote_mark(epoch)
                return replica.marked_at

            marked_at = await self._settled(attempt, deadline)
            await TopicChanges(self._cluster).delete_records({self._partition: marked_at})
            return marked_at

    async def wait_changed(self) -> S:
        """Wait until something newer than the state was read, by this call or another one."""
        async with self._lock:
            await self._begin(self._cluster.deadline())
            at = self._replica.revision.offset
        try:
            chunk = await self._reader(at, None).next_chunk()
        except DataLossError:
            return await self.fetch()
        async with self._lock:
            if chunk is not None and at == self._replica.revision.offset:
                self._replay(chunk)
            return self.state

    # --- inside

    async def _decided(self, function: Update[S], deadline: Deadline) -> Sequence[object] | None:
        """Return what the function says to the state as it is here, or, to nothing, on the newest.

        If it has updates, the append compares the state. What it raises counts on the newest, too.
        """
        while True:
            at = self.offset
            try:
                if values := function(self.state):
                    return values
            except Exception:
                await self._fetch(deadline)
                if self.offset == at:
                    raise
            else:
                await self._fetch(deadline)
                if self.offset == at:
                    return None

    async def _begin(self, deadline: Deadline) -> bool:
        """Look at the topic, and read it, once; return whether this was the first time."""
        if self._is_begun:
            return False
        topic = await Admin(self._cluster).describe_topic(self._partition.topic)
        if len(topic.partitions) != 1:
            raise SynchronizerError(
                f"topic {topic.name} has {len(topic.partitions)} partitions; a shared state is in "
                "a topic with one partition: create another one"
            )
        self._bytes_max = int(topic.configs.get("max.message.bytes") or 1 << 20)
        self._options = replace(self._options, topic_id=topic.topic_id)
        await self._begin_at_start()
        await self._fetch(deadline)
        self._is_begun = True
        return True

    def _next_number(self) -> int:
        known = self._replica.last_of(self._writer, self._incarnation)
        return max(self._number, known) + 1

    async def _settled(self, attempt: Callable[[], Awaitable[R]], deadline: Deadline) -> R:
        """Attempt, read on after a refusal or a lost answer, and attempt again."""
        backoff = Backoff()
        while True:
            at = self._replica.revision
            try:
                return await attempt()
            except RequestError as error:
                if after(error.code, RETRIABLE) is not Answer.READ_ON:
                    raise
                if error.code is ErrorCode.UNKNOWN_TOPIC_ID:
                    await self._check_topic(deadline)
                await self._fetch(deadline)
                if self._replica.revision == at:
                    # What is in the way is not committed yet, or the partition is away.
                    await backoff.wait(deadline)
                if deadline.passed:
                    raise again(error, f"; given up after {deadline}") from error

    async def _append(self, batch: Buffer, what: str, deadline: Deadline) -> int:
        if len(batch) > self._bytes_max:
            raise UpdateTooLargeError(
                f"{what} of {len(batch)} bytes to {self._partition}: its max.message.bytes is "
                f"{self._bytes_max}, and nothing was sent; write less in one update, or raise it"
            )
        return await append_if_unchanged(
            self._cluster, self._partition, batch, self.topic_id, self._replica.revision, deadline
        )

    async def _fetch(self, deadline: Deadline) -> None:
        """Read up to the high watermark."""
        ends = await Admin(self._cluster).offsets([self._partition], "latest", "replicated")
        end = ends[self._partition]
        if end < self.offset:
            raise self._replaced(f"it ends at offset {end}, and was read up to {self.offset}")
        while self.offset < end:
            reader = self._reader(self.offset, end)
            try:
                while (chunk := await reader.next_chunk()) is not None:
                    self._replay(chunk)
            except DataLossError as error:
                at = self.offset
                await self._begin_at_start()
                # Another copy may have stored a mark, and deleted what was before it.
                if self.offset <= at or deadline.passed:
                    raise self._replaced(str(error)) from error
        self._replica.check_complete()

    async def _begin_at_start(self) -> None:
        starts = await Admin(self._cluster).offsets([self._partition], "earliest", "replicated")
        self._replica.begin(starts[self._partition])

    async def _check_topic(self, deadline: Deadline) -> None:
        """Raise SynchronizerError if the topic is another one, not only to a broker that lags."""
        backoff = Backoff()
        for _ in range(VIEWS_OF_A_TOPIC):
            view = await self._cluster.metadata([self._partition.topic], deadline)
            if all(topic.topic_id == self.topic_id for topic in view.topics):
                return
            await backoff.wait(deadline)
        raise self._replaced("another topic has its name")

    def _replaced(self, why: str) -> SynchronizerError:
        return SynchronizerError(
            f"{self._partition} is not the log that was read before: {why}; it was deleted and "
            "made again, or has lost records. Open a new synchronizer to read what is there now"
        )

    def _replay(self, chunk: Chunk) -> None:
        self._replica.replay(
            _records(chunk, self._partition), chunk.next_offset, chunk.leader_epoch
        )

    def _reader(self, start: int, end: int | None) -> PartitionReader:
        return PartitionReader(self._cluster, self._partition, start, end, self._options)


def _records(chunk: Chunk, partition: TopicPartition) -> Iterator[Record]:
    """Unpack a chunk. Raises WireError with partition and offset."""
    for batch in chunk.batches:
        try:
            yield from read_records(chunk.records[batch.start - HEADER_BYTES : batch.end])
        except WireError as error:
            at = batch.header.base_offset
            raise WireError(f"malformed batch in {partition} at offset {at}: {error}") from error


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
