"""A client that does nothing wrong, in a process of its own: how long is it kept waiting?

``python -m tests.support.bystander HOST PORT PID WHAT`` runs until its stdin ends, then prints what
it has seen as JSON. It asks over one connection for each kind of request and checks each answer.
WHAT is ``writer``: one record every 20 ms; or ``all``: versions, metadata, a record, and its read.

What the machine does is measured beside it: for each request, for how long the broker and the
bystander had no core meanwhile (the kernel's run delay), and, in another process, by how much a
sleep of 2 ms is late. That is waiting too, and not of the broker's making.
"""

import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from fencelog.wire import hot
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.headers import read_response_header, response_is_flexible
from fencelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.broker import BrokerProcess
from tests.support.faults import ROOT
from tests.support.requests import frame_of

TOPIC = "bystander"
PAUSES_S = {"writer": 0.02, "all": 0.01}
CONTROL_SLEEP_S = 0.002
CONTROL_LATE_S = 0.001
TIMEOUT_S = 120.0
PRODUCE_VERSION, FETCH_VERSION = 9, 11


def requests(what: str) -> dict[str, bytes]:
    """What it asks, by name."""
    metadata = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]).write(9)
    batch = build_batch([RecordToWrite(key=b"k", value=b"v", timestamp_ms=0)])
    produce = b"".join(
        hot.write_produce_request(PRODUCE_VERSION, None, -1, 30_000, [(TOPIC, [(0, batch)])])
    )
    asked = hot.FetchTopic(TOPIC, None, [hot.FetchPartition(0, -1, 0, -1, 1000)])
    fetch = hot.write_fetch_request(
        FETCH_VERSION, hot.FetchRequest(-1, 0, 1, 1000, 0, 0, -1, [asked])
    )
    every = {
        "versions": frame_of(ApiKey.API_VERSIONS, 0, b""),
        "metadata": frame_of(ApiKey.METADATA, 9, metadata),
        "produce": frame_of(ApiKey.PRODUCE, PRODUCE_VERSION, produce),
        "fetch": frame_of(ApiKey.FETCH, FETCH_VERSION, fetch),
    }
    return every if what == "all" else {"produce": every["produce"]}


def ask(connection: socket.socket, frame: bytes) -> bytes:
    """Send a frame and return its answer."""
    connection.sendall(struct.pack(">i", len(frame)) + frame)
    head = _exactly(connection, 4)
    return _exactly(connection, struct.unpack(">i", head)[0])


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return bytes(data)


def unscheduled_s(pid: int) -> float:
    """For how long the main thread of a process has waited for a core, ever."""
    with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1]) / 1e9


class _Expected:
    """What is wrong with an answer, by the name of its request."""

    def __init__(self) -> None:
        self._written = 0
        self._checks: dict[str, Callable[[bytes], str]] = {
            "produce": self._produced,
            "fetch": self._fetched,
        }

    def wrong(self, name: str, answer: bytes) -> str:
        """Say what is wrong; nothing where all is well."""
        check = self._checks.get(name)
        return check(answer) if check is not None else ""

    def _produced(self, answer: bytes) -> str:
        body = _body(ApiKey.PRODUCE, PRODUCE_VERSION, answer)
        topics, *_ = hot.read_produce_response(body, PRODUCE_VERSION)
        result, expected = topics[0][1][0], self._written
        self._written = result.base_offset + 1
        if result.error or (expected and result.base_offset != expected):
            return f"record {expected} was answered with {result}"
        return ""

    def _fetched(self, answer: bytes) -> str:
        body = _body(ApiKey.FETCH, FETCH_VERSION, answer)
        found = hot.read_fetch_response(body, FETCH_VERSION).topics[0].partitions[0]
        if found.error or found.high_watermark < self._written or not found.records:
            return f"{self._written} records are written, and the fetch was answered with {found}"
        return ""


