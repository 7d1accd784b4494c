"""A broker that says what a test wants it to say, over a real socket."""

import contextlib
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable

from fencelog.coordination.streams.model import Stream
from fencelog.errors import ErrorCode
from fencelog.wire.api_versions import SUPPORTED, ApiKey
from fencelog.wire.framing import frame
from fencelog.wire.headers import read_request_header, response_header, response_is_flexible
from fencelog.wire.hot import (
    PartitionResult,
    ProduceRequest,
    read_produce_request,
    write_produce_response,
)
from fencelog.wire.message import Message
from fencelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from fencelog.wire.messages.describe_streams import (
    DescribeStreamsRequest,
    DescribeStreamsResponse,
    StreamDescription,
    StreamSegmentDescription,
)
from fencelog.wire.messages.find_coordinator import FindCoordinatorResponse
from fencelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.support.closing import Closing

Answer = Message | bytes | None
"""A message, a raw body, or None: the connection breaks instead."""


def described(name: str, topic_id: bytes, stream: Stream | None) -> StreamDescription:
    """What a broker says of a topic that is this stream, or none."""
    return StreamDescription(
        name=name,
        topic_id=topic_id,
        segments=[
            StreamSegmentDescription(
                index=each.index,
                low=each.low,
                high=each.high,
                state=each.state.value,
                predecessors=list(each.predecessors),
                end_offset=each.end,
            )
            for each in (stream.segments if stream else ())
        ],
    )


class FakeBroker(Closing):
    """Topic ``t`` with one partition; answers from a script, and then sensibly."""

    def __init__(self) -> None:
        """Listen on a free port."""
        self.script: dict[int, list[Callable[[int, memoryview], Answer]]] = defaultdict(list)
        self.asked: list[int] = []
        self.conversations: list[list[int]] = []
        self.produced: list[ProduceRequest] = []
        self.topics = {"t": 1}
        self.streams: dict[str, Stream] = {}
        """Of the topics, those that are streams."""
        self.topic_ids: dict[str, bytes] = {}
        self._stored = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        """To bootstrap from."""
        return f"127.0.0.1:{self.port}"

    def next(self, api_key: ApiKey, *answers: Answer) -> None:
        """Give these answers, in this order, before the sensible ones."""
        self.script[api_key] += [lambda _version, _body, answer=a: answer for a in answers]

    def next_produce(self, *errors: ErrorCode | None) -> None:
        """Refuse the next writes with these errors; None breaks the connection after storing."""
        for error in errors:
            self.script[ApiKey.PRODUCE].append(
                lambda version, body, error=error: self._produce(version, body, error)
            )

    def close(self) -> None:
        """Close every socket and wait for the threads."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        asked: list[int] = []
        self.conversations.append(asked)
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            while prefix := stream.read(4):
                header, body = read_request_header(stream.read(struct.unpack(">i", prefix)[0]))
                self.asked.append(header.api_key)
                asked.append(header.api_key)
                answer = self._answer(header.api_key, header.api_version, body)
                if answer is None:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                raw = answer.write(header.api_version) if isinstance(answer, Message) else answer
                head = response_header(
                    header.correlation_id,
                    response_is_flexible(header.api_key, header.api_version),
                )
                connection.sendall(b"".join(frame([head, raw])))

    def _answer(self, api_key: int, version: int, body: memoryview) -> Answer:
        if self.script[api_key]:
            return self.script[api_key].pop(0)(version, body)
        match api_key:
            case ApiKey.API_VERSIONS:
                return ApiVersionsResponse(
                    api_keys=[
                        ApiVersion(api_key=key, min_version=low, max_version=high)
                        for key, (low, high) in SUPPORTED.items()
                    ]
                )
            case ApiKey.METADATA:
                return self._metadata()
            case ApiKey.FIND_COORDINATOR:
                return FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=self.port)
            case ApiKey.DESCRIBE_STREAMS:
                asked = DescribeStreamsRequest.read(body, version)
                return DescribeStreamsResponse(
                    streams=[self._described(name) for name in asked.names or self.streams]
                )
            case ApiKey.PRODUCE:
                return self._produce(version, body, ErrorCode.NONE)
            case _:
                raise AssertionError(f"no answer to request {api_key} was thought of")

    def _metadata(self) -> MetadataResponse:
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)],
            cluster_id="fake",
            controller_id=1,
            topics=[
                MetadataResponseTopic(
                    name=name,
                    topic_id=self._topic_id(name),
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=n, leader_id=1, replica_nodes=[1], isr_nodes=[1]
                        )
                        for n in range(count)
                    ],
                )
                for name, count in self.topics.items()
            ],
        )

    def _described(self, name: str) -> StreamDescription:
        return described(name, self._topic_id(name), self.streams.get(name))

    def _topic_id(self, name: str) -> bytes:
        return self.topic_ids.get(name, bytes(16))

    def _produce(self, version: int, body: memoryview, error: ErrorCode | None) -> Answer:
        request = read_produce_request(body, version)
        self.produced.append(request)
        if error is None:
            return None
        offset = self._stored if error is ErrorCode.NONE else -1
        self._stored += error is ErrorCode.NONE
        results = [
            (topic, [PartitionResult(partition, error, offset) for partition, _ in partitions])
            for topic, partitions in request.topics
        ]
        return write_produce_response(version, results)
