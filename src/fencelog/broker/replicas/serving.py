"""Replica fetches, answered by the leader of their partitions: one stream per follower.

A request says where the follower is; that counts at once. Its answer waits for news, at most
``max_wait_ms``, and the next request on the connection ends the wait, because it brings
acknowledgements: so at most one request waits. What is sent is everything that is written here,
durable or not; watermarks go along, and alone only now and then.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from fencelog.broker.network.response_budget import QueuedResponses
from fencelog.broker.network.time_slices import ITEMS_PER_SLICE, TimeSlices
from fencelog.broker.partitions.reading import Fetched
from fencelog.broker.replicas.alarm import Alarm
from fencelog.broker.replicas.led import Key, Led, LedPartitions
from fencelog.errors import CorruptionError, ErrorCode, StorageError
from fencelog.log.values import EpochStart, Isolation, ReadPlan
from fencelog.replication.follower import continues, differs, first_offset
from fencelog.replication.session import LeaderSession, Position, Watermarks
from fencelog.types import Buffer, Instant, LeaderEpoch, NodeId, Offset, TopicId
from fencelog.wire.batch import BatchHeader, read_header
from fencelog.wire.messages.replica_fetch import (
    FetchedReplica,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)
from fencelog.wire.messages.replica_snapshot import (
    ReplicaSnapshotRequest,
    ReplicaSnapshotResponse,
    SnapshotEpoch,
)

MARKS_S = 0.5
"""How often watermarks are told without records."""
MEASURED_MAX = 100
"""Partitions whose sizes are added up to say what an answer needs; for more it is the limit."""
NO_OFFSET = Offset(-1)
Settle = Callable[[list[Buffer]], None]


class _Asked(NamedTuple):
    """A request that is not answered yet."""

    deadline: Instant
    max_bytes: int
    partition_max_bytes: int
    settle: Settle


class _Interest:
    """Listens to one partition for one stream."""

    __slots__ = ("_key", "_stream", "led")

    def __init__(self, stream: "Stream", key: Key, led: Led) -> None:
        self._stream = stream
        self._key = key
        self.led = led

    def advanced(self) -> bool:
        """Something was written, or the high watermark has moved."""
        self._stream.advanced(self._key, self.led.partition.log.log_end_offset)
        return True

    def interrupted(self) -> None:
        """The partition is another one now, or its files are: look again."""
        self._stream.interrupted(self._key)


class Stream:
    """The stream to one follower, over one connection."""

    def __init__(
        self,
        follower: NodeId,
        led: LedPartitions,
        responses: QueuedResponses,
        time_slices: TimeSlices,
    ) -> None:
        """Know nothing of the follower; ``run`` answers."""
        self.follower = follower
        self._led = led
        self._responses = responses
        self._time_slices = time_slices
        self._session: LeaderSession[Key] = LeaderSession()
        self._interests: dict[Key, _Interest] = {}
        self._asked: deque[_Asked] = deque()
        self._woken: asyncio.Future[None] | None = None
        self._alarm = Alarm(self._wake)
        self._marks_told = 0.0

    # -- what comes in -------------------------------------------------------------------------

    def ask(self, message: ReplicaFetchRequest, settle: Settle) -> None:
        """Take a request: its positions count now, its answer is given to ``settle`` later."""
        loop = asyncio.get_running_loop()
        for each in message.forgotten:
            self._forget((TopicId(each.topic_id), each.partition))
        for one in message.positions:
            self._moved(
                (TopicId(one.topic_id), one.partition),
                Position(
                    LeaderEpoch(one.leader_epoch),
                    Offset(one.fetch_offset),
                    one.last_epoch,
                    Offset(one.durable_end),
                    Offset(one.log_start),
                ),
            )
        wait_s = max(message.max_wait_ms, 0) / 1000
        self._asked.append(
            _Asked(
                Instant(loop.time() + wait_s),
                max(message.max_bytes, 1),
                max(message.partition_max_bytes, 1),
                settle,
            )
        )
        if len(self._asked) == 1:
            self._alarm.set(self._asked[0].deadline)
        if self._session.ready or len(self._asked) > 1:
            self._wake()

    def _moved(self, key: Key, position: Position) -> None:
        self._session.moved(key, position)
        led = self._led.get(key)
        if led is None or led.progress.leader_epoch != position.leader_epoch:
            return
        self._listen(key, led)
        if _fork(led, position) is None:
            at_end = position.fetch_offset == led.partition.log.log_end_offset
            if at_end and led.partition.failure is None:
                # First: what the acknowledgement changes may have to be looked at.
                self._session.has_all(key)
            led.acknowledged(self.follower, position)
            self._led.acknowledged(key)
            if not led.progress.is_member(self.follower):
                self._led.caught_up(key)

    def _listen(self, key: Key, led: Led) -> None:
        known = self._interests.get(key)
        if known is not None:
            if known.led is led:
                return
            known.led.partition.remove_reader(known)
        interest = self._interests[key] = _Interest(self, key, led)
        led.partition.add_reader(interest)

    def _stop_listening(self, key: Key) -> None:
        interest = self._interests.pop(key, None)
        if interest is not None:
            interest.led.partition.remove_reader(interest)

    def _forget(self, key: Key) -> None:
        self._session.forget(key)
        self._stop_listening(key)
        led = self._led.get(key)
        if led is not None:
            led.progress.disconnected(self.follower)

    def advanced(self, key: Key, log_end: Offset) -> None:
        """A partition has more, or more of it is committed."""
        if self._session.changed(key, log_end):
            self._wake()

    def interrupted(self, key: Key) -> None:
        """A partition has failed, or its log start or its leadership has changed."""
        self._stop_listening(key)
        if self._session.position(key) is not None:
            self._session.ready[key] = None
            self._wake()

    def close(self) -> None:
        """The connection is gone, or a newer one has come: what was said here counts no more."""
        for key in self._session.partitions():
            self._forget(key)

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    # -- what goes out -------------------------------------------------------------------------

    async def run(self) -> None:
        """Answer until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                if not self._asked:
                    await self._sleep()
                    continue
                asked = self._asked[0]
                answer = await self._answer(asked)
                is_over = len(self._asked) > 1 or loop.time() >= asked.deadline
                if answer or is_over:
                    self._asked.popleft()
                    asked.settle(_encoded(answer))
                    self._responses.give_back()
                elif not self._session.ready:
                    await self._sleep()
        finally:
            self._alarm.close()
            self.close()

    async def _sleep(self) -> None:
        if self._asked:
            self._alarm.set(self._asked[0].deadline)
        self._woken = asyncio.get_running_loop().create_future()
        try:
            await self._woken
        finally:
            self._woken = None

    async def _answer(self, asked: _Asked) -> "list[_Fetched]":
        """Return what there is to tell now, the records within the budget for responses."""
        session, loop = self._session, asyncio.get_running_loop()
        keys = list(session.ready)
        if session.stale and loop.time() >= self._marks_told + MARKS_S:
            self._marks_told = loop.time()
            keys += [key for key in session.stale if key not in session.ready]
        if not keys:
            return []
        limit = await self._responses.grant(self._wanted(keys, asked), asked.deadline)
        found: list[_Fetched] = []
        size = 0
        try:
            for number, key in enumerate(keys, 1):
                max_bytes = min(asked.partition_max_bytes, limit - size)
                one = await self._look(key, max_bytes, at_least_one=not size and limit > 0)
                if one is not None:
                    found.append(one)
                    size += one.message.records_size
                if number % ITEMS_PER_SLICE == 0:
                    await self._time_slices.next()
        finally:
            if not found:
                self._responses.give_back()
        return found

    def _wanted(self, keys: list[Key], asked: _Asked) -> int:
        """Return how many bytes an answer for these partitions needs at most."""
        if len(keys) > MEASURED_MAX:
            return asked.max_bytes
        total = 0
        for key in keys:
            position, interest = self._session.position(key), self._interests.get(key)
            if position is not None and interest is not None:
                log = interest.led.partition.log
                start = max(position.fetch_offset, log.log_start_offset)
                plan = log.read(start, asked.partition_max_bytes, Isolation.TAIL)
                if isinstance(plan, ReadPlan) and not plan.is_empty:
                    total += min(plan.end_position - plan.position, asked.partition_max_bytes)
        return max(min(total, asked.max_bytes), 1)

    async def _look(self, key: Key, max_bytes: int, *, at_least_one: bool) -> "_Fetched | None":
        """Return what to tell of one partition; None if that is known."""
        position, led = self._session.look(key), self._led.get(key)
        if position is None:
            return None
        error = _leadership_error(led, position)
        if led is not None and not (error or led.progress.is_replica(self.follower)):
            error = ErrorCode.UNKNOWN_LEADER_EPOCH  # it knows more of the partition, as in Kafka
        fork = None if led is None or error else _fork(led, position)
        if led is None or error or isinstance(fork, ErrorCode):
            told = fork if isinstance(fork, ErrorCode) else error
            return self._failed(key, led, position, told)
        self._listen(key, led)
        if fork is not None:
            return self._told(key, led, position, diverging=fork)
        if not led.progress.has_heard(self.follower):
            # ``close`` knows of partitions with a position only, and this one may never get one.
            self._session.forget(key)
            self._stop_listening(key)
            return _Fetched(_message(key, led, NO_OFFSET), ())
        if not self._session.may_send(key):
            return self._told(key, led, position)
        return await self._read(key, led, position, max_bytes, at_least_one=at_least_one)

    async def _read(
        self, key: Key, led: Led, position: Position, max_bytes: int, *, at_least_one: bool
    ) -> "_Fetched | None":
        log_start = led.partition.log.log_start_offset
        try:
            found = await led.partition.read(
                max(position.fetch_offset, log_start),
                max_bytes,
                Isolation.TAIL,
                at_least_one=at_least_one,
                to_send=True,
            )
        except (CorruptionError, StorageError):
            return self._failed(key, led, position, ErrorCode.KAFKA_STORAGE_ERROR)
        if found.error is not ErrorCode.NONE:
            return self._failed(key, led, position, found.error)
        if not found.parts and found.plan is not None and not found.plan.is_empty:
            self._session.ready[key] = None  # this answer has no room for it
        elif position.fetch_offset < log_start and not continues(position, _first_batch(found)):
            return self._failed(key, led, position, ErrorCode.OFFSET_OUT_OF_RANGE)
        return self._told(key, led, position, parts=tuple(found.parts))

    def _told(
        self,
        key: Key,
        led: Led,
        position: Position,
        *,
        diverging: EpochStart | None = None,
        parts: tuple[memoryview, ...] = (),
    ) -> "_Fetched | None":
        log = led.partition.log
        marks = Watermarks(log.high_watermark, log.log_start_offset)
        ends = bool(parts) or diverging is not None
        if not self._session.answered(key, position, marks, ends_position=ends):
            return None
        message = _message(key, led, position.fetch_offset)
        message.records_size = sum(map(len, parts))
        if diverging is not None:
            message.diverging_epoch, message.diverging_end = diverging
        return _Fetched(message, parts)

    def _failed(
        self, key: Key, led: Led | None, position: Position, error: ErrorCode
    ) -> "_Fetched":
        """Tell an error; the partition is looked at again once its position comes again."""
        self._forget(key)
        message = _message(key, led, position.fetch_offset)
        message.error_code = error
        return _Fetched(message, ())


