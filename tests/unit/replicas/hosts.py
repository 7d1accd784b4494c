"""Brokers that replicate over connections in memory: real partitions, flushers and streams.

A host is no broker process: nobody elects, and a test says who leads. What goes over a connection
are the bytes of the real requests and answers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fencelog.broker.network.response_budget import QueuedResponses, ResponseBudget
from fencelog.broker.network.time_slices import TimeSlices
from fencelog.broker.partitions.log_flusher import LogFlusher
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.partitions.role import FollowerRole
from fencelog.broker.partitions.tail_cache import TailCache
from fencelog.broker.replicas.fetcher import Fetcher
from fencelog.broker.replicas.led import Key, Led, LedPartitions
from fencelog.broker.replicas.serving import Serving, Stream, snapshot
from fencelog.errors import ErrorCode, RequestError
from fencelog.log.config import LogConfig
from fencelog.log.partition_log import PartitionLog
from fencelog.log.values import Appended, EpochStart
from fencelog.replication.leader import LeaderProgress, Leadership
from fencelog.storage.checkpointer import Begin
from fencelog.storage.partition_store import PartitionStore
from fencelog.storage.seal_store import SealStore
from fencelog.types import Buffer, Instant, LeaderEpoch, NodeId, Offset, TopicId, TopicPartition
from fencelog.wire.batch import read_header
from fencelog.wire.messages.replica_fetch import ReplicaFetchRequest
from fencelog.wire.messages.replica_snapshot import (
    ReplicaSnapshotRequest,
    ReplicaSnapshotResponse,
)
from fencelog_sim.world.disk import SimDisk
from tests.support import node as support
from tests.support.log import NOW_MS
from tests.support.storage import batch_of

TOPIC = TopicId(bytes(range(16)))
Tamper = Callable[[bytes], bytes]


def key(index: int = 0) -> Key:
    return TOPIC, index


async def until(condition: Callable[[], object]) -> None:
    """Let everybody run until the condition holds."""
    await support.until(condition, "the replicas do not get there")


class Wire:
    """A proven connection of a follower to a leader."""

    def __init__(self, stream: Stream, leader: "Host") -> None:
        self._stream = stream
        self._leader = leader
        self._waiting: list[asyncio.Future[memoryview]] = []
        self._task = asyncio.get_running_loop().create_task(stream.run())
        self.requests: list[ReplicaFetchRequest] = []
        self.closed_by = ""

    def start(
        self, api_key: int, version: int, body: Sequence[Buffer]
    ) -> "asyncio.Future[memoryview]":
        assert api_key == ReplicaFetchRequest.API_KEY
        if self.closed_by:
            raise self._lost()
        request = ReplicaFetchRequest.read(b"".join(body), version)
        self.requests.append(request)
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._stream.ask(request, self._settle)
        return answer

    def _settle(self, body: list[Buffer]) -> None:
        data = memoryview(bytearray(self._leader.tamper(b"".join(body))))
        answer = self._waiting.pop(0)
        if not answer.done():
            answer.set_result(data)

    def close(self, reason: str = "closed") -> None:
        if self.closed_by:
            return
        self.closed_by = reason
        self._task.cancel()
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(self._lost())

    def _lost(self) -> RequestError:
        return RequestError(ErrorCode.NETWORK_EXCEPTION, self.closed_by)


@dataclass
class Host:
    """One broker's part of replication."""

    node: NodeId
    hosts: "dict[NodeId, Host]"
    durability: str = "os"
    disk: SimDisk = field(default_factory=SimDisk)
    partitions: dict[Key, Partition] = field(default_factory=dict)
    offline: dict[Key, str] = field(default_factory=dict)
    wires: list[Wire] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    seals: dict[Key, bytes] = field(default_factory=dict)
    """What is left of segments whose files the metadata give up."""
    is_up: bool = True

    def __post_init__(self) -> None:
        self.tamper: Tamper = bytes
        """What happens to the answers that this host sends."""
        self.time_slices = TimeSlices()
        self.led = LedPartitions()
        self.serving = Serving(self.led, self.time_slices)
        self.flusher = LogFlusher(sync=self.durability == "fsync")
        self.fetchers: dict[NodeId, Fetcher] = {}
        self.epochs: dict[Key, int] = {}
        self.tasks = [asyncio.get_running_loop().create_task(self.flusher.run())]

    async def open(self, index: int = 0, begin: Begin | None = None, **config: int) -> None:
        """Open a new replica."""
        store, log = await PartitionStore.create(
            self.disk, f"t-{index}", TOPIC, LogConfig(**config), self.durability, begin=begin
        )
        self._opened(key(index), store, log)

    def is_without_files(self, one: Key) -> bool:
        """Whether the test lets the metadata say so."""
        return one in self.seals

    async def remove_files(self, one: Key, name: TopicPartition) -> Partition:
        """Leave the seal alone of a replica."""
        partition = self.partitions.pop(one)
        partition.remove("is opened anew")
        await partition.close(clean=False)
        await self.disk.remove(str(name))
        log = PartitionLog.of_seal(LogConfig(), self.seals[one])
        self._opened(one, SealStore(self.seals[one], log), log)
        return self.partitions[one]

    def _opened(self, one: Key, store: PartitionStore | SealStore, log: object) -> None:
        self.partitions[one] = Partition(
            TopicPartition("t", one[1]),
            log,  # type: ignore[arg-type]
            store,
            role=FollowerRole(log.log_end_offset),  # type: ignore[attr-defined]
            enqueue=self.flusher.enqueue,
            observer=None,
            tails=TailCache(1 << 20),
        )

    async def reopen(self, one: Key, **options: int) -> None:
        """Open the files of a replica again."""
        store, log = await PartitionStore.recover(
            self.disk,
            f"t-{one[1]}",
            LogConfig(),
            clean=None,
            recovery_point=Offset(options.get("recovery_point", 0)),
            log_start=Offset(0),
            durability=self.durability,
            topic_id=TOPIC,
            leader_epoch=LeaderEpoch(1000),
            high_watermark=Offset(options.get("high_watermark", 0)),
            truncate_to=options.get("truncate_to"),  # type: ignore[arg-type]
        )
        self._opened(one, store, log)

    def partition(self, index: int = 0) -> Partition:
        return self.partitions[key(index)]

    # -- roles -----------------------------------------------------------------------------------

    def lead(
        self, epoch: int, isr: Sequence[int] | None = None, index: int = 0, min_isr: int = 1
    ) -> LeaderProgress:
        """Lead a partition of which every host is a replica."""
        one, partition = key(index), self.partition(index)
        self.forget(one)
        progress = LeaderProgress(
            Leadership(
                self.node,
                tuple(sorted(self.hosts)),
                tuple(self.hosts) if isr is None else tuple(map(NodeId, isr)),
                LeaderEpoch(epoch),
                partition.log.log_end_offset,
                partition.log.high_watermark,
                min_isr,
            ),
            all_replicas=False,
            now=Instant(asyncio.get_running_loop().time()),
        )
        partition.lead(progress)
        self.led.lead(Led(one, partition, progress, 1))
        return progress

    def follow(self, leader: int, epoch: int, index: int = 0) -> Fetcher:
        """Follow another host."""
        one, node = key(index), NodeId(leader)
        self.forget(one)
        self.led.resign(one)
        self.epochs[one] = epoch
        self.partition(index).follow(LeaderEpoch(epoch))
        if node not in self.fetchers:
            fetcher = self.fetchers[node] = Fetcher(node, self._connect, self, self.time_slices)
            self.tasks.append(asyncio.get_running_loop().create_task(fetcher.run()))
        self.fetchers[node].follow(one, self.partition(index), LeaderEpoch(epoch))
        return self.fetchers[node]

    def forget(self, one: Key) -> None:
        for fetcher in self.fetchers.values():
            fetcher.forget(one)

    async def _connect(self, leader: NodeId) -> Wire:
        other = self.hosts[leader]
        if not (other.is_up and self.is_up):
            raise RequestError(ErrorCode.NETWORK_EXCEPTION, "connection refused")
        kept = [each for each in self.wires if each._leader is other and not each.closed_by]
        if kept:
            return kept[-1]  # as for brokers: one that is open is used again
        stream = other.serving.open(self.node, f"life of {self.node}", _responses())
        self.wires.append(Wire(stream, other))
        return self.wires[-1]

    # -- what streams ask of the owner of the replicas -------------------------------------------

    def truncate(self, one: Key, leader_epoch: LeaderEpoch, offset: Offset) -> None:
        self.cuts.append(offset)
        self._begin(self._cut(one, offset))

    async def _cut(self, one: Key, offset: Offset) -> None:
        partition = self.partitions[one]
        high_watermark = partition.log.high_watermark
        partition.remove("is opened anew")
        await partition.close(clean=False)
        await self.reopen(
            one, recovery_point=offset, truncate_to=offset, high_watermark=high_watermark
        )
        self._again(one)

    def begin_anew(self, one: Key, leader_epoch: LeaderEpoch) -> None:
        self._begin(self._copy(one))

    async def _copy(self, one: Key) -> None:
        await self.partitions[one].close(clean=False)
        await self.disk.remove(f"t-{one[1]}")
        leader = next(each for each in self.hosts.values() if each.led.get(one) is not None)
        answer = await snapshot(
            leader.led,
            ReplicaSnapshotRequest(
                topic_id=one[0], partition=one[1], leader_epoch=self.epochs[one]
            ),
        )
        assert answer.error_code == ErrorCode.NONE
        await self.open(one[1], begin_of(answer))
        self._again(one)

    def _again(self, one: Key) -> None:
        leader = next(each for each in self.hosts.values() if each.led.get(one) is not None)
        self.follow(leader.node, self.epochs[one], one[1])

    def begin_at(self, partition: Partition, log_start: Offset) -> None:
        partition.advance_start(min(log_start, partition.log.high_watermark))

    def take_offline(self, one: Key, reason: str) -> None:
        self.offline[one] = reason

    def _begin(self, work: Awaitable[None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    # -- records ---------------------------------------------------------------------------------

    def produce(self, *values: bytes, index: int = 0, **options: int) -> Appended:
        batch = memoryview(batch_of(*values, **options))
        outcome = self.partition(index).append(batch, read_header(batch), now_ms=NOW_MS)
        assert isinstance(outcome, Appended), outcome
        return outcome

    def bytes_of(self, index: int = 0) -> bytes:
        """The log's files, one after the other."""
        names = sorted(path for path in self.disk_names(f"t-{index}") if path.endswith(".log"))
        return b"".join(self.disk.contents(f"t-{index}/{name}") for name in names)

    def disk_names(self, directory: str) -> list[str]:
        listing = self.disk.list(directory)
        try:
            listing.send(None)
        except StopIteration as done:
            return list(done.value)
        raise AssertionError("the simulated disk never waits")

    async def stop(self) -> None:
        self.is_up = False
        for wire in self.wires:
            wire.close("the host is down")
        for other in self.hosts.values():
            for wire in other.wires:
                if wire._stream.follower == other.node and self.node in other.fetchers:
                    wire.close("the host is down")
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


def begin_of(answer: ReplicaSnapshotResponse) -> Begin:
    """Where a new replica begins, by its leader's answer."""
    epochs = [EpochStart(each.epoch, Offset(each.start_offset)) for each in answer.leader_epochs]
    return Begin(Offset(answer.offset), bytes(answer.snapshot), epochs)


def _responses() -> QueuedResponses:
    return QueuedResponses(ResponseBudget(64 << 20))


@asynccontextmanager
async def running(count: int = 2, durability: str = "os", partitions: int = 1):
    """So many hosts, each with an empty replica of each partition."""
    hosts: dict[NodeId, Host] = {}
    for number in range(1, count + 1):
        host = Host(NodeId(number), hosts, durability)
        hosts[host.node] = host
        for index in range(partitions):
            await host.open(index)
    try:
        yield list(hosts.values())
    finally:
        for host in hosts.values():
            if host.is_up:
                await host.stop()
