"""One stream and its writers in one loop: a test says when each request arrives and is answered.

The broker is a plain model: it appends as the rules of sequences and seals say (E3 to E5, R2), and
knows nothing of how the client works.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fencelog.client.cluster import Address, Cluster, ClusterOptions, Lane
from fencelog.client.records_buffer import RecordsBuffer, key_hash
from fencelog.client.sender import ProducerOptions, Sender, open_sender
from fencelog.coordination.streams import rules
from fencelog.coordination.streams.model import COVERING, ENDED, SegmentState, Stream
from fencelog.errors import ErrorCode
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import Buffer, Offset, TopicId
from fencelog.wire.api_versions import SUPPORTED, ApiKey
from fencelog.wire.batch import read_header
from fencelog.wire.hot import (
    PartitionResult,
    SealedSegment,
    Successor,
    read_produce_request,
    write_produce_response,
)
from fencelog.wire.message import Message
from fencelog.wire.messages.describe_streams import (
    DescribeStreamsRequest,
    DescribeStreamsResponse,
    StreamDescription,
)
from fencelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from fencelog.wire.messages.find_coordinator import FindCoordinatorResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdResponse
from fencelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from fencelog.wire.records import read_records
from fencelog_sim.world.loop import SimLoop
from tests.unit.client.fake_broker import described

TOPIC = "s"
ID = TopicId(b"s" * 16)
VERSION = 12
DEDUPE = 5
TIMEOUT_S = 20.0

Row = tuple[bytes | None, int]
"""A key, and which of its records it is."""


class Stored(NamedTuple):
    producer: tuple[int, int]
    first: int
    rows: tuple[Row, ...]


@dataclass
class Log:
    """One segment."""

    batches: list[Stored] = field(default_factory=list)
    last: dict[tuple[int, int], int] = field(default_factory=dict)
    recent: dict[tuple[int, int], deque[tuple[int, int, int]]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=DEDUPE))
    )
    end: int = 0
    is_sealed: bool = False

    def append(self, producer: tuple[int, int], first: int, rows: tuple[Row, ...]) -> int:
        """Store a batch; return its offset."""
        offset, self.end = self.end, self.end + len(rows)
        last = first + len(rows) - 1
        self.batches.append(Stored(producer, first, rows))
        self.last[producer] = last
        self.recent[producer].append((first, last, offset))
        return offset


class Request(NamedTuple):
    body: bytes
    answer: "asyncio.Future[memoryview]"


class Line:
    """A connection: what was sent on it waits until the test lets it arrive."""

    address = "fake:1"

    def __init__(self, world: "World") -> None:
        self.versions = {int(key): SUPPORTED[key] for key in ApiKey}
        self.closed = False
        self.waiting: deque[Request] = deque()
        self._unanswered: list[asyncio.Future[memoryview]] = []
        self._world = world

    def close(self, reason: str = "cut") -> None:
        """Cut it: what has not arrived may still do so, later."""
        self.closed = True
        self._world.late.extend(self.waiting)
        self.waiting.clear()
        for answer in self._unanswered:
            if not answer.done():
                answer.set_exception(failure(ErrorCode.NETWORK_EXCEPTION, reason))

    def start(
        self, api_key: int, version: int, body: Sequence[Buffer]
    ) -> "asyncio.Future[memoryview]":
        assert (api_key, version) == (ApiKey.PRODUCE, VERSION)
        if self.closed:
            raise failure(ErrorCode.NETWORK_EXCEPTION, "cut")
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._unanswered.append(answer)
        # Copied: the client may change a batch that it no longer has on its way.
        self.waiting.append(Request(b"".join(body), answer))
        if self._world.is_prompt:
            asyncio.get_running_loop().call_soon(self._world.arrive)
        return answer

    async def answer(self, future: "asyncio.Future[memoryview]", deadline: Deadline) -> memoryview:
        try:
            async with asyncio.timeout(deadline.left_s):
                return await future
        except TimeoutError:
            self.close()
            raise failure(ErrorCode.NETWORK_EXCEPTION, "no answer") from None

    async def call(
        self, api_key: int, version: int, body: Sequence[Buffer], deadline: Deadline
    ) -> memoryview:
        return memoryview(self._world.answer(api_key, version, b"".join(body)).write(version))


class WorldCluster(Cluster):
    """The client's routes, with connections of the world."""

    def __init__(self, world: "World") -> None:
        super().__init__(ClusterOptions(bootstrap_servers="fake:1", request_timeout_s=TIMEOUT_S))
        self._world = world

    async def connection(
        self, address: Address, deadline: Deadline, lane: Lane = "requests"
    ) -> Any:
        if self._world.line.closed:
            self._world.line = Line(self._world)
        return self._world.line


