"""A broker that gets no more memory closes the connection that wanted it, and lives on."""

import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.proofs import _hostile_frames as frames
from tests.support.broker import BrokerProcess
from tests.support.bystander import Bystander, ask

ROOM_BYTES = 200 << 20
"""What a broker that has started may still have; its settings promise it more."""
SETTINGS = "queued.max.request.bytes=4294967296\nqueued.max.response.bytes=4294967296\n"
CLIENTS = 30
FRAME_BYTES = 90 << 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as process:
        yield process
        assert process.running
        assert "Traceback" not in process.stderr
        assert 1 <= process.stderr.count("out of memory") <= 2, process.stderr


def limit_memory(broker: BrokerProcess) -> None:
    with open(f"/proc/{broker.pid}/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    limit = size + ROOM_BYTES
    resource.prlimit(broker.pid, resource.RLIMIT_AS, (limit, limit))


def is_ended(connection: socket.socket) -> bool:
    """Whether the broker has closed it; answers before that are passed over."""
    try:
        while connection.recv(1 << 20):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_responses_that_find_no_memory_end_their_connections_alone(broker: BrokerProcess) -> None:
    place = (broker.host, broker.port)
    with socket.create_connection(place, 30) as writer:
        ask(writer, frames.create(["big"], 1)[4:])
        for _ in range(frames.FETCH_BYTES // frames.BIG_BATCH_BYTES):
            ask(writer, frames.produce("big", frames.big_batch())[4:])
    with Bystander(broker) as bystander, ExitStack() as stack:
        limit_memory(broker)
        readers = [stack.enter_context(socket.create_connection(place, 1)) for _ in range(CLIENTS)]
        for reader in readers:
            fetch = frames.fetch("big", max_bytes=frames.FETCH_BYTES, max_wait_ms=100)
            reader.sendall(fetch)
        assert sum(is_ended(reader) for reader in readers)
        assert not bystander.ended().wrong


def test_requests_that_find_no_memory_end_their_connections_alone(broker: BrokerProcess) -> None:
    place = (broker.host, broker.port)
    with Bystander(broker) as bystander, ExitStack() as stack:
        limit_memory(broker)
        ended = 0
        for _ in range(CLIENTS):
            sender = stack.enter_context(socket.create_connection(place, 30))
            try:
                sender.sendall(struct.pack(">i", FRAME_BYTES) + bytes(FRAME_BYTES - 1))
            except ConnectionError:
                ended += 1
        assert ended
        assert not bystander.ended().wrong
