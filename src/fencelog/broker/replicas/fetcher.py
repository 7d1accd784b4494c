"""The stream from one leader to this broker: fetches, appends and acknowledges.

One request waits at the leader for news. A second one is sent only to acknowledge what has become
durable meanwhile, which ends the wait of the first. Who knows that the leader has more asks for it
before what came is written. What concerns a single partition never stops the stream: it is tried
again after a while, or handed to the owner of the replicas.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from fencelog.broker.network.limited_log import LimitedLog
from fencelog.broker.network.time_slices import ITEMS_PER_SLICE, TimeSlices
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.replicas.alarm import Alarm
from fencelog.broker.replicas.following import Followed
from fencelog.broker.replicas.led import Key
from fencelog.errors import RequestError, WireError
from fencelog.log.values import EpochStart
from fencelog.replication.follower import (
    Again,
    Append,
    CopySnapshot,
    Nothing,
    PartitionAnswer,
    Refuse,
    Retry,
    Truncate,
    decide,
)
from fencelog.replication.session import FollowerSession
from fencelog.rpc.connection import Connection
from fencelog.types import Instant, LeaderEpoch, NodeId, Offset, TopicId
from fencelog.wire.messages.replica_fetch import (
    FetchedReplica,
    ForgottenReplica,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPosition,
)
from fencelog.wire.primitives import REQUEST_ITEMS_MAX, Reader, error_code

log = logging.getLogger(__name__)

MAX_WAIT_MS = 500
PARTITION_MAX_BYTES = 3 * 1024 * 1024
MAX_BYTES = PARTITION_MAX_BYTES + 512 * 1024
"""More than for one partition, so that one that is behind leaves room for the others.

Less than the largest block of memory that a process keeps when it is freed (4 MiB).
"""
POSITIONS_MAX = 500
"""Positions in one request: the leader takes them in one step."""
UNFLUSHED_MAX = 32 * 1024 * 1024
"""Bytes that are appended and not durable above which nothing more is fetched."""
RETRY_S = 0.2
"""Between two tries of a connection, and of a partition."""
RETRIES_UNTOLD = 5
"""So often a leader may not know of its leadership yet before that is worth a warning."""
SILENCE_S = 10.0
"""After which time a leader that should have answered is given up, beside the wait."""

Connect = Callable[[NodeId], Awaitable[Connection]]
"""Returns a proven connection to a broker; raises RequestError if there is none."""


class Replicas(Protocol):
    """The owner of the replicas: carries out what a stream does not.

    For all but ``begin_at`` the partition is followed no more, until it is followed anew.
    """

    def truncate(self, key: Key, leader_epoch: LeaderEpoch, offset: Offset) -> None:
        """Cut the log at the fork."""
        ...

    def begin_anew(self, key: Key, leader_epoch: LeaderEpoch) -> None:
        """Begin where the leader's log begins, with its snapshot."""
        ...

    def begin_at(self, partition: Partition, log_start: Offset) -> None:
        """Raise the log start to the leader's, as far as it is committed here (D4)."""
        ...

    def take_offline(self, key: Key, reason: str) -> None:
        """The logs contradict each other: follow nobody, and say why."""
        ...


