"""Log starts that are raised while a commit, a disk or a role does not come along (D4)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fencelog.broker.partitions import log_starts
from fencelog.broker.partitions.opening import Replica
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode
from fencelog.log.config import LogConfig
from fencelog.log.ownership import Owner
from fencelog.log.values import Appended
from fencelog.replication.leader import LeaderProgress
from fencelog.types import LeaderEpoch, NodeId, Offset, TopicId, TopicPartition
from fencelog.wire.batch import read_header
from fencelog_sim.world.disk import SimDisk
from tests.support.log import NOW_MS, make_batch
from tests.support.node import until
from tests.support.partition import scenario
from tests.unit.broker.test_replica_roles import (
    NAME,
    TOPIC_ID,
    Logs,
    acknowledge,
    progress_of,
    replicate,
)

OTHER = TopicPartition("u", 0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_starts, "COPIES_WAIT_S", 0.05)


async def led(world: Logs, name: TopicPartition) -> tuple[Partition, LeaderProgress]:
    """Open a partition and lead it, broker 2 being in sync."""
    topic_id = TopicId(name.topic.encode() * 16)
    replica = Replica(name, topic_id, LogConfig(), exists=False, leader_epoch=LeaderEpoch(9))
    partition = await world.logs.open_replica(replica)
    assert partition is not None
    progress = progress_of(partition, epoch=10)
    partition.lead(progress)
    return partition, progress


async def owned(world: Logs) -> tuple[Partition, LeaderProgress]:
    """A partition with an ownership record and a record, both committed; broker 2 leaves then."""
    partition, progress = await led(world, NAME)
    owner = Owner(None, 1, "session", None, "holder", is_live=True)
    assert isinstance(partition.set_owner(owner, now_ms=NOW_MS), Appended)
    write(partition)
    await world.flusher.drained()
    acknowledge(partition, progress, 2)
    progress.proposed([NodeId(1)])
    progress.settled([NodeId(1)])
    return partition, progress


async def followed(world: Logs) -> Partition:
    """A follower with six records, of which it knows four to be committed."""
    partition = await world.opened()
    partition.follow(LeaderEpoch(1))
    replicate(partition, 6)
    await world.flusher.drained()
    partition.advance(Offset(4))
    return partition


def write(partition: Partition) -> None:
    batch = make_batch()
    assert isinstance(partition.append(batch, read_header(batch), now_ms=NOW_MS), Appended)


@scenario
async def test_where_copies_of_owners_are_not_committed_others_are_deleted_and_it_is_told() -> None:
    async with Logs(SimDisk()) as world:
        without, _ = await owned(world)
        other, progress = await led(world, OTHER)
        write(other)
        await world.flusher.drained()
        acknowledge(other, progress, 1)
        errors = await world.logs.delete_records({without: Offset(2), other: Offset(1)})
        assert errors == {without: ErrorCode.REQUEST_TIMED_OUT, other: ErrorCode.NONE}
        assert (without.log.log_start_offset, other.log.log_start_offset) == (0, 1)
        # Once they are committed it begins there, with the owner that it had.
        await world.flusher.drained()
        progress = progress_of(without, epoch=11)
        without.lead(progress)
        acknowledge(without, progress, without.log.log_end_offset)
        assert await world.logs.delete_records({without: Offset(2)}) == {without: ErrorCode.NONE}
        assert without.log.log_start_offset == 2
        owner = without.log.owner(None)
        assert owner is not None
        assert owner.holder == "holder"


@scenario
async def test_a_leader_that_is_deposed_while_copies_wait_begins_where_it_did() -> None:  # O8
    async with Logs(SimDisk()) as world:
        partition, _ = await owned(world)
        deleting = asyncio.create_task(world.logs.delete_records({partition: Offset(2)}))
        await until(lambda: partition.log.log_end_offset > 2, "a copy is appended")
        partition.follow(LeaderEpoch(11))
        assert await deleting == {partition: ErrorCode.NOT_LEADER_OR_FOLLOWER}
        # Its copy may be cut: the record below is the only one that is committed.
        assert partition.log.log_start_offset == 0


@scenario
async def test_a_stop_waits_for_copies_no_longer_than_that() -> None:
    async with Logs(SimDisk()) as world:
        partition, _ = await owned(world)
        asked = asyncio.create_task(world.logs.delete_records({partition: Offset(2)}))
        await until(lambda: partition.log.log_end_offset > 2, "a copy is appended")
        asked.cancel()
        await asyncio.wait_for(world.logs.stop(), 5)
        assert partition.log.log_start_offset == 0


@scenario
async def test_a_start_that_rises_while_a_follower_raises_its_own_is_reached_too() -> None:
    async with Logs(SimDisk()) as world:
        partition = await followed(world)
        world.logs.raise_start(partition, Offset(2))
        await asyncio.sleep(0)
        raising = list(world.logs.starts._tasks)
        assert len(raising) == 1
        world.logs.raise_start(partition, Offset(5))
        partition.advance(Offset(6))
        await asyncio.wait(raising)
        assert partition.log.log_start_offset == 5
        assert world.directory.log_start(NAME) == 5
        world.logs.raise_start(partition, Offset(6))
        await asyncio.wait(list(world.logs.starts._tasks))
        assert partition.log.log_start_offset == 6


async def removed(world: Logs) -> None:
    await world.logs.remove({NAME: TOPIC_ID})


async def cut(world: Logs) -> None:
    await world.logs.truncate(NAME, Offset(5), LeaderEpoch(2))


@pytest.mark.timeout(10)  # the loop that it forbids never waits
@pytest.mark.parametrize("closed", [removed, cut])
@scenario
async def test_a_follower_that_is_closed_meanwhile_is_brought_no_further(
    closed: Callable[[Logs], Awaitable[None]],
) -> None:
    async with Logs(SimDisk()) as world:
        partition = await followed(world)
        world.logs.raise_start(partition, Offset(2))
        (raising,) = world.logs.starts._tasks
        await closed(world)
        assert await raising == {}
        assert partition.log.log_start_offset == world.directory.log_start(NAME) == 0