class Serving:
    """The streams to all followers, and in which life each of them is."""

    def __init__(self, led: LedPartitions, time_slices: TimeSlices) -> None:
        """Serve nobody."""
        self._led = led
        self._time_slices = time_slices
        self._streams: dict[NodeId, tuple[str, Stream]] = {}
        led.listeners.append(self._changed)

    def open(self, follower: NodeId, incarnation: str, responses: QueuedResponses) -> Stream:
        """Begin the stream over a new connection; an older one of the follower ends."""
        known = self._streams.pop(follower, None)
        if known is not None:
            known[1].close()
        stream = Stream(follower, self._led, responses, self._time_slices)
        self._streams[follower] = incarnation, stream
        return stream

    def life_of(self, follower: NodeId) -> str | None:
        """Return the life in which a follower says where it is; None: it has not connected."""
        known = self._streams.get(follower)
        return None if known is None else known[0]

    def _changed(self, key: Key) -> None:
        for _, stream in self._streams.values():
            stream.interrupted(key)


class _Fetched(NamedTuple):
    """One partition of an answer."""

    message: FetchedReplica
    parts: tuple[memoryview, ...]


def _message(key: Key, led: Led | None, fetch_offset: Offset) -> FetchedReplica:
    topic_id, index = key
    log = None if led is None else led.partition.log
    return FetchedReplica(
        topic_id=topic_id,
        partition=index,
        leader_epoch=-1 if led is None else led.progress.leader_epoch,
        fetch_offset=fetch_offset,
        high_watermark=-1 if log is None else log.high_watermark,
        log_start=-1 if log is None else log.log_start_offset,
    )


