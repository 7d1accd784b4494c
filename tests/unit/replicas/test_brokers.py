"""Replica managers over real log managers: brokers that are killed, deposed and damaged (F8)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from fencelog.broker.config import BrokerConfig
from fencelog.broker.metadata.catalog import Catalog, Topic
from fencelog.broker.metadata.cluster_feed import ClusterFeed
from fencelog.broker.metadata.cluster_state import ClusterState, PartitionKey, encoded_deletion
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.network.time_slices import TimeSlices
from fencelog.broker.partitions.log_flusher import LogFlusher
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.peers.identity import Identity
from fencelog.broker.replicas.isr import IsrWriter
from fencelog.broker.replicas.led import Key, LedPartitions
from fencelog.broker.replicas.logs import OpenLogs
from fencelog.broker.replicas.replica_manager import ReplicaManager
from fencelog.broker.replicas.serving import Serving, snapshot
from fencelog.coordination.controller.model import PartitionState, Registration
from fencelog.errors import ErrorCode, RequestError
from fencelog.log.values import Appended, Duplicate
from fencelog.ports import MetadataWrite
from fencelog.rpc.connection import Connection
from fencelog.storage.checkpointer import Begin
from fencelog.storage.directory import DataDirectory
from fencelog.storage.recover import Durability
from fencelog.types import LeaderEpoch, NodeId, Offset, TopicId, TopicPartition
from fencelog.wire.batch import read_header
from fencelog.wire.messages.replica_snapshot import ReplicaSnapshotRequest
from fencelog_sim.world.clocks import SimRandom
from fencelog_sim.world.disk import SimDisk
from fencelog_sim.world.metadata import SimStore
from tests.support.log import NOW_MS
from tests.support.partition import scenario
from tests.support.storage import batch_of
from tests.unit.replicas.hosts import TOPIC, Wire, _responses, begin_of, until

pytestmark = pytest.mark.slow  # brokers that wait for each other

NAME, PARTITION = TopicPartition("t", 0), PartitionKey(TOPIC, 0)
NODES = (NodeId(1), NodeId(2), NodeId(3))


class Broker:
    """One life of one broker's replicas."""

    def __init__(
        self,
        node: NodeId,
        brokers: "dict[NodeId, Broker]",
        store: SimStore,
        durability: Durability = "os",
    ) -> None:
        self.node, self.brokers, self.store, self.durability = node, brokers, store, durability
        known = brokers.get(node)
        self.disk = SimDisk() if known is None else known.disk.restarted()
        self.life = "1" if known is None else f"{known.life}1"
        brokers[node] = self
        self.tamper = bytes
        self.wires: list[Wire] = []
        self.removed: list[TopicId] = []
        self.is_up = True

    async def start(self) -> "Broker":
        session = self.store.session()
        config = BrokerConfig(data_dir="", durability=self.durability)
        self.cluster = ClusterState(session)
        self.flusher = LogFlusher(sync=self.durability == "fsync")
        self.logs = LogManager(self.disk, config, self.flusher, None)
        self.logs.start(
            await DataDirectory.open(self.disk, SimRandom(Random(0)), cluster_id="c" * 22)
        )
        catalog, settings = Catalog(session), Settings(config, session)
        feed = ClusterFeed(self.cluster, catalog, settings, self.logs)
        self.led = LedPartitions()
        self.serving = Serving(self.led, TimeSlices())

        def min_isr(topic_id: TopicId) -> int:
            return feed.min_isr(topic_id) or 1

        isr = IsrWriter(
            session, self.cluster, self.led, self.life, self.serving.life_of, min_isr, 0.5
        )
        self.manager = ReplicaManager(
            Identity("cluster", self.node, self.life, b""),
            self.cluster,
            OpenLogs(self.logs, catalog, settings),
            self.led,
            isr,
            min_isr,
            self,
            all_replicas=False,
        )

        async def removed(topic_id: TopicId) -> None:
            self.removed.append(topic_id)

        self.manager.removed = removed
        registration = Registration(self.node, "host", 1, self.life, "")
        write = MetadataWrite(f"broker/{self.node}", registration.encode())
        assert self.store.commit([write])
        await self.cluster.start()
        loop = asyncio.get_running_loop()
        runs = (self.flusher.run(), self.cluster.run(), isr.run(), self.manager.run())
        self.tasks = [loop.create_task(each) for each in runs]
        return self

    async def kill(self) -> None:
        self.is_up = False
        for broker in self.brokers.values():
            for wire in broker.wires:
                if self in (broker, wire._leader):
                    wire.close("a broker is gone")
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)

    async def connection(self, leader: NodeId) -> Connection:
        other = self.brokers[leader]
        if not other.is_up:
            raise RequestError(ErrorCode.NETWORK_EXCEPTION, "connection refused")
        stream = other.serving.open(self.node, self.life, _responses())
        self.wires.append(Wire(stream, other))  # type: ignore[arg-type]
        return self.wires[-1]  # type: ignore[return-value]

    async def snapshot(self, leader: NodeId, key: Key, leader_epoch: LeaderEpoch) -> Begin:
        request = ReplicaSnapshotRequest(
            topic_id=key[0], partition=key[1], leader_epoch=leader_epoch
        )
        return begin_of(await snapshot(self.brokers[leader].led, request))

    @property
    def partition(self) -> Partition:
        found = self.logs.replica(NAME)
        assert found is not None
        return found

    def leads(self, epoch: int) -> bool:
        found = self.logs.get(*NAME)
        return found is not None and found.log.leader_epoch == epoch

    def produce(self, *values: bytes, **options: int) -> None:
        batch = memoryview(batch_of(*values, **options))
        outcome = self.partition.append(batch, read_header(batch), now_ms=NOW_MS)
        assert isinstance(outcome, Appended), outcome

    def committed(self, end: int) -> bool:
        found = self.logs.replica(NAME)
        return found is not None and found.log.high_watermark == end

    @property
    def log(self) -> bytes:
        return self.disk.contents(f"t-0/{0:020d}.log")


