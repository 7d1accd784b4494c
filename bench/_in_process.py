"""What Python itself spends on one produce request: a node in this process, frames fed by hand.

No socket and no disk: the thread's CPU time from the moment a frame is there to its reply, less
what any broker spends on the bytes (taking them out of the receive space, the checksum), which is
measured in the same loop with the caches in the same state.
"""

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import cast

import uvloop
from crc32c import crc32c

import fencelog.node as node_module
from bench._pipelined import produce_frame
from bench._rigs import TOPIC, ForgetfulDisk
from fencelog.broker.config import BrokerConfig
from fencelog.broker.network.connection import Connection
from fencelog.node import Node, open_node

CRC_FROM = 21
FRAMES_AT_ONCE = 50


class Transport:
    """Takes replies."""

    def __init__(self) -> None:
        """Nothing waits for it."""
        self.written: asyncio.Future[None] | None = None

    def write(self, _data: bytes) -> None:
        """A reply is out."""
        assert self.written is not None
        self.written.set_result(None)

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        """Any address."""
        return ("127.0.0.1", 0)

    def set_write_buffer_limits(self, high: int) -> None:
        """There is no buffer."""

    def abort(self) -> None:
        """The connection found something wrong."""
        raise AssertionError("the request was refused")

    def close(self) -> None:
        """Nothing to close."""


def own_us(data_dir: Path, record_bytes: int, records: int, requests: int) -> float:
    """Median µs of Python a request with one batch of so many records."""
    node_module.FileDisk = ForgetfulDisk
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(data_dir, record_bytes, records, requests))


async def _measure(data_dir: Path, record_bytes: int, records: int, requests: int) -> float:
    config = BrokerConfig(data_dir=str(data_dir), port=0, durability="os")
    async with open_node(config) as node:
        await node.broker.controller.create_topic(TOPIC, 1, {})
        times = []
        connection, transport = _connect(node)
        payload = bytes(record_bytes * records)
        for start in range(0, requests, FRAMES_AT_ONCE):
            # Made before they are fed: making one passes more through the caches than receiving it.
            numbers = range(start, start + FRAMES_AT_ONCE)
            frames = [produce_frame(7, number * records, records, payload) for number in numbers]
            wholes = [await _feed(connection, transport, frame) for frame in frames]
            bare = [_unavoidable(connection, frame) for frame in frames]
            times += [whole - least for whole, least in zip(wholes, bare, strict=True)]
        return 1e6 * median(times)


def _connect(node: Node) -> tuple[Connection, Transport]:
    transport = Transport()
    connection = Connection(node.server, asyncio.get_running_loop())
    connection.connection_made(cast(asyncio.Transport, transport))
    return connection, transport


async def _feed(connection: Connection, transport: Transport, frame: bytes) -> float:
    """Hand a frame in, in the pieces a socket would; return CPU seconds until its reply."""
    transport.written = asyncio.get_running_loop().create_future()
    spent, position = 0.0, 0
    while position < len(frame):
        space = connection.get_buffer(-1)
        size = min(len(space), len(frame) - position)
        space[:size] = frame[position : position + size]
        position += size
        start = time.thread_time()
        connection.buffer_updated(size)
        if position == len(frame):
            await transport.written
        spent += time.thread_time() - start
    return spent


def _unavoidable(connection: Connection, frame: bytes) -> float:
    """CPU seconds of taking these bytes over from the receive space, and of their checksum."""
    scratch = connection.get_buffer(-1)
    size = min(len(scratch), len(frame))
    start = time.thread_time()
    taken = bytearray(len(frame))
    memoryview(taken)[:size] = scratch[:size]
    spent = time.thread_time() - start
    taken[size:] = frame[size:]
    view = memoryview(taken)[CRC_FROM:]
    start = time.thread_time()
    crc32c(view)
    return spent + time.thread_time() - start
