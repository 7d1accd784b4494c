"""Brokers for ceilings, run as ``python -m bench._rigs KIND DIRECTORY HOST:PORT``.

``discard``: our node on a disk that drops what is written to segment files.
``counting``: our node in fsync mode on the real disk; at SIGUSR1 it says how many syncs it made.
``receiver``: no broker at all. It takes frames in as ours does and answers produce requests with
success, unread and unstored: what the network, the event loop and the client allow.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

import uvloop

from fencelog.adapters.file_disk import FileDisk
from fencelog.adapters.sqlite_metadata import SqliteMetadata
from fencelog.adapters.system_clock import SystemClock, SystemRandom
from fencelog.broker.config import BrokerConfig
from fencelog.errors import ErrorCode
from fencelog.node import Node, Ports
from fencelog.ports import DiskFile
from fencelog.types import Buffer
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.headers import (
    RequestHeader,
    read_request_header,
    response_header,
    response_is_flexible,
)
from fencelog.wire.hot import PartitionResult, read_produce_request, write_produce_response
from fencelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdResponse
from fencelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC = "bench"
RECEIVER_VERSIONS = {
    ApiKey.PRODUCE: (0, 10),
    ApiKey.FETCH: (4, 12),
    ApiKey.METADATA: (0, 12),
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
}


class ForgetfulFile:
    """A file that knows its size and nothing else."""

    def __init__(self) -> None:
        """Start empty."""
        self.size = 0

    async def append(self, buffers: Sequence[Buffer]) -> None:
        """Count."""
        self.size += sum(map(len, buffers))

    async def read(self, position: int, size: int) -> bytes:
        """There is nothing to give back."""
        raise AssertionError((position, size))

    async def sync(self) -> None:
        """Nothing to sync."""

    async def close(self) -> None:
        """Nothing to close."""


class ForgetfulDisk(FileDisk):
    """Keeps side files and metadata; the records of clients' topics go nowhere."""

    async def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open; a segment file of a client's topic is a forgetful one."""
        if path.endswith(".log") and "__" not in path:
            return ForgetfulFile()
        return await super().open(path, create=create)


class CountingDisk(FileDisk):
    """Counts syncs of files."""

    syncs = 0

    def submit(self, function, argument):
        """Run a slow call in the pool, and count it if it is a sync."""
        self.syncs += function is os.fdatasync
        return super().submit(function, argument)


async def serve_node(disk: FileDisk, config: BrokerConfig, stop: asyncio.Event) -> None:
    """Run our node on this disk until it is stopped."""
    metadata = await SqliteMetadata.open(Path(config.data_dir) / "metadata.sqlite")
    node = Node(
        config, Ports(disk=disk, metadata=metadata, clock=SystemClock(), random=SystemRandom())
    )
    await node.start()
    say("listening on {}:{}".format(*node.address))
    if isinstance(disk, CountingDisk):
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: say(f"syncs {disk.syncs}"))
    await stop.wait()
    await node.stop()
    await metadata.close()


class Receiver(asyncio.BufferedProtocol):
    """Frames in, fixed answers out."""

    size = Struct(">i")

    def __init__(self) -> None:
        """Wait for a connection."""
        self._scratch = memoryview(bytearray(256 * 1024))
        self._frame: memoryview | None = None
        self._filled = 0
        self._head = b""
        self._offset = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport
        self._port = transport.get_extra_info("sockname")[1]

    def get_buffer(self, sizehint: int) -> memoryview:
        """The open frame, else the scratch space."""
        return self._scratch if self._frame is None else self._frame[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes in; answer each whole frame."""
        if self._frame is not None:
            self._filled += nbytes
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._answer(frame)
            return
        data = memoryview(self._head + self._scratch[:nbytes]) if self._head else self._scratch
        end = len(self._head) + nbytes
        self._head = b""
        position = 0
        while end - position >= 4:
            (size,) = self.size.unpack_from(data, position)
            if end - position - 4 < size:
                if size > 4096:
                    self._frame = memoryview(bytearray(size))
                    self._filled = end - position - 4
                    self._frame[: self._filled] = data[position + 4 : end]
                    return
                break
            self._answer(data[position + 4 : position + 4 + size])
            position += 4 + size
        self._head = bytes(data[position:end])

    def _answer(self, frame: memoryview) -> None:
        header, body = read_request_header(frame)
        flexible = response_is_flexible(header.api_key, header.api_version)
        reply = response_header(header.correlation_id, flexible) + self._body(header, body)
        self._transport.write(self.size.pack(len(reply)) + reply)

    def _body(self, header: RequestHeader, body: memoryview) -> bytes:
        version = header.api_version
        if header.api_key == ApiKey.PRODUCE:
            request = read_produce_request(body, version)
            self._offset += 1_000_000
            results = [
                (topic, [PartitionResult(p, ErrorCode.NONE, self._offset) for p, _ in partitions])
                for topic, partitions in request.topics
            ]
            return write_produce_response(version, results)
        if header.api_key == ApiKey.API_VERSIONS:
            keys = [
                ApiVersion(api_key=int(key), min_version=low, max_version=high)
                for key, (low, high) in RECEIVER_VERSIONS.items()
            ]
            return ApiVersionsResponse(api_keys=keys).write(version)
        if header.api_key == ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(producer_id=1, producer_epoch=0).write(version)
        assert header.api_key == ApiKey.METADATA, header
        return self._metadata(MetadataRequest.read(body, version)).write(version)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = [topic.name or TOPIC for topic in request.topics or ()] or [TOPIC]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self._port)],
            cluster_id="receiver",
            controller_id=1,
            topics=[
                MetadataResponseTopic(
                    name=name,
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1]
                        )
                        for index in range(4)
                    ],
                )
                for name in names
            ],
        )


def say(line: str) -> None:
    """Write a line to stderr, where ``Rig`` reads."""
    print(line, file=sys.stderr, flush=True)


async def main(kind: str, directory: str, host: str, port: int) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if kind == "receiver":
        server = await loop.create_server(Receiver, host, port)
        say("listening on {}:{}".format(*server.sockets[0].getsockname()))
        await stop.wait()
        return
    durability = "fsync" if kind == "counting" else "os"
    config = BrokerConfig(data_dir=directory, host=host, port=port, durability=durability)
    disk = CountingDisk(directory) if kind == "counting" else ForgetfulDisk(directory)
    await serve_node(disk, config, stop)


if __name__ == "__main__":
    listen_host, listen_port = sys.argv[3].rsplit(":", 1)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], sys.argv[2], listen_host, int(listen_port)))
