"""Fetch sessions (KIP-227): the partitions of a client are kept, and only what changed is told.

A session is created by a full fetch with epoch 0. Each later fetch names it and its next epoch, and
carries only the partitions that are new, moved or forgotten; its response only those with records,
an error or other offsets than the client knows. A fetch without a session is one that lives as long
as the request. Sessions are soft state: a client whose session is gone begins a new one.
"""

import asyncio
from collections.abc import Callable, Iterator

from fencelog.broker.fetching.interest import Interest, Key
from fencelog.errors import ErrorCode
from fencelog.log.values import Isolation
from fencelog.settings.kinds import INT32_MAX
from fencelog.types import Buffer, Instant
from fencelog.wire.hot import FetchRequest, FetchTopic, ForgottenTopic

NO_SESSION = 0
FINAL_EPOCH = -1
"""Ends a session; also of every fetch without one."""
INITIAL_EPOCH = 0
PROTECTED_S = 120.0
"""How long a session is not evicted: after its last fetch for any other, after its creation for a
larger one (Kafka's numbers)."""
INTERESTS_MAX = 200_000
"""Partitions of all sessions: about 100 MB. Kafka bounds only the number of sessions."""
REPEATED_INTERESTS_MAX = 50_000
"""Partitions of all fetches without a session that are kept in case that they are repeated."""


class FetchSession:
    """The partitions of one client, and the fetch that waits for them.

    Invariant: an interest that is not in ``changed`` listens to its partition, and the client knows
    the offsets of it; so a fetch looks at those in ``changed`` only.
    """

    def __init__(self, session_id: int, *, by_id: bool, now: Instant) -> None:
        """Start without partitions. ``by_id``: topics are named by their ids."""
        self.id = session_id
        self.by_id = by_id
        self.epoch = INITIAL_EPOCH
        """Of the fetch that is being answered or was answered last."""
        self.created = self.used = now
        self.closed = False
        self.interests: dict[Key, Interest] = {}
        self.changed: dict[Interest, None] = {}
        """The interests to look at, those that were read longest ago first."""
        self.isolation = Isolation.REPLICATED
        self._min_bytes = 0
        self.available = 0
        """Bytes that there are to read, as far as a fetch that waits has counted them."""
        self._waits = False
        self._is_interrupted = False
        self._woken: asyncio.Future[None] | None = None

    def add(self, topics: list[FetchTopic]) -> None:
        """Add partitions, or change where they are read from."""
        for topic, topic_id, partitions in topics:
            for requested in partitions:
                key = Key(topic, topic_id, requested.partition)
                interest = self.interests.get(key)
                if interest is None:
                    interest = self.interests[key] = Interest(key, requested)
                else:
                    interest.update(requested)
                self.changed[interest] = None

    def forget(self, topics: tuple[ForgottenTopic, ...]) -> None:
        """Remove partitions; those that are not here are passed over."""
        for topic, topic_id, partitions in topics:
            for index in partitions:
                interest = self.interests.pop(Key(topic, topic_id, index), None)
                if interest is not None:
                    interest.stop()
                    self.changed.pop(interest, None)

    def untold(self, interests: list[Interest]) -> None:
        """Look at these again: the answer that would have told them is not sent."""
        for interest in interests:
            if self.interests.get(interest.key) is interest:
                interest.told = None
                self.changed[interest] = None
        self._interrupt()

    def close(self) -> None:
        """Listen to nothing any more; a fetch that waits is answered."""
        self.closed = True
        for interest in self.interests.values():
            interest.stop()
        self._interrupt()

    # -- waiting ---------------------------------------------------------------------------------

    def begin_wait(self, min_bytes: int, isolation: Isolation) -> None:
        """Count what is available from now on. A fetch of this session that waits is answered."""
        self._interrupt()
        if isolation is not self.isolation:
            self.isolation = isolation
            self.changed.update(dict.fromkeys(self.interests.values()))
        self._min_bytes = min_bytes
        self.available = 0
        for interest in self.changed:
            interest.available = 0
        self._waits = True
        self._is_interrupted = False

    def measure(self, interest: Interest) -> None:
        """Count what is available of one interest now."""
        before, interest.available = interest.available, interest.measure(self.isolation)
        self.available += interest.available - before

    @property
    def has_enough(self) -> bool:
        """Whether the fetch need not wait for more."""
        return self.available >= self._min_bytes or self.closed

    async def more(self, deadline: Instant) -> bool:
        """Wait until there is enough or it is too late; return whether there is enough.

        It ends early when an interest is to be looked at again.
        """
        if self.take_interruption():
            return False
        loop = asyncio.get_running_loop()
        woken = self._woken = loop.create_future()
        timer = loop.call_at(deadline, self._wake)
        try:
            await woken
        finally:
            timer.cancel()
        if self._woken is not woken:
            return True  # another fetch of this session waits
        self._woken = None
        return self.has_enough and not self.take_interruption()

    def take_interruption(self) -> bool:
        """Return whether an interest was to be looked at again since the last call."""
        taken, self._is_interrupted = self._is_interrupted, False
        return taken

    def end_wait(self) -> None:
        """The fetch is answered: count no longer."""
        self._waits = False

    def advanced(self, interest: Interest) -> bool:
        """An interest may have more to read, or other offsets to tell."""
        self.changed[interest] = None
        if not self._waits:
            return False
        self.measure(interest)
        if self.has_enough:
            self._wake()
        return True

    def interrupted(self, interest: Interest) -> None:
        """An interest must be looked at again."""
        self.changed[interest] = None
        self._interrupt()

    def _interrupt(self) -> None:
        self._is_interrupted = True
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


