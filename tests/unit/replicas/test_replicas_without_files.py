"""Replicas of a segment whose files the metadata give up: each keeps its role and a seal (R1)."""

from collections.abc import Iterable

import pytest

from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.cluster_state import PartitionKey
from fencelog.coordination.streams.model import LogEnd, SegmentState, Stream
from fencelog.coordination.streams.rules import created, emptied, removed, sealed, split
from fencelog.errors import StorageError
from fencelog.log.ownership import Owner
from fencelog.log.values import Isolation
from fencelog.types import LeaderEpoch, NodeId, Offset
from fencelog.wire.control import Seal, last_seal, read_control
from tests.support.log import NOW_MS
from tests.support.partition import scenario
from tests.unit.replicas.hosts import TOPIC, key, until
from tests.unit.replicas.test_replica_manager import Cluster, running

pytestmark = pytest.mark.slow  # brokers that wait for each other


def give_up(
    cluster: Cluster, end: int, nodes: Iterable[int] = (1, 2, 3), *, epoch: int = 0
) -> None:
    """Let the metadata say that segment 0 has no files, and these nodes know it."""
    seal = bytes(last_seal(Offset(1), Offset(end), LeaderEpoch(epoch)))
    for node in nodes:
        cluster.hosts[NodeId(node)].seals[key()] = seal
    stream = created(1)
    assert isinstance(stream, Stream)
    resized = split(stream, 0)
    assert isinstance(resized, Stream)
    log_end = LogEnd(Offset(end), LeaderEpoch(epoch))
    gone = removed(emptied(sealed(resized, 0, Offset(1)), 0), 0, log_end)
    assert gone.segments[0].state is SegmentState.DELETED
    topic = Topic(name="t", topic_id=TOPIC, partitions=3, settings={}, stream=gone)
    cluster.commit(("topic/t", topic.encode()))


def are_without_files(cluster: Cluster, nodes: Iterable[int] = (1, 2, 3)) -> bool:
    found = [cluster.hosts[NodeId(node)].partitions.get(key()) for node in nodes]
    return all(each is not None and not each.log.has_files for each in found)


async def sealed_and_empty(cluster: Cluster) -> None:
    cluster.lead(1)
    await until(lambda: cluster.leads(1, 0))
    cluster.hosts[NodeId(1)].produce(b"a")
    cluster.partition(1).seal(now_ms=NOW_MS)
    await until(lambda: cluster.committed(2))


@scenario
async def test_every_replica_keeps_its_role_and_has_the_seal() -> None:  # F1, R1
    async with running() as cluster:
        await sealed_and_empty(cluster)
        give_up(cluster, 2)
        await until(lambda: are_without_files(cluster) and cluster.leads(1, 0))
        await until(
            lambda: [len(each.manager._following) for each in cluster.nodes.values()] == [0, 1, 1]
        )
        assert cluster.committed(2)
        for host in cluster.hosts.values():
            assert host.disk_names("t-0") == []
        leader = cluster.partition(1)
        read = await leader.read(
            Offset(1), 1 << 20, Isolation.TRANSACTIONAL, at_least_one=True, to_send=False
        )
        assert read_control(read.parts[0]) == Seal()
        assert cluster.state().isr == (1, 2, 3), "nobody fell behind"


@scenario
async def test_another_replica_leads_what_has_no_files() -> None:  # F1
    async with running() as cluster:
        await sealed_and_empty(cluster)
        give_up(cluster, 4)
        await until(lambda: are_without_files(cluster))
        cluster.lead(2)
        await until(lambda: cluster.leads(2, 1))
        await until(lambda: cluster.committed(4))
        cluster.lead(3, isr=(NodeId(3),))
        await until(lambda: cluster.leads(3, 2))
        await until(lambda: cluster.state().isr == (1, 2, 3))
        assert not any(host.cuts for host in cluster.hosts.values())


@scenario
async def test_a_follower_that_hears_of_it_late_changes_nothing_of_the_leader() -> None:  # F7
    async with running() as cluster:
        await sealed_and_empty(cluster)
        late = cluster.nodes[3].session
        late.lateness = lambda: 2.0
        give_up(cluster, 2)
        await until(lambda: are_without_files(cluster, (1, 2)))
        await until(lambda: cluster.partition(3).log.high_watermark == 2)
        late.lateness = lambda: 0.0
        await until(lambda: are_without_files(cluster))
        assert not any(host.cuts for host in cluster.hosts.values())
        assert cluster.state().isr == (1, 2, 3)


@scenario
async def test_a_follower_that_missed_the_last_epochs_waits_until_it_hears_of_it() -> None:  # F7
    async with running() as cluster:
        await sealed_and_empty(cluster)
        late = cluster.nodes[3].session
        late.lateness = lambda: 5.0
        cluster.lead(2, isr=(NodeId(1), NodeId(2)))
        await until(lambda: cluster.leads(2, 1))
        for is_live in (True, False):
            owner = Owner("g", 5, "session", None, "holder", is_live=is_live)
            cluster.partition(2).set_owner(owner, now_ms=NOW_MS)
        await until(lambda: cluster.partition(1).log.high_watermark == 4)
        give_up(cluster, 4, (1, 2), epoch=1)
        await until(lambda: are_without_files(cluster, (1, 2)))
        behind = cluster.nodes[3].manager._replicas[key()]
        await until(lambda: behind.leader_epoch == 1)
        assert cluster.partition(3).log.log_end_offset == 2
        give_up(cluster, 4, (3,), epoch=1)
        await until(lambda: are_without_files(cluster))
        await until(lambda: cluster.state().isr == (1, 2, 3))
        assert not cluster.hosts[NodeId(3)].cuts


@scenario
async def test_a_replica_that_comes_later_begins_with_the_seal() -> None:  # F2
    async with running() as cluster:
        two = (NodeId(1), NodeId(2))
        cluster.lead(1, replicas=two, isr=two)
        await until(lambda: cluster.leads(1, 0))
        cluster.hosts[NodeId(1)].produce(b"a")
        cluster.partition(1).seal(now_ms=NOW_MS)
        await until(lambda: cluster.partition(2).log.high_watermark == 2)
        give_up(cluster, 2)
        await until(lambda: are_without_files(cluster, two))
        wider = cluster.state()._replace(replicas=(*two, NodeId(3)))
        cluster.commit((PartitionKey(TOPIC, 0).text, wider.encode()))
        await until(lambda: cluster.state().isr == (1, 2, 3))
        assert are_without_files(cluster)


@scenario
async def test_a_failed_replica_of_it_is_opened_with_the_seal() -> None:  # D2
    async with running() as cluster:
        await sealed_and_empty(cluster)
        cluster.partition(2).fail(StorageError("Input/output error"))
        give_up(cluster, 2)
        await until(lambda: are_without_files(cluster))
        await until(lambda: cluster.state().isr == (1, 2, 3))
