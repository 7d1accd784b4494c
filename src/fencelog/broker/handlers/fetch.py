"""Fetch: whole batches as they are on disk, up to what the reader's isolation level may read.

Behaviour: whether there are ``min_bytes`` is decided from offsets and sizes; only then is anything
read, and once. A fetch that finds less waits, at most ``max_wait_ms``. The first batch is always
returned whole, even above every limit, so that every reader makes progress. Where owners decide who
reads (O8), that is judged before the read, and again in the step of the answer.
"""

import asyncio
from collections.abc import Sequence
from math import ceil

from fencelog.broker.context import Broker
from fencelog.broker.dispatch import LONG_BODY_BYTES, respond
from fencelog.broker.fetching.interest import Interest
from fencelog.broker.fetching.sessions import (
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    RepeatedFetch,
)
from fencelog.broker.handlers.brokers import current_leader, endpoints_of, missing
from fencelog.broker.network.connection import Answer, Connection, Request
from fencelog.broker.network.replies import Reply
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import CorruptionError, ErrorCode, StorageError
from fencelog.log.values import Isolation
from fencelog.types import Buffer, Instant, TopicId
from fencelog.wire.batch import Compression, read_header
from fencelog.wire.hot import (
    FetchedPartition,
    FetchedTopic,
    FetchRequest,
    NodeEndpoint,
    read_fetch_request,
    write_fetch_response,
)
from fencelog.wire.hot.fetch import TOPIC_IDS_FROM

COMMON_S = 0.025
"""Waits of 500 ms and more, which is what clients ask for, end at multiples of this."""
ZSTD_FROM = 10
_OF_ANOTHER_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
LONG_ANSWER = 400
"""Partitions above which an answer is written in a time slice of its own."""


def fetch(broker: Broker, request: Request) -> Answer:
    """Handle one fetch request."""
    repeated = _repeated(request)
    if repeated is not None:
        return _answer(broker, request, repeated.message, repeated.session, repeated)
    if len(request.body) > LONG_BODY_BYTES:
        return _fetch_long(broker, request)
    message = read_fetch_request(request.body, request.header.api_version)
    return _fetch(broker, request, message)


def _repeated(request: Request) -> RepeatedFetch | None:
    """Return the connection's last fetch if this one is the same; else keep it no longer."""
    connection = request.connection
    repeated = connection.kept
    if repeated is None:
        return None
    assert isinstance(repeated, RepeatedFetch), repeated
    if repeated.version == request.header.api_version and repeated.body == bytes(request.body):
        return repeated
    connection.kept = None
    repeated.close()
    return None


async def _fetch_long(broker: Broker, request: Request) -> Reply:
    """Decode a request with very many partitions in a time slice of its own."""
    await broker.time_slices.next()
    message = read_fetch_request(request.body, request.header.api_version)
    await broker.time_slices.next()
    return await _fetch(broker, request, message)


async def _fetch(broker: Broker, request: Request, message: FetchRequest) -> Reply:
    """Find the session of a fetch, and answer it."""
    if message.replica_id >= 0:
        # Brokers have a request of their own: whoever sends this is none.
        return _refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, message)
    if message.isolation_level not in tuple(Isolation):
        return _refuse(request, ErrorCode.INVALID_REQUEST)
    by_id = request.header.api_version >= TOPIC_IDS_FROM
    now = Instant(asyncio.get_running_loop().time())
    session = broker.fetch_sessions.open(message, by_id=by_id, now=now)
    if isinstance(session, ErrorCode):
        return _refuse(request, session)
    return await _answer(broker, request, message, session, None)


