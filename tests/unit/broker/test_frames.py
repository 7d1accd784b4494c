"""Frames are the same however the socket's reads cut them, and large ones are received in place."""

import asyncio
from unittest.mock import Mock

import pytest

from fencelog.broker.config import BrokerConfig
from fencelog.broker.network.connection import Connection
from fencelog.broker.network.replies import Reply
from fencelog.broker.network.server import SCRATCH_BYTES, Server
from fencelog.wire.framing import SIZE_BYTES, frame
from tests.support.loops import LOOPS, run_on

LARGE = bytes(range(256)) * (SCRATCH_BYTES // 256 + 1)
BODIES = [b"first", b"", LARGE, b"between", LARGE[1:], b"last"]
DATA = b"".join(b"".join(map(bytes, frame([body]))) for body in BODIES)
ENDS = [sum(SIZE_BYTES + len(body) for body in BODIES[:count]) for count in range(7)]

on_every_loop = pytest.mark.parametrize("name", LOOPS)


class Stage:
    """A connection whose socket is the test."""

    def __init__(self) -> None:
        self.begun: list[bytearray] = []
        config = BrokerConfig(data_dir="memory", port=0)
        self.server = Server(config, self._handle, stopwatch=lambda: 0.0)
        self.transport = Mock(spec=asyncio.Transport)
        self.transport.get_extra_info.return_value = None
        self.connection = Connection(self.server, asyncio.get_running_loop())
        self.connection.connection_made(self.transport)

    def _handle(self, request: bytearray, connection: Connection) -> Reply:
        del connection
        self.begun.append(request)
        return None

    def read(self, data: bytes) -> memoryview:
        """Let the loop read this, in as many reads as it takes; return the last one's buffer."""
        into = memoryview(b"")
        while data:
            into = self.connection.get_buffer(-1)
            size = min(len(into), len(data))
            into[:size] = data[:size]
            self.connection.buffer_updated(size)
            data = data[size:]
        return into


@on_every_loop
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("second", [0, 1, 3, 4, 5, 1000])
def test_frames_are_the_same_wherever_reads_end(name: str, end: int, second: int) -> None:
    async def scenario() -> None:
        for first in range(max(end - 6, 0), end + 7):
            stage = Stage()
            stage.read(DATA[:first])
            stage.read(DATA[first : first + second])
            stage.read(DATA[first + second :])
            assert stage.begun == BODIES
            assert not stage.connection.busy
            assert stage.connection.frame_begun is None
            assert stage.server._queued_bytes == 0

    run_on(name, scenario)


@on_every_loop
def test_a_large_frame_is_received_into_the_memory_that_its_handler_gets(name: str) -> None:
    async def scenario() -> None:
        stage = Stage()
        into = stage.read(DATA[: ENDS[3]])
        assert stage.begun == BODIES[:3]
        assert into.obj is stage.begun[2]

    run_on(name, scenario)


@on_every_loop
@pytest.mark.parametrize("cut", range(1, 2 * SIZE_BYTES + 5))
def test_a_frame_over_the_limit_ends_the_connection_after_those_before_it(
    name: str, cut: int
) -> None:
    async def scenario() -> None:
        stage = Stage()
        above = stage.server.frame_bytes_max + 1
        data = b"".join(map(bytes, frame([b"first"]))) + above.to_bytes(SIZE_BYTES, "big")
        stage.read(data[:cut])
        stage.transport.abort.assert_not_called()
        stage.read(data[cut:])
        assert stage.begun == [b"first"]
        stage.transport.abort.assert_called_once()

    run_on(name, scenario)


@on_every_loop
@pytest.mark.parametrize("cut", [3, 7, ENDS[2] + 6, ENDS[2] + SCRATCH_BYTES + 1])
def test_a_connection_that_is_lost_within_a_frame_leaves_no_memory_counted(
    name: str, cut: int
) -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.read(DATA[:cut])
        stage.connection.connection_lost(None)
        assert stage.server._queued_bytes == 0
        assert not stage.server._connections

    run_on(name, scenario)
