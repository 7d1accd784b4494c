"""Reader groups and shared states for blocking callers: kept in the client's loop."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeVar

from fencelog.client.cluster import Cluster
from fencelog.client.loop_thread import LoopThread
from fencelog.client.model import Isolation, Record
from fencelog.client.streams.group_model import EventBatch, ReaderGroupDescription
from fencelog.client.streams.group_reader import GroupReader, ReaderTransaction
from fencelog.client.streams.reader_group import ReaderGroup as GroupCore
from fencelog.client.streams.synchronizer import StateSynchronizer as SynchronizerCore
from fencelog.client.streams.synchronizer import Update
from fencelog.coordination.reader_group.state import Cut
from fencelog.coordination.synchronizer.replica import Schema
from fencelog.wire.records import Headers

S = TypeVar("S")
AHEAD = 256
"""Events that an iteration over single ones takes at once."""
SENT_TOGETHER = 500
"""Records of a transaction that go to the loop at once."""


class _Sent(NamedTuple):
    topic: str
    value: bytes | None
    key: bytes | None
    partition: int | None
    headers: Headers
    timestamp_ms: int | None


class Transaction:
    """What is written here, and the position after the events in hands, are committed as one."""

    def __init__(self, loop: LoopThread, core: ReaderTransaction) -> None:
        """Made by ``Reader.transaction``."""
        self._loop, self._core = loop, core
        self._waiting: list[_Sent] = []

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Add a record. Raises as ``Producer.send`` does, for this record or an earlier one."""
        self._waiting.append(_Sent(topic, value, key, partition, headers, timestamp_ms))
        if len(self._waiting) >= SENT_TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Give what waits to the producer."""
        waiting, self._waiting = self._waiting, []

        async def send() -> None:
            for each in waiting:
                await self._core.send(
                    each.topic,
                    each.value,
                    key=each.key,
                    partition=each.partition,
                    headers=each.headers,
                    timestamp_ms=each.timestamp_ms,
                )

        self._loop.run(send())


class Reader:
    """One reader of a group, online from entering to leaving. One thread uses it.

    Names and meaning are those of the reader for asyncio.
    """

    def __init__(self, loop: LoopThread, core: GroupReader) -> None:
        """Made by ``ReaderGroup.reader``; nothing is sent before it is entered."""
        self._loop, self._core = loop, core
        self._processed = 0
        """How many more of the events in hands are processed than the loop was told."""
        self._given = 0
        self._is_aborted = False
        """Whether the events in hands are to be handed out again."""

    def __enter__(self) -> Self:
        """Join the group; a reader of this name that is online is fenced (R6)."""
        self._loop.run(self._core.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Go offline; without an error all that was handed out is processed."""
        self.close(processed=kind is None)

    def close(self, *, processed: bool = True) -> None:
        """Go offline at the processed positions, so that others go on at once. Harmless twice."""

        async def close() -> None:
            self._settle()
            await self._core.close(processed=processed)

        self._loop.run(close())

    def __iter__(self) -> Iterator[Record]:
        """Events until the group has read everything; ``partition`` of one is its segment."""
        while (batch := self._next(AHEAD, given=0)) is not None:
            for event in batch.events:
                self._given = 1
                yield event
                self._core.check_no_transaction()
                self._processed += self._given  # a transaction has counted it already
                self._given = 0
                if self._is_aborted or self._core.is_wanted:
                    break

    def batches(self, most: int = 1_000) -> Iterator[EventBatch]:
        """Events of one segment at a time, up to so many, until the group has read everything."""
        while (batch := self.next_batch(most)) is not None:
            yield batch

    def next_batch(self, most: int = 1_000) -> EventBatch | None:
        """Return the next events of one segment; waits for some. None at the end of the stream."""
        batch = self._next(most, given=most)
        self._given = 0 if batch is None else len(batch.events)
        return batch

    def commit(self) -> None:
        """All that was handed out is processed: commit it. Raises RequestError."""

        async def commit() -> None:
            self._settle()
            await self._core.commit()
            self._given = 0

        self._loop.run(commit())

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Write in a transaction that also commits the position after what was handed out last."""

        async def begin() -> ReaderTransaction:
            self._settle()
            return await core.__aenter__()

        core = self._core.transaction()
        transaction = Transaction(self._loop, self._loop.run(begin()))
        try:
            yield transaction
            transaction.flush()
        except BaseException as error:
            self._given, self._is_aborted = 0, True
            if not self._loop.run(core.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self._loop.run(core.__aexit__(None, None, None))
            self._given = 0

    def check(self) -> None:
        """Raise OwnershipLostError if the segment in hands is another reader's now."""
        self._loop.run(self._core.check())

    @property
    def token(self) -> int:
        """The fencing token of the segment in hands, for other stores: it grows (O3)."""
        return self._core.token

    def _next(self, most: int, *, given: int) -> EventBatch | None:
        async def ask() -> EventBatch | None:
            self._settle()
            self._is_aborted = False
            batch = await self._core.next_batch(most)
            if batch is not None:
                self._core.settle(0, min(given, len(batch.events)))
            return batch

        return self._loop.run(ask())

    def _settle(self) -> None:
        processed, self._processed = self._processed, 0
        self._core.settle(processed, self._given)