class RepeatedFetch:
    """A fetch without a session that has found nothing, kept in case that the next one is the same.

    Most clients have no fetch sessions. While they wait at the end of the log they send the same
    bytes again and again. Invariant: while nothing is in ``session.changed``, ``answer`` is true.
    """

    __slots__ = ("_sessions", "answer", "body", "message", "session", "version")

    def __init__(
        self,
        sessions: "FetchSessions",
        session: FetchSession,
        message: FetchRequest,
        body: bytes,
        version: int,
    ) -> None:
        """``body``: of the request, in this version; ``message``: what else it says."""
        self._sessions = sessions
        self.session = session
        self.message = message
        self.body = body
        self.version = version
        self.answer: list[Buffer] = []
        """The body of the response."""

    def close(self) -> None:
        """The connection is gone, or has sent another fetch."""
        self._sessions.drop(self)


class FetchSessions:
    """The sessions of all clients, within bounds."""

    def __init__(self, slots: int, random_bytes: Callable[[int], bytes]) -> None:
        """``slots``: sessions at most."""
        self._slots = slots
        self._random_bytes = random_bytes
        self._sessions: dict[int, FetchSession] = {}
        """By id, the least recently used first."""
        self._size = 0
        """Partitions of all of them."""
        self._repeated_size = 0
        """Partitions of all repeated fetches."""

    def open(self, message: FetchRequest, *, by_id: bool, now: Instant) -> FetchSession | ErrorCode:
        """Return the session of a fetch.

        ``by_id``: this request names topics by their ids. The session has the id 0 if it lives for
        this request only.
        """
        if message.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._close(self._sessions.get(message.session_id))
            return self._full(message, by_id=by_id, now=now)
        session = self._named(message, by_id=by_id)
        if isinstance(session, ErrorCode):
            return session
        session.epoch = message.session_epoch
        session.used = now
        self._sessions[session.id] = self._sessions.pop(session.id)
        self._size -= len(session.interests)
        session.forget(message.forgotten)
        session.add(message.topics)
        self._size += len(session.interests)
        if self._size > INTERESTS_MAX:
            self._close(session)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if not session.interests:
            self._close(session)
            return FetchSession(NO_SESSION, by_id=by_id, now=now)
        return session

    def _named(self, message: FetchRequest, *, by_id: bool) -> FetchSession | ErrorCode:
        session = self._sessions.get(message.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.by_id != by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if message.session_epoch != next_epoch(session.epoch):
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return session

    def _full(self, message: FetchRequest, *, by_id: bool, now: Instant) -> FetchSession:
        session = FetchSession(NO_SESSION, by_id=by_id, now=now)
        session.add(message.topics)
        if (
            message.session_epoch == INITIAL_EPOCH
            and session.interests
            and self._has_slot(len(session.interests), now)
        ):
            session.id = next(self._free_ids())
            self._sessions[session.id] = session
            self._size += len(session.interests)
        return session

    def _free_ids(self) -> Iterator[int]:
        while True:
            session_id = int.from_bytes(self._random_bytes(4), "big") & INT32_MAX
            if session_id != NO_SESSION and session_id not in self._sessions:
                yield session_id

    def _has_slot(self, size: int, now: Instant) -> bool:
        """Whether a session of this size gets a slot; another may be evicted for it."""
        if size > INTERESTS_MAX - self._size:
            return False
        if len(self._sessions) < self._slots:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False  # there are no slots at all
        if now - oldest.used > PROTECTED_S:
            self._close(oldest)
            return True
        # Large sessions save most: the smallest one gives way to one that is not smaller.
        old = [each for each in self._sessions.values() if now - each.created > PROTECTED_S]
        smallest = min(old, key=lambda each: len(each.interests), default=None)
        if smallest is None or len(smallest.interests) > size:
            return False
        self._close(smallest)
        return True

    def keep(
        self, session: FetchSession, message: FetchRequest, body: bytes, version: int
    ) -> RepeatedFetch | None:
        """Keep a fetch that has found nothing; None if it may not be, or there are too many."""
        size = len(session.interests)
        if (
            (message.session_id, message.session_epoch) != (NO_SESSION, FINAL_EPOCH)
            or session.changed
            or not size
            or self._repeated_size + size > REPEATED_INTERESTS_MAX
        ):
            return None
        self._repeated_size += size
        return RepeatedFetch(self, session, message._replace(topics=[]), body, version)

    def drop(self, repeated: RepeatedFetch) -> None:
        """Keep it no longer. A second call does nothing."""
        if not repeated.session.closed:
            self._repeated_size -= len(repeated.session.interests)
            repeated.session.close()

    def _close(self, session: FetchSession | None) -> None:
        if session is not None:
            del self._sessions[session.id]
            self._size -= len(session.interests)
            session.close()


def next_epoch(epoch: int) -> int:
    """Return the epoch after this one: after the largest comes 1."""
    return 1 if epoch == INT32_MAX else epoch + 1