def _encoded(found: list[_Fetched]) -> list[Buffer]:
    """Return the body of an answer: the message, then all records as they are."""
    message = ReplicaFetchResponse(partitions=[each.message for each in found])
    return [message.write(0), *(part for each in found for part in each.parts)]


def _leadership_error(led: Led | None, position: Position) -> ErrorCode:
    if led is None or led.partition.failure is not None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if position.leader_epoch < led.progress.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if position.leader_epoch > led.progress.leader_epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE


def _fork(led: Led, position: Position) -> EpochStart | ErrorCode | None:
    """Return where the logs differ, or why they cannot be compared; None if they agree so far."""
    log = led.partition.log
    if position.last_epoch >= 0:
        mine = log.end_of_epoch(position.last_epoch)
        if mine is None:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if differs(position.last_epoch, position.fetch_offset, mine):
            return mine
    # What is below the log start is judged where the first batch is read: it counts for nothing.
    is_in_range = 0 <= position.fetch_offset <= log.log_end_offset
    return None if is_in_range else ErrorCode.OFFSET_OUT_OF_RANGE


def _first_batch(found: Fetched) -> BatchHeader | None:
    return read_header(found.parts[0]) if found.parts else None


async def snapshot(led: LedPartitions, message: ReplicaSnapshotRequest) -> ReplicaSnapshotResponse:
    """Return where a new replica begins: the first batch, with the producers there (E4).

    If the log start is raised meanwhile, that batch may be gone; then the follower asks again.
    """
    key = TopicId(message.topic_id), message.partition
    position = Position(LeaderEpoch(message.leader_epoch), NO_OFFSET, -1, NO_OFFSET, NO_OFFSET)
    one = led.get(key)
    error = _leadership_error(one, position)
    if error is not ErrorCode.NONE or one is None:
        return ReplicaSnapshotResponse(error_code=error)
    log = one.partition.log
    log_start = log.log_start_offset
    try:
        found = await one.partition.read(log_start, 1, Isolation.TAIL, to_send=True)
    except (CorruptionError, StorageError):
        return ReplicaSnapshotResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    error = found.error or _leadership_error(led.get(key), position)
    if error is not ErrorCode.NONE:
        return ReplicaSnapshotResponse(error_code=error)
    first = first_offset(log_start, _first_batch(found))
    content, epochs = log.start_snapshot(first)
    return ReplicaSnapshotResponse(
        offset=first,
        snapshot=content,
        leader_epochs=[
            SnapshotEpoch(epoch=each.epoch, start_offset=each.offset) for each in epochs
        ],
    )