class ReaderGroup:
    """A group of readers that share a stream, for blocking callers; names as for asyncio."""

    def __init__(self, loop: LoopThread, core: GroupCore) -> None:
        """Made by ``Client.reader_group``."""
        self._loop, self._core = loop, core

    @property
    def name(self) -> str:
        """Its name."""
        return self._core.name

    def create(self) -> None:
        """Create the group. Harmless again with the same settings."""
        self._loop.run(self._core.create())

    def get(self) -> ReaderGroupDescription:
        """Return the group as it is now. Raises ReaderGroupError if it does not exist."""
        return self._loop.run(self._core.get())

    def delete(self) -> None:
        """Delete the group with its positions. Its readers end with an error."""
        self._loop.run(self._core.delete())

    def reader(
        self,
        name: str,
        *,
        isolation: Isolation = "transactional",
        lease_s: float = 10.0,
        window_s: float = 1.0,
        commit_interval_s: float | None = 5.0,
    ) -> Reader:
        """Return a reader of the group; it is online from entering to leaving."""
        core = self._core.reader(
            name,
            isolation=isolation,
            lease_s=lease_s,
            window_s=window_s,
            commit_interval_s=commit_interval_s,
        )
        return Reader(self._loop, core)

    def reader_offline(self, name: str, positions: Cut | None = None) -> None:
        """Declare a reader offline: others take its segments over at once, and it is fenced."""
        self._loop.run(self._core.reader_offline(name, positions))

    def checkpoint(self, name: str) -> None:
        """Begin a checkpoint: each reader reaches it between two events (R10)."""
        self._loop.run(self._core.checkpoint(name))

    def checkpoint_cut(self, name: str) -> Mapping[int, int]:
        """Wait until the whole group has reached a checkpoint; return its stream cut."""
        return self._loop.run(self._core.checkpoint_cut(name))

    def drop_checkpoint(self, name: str) -> None:
        """Forget a checkpoint. Raises ReaderGroupError if there is none of this name."""
        self._loop.run(self._core.drop_checkpoint(name))

    def stream_cut(self) -> Mapping[int, int]:
        """Return where the group is now: committed positions, and those of the state."""
        return self._loop.run(self._core.stream_cut())

    def reset(self, to: str | Cut) -> None:
        """Let the group go on elsewhere: a checkpoint by its name, a cut, earliest or latest."""
        self._loop.run(self._core.reset(to))

    def unread_events(self) -> int:
        """Return how many offsets are between the group and the end of its stream."""
        return self._loop.run(self._core.unread_events())

    def unread_bytes(self) -> int:
        """Return how many stored bytes are between the group and the end of its stream."""
        return self._loop.run(self._core.unread_bytes())


class StateSynchronizer(Generic[S]):
    """A copy of a shared state for blocking callers; names as for asyncio (R4)."""

    def __init__(self, loop: LoopThread, core: SynchronizerCore[S]) -> None:
        """Made by ``Client.synchronizer``."""
        self._loop, self._core = loop, core

    @property
    def state(self) -> S:
        """The state as it was last read or written here."""
        return self._core.state

    def fetch(self) -> S:
        """Read all that is committed, and return the state."""
        return self._loop.run(self._core.fetch())

    def update(self, function: Update[S]) -> int | None:
        """Change the state by a function, which runs in the client's thread."""
        return self._loop.run(self._core.update(function))

    def compact(self) -> int:
        """Store the whole state as a mark, and delete what is before it; return its offset."""
        return self._loop.run(self._core.compact())

    def wait_changed(self) -> S:
        """Wait until something newer than the state was read."""
        return self._loop.run(self._core.wait_changed())


def blocking_group(
    loop: LoopThread,
    cluster: Cluster,
    name: str,
    stream: str | None,
    *,
    start: str | Cut,
    end: Cut | None,
) -> ReaderGroup:
    """Return a group for blocking callers."""
    return ReaderGroup(loop, GroupCore(cluster, name, stream, start=start, end=end))


def blocking_synchronizer(
    loop: LoopThread, cluster: Cluster, topic: str, schema: Schema[S]
) -> StateSynchronizer[S]:
    """Return a copy of a shared state for blocking callers."""
    return StateSynchronizer(loop, SynchronizerCore(cluster, topic, schema))