class Cluster:
    """Three brokers; the test is the controller."""

    def __init__(self) -> None:
        self.store = SimStore()
        self.brokers: dict[NodeId, Broker] = {}

    def __getitem__(self, node: int) -> Broker:
        return self.brokers[NodeId(node)]

    @property
    def state(self) -> PartitionState:
        return PartitionState.decode(PARTITION.text, self.store.values[PARTITION.text][0])

    def elect(self, node: int, isr: tuple[int, ...]) -> None:
        epoch = LeaderEpoch(self.state.leader_epoch + 1)
        state = PartitionState(
            NODES, NodeId(node), epoch, tuple(map(NodeId, isr)), (), self[node].life
        )
        assert self.store.commit([MetadataWrite(PARTITION.text, state.encode())])

    async def restart(self, node: int) -> Broker:
        if self[node].is_up:
            await self[node].kill()
        durability = self[node].durability
        return await Broker(NodeId(node), self.brokers, self.store, durability).start()

    async def all_committed(self, end: int) -> None:
        await until(lambda: all(each.committed(end) for each in self.brokers.values()))
        logs = {each.log for each in self.brokers.values()}
        assert len(logs) == 1


@asynccontextmanager
async def running(durability: Durability = "os") -> AsyncIterator[Cluster]:
    """Broker 1 leads a partition in epoch 0."""
    cluster = Cluster()
    for node in NODES:
        await Broker(node, cluster.brokers, cluster.store, durability).start()
    topic = Topic(name="t", topic_id=TOPIC, partitions=1, settings={})
    state = PartitionState(NODES, NodeId(1), LeaderEpoch(0), NODES, (), cluster[1].life)
    writes = [
        MetadataWrite("topic/t", topic.encode()),
        MetadataWrite(PARTITION.text, state.encode()),
    ]
    assert cluster.store.commit(writes)
    try:
        await until(lambda: cluster[1].leads(0))
        yield cluster
    finally:
        for broker in cluster.brokers.values():
            if broker.is_up:
                await broker.kill()


@scenario
async def test_a_leader_that_was_killed_comes_back_and_is_cut_at_the_fork() -> None:
    async with running() as cluster:
        cluster[1].produce(b"a")
        await cluster.all_committed(1)
        for node in (2, 3):
            await cluster[node].kill()
        cluster[1].produce(b"only here")
        await until(lambda: cluster[1].partition.durable_end == 2)
        await cluster[1].kill()
        for node in (2, 3):
            await cluster.restart(node)
        cluster.elect(2, (2, 3))
        await until(lambda: cluster[2].leads(1))
        cluster[2].produce(b"b")
        cluster[2].produce(b"c")
        await until(lambda: cluster[2].committed(3))
        await cluster.restart(1)
        await cluster.all_committed(3)
        await until(lambda: cluster.state.isr == NODES)
        assert b"only here" not in cluster[1].log


@scenario
async def test_requests_find_a_partition_only_where_it_is_led() -> None:
    async with running() as cluster:
        await until(lambda: cluster[2].logs.replica(NAME) is not None)
        assert cluster[2].logs.get(*NAME) is None
        cluster.elect(2, (1, 2, 3))
        await until(lambda: cluster[2].leads(1))
        await until(lambda: cluster[1].logs.get(*NAME) is None)


@scenario
async def test_a_replica_that_was_away_begins_where_the_leader_does() -> None:
    async with running() as cluster:
        await until(lambda: cluster[3].logs.replica(NAME) is not None)
        await cluster[3].kill()
        cluster.elect(1, (1, 2))
        await until(lambda: cluster[1].leads(1))
        cluster[1].produce(b"a", producer_id=7, sequence=0)
        await until(lambda: cluster[1].committed(1))
        await cluster[1].logs.delete_records({cluster[1].partition: Offset(1)})
        await cluster.restart(3)
        await until(lambda: cluster[3].committed(1))
        log = cluster[3].partition.log
        assert log.log_start_offset == 1
        assert [each.producer_id for each in log.producers()] == [7]  # E4
        cluster[1].produce(b"b", producer_id=7, sequence=1)
        await until(lambda: cluster[3].committed(2))
        await until(lambda: cluster[2].partition.log.log_start_offset == 1)
        await cluster.restart(3)
        await until(lambda: cluster[3].committed(2))


