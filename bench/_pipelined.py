"""A client that costs almost nothing: frames made beforehand, written to plain sockets.

Only so can one broker be kept busy on a machine that the client shares with it.
"""

import socket
import time
from struct import Struct

from bench._rigs import TOPIC
from fencelog.types import ProducerEpoch, ProducerId, Sequence, TimestampMs
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.batch import PLAIN_HEADER, seal
from fencelog.wire.framing import frame
from fencelog.wire.headers import RequestHeader, request_header
from fencelog.wire.hot import read_produce_response, write_produce_request
from fencelog.wire.hot.append_tags import NO_TAGS, AppendTags

VERSION = 9
_SIZE = Struct(">i")
_RECORD_HEAD = b"\0\0\0\1"  # attributes, timestamp delta, offset delta, no key


def one_record_frames(
    value: bytes, producer_id: int, count: int, topic: str = TOPIC
) -> list[bytes]:
    """Return produce requests of one record each, idempotent, in sequence."""
    record = one_record(value)
    return [produce_frame(producer_id, number, 1, record, topic) for number in range(count)]


def one_record(value: bytes) -> bytes:
    """Return an encoded record without a key."""
    assert len(value) < 64 - 10, "lengths are written as one byte"
    inner = _RECORD_HEAD + bytes([2 * len(value)]) + value + b"\0"
    return bytes([2 * len(inner)]) + inner


def produce_frame(
    producer_id: int,
    sequence: int,
    count: int,
    records: bytes,
    topic: str = TOPIC,
    tags: AppendTags | None = None,
) -> bytes:
    """Return one produce request with an idempotent batch of ``count`` encoded records."""
    now = TimestampMs(time.time_ns() // 1_000_000)
    header = PLAIN_HEADER._replace(
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(0),
        base_sequence=Sequence(sequence),
        base_timestamp=now,
        max_timestamp=now,
        last_offset_delta=count - 1,
        record_count=count,
    )
    head = request_header(RequestHeader(ApiKey.PRODUCE, VERSION, sequence, "bench"))
    body = write_produce_request(
        VERSION,
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topics=[(topic, [(0, seal(header, records))])],
        tags=NO_TAGS if tags is None else {(topic, 0): tags},
    )
    return b"".join(frame([head, *body]))


def connect(address: str) -> socket.socket:
    """Open a connection without delay."""
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Replies:
    """Counts the answers on one connection; the last one is looked at."""

    def __init__(self, connection: socket.socket) -> None:
        """Nothing was read yet."""
        self.connection = connection
        self._rest = b""
        self.last = b""

    def take(self, at_least: int) -> int:
        """Wait for so many answers, and return how many came."""
        count = 0
        while count < at_least:
            received = self.connection.recv(1 << 18)
            assert received, "the broker closed the connection"
            data = self._rest + received
            position = 0
            while len(data) - position >= 4:
                (size,) = _SIZE.unpack_from(data, position)
                if len(data) - position - 4 < size:
                    break
                self.last = data[position + 4 : position + 4 + size]
                position += 4 + size
                count += 1
            self._rest = data[position:]
        return count

    def check_last(self) -> None:
        """Raise AssertionError where the last answer was no success."""
        topics = read_produce_response(memoryview(self.last)[5:], VERSION).topics
        result = topics[0][1][0]
        assert result.error == 0, result


def drive(
    connection: socket.socket, frames: list[bytes], depth: int, *, writes: bool = True
) -> float:
    """Send all, never more than ``depth`` unanswered; return the seconds until the last answer.

    ``writes``: whether they are produce requests, so that the last answer can be looked at.
    """
    replies = Replies(connection)
    start = time.perf_counter()
    open_requests = position = 0
    while position < len(frames) or open_requests:
        if position < len(frames) and open_requests <= depth // 2:
            burst = frames[position : position + depth - open_requests]
            connection.sendall(b"".join(burst))
            position += len(burst)
            open_requests += len(burst)
        open_requests -= replies.take(1)
    seconds = time.perf_counter() - start
    if writes:
        replies.check_last()
    return seconds
