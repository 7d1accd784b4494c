"""Replicas follow what the metadata store says: opened, led, followed, cut, begun anew, removed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.cluster_state import ClusterState, PartitionKey, encoded_deletion
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.peers.identity import Identity
from fencelog.broker.replicas.handovers import Handovers
from fencelog.broker.replicas.isr import IsrWriter
from fencelog.broker.replicas.led import Key
from fencelog.broker.replicas.replica_manager import ReplicaManager
from fencelog.broker.replicas.serving import snapshot
from fencelog.coordination.controller.model import NO_LEADER, PartitionState, Registration
from fencelog.errors import StorageError
from fencelog.log.values import EpochStart
from fencelog.ports import MetadataWrite
from fencelog.rpc.connection import Connection
from fencelog.storage.checkpointer import Begin
from fencelog.types import LeaderEpoch, NodeId, Offset, TopicId, TopicPartition
from fencelog.wire.messages.replica_snapshot import ReplicaSnapshotRequest
from fencelog_sim.world.metadata import SimStore
from tests.support.partition import scenario
from tests.unit.replicas.hosts import TOPIC, Host, key, until

PARTITIONS = 3
OTHER = TopicId(bytes(range(16, 32)))


class Node:
    """One broker's replica manager over a host's disk; the host has no roles of its own."""

    def __init__(self, node: int, hosts: dict[NodeId, Host], store: SimStore) -> None:
        self.host = hosts[NodeId(node)] = Host(NodeId(node), hosts)
        self.session = store.session()
        self.cluster = ClusterState(self.session)
        self.incarnation = f"life of {node}"
        self.isr = IsrWriter(
            store.session(),
            self.cluster,
            self.host.led,
            self.incarnation,
            self.host.serving.life_of,
            lambda topic_id: 1,
            1.0,
        )
        self.manager = ReplicaManager(
            Identity("cluster", self.host.node, self.incarnation, b""),
            self.cluster,
            self,
            self.host.led,
            self.isr,
            lambda topic_id: 1,
            self,
            all_replicas=False,
        )
        self.removed: list[TopicId] = []
        self.removals: list[str] = []
        self.damaged: set[Key] = set()
        self.is_without_files = self.host.is_without_files
        self.remove_files = self.host.remove_files

        async def removed(topic_id: TopicId) -> None:
            self.removed.append(topic_id)

        self.manager.removed = removed
        self.knows_topic = True

    async def start(self) -> None:
        await self.cluster.start()
        handovers = Handovers(self.session, self.cluster, self.host.led, self.manager.resign)
        runs = (self.cluster.run(), self.isr.run(), self.manager.run(), handovers.run())
        self.tasks = [asyncio.create_task(each) for each in runs]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        await self.host.stop()

    # -- the logs ----------------------------------------------------------------------------------

    def name_of(self, one: Key) -> TopicPartition | None:
        return TopicPartition("t", one[1]) if self.knows_topic else None

    async def newer_epoch(self, name: TopicPartition, newest: LeaderEpoch) -> None:
        """No log is newer than the metadata."""

    async def open_replica(
        self, one: Key, name: TopicPartition, leader_epoch: LeaderEpoch
    ) -> Partition | None:
        if one in self.damaged:
            return None
        await self.host.open(one[1])
        return self.host.partitions[one]

    def is_damaged(self, name: TopicPartition) -> bool:
        return key(name.partition) in self.damaged

    async def truncate(
        self, name: TopicPartition, offset: Offset, leader_epoch: LeaderEpoch
    ) -> Partition:
        self.host.cuts.append(offset)
        partition = self.host.partitions[key(name.partition)]
        high_watermark = partition.log.high_watermark
        partition.remove("is opened anew")
        await partition.close(clean=False)
        await self.host.reopen(
            key(name.partition),
            recovery_point=offset,
            truncate_to=offset,
            high_watermark=high_watermark,
        )
        return self.host.partitions[key(name.partition)]

    async def begin_anew(self, name: TopicPartition, begin: Begin | None) -> Partition:
        partition = self.host.partitions.pop(key(name.partition), None)
        if partition is not None:
            partition.remove("is opened anew")
            await partition.close(clean=False)
            await self.host.disk.remove(str(name))
        await self.host.open(name.partition, begin)
        return self.host.partitions[key(name.partition)]

    def raise_start(self, partition: Partition, offset: Offset) -> None:
        partition.advance_start(min(offset, partition.log.high_watermark))

    async def remove(self, topic_id: TopicId, name: str) -> None:
        self.removals.append(name)
        for one, partition in list(self.host.partitions.items()):
            del self.host.partitions[one]
            partition.remove("is opened anew")
            await partition.close(clean=False)
            await self.host.disk.remove(str(partition.name))

    # -- the leaders -------------------------------------------------------------------------------

    async def connection(self, leader: NodeId) -> Connection:
        return await self.host._connect(leader)  # type: ignore[return-value]

    async def snapshot(self, leader: NodeId, one: Key, leader_epoch: LeaderEpoch) -> Begin:
        request = ReplicaSnapshotRequest(
            topic_id=one[0], partition=one[1], leader_epoch=leader_epoch
        )
        answer = await snapshot(self.host.hosts[leader].led, request)
        epochs = [
            EpochStart(each.epoch, Offset(each.start_offset)) for each in answer.leader_epochs
        ]
        return Begin(Offset(answer.offset), bytes(answer.snapshot), epochs)


class Cluster:
    """Three nodes and the store; the test is the controller."""

    def __init__(self) -> None:
        self.store = SimStore()
        self.hosts: dict[NodeId, Host] = {}
        self.nodes = {number: Node(number, self.hosts, self.store) for number in (1, 2, 3)}

    def commit(self, *writes: tuple[str, bytes | None]) -> None:
        assert self.store.commit([MetadataWrite(name, value) for name, value in writes])

    def register(self) -> None:
        for number in self.nodes:
            life = f"life of {number}"
            registration = Registration(NodeId(number), "host", 1, life, "")
            self.commit((f"broker/{number}", registration.encode()))

    def state(self, index: int = 0) -> PartitionState:
        name = PartitionKey(TOPIC, index).text
        return PartitionState.decode(name, self.store.values[name][0])

    def lead(self, leader: int, index: int = 0, **fields: object) -> None:
        """Elect a leader, as the controller does; the first one creates the partition."""
        name = PartitionKey(TOPIC, index).text
        epoch = self.state(index).leader_epoch + 1 if name in self.store.values else 0
        replicas = tuple(self.hosts)
        state = PartitionState(
            replicas, NodeId(leader), LeaderEpoch(epoch), replicas, (), f"life of {leader}"
        )
        self.commit((name, state._replace(**fields).encode()))

    def partition(self, node: int, index: int = 0) -> Partition:
        return self.hosts[NodeId(node)].partition(index)

    def leads(self, node: int, epoch: int, index: int = 0) -> bool:
        led = self.hosts[NodeId(node)].led.get(key(index))
        return led is not None and led.progress.leader_epoch == epoch

    def committed(self, end: int, index: int = 0) -> bool:
        partitions = [host.partitions.get(key(index)) for host in self.hosts.values()]
        return all(each is not None and each.log.high_watermark == end for each in partitions)


@asynccontextmanager
async def running() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    cluster.register()
    for node in cluster.nodes.values():
        await node.start()
    try:
        yield cluster
    finally:
        for node in cluster.nodes.values():
            await node.stop()


@scenario
async def test_new_partitions_are_created_and_led_and_followed() -> None:
    async with running() as cluster:
        for index in range(PARTITIONS):
            cluster.lead(index + 1, index)
        for index in range(PARTITIONS):
            await until(lambda index=index: cluster.leads(index + 1, 0, index))
            cluster.hosts[NodeId(index + 1)].produce(b"x%d" % index, index=index)
            await until(lambda index=index: cluster.committed(1, index))
        for index in range(PARTITIONS):
            leaders = [host.node for host in cluster.hosts.values() if host.led.get(key(index))]
            assert leaders == [index + 1]
            (copy,) = {host.bytes_of(index) for host in cluster.hosts.values()}
            assert b"x%d" % index in copy


@scenario
async def test_replicas_that_are_added_copy_the_log_and_join_while_the_leader_goes_on() -> None:
    # F2
    async with running() as cluster:
        one = (NodeId(1),)
        cluster.lead(1, replicas=one, isr=one)
        await until(lambda: cluster.leads(1, 0))
        cluster.hosts[NodeId(1)].produce(b"a")
        leading = cluster.hosts[NodeId(1)].led.get(key())
        await until(lambda: leading.partition.log.high_watermark == 1)
        # The new replicas ask before their leader knows of them.
        cluster.nodes[1].session.lateness = lambda: 1.0
        order = (NodeId(2), NodeId(1), NodeId(3))
        wider = cluster.state()._replace(replicas=order)
        cluster.commit((PartitionKey(TOPIC, 0).text, wider.encode()))
        await until(lambda: any(wire.requests for wire in cluster.hosts[NodeId(2)].wires))
        assert not leading.progress.is_replica(NodeId(2))
        cluster.hosts[NodeId(1)].produce(b"b")  # it waits for nobody meanwhile
        await until(lambda: leading.partition.log.high_watermark == 2)
        assert cluster.state().isr == one
        await until(lambda: cluster.state().isr == order)
        cluster.hosts[NodeId(1)].produce(b"c")
        await until(lambda: cluster.committed(3))
        assert cluster.hosts[NodeId(1)].led.get(key()) is leading
        assert len({host.bytes_of() for host in cluster.hosts.values()}) == 1


@scenario
async def test_a_new_topic_is_ready_once_its_replicas_have_roles() -> None:
    async with running() as cluster:
        cluster.lead(1)
        node = cluster.nodes[1]
        await until(lambda: PartitionKey(TOPIC, 0) in node.cluster.partitions)
        topic = Topic(name="t", topic_id=TOPIC, partitions=1, settings={})
        await asyncio.wait_for(node.manager.opened(topic), 10)
        assert cluster.leads(1, 0)


@scenario
async def test_partitions_that_come_before_their_topic_are_opened_when_it_comes() -> None:
    async with running() as cluster:
        nodes = cluster.nodes.values()
        for node in nodes:
            node.knows_topic = False
        cluster.lead(1)
        for node in nodes:
            await until(lambda node=node: PartitionKey(TOPIC, 0) in node.cluster.partitions)
            await until(lambda node=node: not node.manager._due)
            node.knows_topic = True
        topic = Topic(name="t", topic_id=TOPIC, partitions=1, settings={})
        cluster.commit(("topic/t", topic.encode()))
        await until(lambda: cluster.leads(1, 0))


@scenario
async def test_a_change_of_leader_cuts_what_only_the_old_one_had() -> None:
    async with running() as cluster:
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 0))
        cluster.hosts[NodeId(1)].produce(b"a")
        await until(lambda: cluster.committed(1))
        cluster.hosts[NodeId(1)].is_up = False  # nobody reaches it
        for wire in [*cluster.hosts[NodeId(2)].wires, *cluster.hosts[NodeId(3)].wires]:
            wire.close()
        cluster.hosts[NodeId(1)].produce(b"lost")
        await until(lambda: cluster.partition(1).durable_end == 2)
        cluster.hosts[NodeId(1)].is_up = True
        cluster.lead(2)
        await until(lambda: cluster.leads(2, 1))
        assert not cluster.leads(1, 0)
        cluster.hosts[NodeId(2)].produce(b"b")
        await until(lambda: cluster.committed(2))
        assert {node: host.cuts for node, host in cluster.hosts.items()} == {1: [1], 2: [], 3: []}
        (copy,) = {host.bytes_of() for host in cluster.hosts.values()}
        assert b"lost" not in copy


@scenario
async def test_a_leader_in_another_life_waits_for_its_next_epoch() -> None:
    async with running() as cluster:
        cluster.lead(1, leader_life="an earlier life")
        await until(lambda: key() in cluster.hosts[NodeId(2)].partitions)
        cluster.lead(1, 1)  # something that comes after it
        await until(lambda: cluster.leads(1, 0, 1))
        assert cluster.hosts[NodeId(1)].led.get(key()) is None
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 1))


@scenario
async def test_without_a_leader_a_replica_neither_leads_nor_follows() -> None:
    async with running() as cluster:
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 0))
        cluster.lead(int(NO_LEADER), leader_life="")
        await until(lambda: not cluster.hosts[NodeId(1)].led.all())
        await until(lambda: not cluster.nodes[2].manager._fetchers)
        cluster.lead(3)
        await until(lambda: cluster.leads(3, 2))
        cluster.hosts[NodeId(3)].produce(b"x")
        await until(lambda: cluster.committed(1))


@scenario
async def test_an_older_state_changes_nothing() -> None:
    async with running() as cluster:
        cluster.lead(1)
        node = cluster.nodes[1]
        await until(lambda: cluster.leads(1, 0))
        older = node.cluster.partitions[PartitionKey(TOPIC, 0)]
        cluster.lead(2)
        await until(lambda: cluster.leads(2, 1))
        node.cluster.partitions[PartitionKey(TOPIC, 0)] = older
        node.manager._look(key())
        assert not cluster.leads(1, 0)
        assert cluster.partition(1).log.leader_epoch == 1


@scenario
async def test_a_replica_that_was_away_for_long_begins_anew() -> None:
    async with running() as cluster:
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 0))
        cluster.hosts[NodeId(1)].produce(b"a", producer_id=6, sequence=0)
        await until(lambda: cluster.committed(1))
        away, before = cluster.hosts[NodeId(3)], cluster.partition(3)
        away.is_up = False
        for wire in away.wires:
            wire.close()
        cluster.lead(1, isr=(NodeId(1), NodeId(2)))
        await until(lambda: cluster.leads(1, 1))
        cluster.hosts[NodeId(1)].produce(b"b", producer_id=7, sequence=0)
        await until(lambda: cluster.partition(1).log.high_watermark == 2)
        cluster.partition(1).advance_start(Offset(2))
        away.is_up = True
        await until(lambda: cluster.state().isr == (1, 2, 3))
        assert cluster.partition(3) is not before
        assert cluster.partition(3).log.log_start_offset == 2
        assert [each.producer_id for each in cluster.partition(3).log.producers()] == [6, 7]


@scenario
async def test_a_deleted_topic_is_removed_everywhere() -> None:
    async with running() as cluster:
        for index in range(2):
            cluster.lead(1, index)
            await until(lambda index=index: cluster.committed(0, index))
        nodes_of = cluster.nodes.values()
        await until(lambda: [len(each.manager._following) for each in nodes_of] == [0, 2, 2])
        gone = [(PartitionKey(TOPIC, index).text, None) for index in range(2)]
        nodes = (NodeId(1), NodeId(2), NodeId(3))
        cluster.commit((f"deleted-topic/{TOPIC.hex()}", encoded_deletion("t", nodes)), *gone)
        await until(lambda: all(node.removed == [TOPIC] for node in cluster.nodes.values()))
        assert all(node.removals == ["t"] for node in cluster.nodes.values())
        assert not any(host.partitions or host.led.all() for host in cluster.hosts.values())
        for node in nodes_of:
            assert not any(node.host.disk_names(f"t-{index}") for index in range(2))
            assert not node.manager._fetchers
            assert not node.manager._following
            assert not node.manager._replicas
        state = PartitionState(nodes, NodeId(1), LeaderEpoch(0), nodes, (), "life of 1")
        cluster.commit((PartitionKey(OTHER, 0).text, state.encode()))
        await until(lambda: (OTHER, 0) in cluster.nodes[3].manager._replicas)  # the name is free


@scenario
async def test_a_failed_replica_of_a_deleted_topic_is_removed() -> None:
    async with running() as cluster:
        for index in range(2):
            cluster.lead(1, index)
            await until(lambda index=index: cluster.committed(0, index))
        node = cluster.nodes[2]
        await until(lambda: len(node.manager._following) == 2)
        cluster.partition(2, 1).fail(StorageError("broken"))
        gone = [(PartitionKey(TOPIC, index).text, None) for index in range(2)]
        deleted = encoded_deletion("t", (NodeId(1), NodeId(2), NodeId(3)))
        cluster.commit((f"deleted-topic/{TOPIC.hex()}", deleted), *gone)
        await until(lambda: node.removed == [TOPIC])
        assert not node.manager._fetchers


@scenario
async def test_a_damaged_replica_leaves_and_is_replaced_from_the_leader() -> None:
    async with running() as cluster:
        cluster.nodes[2].damaged.add(key())
        cluster.lead(1)
        await until(lambda: 2 not in cluster.state().isr or cluster.committed(0))
        cluster.hosts[NodeId(1)].produce(b"x")
        await until(lambda: cluster.committed(1))
        await until(lambda: cluster.state().isr == (1, 2, 3))


@scenario
async def test_a_damaged_leader_leaves_too() -> None:
    async with running() as cluster:
        cluster.nodes[1].damaged.add(key())
        cluster.lead(1)
        await until(lambda: cluster.state().leader == NO_LEADER)
        assert cluster.state().isr == (2, 3)
        cluster.lead(2, isr=(NodeId(2), NodeId(3)))
        await until(lambda: cluster.state().isr == (1, 2, 3))


@scenario
async def test_the_only_complete_replica_is_not_given_up_for_its_damage() -> None:
    async with running() as cluster:
        cluster.nodes[2].damaged.add(key())
        cluster.lead(2, isr=(NodeId(2),))
        cluster.lead(1, 1)
        await until(lambda: cluster.leads(1, 0, 1))
        await until(lambda: cluster.nodes[2].manager._replicas[key()].is_offline)
        assert cluster.state().isr == (2,)
        cluster.hosts[NodeId(1)].produce(b"x", index=1)
        await until(lambda: cluster.committed(1, 1))


@scenario
async def test_what_a_deleted_topic_has_left_is_removed_before_anything_is_opened() -> None:
    cluster = Cluster()
    cluster.register()
    nodes = (NodeId(1), NodeId(2), NodeId(3))
    cluster.commit((f"deleted-topic/{OTHER.hex()}", encoded_deletion("t", nodes)))
    cluster.lead(1)
    node = cluster.nodes[1]
    await node.start()
    await until(lambda: cluster.leads(1, 0))
    assert (node.removals, node.removed) == (["t"], [OTHER])
    await node.stop()
    for other in (2, 3):
        await cluster.hosts[NodeId(other)].stop()


@scenario
async def test_a_topic_of_the_same_name_waits_until_the_deleted_one_is_removed() -> None:
    async with running() as cluster:
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 0))
        hold, node = asyncio.Event(), cluster.nodes[1]
        remove = node.remove

        async def held(topic_id: TopicId, name: str) -> None:
            await hold.wait()
            await remove(topic_id, name)

        node.remove = held  # type: ignore[method-assign]
        nodes = (NodeId(1), NodeId(2), NodeId(3))
        cluster.commit(
            (f"deleted-topic/{TOPIC.hex()}", encoded_deletion("t", nodes)),
            (PartitionKey(TOPIC, 0).text, None),
        )
        state = PartitionState(nodes, NodeId(1), LeaderEpoch(0), nodes, (), "life of 1")
        cluster.commit((PartitionKey(OTHER, 0).text, state.encode()))
        await until(lambda: PartitionKey(OTHER, 0) in node.cluster.partitions)
        await until(lambda: not cluster.hosts[NodeId(1)].led.all())
        assert (OTHER, 0) not in node.manager._replicas
        hold.set()
        await until(lambda: (OTHER, 0) in node.manager._replicas)


@scenario
async def test_an_internal_error_of_a_stream_ends_the_manager() -> None:
    async with running() as cluster:
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 0))
        node = cluster.nodes[2]
        await until(lambda: node.manager._fetchers)
        fetcher, _ = node.manager._fetchers[NodeId(1)]

        def fails(*_: object) -> None:
            raise AssertionError("a leader appends no batches of another")

        fetcher._take_one = fails  # type: ignore[method-assign]
        cluster.hosts[NodeId(1)].produce(b"x")
        await until(node.tasks[2].done)
        assert isinstance(node.tasks[2].exception(), AssertionError)
