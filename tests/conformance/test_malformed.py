"""Bytes that are no request close the connection that sent them, and disturb no other."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.wire.api_versions import ApiKey
from fencelog.wire.headers import read_request_header
from tests.support.broker import BrokerProcess
from tests.support.bystander import Bystander
from tests.support.damage import KINDS, Damage
from tests.support.proxy import read_exactly
from tests.support.requests import KEYS_AND_VERSIONS, a_request, read_answer
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


def test_a_client_with_incomplete_frames_disturbs_no_other(
    shared_broker: BrokerProcess, topic: str
) -> None:
    place = (shared_broker.host, shared_broker.port)
    with socket.create_connection(place, 10) as slow:
        slow.sendall(struct.pack(">i", 1 << 20) + b"x" * 100)
        client = Confluent()
        client.write(shared_broker.address, topic, [ToSend(b"1")])
        assert [seen.value for seen in client.read(shared_broker.address, topic)] == [b"1"]


class TightBroker(BrokerProcess):
    """A broker that may open few files."""

    FILES = 300

    def command(self) -> list[str]:
        """The command line that ``start`` runs."""
        return ["sh", "-c", f'ulimit -n {self.FILES}; exec "$0" "$@"', *super().command()]


def test_connections_leave_the_partitions_a_quarter_of_the_files(tmp_path: Path) -> None:
    with TightBroker(tmp_path / "data") as broker, ExitStack() as stack:
        client = Confluent()
        client.write(broker.address, "before", [ToSend(b"1")])
        place = (broker.host, broker.port)
        kept = []
        for _ in range(TightBroker.FILES):
            connection = stack.enter_context(socket.create_connection(place, 10))
            connection.sendall(frame(header(18, 0)))
            if answer_or_end(connection):
                kept.append(connection)
        assert TightBroker.FILES // 2 < len(kept) <= 3 * TightBroker.FILES // 4
        for each in kept[:10]:
            each.close()
        # There are files left for new partitions, and the old ones are in service.
        client.write(broker.address, "after", [ToSend(b"2")])
        client.write(broker.address, "before", [ToSend(b"3")])
        seen = [each.value for each in client.read(broker.address, "before")]
        assert seen == [b"1", b"3"]
        assert "ulimit -n" in broker.stderr


# -- damage to requests of every API and version ---------------------------------------------------

EXAMPLES = 15
PATIENCE_S = 0.05
"""A request that is in order may rightly wait: a fetch for records, a member for the others."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that gets damaged requests, and those of a bystander."""
    with (
        BrokerProcess(tmp_path_factory.mktemp("malformed") / "data") as process,
        Bystander(process, "all") as bystander,
    ):
        yield process
        assert process.running
        assert not bystander.ended().wrong
        # An exception that nobody expected is logged with its traceback.
        assert "internal error" not in process.stderr
        assert "Traceback" not in process.stderr


def exchange(broker: BrokerProcess, request: bytes) -> bytes | None:
    """The answer to a frame, empty where the connection was closed, None while it waits."""
    with socket.create_connection((broker.host, broker.port), 10) as connection:
        connection.sendall(frame(request))
        connection.settimeout(PATIENCE_S)
        try:
            answer = answer_or_end(connection)
            connection.settimeout(10)
            while answer and len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
                answer += connection.recv(1 << 16)
        except TimeoutError:
            return None
    return answer[4:]


@pytest.mark.parametrize(
    ("key", "version"),
    KEYS_AND_VERSIONS,
    ids=[f"{k.name.lower()}-v{v}" for k, v in KEYS_AND_VERSIONS],
)
def test_a_damaged_request_gets_a_readable_answer_or_an_end(
    key: ApiKey, version: int, target: BrokerProcess
) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True)
    @given(st.integers(0, 2**32), st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    def holds(seed: int, kinds: list[Damage]) -> None:
        random = Random(seed)
        request = a_request(key, version, random)
        for kind in kinds:
            request = kind(request, random)
        answer = exchange(target, request)
        if answer:
            read_answer(read_request_header(request)[0], answer)

    holds()
    with socket.create_connection((target.host, target.port), 10) as bystander:
        bystander.sendall(frame(header(18, 0)))
        assert read_exactly(bystander, 4)