class Fetcher:
    """Follows partitions that one broker leads."""

    def __init__(
        self, leader: NodeId, connect: Connect, replicas: Replicas, time_slices: TimeSlices
    ) -> None:
        """Follow nothing; ``run`` connects."""
        self.leader = leader
        self._connect = connect
        self._replicas = replicas
        self._time_slices = time_slices
        self._session: FollowerSession[Key] = FollowerSession()
        self._followed: dict[Key, Followed] = {}
        self._answers: deque[asyncio.Future[memoryview]] = deque()
        self._woken: asyncio.Future[None] | None = None
        self._problems = LimitedLog(log)
        self.unflushed_bytes = 0

    def __len__(self) -> int:
        """Return the number of partitions that are followed."""
        return len(self._followed)

    def follow(self, key: Key, partition: Partition, leader_epoch: LeaderEpoch) -> None:
        """Follow a partition in this epoch from now on."""
        self.forget(key)
        followed = self._followed[key] = Followed(key, partition, leader_epoch, self)
        self.moved(followed)

    def forget(self, key: Key) -> None:
        """Follow a partition no more; harmless for one that is not followed."""
        followed = self._followed.pop(key, None)
        if followed is not None:
            followed.close()
            self._session.forget(key)
            self._wake()

    def close(self) -> None:
        """Follow nothing any more."""
        for key in list(self._followed):
            self.forget(key)

    # -- called by followed partitions -----------------------------------------------------------

    def follows(self, followed: Followed) -> bool:
        """Whether this is still how its partition is followed."""
        return self._followed.get(followed.key) is followed

    def moved(self, followed: Followed) -> None:
        """Begin where the leader's log does, and say where this one is, if that is news."""
        if self.follows(followed):
            if followed.may_begin_later:
                self._replicas.begin_at(followed.partition, followed.leaders_start)
            self._session.follow(followed.key, followed.position)
            if self._session.has_news:
                self._wake()

    def failed(self, followed: Followed) -> None:
        """Nothing can be appended to it any more."""
        if self.follows(followed):
            self.forget(followed.key)

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    # -- the stream ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch until cancelled, over one connection after the other."""
        while True:
            try:
                connection = await self._connect(self.leader)
                self._session.restart()
                await self._fetch(connection)
            except (RequestError, WireError) as error:
                self._warn("stream", "replica fetches from broker %d: %s", self.leader, error)
            finally:
                for answer in self._answers:
                    if not answer.cancel() and not answer.cancelled():
                        answer.exception()  # nobody asks for it any more
                self._answers.clear()
            await asyncio.sleep(RETRY_S)

    async def _fetch(self, connection: Connection) -> None:
        """Fetch over this connection until it fails. Raises RequestError and WireError."""
        answers, loop = self._answers, asyncio.get_running_loop()
        wait_s = MAX_WAIT_MS / 1000 + SILENCE_S
        reason = f"no answer to a replica fetch within {wait_s:g} s"
        silence = Alarm(lambda: connection.close(reason))
        try:
            while True:
                if answers and answers[0].done():
                    silence.clear()
                    if not await self._take(answers.popleft().result()):
                        # What was appended is written in the next iterations: one request tells
                        # it all.
                        await asyncio.sleep(0)
                elif self._may_ask():
                    answers.append(self._ask(connection))
                else:
                    if answers:
                        silence.set(loop.time() + wait_s)
                    await self._sleep()
        except WireError as error:
            connection.close(f"malformed response: {error}")
            raise
        finally:
            silence.close()
            # The connection is the session: an answer that comes late is for these positions, and
            # the next fetcher, which does not know of it, would miss what it tells.
            connection.close("the replica fetches over it have ended")

    def _may_ask(self) -> bool:
        if len(self._answers) > 1 or not self._followed:
            return False
        if self.unflushed_bytes > UNFLUSHED_MAX:
            return False
        return self._session.has_news or not self._answers

    def _ask(self, connection: Connection) -> "asyncio.Future[memoryview]":
        news = self._session.take(POSITIONS_MAX)
        request = ReplicaFetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            max_bytes=MAX_BYTES,
            partition_max_bytes=PARTITION_MAX_BYTES,
            positions=[
                ReplicaPosition(
                    topic_id=key[0],
                    partition=key[1],
                    leader_epoch=position.leader_epoch,
                    fetch_offset=position.fetch_offset,
                    last_epoch=position.last_epoch,
                    durable_end=position.durable_end,
                    log_start=position.log_start,
                )
                for key, position in news.positions
            ],
            forgotten=[
                ForgottenReplica(topic_id=key[0], partition=key[1]) for key in news.forgotten
            ],
        )
        answer = connection.start(request.API_KEY, 0, [request.write(0)])
        answer.add_done_callback(lambda _: self._wake())
        return answer

    async def _sleep(self) -> None:
        """Wait for an answer or for news."""
        self._woken = asyncio.get_running_loop().create_future()
        try:
            await self._woken
        finally:
            self._woken = None

    # -- answers ---------------------------------------------------------------------------------

    async def _take(self, body: memoryview) -> bool:
        """Take an answer; return whether its leader has committed more than it sent.

        Raises WireError if it is malformed.
        """
        reader = Reader(body, 0, REQUEST_ITEMS_MAX)
        message = ReplicaFetchResponse.read_from(reader, 0)
        if message.error_code:
            raise RequestError(error_code(message.error_code), message.error_message or "")
        fetched = [(each, reader.view(each.records_size)) for each in message.partitions]
        reader.expect_end()
        is_behind = False
        for number, (one, records) in enumerate(fetched, 1):
            followed = self._followed.get((TopicId(one.topic_id), one.partition))
            if followed is not None:
                await self._take_one(followed, _answer(one), records)
                is_behind |= followed.partition.log.log_end_offset < one.high_watermark
            if number % ITEMS_PER_SLICE == 0:
                await self._time_slices.next()
        return is_behind

    async def _take_one(
        self, followed: Followed, answer: PartitionAnswer, records: memoryview
    ) -> None:
        key = followed.key
        match decide(followed.local_end, answer):
            case Append(high_watermark, log_start):
                refused = await followed.append(records, self._time_slices)
                if not self.follows(followed):
                    return  # it was given up between two time slices
                if refused is not None:
                    self._try_again(followed, refused)
                    return
                followed.retries = 0
                followed.leaders_start = log_start
                followed.partition.advance(high_watermark)
            case Truncate(offset):
                self.forget(key)
                self._replicas.truncate(key, followed.leader_epoch, offset)
            case CopySnapshot():
                self.forget(key)
                self._replicas.begin_anew(key, followed.leader_epoch)
            case Refuse(reason):
                self.forget(key)
                self._replicas.take_offline(key, reason)
            case Retry(reason, is_usual):
                self._try_again(followed, reason, is_usual=is_usual)
            case Again():
                self._session.again(key)
            case Nothing():
                pass

    def _try_again(self, followed: Followed, reason: str, *, is_usual: bool = False) -> None:
        """Ask for the same offset once more, after a while. What ``is_usual`` may come first."""
        followed.retries += 1
        if not is_usual or followed.retries > RETRIES_UNTOLD:
            self._warn(
                "partition",
                "%s: broker %d, epoch %d: %s",
                followed.partition.name,
                self.leader,
                followed.leader_epoch,
                reason,
            )
        asyncio.get_running_loop().call_later(RETRY_S, self._again, followed)

    def _warn(self, kind: str, message: str, *arguments: object) -> None:
        now = Instant(asyncio.get_running_loop().time())
        self._problems.warning(now, kind, message, *arguments)

    def _again(self, followed: Followed) -> None:
        if self.follows(followed):
            self._session.again(followed.key)
            self._wake()


def _answer(one: FetchedReplica) -> PartitionAnswer:
    diverging = None
    if one.diverging_end >= 0:
        diverging = EpochStart(one.diverging_epoch, Offset(one.diverging_end))
    return PartitionAnswer(
        error_code(one.error_code),
        one.leader_epoch,
        Offset(one.fetch_offset),
        Offset(one.high_watermark),
        Offset(one.log_start),
        diverging,
    )