class World:
    """The broker's side. ``is_prompt``: requests arrive and are answered at once."""

    def __init__(self, segments: int = 1) -> None:
        created = rules.created(segments)
        assert isinstance(created, Stream)
        self.stream: Stream | None = created
        self.partitions = 1
        """Of the topic while it is no stream."""
        self.topic_id = ID
        self.is_anew = False
        self.history = [created]
        self.behind = 0
        """So many changes are unknown to the broker that describes the stream."""
        self.logs: dict[int, Log] = defaultdict(Log)
        self.is_prompt = True
        self.line = Line(self)
        self.late: list[Request] = []
        self.refuse: deque[ErrorCode] = deque()
        """Errors for the next writes, instead of looking at them."""
        self.asked: list[int] = []
        self.written: list[tuple[int, ErrorCode]] = []
        self.medians: list[int | None] = []
        self.epoch = 0
        self.sealed_know_duplicates = True
        """As they do; if not, the last sequence that a refusal names says the same."""
        self.aborted: set[tuple[int, int]] = set()
        self.cluster = WorldCluster(self)

    # --- what the test does

    def arrive(self, *, is_answered: bool = True) -> bool:
        """Let the next request of the connection arrive; return whether there was one."""
        if not self.line.waiting:
            return False
        request = self.line.waiting.popleft()
        response = self._produce(request.body)
        if is_answered and not request.answer.done():
            request.answer.set_result(memoryview(response))
        return True

    def arrive_late(self) -> None:
        """Let a request of a connection that was cut arrive after all; nobody hears the answer."""
        if self.late:
            self._produce(self.late.pop(0).body)

    def begin(self, change: Stream | rules.Refused) -> None:
        """Begin a resize, unless it is refused."""
        if isinstance(change, Stream):
            self._change(change)

    def seal(self, index: int) -> None:
        """Append a segment's seal, and let the metadata have it."""
        assert self.stream is not None
        log = self.logs[index]
        assert not log.is_sealed
        log.is_sealed = True
        end, log.end = log.end, log.end + 1
        self._change(rules.sealed(self.stream, index, Offset(end)))

    def split(self, index: int, at: int | None = None) -> None:
        """Split a segment and complete it."""
        assert self.stream is not None
        self.begin(rules.split(self.stream, index, at))
        self.seal(index)

    def merge(self, *indexes: int) -> None:
        """Merge segments and complete it."""
        assert self.stream is not None
        self.begin(rules.merge(self.stream, indexes))
        for index in indexes:
            self.seal(index)

    def create_anew(self, stream: Stream | None, topic_id: bytes = b"n" * 16) -> None:
        """Delete the topic and make it again, as this stream or as none."""
        self.stream, self.topic_id = stream, TopicId(topic_id)
        self.history = [stream] if stream else []
        self.logs.clear()
        self.is_anew = True

    def _change(self, stream: Stream) -> None:
        self.stream = stream
        self.history.append(stream)

    # --- what it answers

    def answer(self, api_key: int, version: int, body: bytes) -> Message:
        self.asked.append(api_key)
        match api_key:
            case ApiKey.METADATA:
                return self._metadata()
            case ApiKey.DESCRIBE_STREAMS:
                names = DescribeStreamsRequest.read(body, version).names or [TOPIC]
                return DescribeStreamsResponse(streams=[self._described(each) for each in names])
            case ApiKey.INIT_PRODUCER_ID:
                return InitProducerIdResponse(producer_id=7, producer_epoch=self.epoch)
            case ApiKey.FIND_COORDINATOR:
                return FindCoordinatorResponse(node_id=1, host="fake", port=1)
            case ApiKey.END_TXN:
                if not EndTxnRequest.read(body, version).committed:
                    self.aborted.add((7, self.epoch))
                self.epoch += 1
                return EndTxnResponse(producer_id=7, producer_epoch=self.epoch)
            case _:
                raise AssertionError(api_key)

    def _described(self, name: str) -> StreamDescription:
        assert name == TOPIC
        known = self.history[max(len(self.history) - 1 - self.behind, 0)] if self.stream else None
        return described(name, self.topic_id, known)

    def _metadata(self) -> MetadataResponse:
        count = len(self.stream.segments) if self.stream else self.partitions
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="fake", port=1)],
            controller_id=1,
            topics=[
                MetadataResponseTopic(
                    name=TOPIC,
                    topic_id=self.topic_id,
                    partitions=[
                        MetadataResponsePartition(partition_index=n, leader_id=1)
                        for n in range(count)
                    ],
                )
            ],
        )

    def _produce(self, body: bytes) -> bytes:
        request = read_produce_request(body, VERSION)
        ((topic, ((index, records),)),) = request.topics
        assert records is not None
        tags = request.tags.get((topic, index))
        self.medians.append(None if tags is None else tags.median_hash)
        is_tagged = tags is not None and tags.median_hash is not None
        if tags is not None and tags.topic_id not in (None, self.topic_id):
            result = PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_ID)
        else:
            result = self._append(index, memoryview(bytes(records)), is_tagged=is_tagged)
        self.written.append((index, result.error))
        return write_produce_response(VERSION, [(topic, [result])])

    def _append(self, index: int, batch: memoryview, *, is_tagged: bool) -> PartitionResult:
        if self.refuse:
            return PartitionResult(index, self.refuse.popleft())
        if self.stream is None:
            if index >= self.partitions:
                return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return self._check_and_append(index, batch, None)
        segment = self.stream.get(index)
        if segment is None:
            return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not is_tagged:
            return PartitionResult(index, ErrorCode.POLICY_VIOLATION)
        refusal = None
        if self.logs[index].is_sealed or segment.state not in COVERING:
            refusal = ErrorCode.RESIZE_IN_PROGRESS
            if segment.state in ENDED:
                refusal = ErrorCode.SEGMENT_SEALED
        return self._check_and_append(index, batch, refusal)

    def _check_and_append(
        self, index: int, batch: memoryview, refusal: ErrorCode | None
    ) -> PartitionResult:
        log, header = self.logs[index], read_header(batch)
        producer = header.producer_id, header.producer_epoch
        first, last = header.base_sequence, header.base_sequence + header.record_count - 1
        is_idempotent = header.producer_id >= 0
        if header.is_transactional and header.producer_epoch < self.epoch:
            return PartitionResult(index, ErrorCode.INVALID_PRODUCER_EPOCH)
        if is_idempotent and (refusal is None or self.sealed_know_duplicates):
            for stored in log.recent[producer]:
                if stored[:2] == (first, last):
                    return PartitionResult(index, ErrorCode.NONE, stored[2])
        if refusal is ErrorCode.SEGMENT_SEALED:
            assert self.stream is not None
            found = self.stream.successors(index)
            named = tuple(Successor(each.index, each.low, each.high) for each in found)
            last_sequence = log.last.get(producer, -1) if is_idempotent else -1
            if self.stream.segments[index].state is SegmentState.DELETED:
                last_sequence = -1  # nothing is known of its producers any more
            sealed = SealedSegment(log.end - 1, last_sequence, named)
            return PartitionResult(index, refusal, sealed=sealed)
        if refusal is not None:
            return PartitionResult(index, refusal)
        may_begin_anywhere = self.is_anew and producer not in log.last  # E5
        if is_idempotent and not may_begin_anywhere and first != log.last.get(producer, -1) + 1:
            return PartitionResult(index, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        rows = tuple((each.key, int(each.value or b"")) for each in read_records(batch))
        return PartitionResult(index, ErrorCode.NONE, log.append(producer, first, rows))

    # --- what it has

    def rows(self, index: int) -> list[Row]:
        """The records of a segment, without those of aborted transactions."""
        return [
            row
            for batch in self.logs[index].batches
            if batch.producer not in self.aborted
            for row in batch.rows
        ]

    def order_of(self, key: bytes) -> list[int]:
        """The records of a key, as a reader sees them who follows its segments."""
        assert self.stream is not None
        hashed = key_hash(key)
        found = []
        for segment in self.stream.segments:
            of_key = [number for each, number in self.rows(segment.index) if each == key]
            assert not of_key or segment.low <= hashed < segment.high, (key, segment)
            found += of_key
        return found


class Writer:
    """A producer of the stream: a buffer, a sender, and what it has sent of each key."""

    def __init__(self, world: World, sender: Sender) -> None:
        self._world = world
        self.sender = sender
        self.buffer = RecordsBuffer(batch_bytes=1 << 20, compression=sender.compression)
        self.sent: dict[bytes | None, list[int]] = defaultdict(list)

    @classmethod
    async def open(cls, world: World, options: ProducerOptions | None = None) -> "Writer":
        return cls(world, await open_sender(world.cluster, options or ProducerOptions()))

    async def add(self, *keys: bytes | None) -> None:
        """Add one record of each key to the buffer."""
        places = (await self._world.cluster.places([TOPIC]))[TOPIC]
        for key in keys:
            number = len(self.sent[key])
            self.sent[key].append(number)
            self.buffer.add(TOPIC, places, key, b"%d" % number, None, (), 0)

    async def queue(self, *keys: bytes | None) -> None:
        """Queue a batch with one record of each key, for each of their segments."""
        await self.add(*keys)
        await self.sender.enqueue(self.buffer.take())


def played(story: Coroutine[Any, Any, None], seed: str = "1") -> None:
    """Run a story of this world, in virtual time; StuckError if it waits for nothing."""
    SimLoop(seed).run(story, limit_s=3600)


def story(told: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make a test of a story of this world."""

    def test() -> None:
        played(told())

    test.__name__, test.__doc__ = told.__name__, told.__doc__
    return test


async def steps(count: int = 30) -> None:
    """Let the client do what it can without an answer or a pause."""
    for _ in range(count):
        await asyncio.sleep(0)
