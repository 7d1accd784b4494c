"""Bytes that are no request close the connection that sent them, and disturb nobody else."""

import socket
import struct

import pytest

from tests.support.broker import BrokerProcess
from tests.support.proxy import read_exactly
from tests.support.stock import Confluent, ToSend


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(api_key: int, api_version: int) -> bytes:
    return struct.pack(">hhih", api_key, api_version, 7, -1)


MALFORMED = {
    "negative size": struct.pack(">i", -1),
    "size beyond the limit": struct.pack(">i", 2**31 - 1),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "empty frame": frame(b""),
    "half a header": frame(b"\x00\x12"),
    "unknown api": frame(header(9999, 0)),
    "version that is not offered": frame(header(3, 99)),
    "metadata with a silly array length": frame(header(3, 1) + struct.pack(">i", 2**31 - 1)),
    "metadata with a negative array length": frame(header(3, 1) + struct.pack(">i", -5)),
    "produce cut short": frame(header(0, 7) + b"\xff\xff\x00\x01\x00\x00\x75\x30\x00\x00\x00\x01"),
    "fetch with a silly array length": frame(header(1, 4) + b"\xff" * 40),
    "client id longer than the frame": frame(struct.pack(">hhih", 18, 0, 1, 500)),
    "flexible varint that never ends": frame(header(3, 9) + b"\x00" + b"\xff" * 32),
}


def answer_or_end(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("name", list(MALFORMED))
def test_a_malformed_frame_closes_its_connection_and_no_other(
    name: str, shared_broker: BrokerProcess
) -> None:
    place = (shared_broker.host, shared_broker.port)
    with (
        socket.create_connection(place, 10) as bystander,
        socket.create_connection(place, 10) as bad,
    ):
        bad.sendall(MALFORMED[name])
        assert answer_or_end(bad) == b"", "a malformed frame gets no answer"
        # ApiVersions v0 on the connection that did nothing wrong.
        bystander.sendall(frame(header(18, 0)))
        (size,) = struct.unpack(">i", read_exactly(bystander, 4))
        assert read_exactly(bystander, size)[:6] == struct.pack(">ih", 7, 0)


def test_the_reason_of_a_closed_connection_is_logged(broker: BrokerProcess) -> None:
    with socket.create_connection((broker.host, broker.port), 10) as bad:
        bad.sendall(MALFORMED["negative size"])
        host, port = bad.getsockname()
        assert answer_or_end(bad) == b""
    broker.terminate()
    reasons = [line for line in broker.stderr.splitlines() if f"{host}:{port}" in line]
    assert reasons, broker.stderr
    assert "-1" in reasons[0]


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
    shared_broker: BrokerProcess,
) -> None:
    with socket.create_connection((shared_broker.host, shared_broker.port), 10) as connection:
        # Newer headers and bodies are flexible: empty tags, two compact strings, empty tags.
        connection.sendall(frame(header(18, 99) + b"\x00\x02a\x02b\x00"))
        (size,) = struct.unpack(">i", read_exactly(connection, 4))
        body = read_exactly(connection, size)
    correlation, error, count = struct.unpack_from(">ihi", body)
    keys = [struct.unpack_from(">hhh", body, 10 + 6 * n) for n in range(count)]
    assert (correlation, error) == (7, 35)
    assert 18 in [key for key, _, _ in keys]


def test_a_client_that_sends_nothing_whole_disturbs_nobody(
    shared_broker: BrokerProcess, topic: str
) -> None:
    place = (shared_broker.host, shared_broker.port)
    with socket.create_connection(place, 10) as slow:
        slow.sendall(struct.pack(">i", 1 << 20) + b"x" * 100)
        client = Confluent()
        client.write(shared_broker.address, topic, [ToSend(b"1")])
        assert [seen.value for seen in client.read(shared_broker.address, topic)] == [b"1"]
