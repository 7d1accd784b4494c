"""One segment of a reader: claimed, read as its owner, with what is processed and what is not.

Its task claims the segment and fetches; the reader takes events and says which are processed. The
claim is lost where another reader has taken the segment: its fetches are cut off at once (R6).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fencelog.client.asynchronous import Claim, Producer
from fencelog.client.cluster import Cluster
from fencelog.client.grants import claim_options
from fencelog.client.model import Record
from fencelog.client.reader import Chunk, FetchOptions, PartitionReader, records_of
from fencelog.client.retry import RETRIABLE, Backoff
from fencelog.client.sender import Sender, open_sender, owner_options
from fencelog.client.streams.group_model import ReaderOptions
from fencelog.client.streams.positions import (
    commit,
    commit_in_transaction,
    committed,
    metadata_of,
)
from fencelog.coordination.reader_group.state import GroupState, Owned
from fencelog.errors import ClaimRefusedError, FencelogError, OwnershipLostError, RequestError
from fencelog.rpc.deadline import Deadline
from fencelog.types import TopicId, TopicPartition

RECORDS_MAX = 10_000
"""Records that wait for the reader; while there are so many, no more are fetched."""


@dataclass(frozen=True, kw_only=True)
class SegmentPlace:
    """Where a segment and its group are.

    Attributes:
        state_id: the id of the topic with the group's state.
        base: what makes an offset of the state a generation.
        end: where a bounded reader stops; None: at the seal.
    """

    group: str
    partition: TopicPartition
    topic_id: TopicId
    state_id: TopicId
    base: int
    holder: str
    end: int | None

    @classmethod
    def of(
        cls, group: str, state: GroupState, state_id: TopicId, index: int, holder: str
    ) -> "SegmentPlace":
        """Return the place of a segment that a group's state has."""
        settings = state.settings
        assert settings is not None, "it was created before anybody joined"
        return cls(
            group=group,
            partition=TopicPartition(settings.stream, index),
            topic_id=TopicId(bytes.fromhex(settings.topic_id)),
            state_id=state_id,
            base=state.base,
            holder=holder,
            end=None if settings.end is None else settings.end.get(index),
        )


class ReadAgainError(FencelogError):
    """The events in hands are to be handed out again, from the committed position on."""


