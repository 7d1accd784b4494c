"""Readers that cost almost nothing: they discard what they get, or wait at the end of the log."""

import selectors
import socket
import time
from struct import Struct

from bench._pipelined import connect
from bench._rigs import TOPIC
from fencelog.wire import hot
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.batch import iterate
from fencelog.wire.framing import frame
from fencelog.wire.headers import RequestHeader, read_response_header, request_header

VERSION = 11
_SIZE = Struct(">i")
ANSWER_BYTES_MAX = 16 << 20
CONSUMERS = 100
WAIT_MS = 500


def fetch_frame(offset: int, partition_bytes: int, max_wait_ms: int) -> bytes:
    """Return a request like librdkafka's: no session, one partition, read_committed."""
    asked = hot.FetchPartition(0, -1, offset, -1, partition_bytes)
    request = hot.FetchRequest(
        -1, max_wait_ms, 1, 50 << 20, 1, 0, -1, [hot.FetchTopic(TOPIC, None, [asked])]
    )
    head = request_header(RequestHeader(ApiKey.FETCH, VERSION, 1, "bench"))
    return b"".join(frame([head, hot.write_fetch_request(VERSION, request)]))


class Discarding:
    """Reads a partition and looks only at the headers of the batches."""

    def __init__(self, address: str, partition_bytes: int) -> None:
        """Connect; ``partition_bytes``: max.partition.fetch.bytes."""
        self._connection = connect(address)
        self._partition_bytes = partition_bytes
        self._space = memoryview(bytearray(ANSWER_BYTES_MAX))

    def read(self, count: int, offset: int = 0) -> float:
        """Read so many records from an offset on; return seconds."""
        start = time.perf_counter()
        end = offset + count
        while offset < end:
            self._connection.sendall(fetch_frame(offset, self._partition_bytes, WAIT_MS))
            for header, _ in iterate(self._records()):
                offset = header.next_offset
        return time.perf_counter() - start

    def _records(self) -> memoryview:
        got, size = 0, _SIZE.size
        while got < size:
            received = self._connection.recv_into(self._space[got:])
            assert received, "the broker closed the connection"
            got += received
            if got >= _SIZE.size:
                size = _SIZE.size + _SIZE.unpack_from(self._space)[0]
        _, body = read_response_header(self._space[_SIZE.size : size], flexible=False)
        fetched = hot.read_fetch_response(body, VERSION).topics[0].partitions[0]
        assert fetched.error == 0, fetched
        return memoryview(fetched.records[0] if fetched.records else b"")

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


class Idle:
    """Consumers at the end of a partition: each asks again as soon as it has its empty answer."""

    def __init__(self, address: str, offset: int) -> None:
        """Connect, one after the other: they do not wait in step."""
        self._selector = selectors.DefaultSelector()
        self._asked = fetch_frame(offset, 1 << 20, WAIT_MS)
        for _ in range(CONSUMERS):
            connection = connect(address)
            self._selector.register(connection, selectors.EVENT_READ)
            connection.sendall(self._asked)
            self.wait(WAIT_MS / 1000 / CONSUMERS)

    def wait(self, seconds: float) -> int:
        """Go on for so long; return how many answers came."""
        answers, end = 0, time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            for key, _ in self._selector.select(left):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                assert 0 < len(connection.recv(4096)) < 4096
                connection.sendall(self._asked)
                answers += 1
        return answers

    def close(self) -> None:
        """Hang up."""
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()
