"""A reader of a group, as programs use it: events, batches, transactions, checkpoints."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self

from fencelog.client.asynchronous import Producer
from fencelog.client.cluster import Cluster
from fencelog.client.model import Record
from fencelog.client.streams.group_model import EventBatch, ReaderOptions
from fencelog.client.streams.member import Member
from fencelog.client.streams.segment_reader import SegmentReader, ready
from fencelog.coordination.reader_group.state import GroupState
from fencelog.errors import FencelogError

AHEAD = 256
"""Events that an iteration over single ones takes at once."""


class ReaderTransaction:
    """What is written here, and the position after the events in hands, are committed as one."""

    def __init__(self, producer: Producer) -> None:
        """Made by ``GroupReader.transaction``."""
        self.send = producer.send


class GroupReader:
    """One reader of a group, online from entering to leaving. One task uses it.

    What is handed out counts as processed when more is asked for, when it is committed, with its
    transaction, or when the reader is left without an error. Each event is given to one reader of
    the group; after a crash those again that were processed and not committed (R6, R9). Raises
    ReaderOfflineError once the group goes on without this reader.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        name: str,
        options: ReaderOptions,
        prepare: Callable[[], Awaitable[None]],
    ) -> None:
        """Made by ``ReaderGroup.reader``; nothing is sent before it is entered."""
        self._cluster, self._group, self.name = cluster, group, name
        self._options, self._prepare = options, prepare
        self._member: Member | None = None
        self._hands: SegmentReader | None = None
        self._given = 0
        """How many of the events in hands were handed out."""
        self._is_in_transaction = False
        self._turn = 0

    # --- its life

    async def __aenter__(self) -> Self:
        """Join the group; a reader of this name that is online is fenced (R6)."""
        if self._member is not None:
            raise FencelogError("this reader was entered before; make another one")
        await self._prepare()
        member = Member(self._cluster, self._group, self.name, self._options)
        await member.open()
        self._member = member
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Go offline; without an error all that was handed out is processed."""
        await self.close(processed=kind is None)

    async def close(self, *, processed: bool = True) -> None:
        """Go offline at the processed positions, so that others go on at once. Harmless twice.

        Inside of a transaction its events are not processed: it is aborted.
        """
        member, self._member = self._member, None
        if member is not None:
            self._put_down(processed=processed and not self._is_in_transaction)
            await member.close()

    # --- reading

    def __aiter__(self) -> AsyncIterator[Record]:
        """Events until the group has read everything; a reader that is not entered is, meanwhile.

        ``partition`` of a record is its segment.
        """
        return self._events()

    async def _events(self) -> AsyncIterator[Record]:
        if self._member is None:
            async with self:
                async for event in self._events():
                    yield event
            return
        while (found := await self._next(AHEAD, 1)) is not None:
            yield found[0]

    async def batches(self, most: int = 1_000) -> AsyncIterator[EventBatch]:
        """Events of one segment at a time, up to so many, until the group has read everything."""
        while (batch := await self.next_batch(most)) is not None:
            yield batch

    async def next_batch(self, most: int = 1_000) -> EventBatch | None:
        """Return the next events of one segment; waits for some. None at the end of the stream.

        Raises FencelogError inside of a transaction.
        """
        found = await self._next(most, most)
        if found is None:
            return None
        assert self._hands is not None, "events are of a segment"
        return EventBatch(segment=self._hands.index, events=found)

    async def commit(self) -> None:
        """All that was handed out is processed: commit it. Raises RequestError.

        Raises ReaderOfflineError once the group goes on without this reader, and
        OwnershipLostError where a claim of its own was lost: what is not committed is handed out
        again then. Raises FencelogError inside of a transaction.
        """
        self.check_no_transaction()
        if self._hands is not None:
            self._hands.processed(self._given)
            self._given = 0
        await self._joined().commit(self._hands)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ReaderTransaction]:
        """Write in a transaction that also commits the position after what was handed out last.

        It is of the segment of these events: another reader that takes it over ends the
        transaction first, and the position counts only with what was written (R6). After an
        error it is aborted, and the events are handed out again.
        """
        self.check_no_transaction()
        segment, given = self._hands, self._given
        if segment is None or not given:
            raise FencelogError("a transaction is about events: ask for some first")
        self._is_in_transaction = True
        try:
            producer = await segment.producer()
            await producer.begin()
            yield ReaderTransaction(producer)
            self._joined().check_online()
            await segment.commit_with(given)
        except BaseException:
            self._hands, self._given = None, 0
            with suppress(FencelogError):
                await segment.abandon()
            raise
        finally:
            self._is_in_transaction = False
        self._given = 0

    async def check(self) -> None:
        """Raise OwnershipLostError if the segment in hands is another reader's now."""
        await self._in_hands().check()

    @property
    def token(self) -> int:
        """The fencing token of the segment in hands, for other stores: it grows (O3)."""
        return self._in_hands().epoch

    @property
    def owned(self) -> frozenset[int]:
        """The segments that this reader owns and reads now."""
        segments = () if self._member is None else self._member.segments.values()
        return frozenset(each.index for each in segments if each.is_claimed)

    @property
    def state(self) -> GroupState:
        """The group's state as this reader knows it."""
        return self._joined().state

    # --- for blocking callers

    def settle(self, processed: int, given: int) -> None:
        """So many of the events in hands are processed, and so many more were handed out."""
        if self._hands is not None:
            self._hands.processed(processed)
            self._given = given

    def check_no_transaction(self) -> None:
        """Raise FencelogError inside of a transaction; any thread may ask.

        The events of an open transaction are processed with its commit, and not before.
        """
        if self._is_in_transaction:
            raise FencelogError(
                "a transaction of this reader is open: end it before you ask for more events, "
                "commit, or begin another one"
            )

    @property
    def is_wanted(self) -> bool:
        """Whether there is something to do between two events; any thread may ask."""
        member = self._member
        if member is None:
            return False
        return bool(member.reach) or member.shed is not None or member.failure is not None

    # --- inside

    def _joined(self) -> Member:
        if self._member is None:
            raise FencelogError("this reader is closed, or was not entered: async with reader")
        return self._member

    def _in_hands(self) -> SegmentReader:
        if self._hands is None:
            raise FencelogError("no events are in hands: ask for some first")
        return self._hands

    def _put_down(self, *, processed: bool) -> None:
        if self._hands is not None:
            self._hands.processed(self._given if processed else 0)
            self._hands.give_back()
        self._hands, self._given = None, 0

    async def _next(self, ahead: int, most: int) -> tuple[Record, ...] | None:
        """Return up to ``most`` events; up to ``ahead`` of them are taken from the segment."""
        member = self._joined()
        self.check_no_transaction()
        if self._hands is not None:
            self._hands.processed(self._given)
            self._given = 0
            if self.is_wanted or most != 1 or not self._hands.in_hands:
                self._put_down(processed=False)
        while self._hands is None:
            if member.failure is not None:
                raise member.failure
            await self._between_events(member)
            segments = [member.segments[index] for index in sorted(member.segments)]
            found = ready(segments, self._turn)
            if found is not None:
                self._turn += 1
                found.take(ahead)
                self._hands = found
                break
            if member.is_finished:
                return None
            await member.wake.wait()
            member.wake.clear()
        events = self._hands.in_hands
        self._given = min(most, len(events))
        return tuple(events[place] for place in range(self._given))

    async def _between_events(self, member: Member) -> None:
        if member.reach:
            if self._options.on_checkpoint is not None:
                for name in member.reach:
                    await self._options.on_checkpoint(name)
            member.reached()
        if member.shed is not None:
            member.stopped()
