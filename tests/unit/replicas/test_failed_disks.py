"""Replicas whose disk fails while the broker runs: others go on, and the files are replaced."""

from collections.abc import Awaitable, Callable

import pytest

from fencelog.broker.partitions import partition as partition_module
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.replicas import repair
from fencelog.broker.replicas.led import Key
from fencelog.broker.replicas.repair import (
    FIRST_WAIT_S,
    FORGET_S,
    WAIT_MAX_S,
    Repair,
    Step,
    next_step,
)
from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.errors import CorruptionError, ExhaustedError, NotLeaderError, StorageError
from fencelog.log.config import LogConfig
from fencelog.log.values import Isolation
from fencelog.storage.checkpointer import Begin
from fencelog.types import Instant, LeaderEpoch, NodeId, Offset, TimestampMs, TopicPartition
from fencelog.wire.batch import HEADER_BYTES
from tests.support.log import NOW_MS
from tests.support.partition import scenario
from tests.unit.replicas.hosts import key, until
from tests.unit.replicas.test_replica_manager import running

pytestmark = pytest.mark.slow  # brokers that wait for each other


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try comes after a moment."""
    monkeypatch.setattr(repair, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(partition_module, "RETRY_S", 0.01)


def test_each_further_failure_doubles_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "FIRST_WAIT_S", FIRST_WAIT_S)
    failed, now, waits = Repair(), 0.0, []
    for _ in range(11):
        failed.failed(Instant(now), is_damaged=True)
        waits.append(failed.not_before - now)
        now = failed.not_before
    assert waits == [min(FIRST_WAIT_S * 2**n, WAIT_MAX_S) for n in range(11)]
    failed.failed(Instant(now + FORGET_S + 1), is_damaged=True)
    assert failed.not_before == now + FORGET_S + 1 + FIRST_WAIT_S


@scenario
async def test_a_leader_whose_disk_fails_leaves_the_leadership_to_another_and_is_replaced() -> None:
    async with running() as cluster:  # F1, D2
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 0))
        cluster.hosts[NodeId(1)].produce(b"a")
        await until(lambda: cluster.committed(1))
        cluster.partition(1).fail(StorageError("Input/output error"))
        await until(lambda: cluster.state().leader == NO_LEADER)
        assert (cluster.state().isr, cluster.state().eligible) == ((2, 3), ())
        failed = cluster.partition(1)
        cluster.lead(2, isr=(NodeId(2), NodeId(3)))
        await until(lambda: cluster.leads(2, 2))
        await until(lambda: not cluster.hosts[NodeId(1)].led.all())
        cluster.hosts[NodeId(2)].produce(b"b")
        await until(lambda: cluster.state().isr == (1, 2, 3))
        assert cluster.partition(1) is not failed
        assert cluster.hosts[NodeId(1)].bytes_of() == cluster.hosts[NodeId(2)].bytes_of()


@scenario
async def test_a_follower_whose_disk_fails_is_replaced_while_the_broker_runs() -> None:
    async with running() as cluster:  # D3
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 0))
        cluster.hosts[NodeId(1)].produce(b"a")
        await until(lambda: cluster.committed(1))
        states = [cluster.state()]
        cluster.nodes[1].cluster.subscribe(lambda _: states.append(cluster.state()))
        cluster.partition(2).fail(StorageError("Input/output error"))
        await until(lambda: cluster.state().isr == (1, 3))
        cluster.hosts[NodeId(1)].produce(b"b")
        await until(lambda: cluster.state().isr == (1, 2, 3))
        await until(lambda: cluster.committed(2))
        assert {each.leader_epoch for each in states} == {0}, "the leader has led on"
        assert cluster.hosts[NodeId(2)].bytes_of() == cluster.hosts[NodeId(1)].bytes_of()


async def fetched(partition: Partition) -> None:
    await partition.read(Offset(0), 1000, Isolation.TAIL)


async def looked_up(partition: Partition) -> None:
    await partition.find_timestamp(TimestampMs(NOW_MS), Isolation.REPLICATED, partition.sync)


MAGIC_AT, RECORDS_AT = 16, HEADER_BYTES + 4


@pytest.mark.parametrize(
    ("reading", "damaged_at"),
    [
        (fetched, MAGIC_AT),
        (fetched, None),
        (looked_up, MAGIC_AT),
        (looked_up, RECORDS_AT),
        (looked_up, None),
    ],
)
@scenario
async def test_what_cannot_be_read_is_replaced_too(
    reading: Callable[[Partition], Awaitable[None]], damaged_at: int | None
) -> None:
    async with running() as cluster:  # D3
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 0))
        host, partition = cluster.hosts[NodeId(1)], cluster.partition(1)
        host.produce(b"a")
        await until(lambda: cluster.committed(1))
        partition.reconfigure(LogConfig(segment_bytes=100))
        host.produce(b"b")  # in a second segment, so that the first file is closed
        await until(lambda: cluster.committed(2))
        await partition.sync()
        if damaged_at is None:
            host.disk.lose(f"t-0/{0:020d}.log")
        else:
            host.disk.corrupt(f"t-0/{0:020d}.log", damaged_at)
        with pytest.raises(CorruptionError):
            await reading(partition)
        await until(lambda: cluster.state().leader == NO_LEADER)
        cluster.lead(2, isr=(NodeId(2), NodeId(3)))
        await until(lambda: cluster.state().isr == (1, 2, 3))
        assert cluster.hosts[NodeId(1)].bytes_of() == cluster.hosts[NodeId(2)].bytes_of()


@scenario
async def test_a_failed_leader_stays_while_no_other_live_replica_has_everything() -> None:
    async with running() as cluster:
        cluster.commit(("broker/3", None))
        cluster.lead(1, replicas=(NodeId(1), NodeId(3)), isr=(NodeId(1), NodeId(3)))
        await until(lambda: cluster.leads(1, 0))
        cluster.partition(1).fail(StorageError("Input/output error"))
        cluster.lead(1, 1)  # something that comes after it
        await until(lambda: cluster.leads(1, 0, 1))
        assert (cluster.state().leader, cluster.state().isr) == (1, (1, 3))
        cluster.register()
        await until(lambda: cluster.state().leader == NO_LEADER)
        assert cluster.state().isr == (3,)


@scenario
async def test_a_failed_replica_keeps_its_files_until_its_leader_answers() -> None:
    async with running() as cluster:
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 0))
        cluster.hosts[NodeId(1)].produce(b"a")
        await until(lambda: cluster.committed(1))
        node, asked = cluster.nodes[2], 0
        failed, snapshot_of = cluster.partition(2), node.snapshot

        async def silent(leader: NodeId, one: Key, leader_epoch: LeaderEpoch) -> Begin:
            nonlocal asked
            asked += 1
            if asked > 2:
                return await snapshot_of(leader, one, leader_epoch)
            raise NotLeaderError("no answer")

        node.snapshot = silent  # type: ignore[method-assign]
        failed.fail(StorageError("Input/output error"))
        await until(lambda: asked == 2)
        assert cluster.partition(2) is failed
        await until(lambda: cluster.state().isr == (1, 2, 3))
        assert cluster.partition(2) is not failed


@scenario
async def test_a_disk_that_fails_again_is_tried_again() -> None:
    async with running() as cluster:
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 0))
        node, tries = cluster.nodes[2], 0
        begin_anew = node.begin_anew

        async def fails(name: TopicPartition, begin: Begin | None) -> Partition:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise StorageError("Input/output error")
            return await begin_anew(name, begin)

        node.begin_anew = fails  # type: ignore[method-assign]
        await until(lambda: node.manager._following)
        cluster.partition(2).fail(StorageError("Input/output error"))
        await until(lambda: tries == 2)
        assert cluster.state().isr == (1, 3)
        cluster.hosts[NodeId(1)].produce(b"a")
        await until(lambda: cluster.committed(1))
        assert tries == 3


@scenario
async def test_a_replica_that_cannot_be_opened_now_is_opened_later() -> None:
    async with running() as cluster:
        node, tries = cluster.nodes[1], 0
        open_replica = node.open_replica

        async def fails(
            one: Key, name: TopicPartition, leader_epoch: LeaderEpoch
        ) -> Partition | None:
            nonlocal tries
            tries += 1
            return None if tries < 2 else await open_replica(one, name, leader_epoch)

        node.open_replica = fails  # type: ignore[method-assign]
        cluster.lead(1)
        await until(lambda: cluster.state().leader == NO_LEADER)
        cluster.lead(2, isr=(NodeId(2), NodeId(3)))
        await until(lambda: cluster.state().isr == (1, 2, 3))
        assert tries == 2


@scenario
async def test_a_log_that_has_no_room_to_be_cut_is_opened_again_and_keeps_its_records() -> None:
    async with running() as cluster:  # D2, F7
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 0))
        cluster.hosts[NodeId(1)].produce(b"a")
        await until(lambda: cluster.committed(1))
        node, host = cluster.nodes[1], cluster.hosts[NodeId(1)]
        host.is_up = False  # nobody reaches it
        for other in (2, 3):
            for wire in cluster.hosts[NodeId(other)].wires:
                wire.close()
        host.produce(b"lost")
        truncate, cuts, exhausted = node.truncate, 0, []
        node.manager.exhausted = lambda: exhausted.append(None)

        async def without_room(
            name: TopicPartition, offset: Offset, leader_epoch: LeaderEpoch
        ) -> Partition:
            nonlocal cuts
            cuts += 1
            if cuts > 1:
                return await truncate(name, offset, leader_epoch)
            host.partition().remove("is opened anew")
            await host.partition().close(clean=False)
            raise ExhaustedError("No space left on device")

        async def opened(one: Key, name: TopicPartition, leader_epoch: LeaderEpoch) -> Partition:
            await host.reopen(one, high_watermark=1)
            return host.partitions[one]

        async def replaced(name: TopicPartition, begin: Begin | None) -> Partition:
            raise AssertionError("nothing of it is damaged")

        node.truncate, node.open_replica, node.begin_anew = without_room, opened, replaced  # type: ignore[method-assign]
        host.is_up = True
        cluster.lead(2)
        await until(lambda: cluster.leads(2, 1))
        cluster.hosts[NodeId(2)].produce(b"b")
        await until(lambda: cluster.committed(2))
        assert (cuts, len(exhausted)) == (2, 1)
        assert host.bytes_of() == cluster.hosts[NodeId(2)].bytes_of()


@scenario
async def test_a_replica_without_room_says_so_and_goes_on() -> None:
    async with running() as cluster:  # D2
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 0))
        node, host, exhausted = cluster.nodes[1], cluster.hosts[NodeId(1)], []
        node.manager.exhausted = lambda: exhausted.append(None)
        host.disk.free_bytes = 0
        host.produce(b"a")
        await until(lambda: len(exhausted) >= 2)
        host.disk.free_bytes = None
        await until(lambda: cluster.committed(1))
        assert cluster.leads(1, 0)


@scenario
async def test_logs_that_contradict_each_other_are_for_an_operator() -> None:
    async with running() as cluster:
        cluster.lead(1)
        node = cluster.nodes[2]
        await until(lambda: node.manager._following)
        failed = cluster.partition(2)
        node.manager.take_offline(key(), "one of the two has lost records")
        cluster.lead(1)
        await until(lambda: cluster.leads(1, 1))
        cluster.lead(3, 1)
        await until(lambda: cluster.leads(3, 0, 1))
        assert cluster.partition(2) is failed
        assert cluster.state().isr == (1, 2, 3)


@pytest.mark.parametrize(
    ("leader", "isr", "live", "step"),
    [
        (1, (1, 2), (1, 2), Step.LEAVE),
        (2, (1, 2), (1, 2), Step.LEAVE),
        (1, (1,), (1, 2), Step.WAIT),
        (1, (1, 2), (1,), Step.WAIT),
        (2, (2,), (1, 2), Step.OPEN),
        (2, (2,), (1,), Step.WAIT),
        (-1, (2,), (1, 2), Step.WAIT),
    ],
)
def test_the_next_step_follows_from_who_leads_and_lives(
    leader: int, isr: tuple[int, ...], live: tuple[int, ...], step: Step
) -> None:
    members = tuple(map(NodeId, isr))
    state = PartitionState(
        (NodeId(1), NodeId(2)), NodeId(leader), LeaderEpoch(1), members, (), "a life"
    )
    brokers = [NodeId(each) for each in live]
    assert next_step(state, NodeId(1), brokers, is_damaged=True) is step
    without_copy = Step.OPEN if step is Step.WAIT else step
    assert next_step(state, NodeId(1), brokers, is_damaged=False) is without_copy