async def _answer(
    broker: Broker,
    request: Request,
    message: FetchRequest,
    session: FetchSession,
    repeated: RepeatedFetch | None,
) -> Reply:
    version = request.header.api_version
    session.begin_wait(message.min_bytes, Isolation(message.isolation_level))
    deadline = wait_deadline(asyncio.get_running_loop().time(), message.max_wait_ms)
    answer = _Answer(broker, request.connection, session, message, version)
    responses = request.connection.responses
    try:
        while True:
            await answer.wait(deadline)
            if answer.is_unchanged and (repeated is not None or not answer.is_full):
                return respond(request, *(repeated.answer if repeated else answer.write()))
            await answer.read(await responses.grant(answer.bytes_wanted, deadline))
            if answer.is_superseded:
                return _refuse(request, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            if answer.is_enough(deadline):
                break
            responses.give_back()
        if len(request.body) > LONG_BODY_BYTES or len(answer.fetched) > LONG_ANSWER:
            await broker.time_slices.next()
        answer.refuse_former_owners()
        body = answer.write()
        repeated = _keep(broker, request, message, session, repeated)
        if repeated is not None:
            repeated.answer = body
        return respond(request, *body)
    finally:
        if not answer.is_superseded:
            session.end_wait()
        if session.id == NO_SESSION and repeated is None:
            session.close()


def wait_deadline(now: float, max_wait_ms: int) -> Instant:
    """Return when a fetch is answered at the latest.

    Waits of the same length end at common instants, up to a twentieth or ``COMMON_S`` later than
    asked: many idle consumers together cost one wake-up. Kafka answers after the wait, too.
    """
    wait_s = max(max_wait_ms, 0) / 1000
    interval_s = min(wait_s / 20, COMMON_S)
    if not interval_s:
        return Instant(now)
    return Instant(ceil((now + wait_s) / interval_s) * interval_s)


def _keep(
    broker: Broker,
    request: Request,
    message: FetchRequest,
    session: FetchSession,
    repeated: RepeatedFetch | None,
) -> RepeatedFetch | None:
    """Return the fetch if it is kept, in case that the next one is the same."""
    if session.changed:  # something was found: the next one will be another
        if repeated is not None:
            request.connection.kept = None
            repeated.close()
        return None
    if repeated is None and len(request.body) <= LONG_BODY_BYTES:
        body = bytes(request.body)
        repeated = broker.fetch_sessions.keep(session, message, body, request.header.api_version)
        request.connection.kept = repeated
    return repeated


def _refuse(request: Request, error: ErrorCode, message: FetchRequest | None = None) -> Reply:
    """Refuse a fetch; if ``message`` is given, each of its partitions, too."""
    topics = [
        FetchedTopic(
            topic.topic,
            topic.topic_id,
            [FetchedPartition(each.partition, error) for each in topic.partitions],
        )
        for topic in ([] if message is None else message.topics)
    ]
    return respond(
        request, *write_fetch_response(request.header.api_version, error, NO_SESSION, topics)
    )


class _Answer:
    """The answer to one fetch: waits until there is enough to read, then reads it."""

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        session: FetchSession,
        message: FetchRequest,
        version: int,
    ) -> None:
        """Nothing is read yet."""
        self._broker = broker
        self._connection = connection
        self._has_owners = False
        """Whether owners decide about a partition that was read."""
        self._session = session
        self._version = version
        self.is_full = session.epoch == INITIAL_EPOCH
        """Whether all partitions are told, not only those that have changed."""
        self._epoch = session.epoch
        self._min_bytes = message.min_bytes
        self.fetched: list[tuple[Interest, FetchedPartition]] = []
        self._limit = max(min(message.max_bytes, broker.config.fetch_bytes_max), 1)
        self._is_measured = False
        self._size = 0
        self._is_final = False
        """Whether there is an error to tell at once."""

    @property
    def is_superseded(self) -> bool:
        """Whether another fetch of this session came meanwhile, on another connection."""
        return self._session.epoch != self._epoch

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing has changed since the last fetch of the session."""
        session = self._session
        return not (session.changed or session.closed or self.is_superseded)

    @property
    def bytes_wanted(self) -> int:
        """What is read at most. A reader at the end wants little, and waits for no slow reader."""
        if not self._is_measured:
            return self._limit
        return max(min(self._session.available, self._limit), 1)

    async def wait(self, deadline: Instant) -> None:
        """Return when there is enough to read, by offsets and sizes, or it is too late."""
        session = self._session
        loop = asyncio.get_running_loop()
        while session.interests and not self.is_superseded and loop.time() < deadline:
            async for interest in self._broker.time_slices.each(list(session.changed)):
                if session.closed or self.is_superseded:
                    return
                interest.resolve(self._find(interest))
                interest.listen(session)
                session.measure(interest)
                if self._owner_error(interest) is not ErrorCode.NONE:
                    return
            self._is_measured = True
            if session.has_enough or await session.more(deadline):
                return

    def _find(self, interest: Interest) -> Partition | None:
        """Return the open partition that an interest means now."""
        name = self._name_of(interest)
        return None if name is None else self._broker.logs.get(name, interest.key.number)

    def _owner_error(self, interest: Interest) -> ErrorCode:
        """Return why this connection may not read a partition for its owners' sake (O8)."""
        partition = interest.partition
        if partition is None:
            return ErrorCode.NONE
        claim = self._connection.session
        if claim is None and not partition.owners.guards_reads:
            return ErrorCode.NONE
        self._has_owners = True
        return partition.owners.read_error(claim)

    def refuse_former_owners(self) -> None:
        """Give nothing to a reader that was fenced since it was read; with no await before the
        answer is on its way.
        """
        if not self._has_owners:
            return
        for place, (interest, one) in enumerate(self.fetched):
            error = self._owner_error(interest)
            if error is not ErrorCode.NONE and one.error is ErrorCode.NONE:
                refused = FetchedPartition(interest.key.number, error)
                interest.tell(refused)
                self._session.changed[interest] = None
                self.fetched[place] = interest, refused

    def _name_of(self, interest: Interest) -> str | None:
        """Return the topic's name; None if no topic has the requested id."""
        if interest.key.topic_id is None:
            return interest.key.topic
        known = self._broker.catalog.by_id(interest.key.topic_id)
        return known.name if known else None

    async def read(self, max_bytes: int) -> None:
        """Read what there is: up to so many bytes, or one batch if it is larger; nothing for 0."""
        session = self._session
        self.fetched, self._size, self._is_final = [], 0, not session.interests
        looked_at = list(session.interests.values() if self.is_full else session.changed)
        try:
            async for interest in self._broker.time_slices.each(looked_at):
                if self.is_superseded:
                    break
                one, goes_on = await self._read_one(
                    interest, max_bytes - self._size, at_least_one=self._size == 0 and max_bytes > 0
                )
                self._size += sum(map(len, one.records)) if one.records else 0
                self._is_final = self._is_final or one.error is not ErrorCode.NONE
                if goes_on:
                    session.changed[interest] = None
                if interest.tell(one) or self.is_full:
                    self.fetched.append((interest, one))
        except BaseException:
            session.untold(looked_at)
            raise
        if self.is_superseded:
            session.untold(looked_at)
            return
        for interest, one in self.fetched:
            if one.records:
                # Last in the next answer: one with much to read does not hold back others.
                session.changed.pop(interest, None)
                session.changed[interest] = None

    async def _read_one(
        self, interest: Interest, limit: int, *, at_least_one: bool
    ) -> tuple[FetchedPartition, bool]:
        """Read one partition; return what to tell of it, and whether to look at it again."""
        session, index = self._session, interest.key.number
        # With no await before the plan is made: a later change calls it again.
        session.changed.pop(interest, None)
        if not interest.listening:  # else it would have been interrupted by a deletion
            interest.resolve(self._find(interest))
            if not session.closed:
                interest.listen(session)
        partition = interest.partition
        if partition is None:
            return self._refused(interest, self._missing(interest)), True
        error = interest.epoch_error() or self._owner_error(interest)
        if error is not ErrorCode.NONE:
            return self._refused(interest, error), True
        limit = min(interest.max_bytes, limit)
        try:
            found = await partition.read(
                interest.offset,
                limit,
                session.isolation,
                at_least_one=at_least_one,
                to_send=self._version >= ZSTD_FROM,
            )
        except (CorruptionError, StorageError):
            return FetchedPartition(index, ErrorCode.KAFKA_STORAGE_ERROR), True
        if self._version < ZSTD_FROM and _holds_zstd(found.parts):
            return FetchedPartition(index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), True
        if found.error in _OF_ANOTHER_LEADER:
            return self._refused(interest, found.error), True
        is_empty = found.plan is not None and found.plan.is_empty
        was_read = not is_empty and (limit > 0 or at_least_one)
        if was_read and self._size + found.size < self._min_bytes:
            interest.correct(found)
        aborted: list[tuple[int, int]] | None = None
        if session.isolation is Isolation.TRANSACTIONAL and found.error is ErrorCode.NONE:
            aborted = [(entry.producer_id, entry.first_offset) for entry in found.aborted]
        one = FetchedPartition(
            index,
            found.error,
            found.high_watermark,
            found.last_stable_offset,
            found.log_start_offset,
            aborted,
            found.parts,
        )
        return one, not is_empty

    def _missing(self, interest: Interest) -> ErrorCode:
        name = self._name_of(interest)
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return missing(self._broker, name, interest.key.number)

    def _refused(self, interest: Interest, error: ErrorCode) -> FetchedPartition:
        """Return an error; it names the leader if that is another broker (KIP-951)."""
        index, leader = interest.key.number, None
        if error in _OF_ANOTHER_LEADER and (name := self._name_of(interest)) is not None:
            leader = current_leader(self._broker, name, index)
        return FetchedPartition(index, error, current_leader=leader)

    def is_enough(self, deadline: Instant) -> bool:
        """Whether to answer with what was read.

        Less than ``min_bytes`` may have been found, because the index is sparse. Then the fetch
        waits for what is missing by the exact count.
        """
        if self._is_final or self._size >= self._min_bytes:
            return True
        session = self._session
        if session.take_interruption() and not session.closed:
            return False  # a segment was deleted or replaced before it was read, perhaps
        for interest in session.changed:
            session.measure(interest)
        return session.has_enough or asyncio.get_running_loop().time() >= deadline

    def write(self) -> list[Buffer]:
        """Return the response's body."""
        topics: dict[tuple[str | None, TopicId | None], list[FetchedPartition]] = {}
        for interest, fetched in self.fetched:
            topics.setdefault(interest.key[:2], []).append(fetched)
        endpoints: Sequence[NodeEndpoint] = ()
        if self._broker.placement is not None:
            leaders = (fetched.current_leader for _, fetched in self.fetched)
            endpoints = endpoints_of(self._broker, leaders)
        return write_fetch_response(
            self._version,
            ErrorCode.NONE,
            self._session.id,
            [FetchedTopic(*name, partitions) for name, partitions in topics.items()],
            endpoints=endpoints,
        )


def _holds_zstd(parts: Sequence[memoryview]) -> bool:
    """Whether the data begins with a zstd batch, which old clients cannot read."""
    return bool(parts) and read_header(parts[0]).compression is Compression.ZSTD