def _body(key: ApiKey, version: int, answer: bytes) -> memoryview:
    return read_response_header(answer, response_is_flexible(key, version))[1]


def watch(host: str, port: int, pid: int, what: str) -> None:
    """Ask until stdin ends; print the latencies and what the machine did."""
    frames = requests(what)
    connections = {name: socket.create_connection((host, port), TIMEOUT_S) for name in frames}
    latencies: dict[str, list[tuple[float, float, float]]] = {name: [] for name in frames}
    wrong: list[str] = []
    expected, own = _Expected(), os.getpid()
    # Makes the topic.
    ask(next(iter(connections.values())), requests("all")["metadata"])
    command = [sys.executable, "-m", "tests.support.bystander", "control"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as control:
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], PAUSES_S[what])[0]:
            for name, frame in frames.items():
                without_core = unscheduled_s(pid) + unscheduled_s(own)
                began = time.monotonic()
                try:
                    answer = ask(connections[name], frame)
                except OSError as error:
                    wrong.append(f"{name}: {error!r}")
                    connections[name] = socket.create_connection((host, port), TIMEOUT_S)
                    continue
                latency = time.monotonic() - began
                without_core = unscheduled_s(pid) + unscheduled_s(own) - without_core
                latencies[name].append((began, latency, without_core))
                if problem := expected.wrong(name, answer):
                    wrong.append(problem)
        late = json.loads(control.communicate("")[0])
    print(json.dumps({"latencies": latencies, "wrong": wrong, "late": late}))


def measure_machine() -> None:
    """Sleep until stdin ends; print when a sleep was late, and by how much."""
    late: list[tuple[float, float]] = []
    began = time.monotonic()
    while not select.select([sys.stdin], [], [], CONTROL_SLEEP_S)[0]:
        ended = time.monotonic()
        if ended - began > CONTROL_SLEEP_S + CONTROL_LATE_S:
            late.append((began, ended - began - CONTROL_SLEEP_S))
        began = ended
    print(json.dumps(late))


@dataclass
class Watched:
    """What a bystander has seen; times in seconds."""

    latencies: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Of each request, with each for how long the machine kept it from going on."""
    wrong: list[str] = field(default_factory=list)
    """Answers that were not right, and connections that ended."""
    late: list[float] = field(default_factory=list)
    """By how much sleeps were late on this machine meanwhile, where it was more than 1 ms."""


class Bystander:
    """The process. A context manager: entering starts it, ``ended`` ends it."""

    def __init__(self, broker: BrokerProcess, what: str = "writer") -> None:
        """Ask this broker, which runs."""
        command = [sys.executable, "-m", "tests.support.bystander"]
        self._process = subprocess.Popen(
            [*command, broker.host, str(broker.port), str(broker.pid), what],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "the bystander did not start"

    def ended(self) -> Watched:
        """Let it end after its present request; returns what it has seen."""
        printed, _ = self._process.communicate("", timeout=2 * TIMEOUT_S)
        seen = json.loads(printed)
        machine = _Machine(seen["late"])
        latencies = {
            name: [(one[1], machine.kept_s(*one)) for one in each]
            for name, each in seen["latencies"].items()
        }
        return Watched(latencies, seen["wrong"], [by for _, by in seen["late"]])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class _Machine:
    """When sleeps ended late, in order."""

    def __init__(self, late: list[tuple[float, float]]) -> None:
        self._begins = [began for began, _ in late]
        self._ends = [began + by for began, by in late]
        self._by = [by for _, by in late]

    def kept_s(self, began: float, latency: float, without_core: float) -> float:
        """For how long a request was kept waiting: no core, or a sleep that ended late."""
        first = bisect_left(self._ends, began)
        last = bisect_right(self._begins, began + latency)
        return min(latency, max([without_core, *self._by[first:last]]))


if __name__ == "__main__":
    if sys.argv[1:] == ["control"]:
        measure_machine()
    else:
        watch(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
