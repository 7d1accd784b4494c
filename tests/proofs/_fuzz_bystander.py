"""A client that does nothing wrong, in a process of its own: how long is it kept waiting?

``python -m tests.proofs._fuzz_bystander HOST PORT PID SECONDS`` asks for versions and metadata,
writes a record and reads it, again and again over one connection each. It prints as JSON, for each
request, the latencies and, with each, for how long the machine had no core for the broker or for
itself meanwhile: that is waiting too, and not of the broker's making.
"""

import json
import os
import socket
import struct
import sys
import time

from fencelog.wire import hot
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.requests import frame_of

TOPIC = "bystander"
PAUSE_S = 0.01
TIMEOUT_S = 30.0


def requests() -> dict[str, bytes]:
    """What it asks, by name."""
    metadata = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]).write(9)
    batch = build_batch([RecordToWrite(key=b"k", value=b"v", timestamp_ms=0)])
    produce = b"".join(hot.write_produce_request(9, None, -1, 30_000, [(TOPIC, [(0, batch)])]))
    asked = hot.FetchTopic(TOPIC, None, [hot.FetchPartition(0, -1, 0, -1, 1000)])
    fetch = hot.write_fetch_request(11, hot.FetchRequest(-1, 0, 1, 1000, 0, 0, -1, [asked]))
    return {
        "versions": frame_of(ApiKey.API_VERSIONS, 0, b""),
        "metadata": frame_of(ApiKey.METADATA, 9, metadata),
        "produce": frame_of(ApiKey.PRODUCE, 9, produce),
        "fetch": frame_of(ApiKey.FETCH, 11, fetch),
    }


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


def main(host: str, port: int, pid: int, seconds: float) -> None:
    """Ask until the time is over."""
    frames = requests()
    connections = {name: socket.create_connection((host, port), TIMEOUT_S) for name in frames}
    latencies: dict[str, list[tuple[float, float]]] = {name: [] for name in frames}
    own = os.getpid()
    ask(connections["metadata"], frames["metadata"])  # makes the topic
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for name, frame in frames.items():
            without_core = unscheduled_s(pid) + unscheduled_s(own)
            began = time.perf_counter()
            ask(connections[name], frame)
            latency = time.perf_counter() - began
            without_core = unscheduled_s(pid) + unscheduled_s(own) - without_core
            latencies[name].append((latency, min(without_core, latency)))
        time.sleep(PAUSE_S)
    for connection in connections.values():
        connection.close()
    print(json.dumps(latencies))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