class SegmentReader:
    """A segment that the state gives to this reader. Belongs to one event loop.

    Attributes:
        index: of the segment.
        taken: the update by which the reader has it; with another one it is another reader's.
        end: where it ends, once that is known.
        committed: the last position that is committed, as far as it is known.
        failure: why it is not read any more.
    """

    def __init__(
        self,
        cluster: Cluster,
        place: SegmentPlace,
        owned: Owned,
        options: ReaderOptions,
        changed: Callable[[bool], None],
    ) -> None:
        """Start the task. ``changed`` is told of news, and whether there is more than events."""
        self._cluster, self._place, self._options, self._changed = cluster, place, options, changed
        self._metadata = metadata_of(place.state_id, owned.origin)
        self.index = place.partition.partition
        self.taken = owned.taken
        self.end = place.end
        self.failure: Exception | None = None
        self.committed = -1
        self._processed_to = -1
        self._read_to = owned.offset
        self._buffer: deque[Record] = deque()
        self._in_hands: deque[Record] = deque()
        """What was handed out and is not processed."""
        self._room = asyncio.Event()
        self._claim: Claim | None = None
        self._producer: tuple[Producer, Sender] | None = None
        self._is_stopped = self._is_held = False
        self._stopping: asyncio.Task[None] | None = None
        self._committing = asyncio.Lock()
        """Held by who commits: of two at a time the older position could be stored last."""
        self._task = asyncio.create_task(self._run())

    # --- for the reader

    @property
    def position(self) -> int:
        """All before it is processed."""
        if self._in_hands:
            return self._in_hands[0].offset
        return self._next_offset

    @property
    def _next_offset(self) -> int:
        """Of the first event that was not handed out."""
        return self._buffer[0].offset if self._buffer else self._read_to

    @property
    def is_ready(self) -> bool:
        """Whether it has events to hand out."""
        is_read = self.failure is None and not self._is_stopped and not self._is_held
        return is_read and bool(self._buffer)

    @property
    def in_hands(self) -> Sequence[Record]:
        """What was taken and is not processed; nothing once it is not read here any more."""
        return () if self._is_stopped else self._in_hands

    @property
    def is_complete(self) -> bool:
        """Whether all of it is processed."""
        return self.end is not None and self.position >= self.end and not self._is_stopped

    @property
    def is_uncommitted(self) -> bool:
        """Whether events were processed whose position is not committed."""
        return self._processed_to > self.committed

    @property
    def is_claimed(self) -> bool:
        """Whether its claim was granted, and is not known to be lost."""
        return self._claim is not None and self.failure is None

    @property
    def epoch(self) -> int:
        """The fencing token of the segment. Raises FencelogError while it is not claimed."""
        return self._owning().epoch

    def hold(self) -> None:
        """Hand out no more: the segment is about to be given away."""
        self._is_held = True

    def take(self, most: int) -> None:
        """Put events in hands, where they are until ``processed``."""
        assert not self._in_hands, self._in_hands
        for _ in range(min(most, len(self._buffer))):
            self._in_hands.append(self._buffer.popleft())
        if not self._buffer:
            self._room.set()

    def processed(self, count: int) -> None:
        """The first ``count`` events in hands are processed."""
        for _ in range(min(count, len(self._in_hands))):
            self._processed_to = self._in_hands.popleft().offset + 1
        if self.is_complete:
            self._changed(True)

    def give_back(self) -> None:
        """Those that are in hands and not processed are handed out again."""
        self._buffer.extendleft(reversed(self._in_hands))
        self._in_hands.clear()

    def give_up(self) -> Exception | None:
        """What is processed and not committed is handed out again; return why."""
        self._processed_to = self.committed
        return self.failure

    async def check(self) -> None:
        """Raise OwnershipLostError if the segment is another reader's now."""
        await self._owning().check()

    async def commit(self) -> bool:
        """Commit the position, if it is news. Raises RequestError.

        False, and nothing is committed, once it is read here no more: what was handed out is
        forgotten then, or a transaction has perhaps committed a later position.
        """
        async with self._committing:
            if self._is_stopped or self.failure is not None:
                return False
            at = self.position
            if at > self.committed and self._claim is not None:
                place = self._place
                connections = self._claim.connections
                await commit(connections, place.group, place.partition, at, self._metadata)
                self.committed = max(self.committed, at)
            return True

    async def producer(self) -> Producer:
        """Return the producer of the claim's transactional id; opened at the first call."""
        return (await self._opened())[0]

    async def commit_with(self, processed: int) -> None:
        """Commit the open transaction with the position after so many events in hands.

        Raises RequestError; then it may be committed or not.
        """
        producer, sender = await self._opened()
        hands = self._in_hands
        at = hands[processed].offset if processed < len(hands) else self._next_offset
        place = self._place
        await producer.flush()
        async with self._committing:
            await commit_in_transaction(
                self._owning().connections,
                sender.enlisting(),
                place.group,
                place.partition,
                at,
                self._metadata,
            )
            await producer.commit()
            self.processed(processed)
            self.committed = max(self.committed, at)

    async def abandon(self) -> None:
        """Abort the open transaction, and read again from the committed position on.

        Whether a transaction without an answer was committed is known from that. Raises
        FencelogError if it could not be aborted: the end of the claim does that.
        """
        self.failure = self.failure or ReadAgainError(
            f"events of segment {self.index} are handed out again: a transaction was aborted"
        )
        self._is_held = True
        self._changed(True)
        if self._producer is not None and self._producer[1].in_transaction:
            await self._producer[0].abort()

    async def stop(self) -> None:
        """Read no more, and end the claim: its transactions and fetches end with it.

        It goes on to its end where the caller is cancelled. A second call waits for that end.
        """
        if self._stopping is None:
            self._is_stopped = True
            self._buffer.clear()
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    # --- inside

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        try:
            if self._producer is not None:
                await self._producer[0].close()
        finally:
            if self._claim is not None:
                await self._claim.release()

    def _owning(self) -> Claim:
        if self._claim is None or self._is_stopped:
            raise FencelogError(f"segment {self.index} is not read by this reader any more")
        return self._claim

    async def _opened(self) -> tuple[Producer, Sender]:
        claim = self._owning()
        if self._producer is None:
            options = owner_options(claim.transactional_id, None, 60_000, transactional=True)
            sender = await open_sender(claim.connections, options)
            self._producer = Producer(claim.connections, sender, 1_000_000), sender
        return self._producer

    async def _run(self) -> None:
        backoff = Backoff()
        while self.failure is None:
            try:
                await self._claim_and_read()
            except ClaimRefusedError as error:
                self.failure = error
            except RequestError as error:
                if error.code not in RETRIABLE:
                    self.failure = error
                await backoff.wait(Deadline(60.0))
            except Exception as error:  # noqa: BLE001 - nobody would be told of it otherwise
                self.failure = error
            else:
                return
        self._changed(True)

    async def _claim_and_read(self) -> None:
        place = self._place
        if self._claim is None:
            await self._own()
        if self.end is not None and self._read_to >= self.end:
            self._changed(True)
            return
        claim = self._owning()
        options = FetchOptions(
            isolation=self._options.isolation,
            max_bytes=self._options.fetch_bytes,
            topic_id=place.topic_id,
        )
        reader = PartitionReader(claim.connections, place.partition, self._read_to, None, options)
        while self.end is None or self._read_to < self.end:
            chunk = await reader.next_chunk()
            assert chunk is not None
            await self._keep(chunk)

    async def _own(self) -> None:
        """Claim the segment, and begin where the group has come to."""
        place = self._place
        options = claim_options(
            f"{place.partition.topic}/{place.partition.partition}",
            group=place.group,
            generation=place.base + self.taken,
            transactional_id=f"{place.partition.topic}-{self.index}",
            lease_s=self._options.lease_s,
            holder=place.holder,
        )
        claim = Claim(self._cluster, options, None, 0.0)
        await claim.__aenter__()
        try:
            # Only now: until the grant the owner before may have committed more (R6).
            found = await committed(
                claim.connections, place.group, place.partition.topic, [self.index]
            )
        except BaseException:
            with suppress(RequestError):
                await claim.release()
            raise
        self._claim = claim
        claim.on_lost(self._lost)
        offset, metadata = found.get(self.index, (-1, ""))
        if metadata == self._metadata:
            self.committed = offset
            self._read_to = max(self._read_to, offset)

    def _lost(self, error: OwnershipLostError) -> None:
        if not self._is_stopped:
            self.failure = self.failure or error
            self._changed(True)

    async def _keep(self, chunk: Chunk) -> None:
        """Keep a chunk for the reader, once there is room."""
        while len(self._buffer) >= RECORDS_MAX:
            self._room.clear()
            await self._room.wait()
        end = self.end
        if chunk.sealed_at is not None and (end is None or end > chunk.sealed_at):
            end = chunk.sealed_at
        self._buffer.extend(records_of(chunk, self._place.partition, self._read_to, end))
        self._read_to = chunk.next_offset if end is None else min(chunk.next_offset, end)
        if end is not None and self._read_to >= end:
            self.end = end
        self._changed(self.is_complete)


def ready(segments: Sequence[SegmentReader], turn: int) -> SegmentReader | None:
    """Return a segment with events, in rotation."""
    for place in range(len(segments)):
        found = segments[(turn + place) % len(segments)]
        if found.is_ready:
            return found
    return None
