"""A whole node in the test's own loop, on a simulated disk, asked over a real socket.

The peer speaks generated messages, one at a time or pipelined, so a test says exactly what arrives
in which order, holds the disk where it wants, and cuts the power between two requests.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from fencelog.adapters.sqlite_metadata import SqliteMetadata
from fencelog.adapters.system_clock import SystemClock, SystemRandom
from fencelog.broker.config import BrokerConfig, Durability
from fencelog.cluster_node import cluster_membership
from fencelog.errors import ErrorCode
from fencelog.node import Node, Ports
from fencelog.types import Buffer, Offset
from fencelog.wire import hot
from fencelog.wire.framing import frame
from fencelog.wire.headers import (
    RequestHeader,
    read_response_header,
    request_header,
    response_is_flexible,
)
from fencelog.wire.message import Message
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from fencelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from fencelog.wire.records import RecordToWrite, build_batch, read_records
from fencelog_sim.world.disk import SimDisk
from fencelog_sim.world.metadata import SimMetadata, SimStore

M = TypeVar("M", bound=Message)
DEADLINE_S = 10.0
PRODUCE = 0
FETCH = 1


class HeldDisk(SimDisk):
    """A simulated disk whose syncs a test can hold back and let go."""

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()
        self.released.set()
        self.held_part = ""
        self.waiting = 0
        self.delay = self._held

    def hold(self, part: str = "") -> None:
        """Let syncs of logs whose path contains ``part`` wait."""
        self.held_part = part
        self.released.clear()

    def release(self) -> None:
        """Let them go."""
        self.released.set()

    async def _held(self, verb: str, path: str, size: int) -> None:
        held = self.held_part in path and path.endswith(".log")
        if verb == "sync" and held and not self.released.is_set():
            self.waiting += 1
            await self.released.wait()


class World:
    """What stays when a node ends: its disk and its metadata."""

    def __init__(self, folder: Path, **settings: object) -> None:
        """``settings``: of every node here, where it is not given others."""
        self.metadata_path = folder / "metadata.sqlite"
        self._settings = settings
        self.disk = HeldDisk()

    @asynccontextmanager
    async def node(
        self, *, durability: Durability = "fsync", crash: bool = False, **settings: object
    ) -> AsyncIterator[Node]:
        """Run a node; on leaving stop it cleanly, or just drop it as ``kill -9`` does."""
        metadata = await SqliteMetadata.open(self.metadata_path)
        values: dict[str, Any] = {**self._settings, **settings}
        config = BrokerConfig(data_dir="memory", port=0, durability=durability, **values)
        ports = Ports(disk=self.disk, metadata=metadata, clock=SystemClock(), random=SystemRandom())
        node = Node(config, ports)
        try:
            await node.start()
            try:
                yield node
            except BaseException:
                self.disk.release()  # a failed test must end: a clean stop waits for every sync
                raise
            finally:
                if crash:
                    await self._drop(node)
                else:
                    await node.stop()
        finally:
            await metadata.close()

    @staticmethod
    async def _drop(node: Node) -> None:
        """End a node's tasks without any of its own words of farewell."""
        await node.server.stop(drain_s=0)
        for runtime in node.runtimes():
            await runtime.stop()
        for sender in node.senders():
            await sender.stop()
        await node.broker.stream_sealer.stop()
        await node.broker.stream_policy.stop()
        deleting = node.logs._deleting
        tasks = node._tasks if deleting is None else [*node._tasks, deleting]
        for task in tasks:
            task.cancel()
        # What a cut has raised in one of them is nobody's concern.
        await asyncio.gather(*tasks, return_exceptions=True)