@scenario
async def test_a_replica_that_begins_inside_a_batch_can_be_elected() -> None:
    async with running() as cluster:
        await until(lambda: cluster[3].logs.replica(NAME) is not None)
        await cluster[3].kill()
        cluster.elect(1, (1, 2))
        await until(lambda: cluster[1].leads(1))
        cluster[1].produce(b"a", b"b", b"c", producer_id=7, sequence=0)
        await until(lambda: cluster[1].committed(3))
        await cluster[1].logs.delete_records({cluster[1].partition: Offset(1)})
        await cluster.restart(3)
        for _ in range(2):
            await until(lambda: cluster[3].committed(3))
            await until(lambda: cluster[3].partition.log.log_start_offset == 1)
            await cluster.restart(3)  # and the same once more
        await until(lambda: cluster.state.isr == NODES)
        cluster.elect(3, NODES)
        await until(lambda: cluster[3].leads(2))
        await until(lambda: cluster[3].partition.log.high_watermark == 3)
        again = memoryview(batch_of(b"a", b"b", b"c", producer_id=7, sequence=0))
        found = cluster[3].partition.append(again, read_header(again), now_ms=NOW_MS)
        assert isinstance(found, Duplicate)  # E4
        cluster[3].produce(b"d", producer_id=7, sequence=3)
        await cluster.all_committed(4)


def test_a_damaged_replica_is_replaced(caplog: pytest.LogCaptureFixture) -> None:  # D3
    @scenario
    async def test() -> None:
        async with running() as cluster:
            cluster[1].produce(b"a", b"b")
            await cluster.all_committed(2)
            await cluster[3].logs.checkpoint()
            await cluster[3].kill()
            cluster[3].disk.corrupt(f"t-0/{0:020d}.log", 70)
            await cluster.restart(3)
            await cluster.all_committed(2)
            await until(lambda: cluster.state.isr == NODES)

    test()
    assert "t-0: replacing the failed replica from its leader" in caplog.text


@scenario
async def test_a_deleted_topic_leaves_nothing_also_where_it_was_deleted_meanwhile() -> None:
    async with running() as cluster:
        await until(lambda: cluster[3].logs.replica(NAME) is not None)
        await cluster[3].kill()
        deletion = encoded_deletion("t", NODES)
        writes = [
            MetadataWrite("topic/t", None),
            MetadataWrite(PARTITION.text, None),
            MetadataWrite(f"deleted-topic/{TOPIC.hex()}", deletion),
        ]
        assert cluster.store.commit(writes)
        await until(lambda: cluster[1].removed == cluster[2].removed == [TOPIC])
        await cluster.restart(3)
        await until(lambda: cluster[3].removed == [TOPIC])
        for broker in cluster.brokers.values():
            assert not await broker.logs.present()


async def written_in_epochs(cluster: Cluster, last: int) -> None:
    """Broker 1 has the records of epoch 0, the others those of all epochs."""
    cluster[1].produce(b"a")
    await cluster.all_committed(1)
    await cluster[1].kill()
    for epoch in range(1, last + 1):
        cluster.elect(2, (2, 3))
        await until(lambda: cluster[2].leads(epoch))  # noqa: B023 - awaited here
        cluster[2].produce(b"of a later epoch")
        await until(lambda: cluster[3].committed(epoch + 1))  # noqa: B023 - awaited here


@pytest.mark.parametrize("first", [1, 2])
def test_metadata_that_are_older_than_a_log_wait_for_an_operator(
    first: int, caplog: pytest.LogCaptureFixture
) -> None:
    """``first``: whether the stale broker or one with everything starts first."""

    @scenario
    async def test() -> None:
        async with running() as cluster:
            backup = cluster.state
            await written_in_epochs(cluster, 3)
            for node in (2, 3):
                await cluster[node].kill()
            cluster.store.commit([MetadataWrite(PARTITION.text, backup.encode())])
            for node in (first, 3 - first, 3):
                await cluster.restart(node)
            await until(lambda: all(each.logs.replica(NAME) for each in cluster.brokers.values()))
            await until(lambda: cluster.state.leader == -1)
            assert cluster.state._replace(leader_epoch=LeaderEpoch(0)) == backup._replace(
                leader=NodeId(-1), isr=(), leader_life=""
            )
            assert cluster.state.leader_epoch == 4
            assert [cluster[each].partition.log.log_end_offset for each in NODES] == [1, 4, 4]
            cluster.elect(2, (2,))
            await cluster.all_committed(4)

    test()
    assert "t-0: this replica was written in leader epoch 3, the metadata store is at 0" in (
        caplog.text
    )
