"""A proxy between clients and a broker that knows frames: it can lose an answer or hold a request.

The broker must advertise the proxy's address, or clients go around it:
``BrokerProcess(…, arguments=…)`` with ``advertised.listeners`` does that.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from tests.support.closing import Closing


class Action(Enum):
    """What becomes of a request."""

    FORWARD = auto()
    LOSE_ANSWER = auto()  # the broker gets it; the connection breaks when it answers
    HOLD = auto()  # kept until ``release``; the client waits


@dataclass(frozen=True)
class Request:
    """The head of a request frame."""

    api_key: int
    api_version: int
    correlation_id: int
    frame: bytes


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """Read so many bytes; ConnectionError at the end of the stream."""
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionError("end of stream")
        data += piece
    return bytes(data)


def read_frame(connection: socket.socket) -> bytes:
    """Read one frame, its size prefix included."""
    prefix = read_exactly(connection, 4)
    return prefix + read_exactly(connection, struct.unpack(">i", prefix)[0])


class FrameProxy(Closing):
    """Listens on a free port; ``upstream`` may be set after it has started."""

    def __init__(self, decide: Callable[[Request], Action]) -> None:
        """Listen; every request is shown to ``decide``."""
        self.decide = decide
        self.upstream: tuple[str, int] | None = None
        self.held: list[tuple[socket.socket, Request]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def address(self) -> str:
        """Where clients connect to."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def release(self) -> None:
        """Send on what was held, each on its own old connection."""
        held, self.held = self.held, []
        for upstream, request in held:
            upstream.sendall(request.frame)

    def cut(self) -> None:
        """Break every connection; new ones are let through."""
        for each in self._sockets[1:]:
            _break(each)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            assert self.upstream is not None
            try:
                upstream = socket.create_connection(self.upstream)
            except OSError:
                client.close()
                continue
            self._sockets += [client, upstream]
            lost: set[int] = set()
            self._start(self._requests, client, upstream, lost)
            self._start(self._answers, client, upstream, lost)

    def _requests(self, client: socket.socket, upstream: socket.socket, lost: set[int]) -> None:
        try:
            while True:
                frame = read_frame(client)
                request = Request(*struct.unpack_from(">hhi", frame, 4), frame)
                match self.decide(request):
                    case Action.HOLD:
                        self.held.append((upstream, request))
                    case Action.LOSE_ANSWER:
                        lost.add(request.correlation_id)
                        upstream.sendall(frame)
                    case Action.FORWARD:
                        upstream.sendall(frame)
        except OSError:
            # A held request outlives its client: that is what a delayed message is.
            if not any(where is upstream for where, _ in self.held):
                _break(upstream)

    def _answers(self, client: socket.socket, upstream: socket.socket, lost: set[int]) -> None:
        try:
            while True:
                frame = read_frame(upstream)
                if struct.unpack_from(">i", frame, 4)[0] in lost:
                    break
                client.sendall(frame)
        except OSError:
            pass
        _break(client)
        _break(upstream)

    def close(self) -> None:
        """Break every connection and stop."""
        for each in self._sockets:
            _break(each)
        for thread in self._threads:
            thread.join(5)
        for each in self._sockets:
            each.close()


def _break(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