class Peer:
    """One connection that sends what a test gives it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    @asynccontextmanager
    async def of(cls, node: Node) -> AsyncIterator["Peer"]:
        async with cls.at(*node.address) as peer:
            yield peer

    @classmethod
    @asynccontextmanager
    async def at(cls, host: str, port: int) -> AsyncIterator["Peer"]:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    @property
    def name(self) -> str:
        """Its address, as the broker's ``Connection.peer`` has it."""
        host, port = self._writer.get_extra_info("sockname")[:2]
        return f"{host}:{port}"

    def send(self, api_key: int, version: int, *body: Buffer) -> None:
        """Send a request and do not wait."""
        self._number += 1
        header = request_header(RequestHeader(api_key, version, self._number, "test"))
        self._writer.writelines([bytes(part) for part in frame([header, *body])])

    async def answer(self, api_key: int, version: int) -> bytes:
        """The body of the next answer."""
        async with asyncio.timeout(DEADLINE_S):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            data = await self._reader.readexactly(size)
        _, body = read_response_header(data, response_is_flexible(api_key, version))
        return bytes(body)

    async def ask(self, message: Message, version: int, answer: type[M]) -> M:
        """Send a message and return its answer."""
        self.send(message.API_KEY, version, message.write(version))
        return answer.read(await self.answer(message.API_KEY, version), version)

    async def create_topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        configs = [
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in settings.items()
        ]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=configs
        )
        answer = await self.ask(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)
        assert answer.topics[0].error_code == 0, answer

    def send_produce(
        self,
        topic: str,
        batch: Buffer,
        *,
        partition: int = 0,
        acks: int = -1,
        timeout_ms: int = 30_000,
        transactional_id: str | None = None,
        version: int = 9,
        tags: hot.AppendTags | None = None,
    ) -> None:
        request = hot.write_produce_request(
            version,
            transactional_id,
            acks,
            timeout_ms,
            [(topic, [(partition, batch)])],
            {} if tags is None else {(topic, partition): tags},
        )
        self.send(PRODUCE, version, *request)

    async def produced(self, version: int = 9) -> hot.PartitionResult:
        """The one result of the next produce answer."""
        topics, *_ = hot.read_produce_response(await self.answer(PRODUCE, version), version)
        return topics[0][1][0]

    async def produce(self, topic: str, batch: Buffer, **how: object) -> hot.PartitionResult:
        self.send_produce(topic, batch, **how)  # type: ignore[arg-type]
        return await self.produced(int(str(how.get("version", 9))))

    async def fetch(
        self,
        topic: str,
        offset: int = 0,
        *,
        partition: int = 0,
        isolation: int = 1,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        version: int = 11,
    ) -> hot.FetchedPartition:
        asked = hot.FetchPartition(partition, -1, offset, -1, max_bytes)
        request = hot.FetchRequest(
            -1,
            max_wait_ms,
            min_bytes,
            max_bytes,
            isolation,
            0,
            -1,
            [hot.FetchTopic(topic, None, [asked])],
        )
        self.send(FETCH, version, hot.write_fetch_request(version, request))
        answer = hot.read_fetch_response(await self.answer(FETCH, version), version)
        return answer.topics[0].partitions[0]


def batch(
    *values: str,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> bytearray:
    """A batch of these values, as a client would send it."""
    return build_batch(
        [RecordToWrite(None, value.encode(), SystemClock().now_ms()) for value in values],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def visible(fetched: hot.FetchedPartition) -> list[tuple[Offset, str]]:
    """Offsets and values that a ``read_committed`` consumer shows of this answer."""
    from fencelog.wire.batch import iterate
    from fencelog.wire.control import Marker, read_control

    aborted = sorted(fetched.aborted or (), key=lambda entry: entry[1])
    void: set[int] = set()
    shown: list[tuple[Offset, str]] = []
    for records in fetched.records:
        for header, one in iterate(records):
            while aborted and aborted[0][1] <= header.last_offset:
                void.add(aborted.pop(0)[0])
            if header.is_control:
                control = read_control(one)
                if isinstance(control, Marker) and not control.commit:
                    void.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in void):
                shown += [(r.offset, (r.value or b"").decode()) for r in read_records(one)]
    return shown


@asynccontextmanager
async def life_in_a_cluster(
    disk: SimDisk,
    store: SimStore,
    boot_id: str = "first",
    durability: Durability = "os",
    *,
    crash: bool = False,
    **settings: object,
) -> AsyncIterator[Node]:
    """Broker 1 of a cluster, alone in it; on leaving it stops cleanly or is dropped."""
    alone = {"replication_factor": 1, "internal_replication_factor": 1}
    values: dict[str, Any] = {**alone, **settings}
    config = BrokerConfig(data_dir="memory", port=0, durability=durability, **values)
    metadata = SimMetadata(store, 1)
    ports = Ports(disk=disk, metadata=metadata, clock=SystemClock(), random=SystemRandom())
    membership = await cluster_membership(config, disk, metadata, SystemRandom(), boot_id)
    node = Node(config, ports, new_membership=membership)
    await node.start()
    try:
        yield node
    finally:
        if crash:
            await World._drop(node)
        else:
            await node.stop()


async def until(condition: Callable[[], object], what: str) -> None:
    """Return once the condition holds; AssertionError after the deadline."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < ends_at, what
        await asyncio.sleep(0.002)


async def delete(peer: Peer, topic: str) -> ErrorCode:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)])
    answer = await peer.ask(request, 6, DeleteTopicsResponse)
    return ErrorCode(answer.responses[0].error_code)


async def metadata(peer: Peer, topic: str, *, create: bool) -> ErrorCode:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=create
    )
    answer = await peer.ask(request, 12, MetadataResponse)
    return ErrorCode(answer.topics[0].error_code)
