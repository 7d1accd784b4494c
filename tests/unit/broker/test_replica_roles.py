"""A replica leads or follows: who may append and read, what commits, and how it is opened anew."""

import asyncio
from random import Random

import pytest

from fencelog.broker.config import BrokerConfig
from fencelog.broker.partitions.log_flusher import LogFlusher
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.opening import Replica
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import CorruptionError, ErrorCode, ExhaustedError, NotLeaderError
from fencelog.log.config import LogConfig
from fencelog.log.values import Appended, Isolation, Rejected
from fencelog.replication.leader import LeaderProgress, Leadership
from fencelog.storage.checkpointer import Begin
from fencelog.storage.directory import DataDirectory
from fencelog.types import Instant, LeaderEpoch, NodeId, Offset, TopicPartition
from fencelog.wire.batch import iterate, read_header
from fencelog.wire.control import OwnershipRecord, ownership_batch
from fencelog_sim.world.clocks import SimRandom
from fencelog_sim.world.disk import SimDisk
from tests.support.log import NOW_MS, make_batch
from tests.support.partition import EVERY, Reading, Rig, scenario
from tests.support.storage import TOPIC_ID

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
NAME = TopicPartition("t", 0)
NOW = Instant(0.0)


def progress_of(partition: Partition, *, epoch: int = 1, min_isr: int = 2) -> LeaderProgress:
    """Broker 1 leads, and broker 2 is in sync."""
    end, high_watermark = partition.log.log_end_offset, partition.log.high_watermark
    begun = Leadership(
        ONE, (ONE, TWO, THREE), (ONE, TWO), LeaderEpoch(epoch), end, high_watermark, min_isr
    )
    return LeaderProgress(begun, all_replicas=False, now=NOW)


def acknowledge(partition: Partition, progress: LeaderProgress, end: int) -> None:
    """Broker 2 has everything below an offset."""
    log_end = partition.log.log_end_offset
    position = Offset(end), Offset(end)
    acknowledged = progress.acknowledged(TWO, *position, NOW, log_end=log_end, log_start=Offset(0))
    partition.advance(acknowledged)


def batches(count: int = 3, epoch: int = 1) -> list[memoryview]:
    """What a leader has, as its followers get it."""
    found = []
    for offset in range(count):
        batch = make_batch(7, 0, offset)
        batch[:8] = offset.to_bytes(8)
        batch[12:16] = epoch.to_bytes(4)
        found.append(batch)
    return found


def replicate(partition: Partition, count: int = 3, epoch: int = 1) -> None:
    for batch in batches(count, epoch):
        header = read_header(batch)
        if header.base_offset >= partition.log.log_end_offset:
            outcome = partition.append_replicated(batch, header)
            assert isinstance(outcome, Appended), outcome


@scenario
async def test_a_leader_commits_what_its_in_sync_replicas_have() -> None:  # F2
    rig = await Rig.of()
    progress = progress_of(rig.partition)
    rig.partition.lead(progress)
    rig.append(7, 0, 0)
    rig.wait(1, "committed")
    await rig.flush()
    assert rig.waits == []
    assert await rig.offsets(Isolation.TAIL) == [0]
    assert await rig.offsets(Isolation.REPLICATED) == []
    acknowledge(rig.partition, progress, 1)
    assert rig.waits == ["committed"]
    assert await rig.offsets(Isolation.REPLICATED) == [0]


@scenario
async def test_a_leader_without_enough_in_sync_replicas_says_so() -> None:  # F2
    rig = await Rig.of(min_insync_replicas=2)
    assert not rig.partition.has_enough_replicas
    progress = progress_of(rig.partition)
    rig.partition.lead(progress)
    assert rig.partition.checks_batches
    assert rig.partition.has_enough_replicas
    progress.proposed([ONE])
    assert not rig.partition.has_enough_replicas


@scenario
async def test_nobody_but_replicas_reads_until_the_epochs_start_is_committed() -> None:  # F8
    rig = await Rig.of()
    rig.partition.follow(LeaderEpoch(1))
    replicate(rig.partition)
    await rig.flush()
    rig.partition.advance(Offset(1))
    progress = progress_of(rig.partition, epoch=2)
    rig.partition.lead(progress)
    reading = Reading()
    rig.partition.add_reader(reading)
    found = await rig.partition.read(Offset(0), EVERY, Isolation.REPLICATED)
    assert found.error is ErrorCode.OFFSET_NOT_AVAILABLE
    assert await rig.offsets(Isolation.TAIL) == [0, 1, 2]
    acknowledge(rig.partition, progress, 3)
    assert reading.calls == ["interrupted"]
    assert await rig.offsets(Isolation.REPLICATED) == [0, 1, 2]


@scenario
async def test_a_follower_appends_and_shows_nothing_of_its_own() -> None:  # F1
    rig = await Rig.of()
    rig.partition.follow(LeaderEpoch(1))
    refused = rig.append(7, 0, 0)
    assert isinstance(refused, Rejected)
    assert refused.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    for isolation in Isolation:
        found = await rig.partition.read(Offset(0), EVERY, isolation)
        assert found.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not rig.partition.has_enough_replicas


@scenario
async def test_a_follower_commits_what_its_leader_does_and_is_durable_here() -> None:  # F2
    rig = await Rig.of()
    rig.partition.follow(LeaderEpoch(1))
    reading = Reading()
    rig.partition.add_reader(reading)
    replicate(rig.partition)
    rig.partition.advance(Offset(2))
    assert (rig.partition.durable_end, rig.partition.log.high_watermark) == (0, 0)
    await rig.flush()
    assert (rig.partition.durable_end, rig.partition.log.high_watermark) == (3, 2)
    rig.partition.advance(Offset(9))
    assert rig.partition.log.high_watermark == 3
    assert reading.calls[0] == "advanced"


@scenario
async def test_a_follower_learns_who_owns_and_who_did() -> None:  # O7, O8
    rig = await Rig.of()
    rig.partition.follow(LeaderEpoch(1))
    owners = [("a", 1, True), ("b", 2, True), ("b", 2, False), ("c", 3, True), ("c", 3, True)]
    for offset, (session, epoch, is_live) in enumerate(owners):
        record = OwnershipRecord(None, epoch, session, None, "me", is_live, Offset(offset))
        batch = ownership_batch(record, NOW_MS)
        batch[:8] = offset.to_bytes(8)
        batch[12:16] = (1).to_bytes(4)
        outcome = rig.partition.append_replicated(memoryview(batch), read_header(batch))
        assert isinstance(outcome, Appended), outcome
    rig.partition.lead(progress_of(rig.partition, epoch=2))
    owners_now = rig.partition.owners
    # Their connections to this broker may outlive them, if it was cut off when they ended.
    found = {each: owners_now.read_error(each) for each in "abcd"}
    fenced = ErrorCode.OWNER_FENCED
    assert found == {"a": fenced, "b": fenced, "c": ErrorCode.NONE, "d": ErrorCode.NONE}
    assert owners_now.writer == "c"
    refused = owners_now.refused_write("a", None, is_transactional=False)
    assert refused is not None
    assert refused.error is fenced


@scenario
async def test_waits_end_with_the_leadership_in_which_they_began() -> None:  # F1
    rig = await Rig.of()
    rig.partition.lead(progress_of(rig.partition))
    reading = Reading()
    rig.partition.add_reader(reading)
    rig.append(7, 0, 0)
    rig.wait(1, "first")
    rig.partition.follow(LeaderEpoch(2))
    assert rig.waits == ["first: NotLeaderError"]
    assert reading.calls == ["interrupted"]
    progress = progress_of(rig.partition, epoch=3)
    rig.partition.lead(progress)
    rig.wait(1, "second")
    await rig.flush()
    acknowledge(rig.partition, progress, 1)
    assert rig.waits == ["first: NotLeaderError", "second"]


@scenario
async def test_a_partition_without_room_stays_so_in_a_new_role() -> None:  # D2
    rig = await Rig.of()
    rig.append(7, 0, 0)
    rig.partition.stall(ExhaustedError("no room"))
    rig.partition.lead(progress_of(rig.partition))
    refused = rig.append(7, 0, 1)
    assert isinstance(refused, Rejected)
    assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    rig.wait(1, "waits")
    assert rig.waits == ["waits: ExhaustedError"]


@scenario
async def test_who_reads_the_tail_is_told_of_what_is_written() -> None:
    rig = await Rig.of()
    rig.partition.lead(progress_of(rig.partition))
    reading = Reading()
    rig.partition.add_reader(reading)
    rig.append(7, 0, 0)
    await rig.partition.write()
    assert reading.calls == ["advanced"]


# -- the log manager -----------------------------------------------------------------------------


class Logs:
    """A log manager of a broker that is one of several, with its flusher."""

    def __init__(self, disk: SimDisk, durability: str = "fsync") -> None:
        self.flusher = LogFlusher(sync=durability == "fsync")
        self.logs = LogManager(
            disk, BrokerConfig(data_dir="", durability=durability), self.flusher, None
        )
        self.disk = disk

    async def __aenter__(self) -> "Logs":
        self._flushing = asyncio.create_task(self.flusher.run())
        self.directory = await DataDirectory.open(
            self.disk, SimRandom(Random(0)), cluster_id="c" * 22
        )
        self.logs.start(self.directory)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._flushing.cancel()

    async def opened(self, *, epoch: int = 9) -> Partition:
        exists = NAME in await self.logs.present()
        replica = Replica(
            NAME, TOPIC_ID, LogConfig(), exists=exists, leader_epoch=LeaderEpoch(epoch)
        )
        partition = await self.logs.open_replica(replica)
        assert partition is not None, self.logs.offline()
        return partition


async def stored(partition: Partition) -> list[int]:
    found = await partition.read(Offset(0), EVERY, Isolation.TAIL)
    return [header.base_offset for header, _ in iterate(found.records)]


@scenario
async def test_requests_find_only_what_is_led_here() -> None:
    async with Logs(SimDisk()) as world:
        partition = await world.opened()
        assert world.logs.replica(NAME) is partition
        for follow in (lambda: None, lambda: partition.follow(LeaderEpoch(11))):
            follow()
            assert world.logs.get(*NAME) is None
            assert world.logs.missing(*NAME) is ErrorCode.NOT_LEADER_OR_FOLLOWER
            with pytest.raises(NotLeaderError):
                world.logs.find(NAME)
            partition.lead(progress_of(partition, epoch=10))
            assert world.logs.find(NAME) is world.logs.get(*NAME) is partition
        assert world.logs.missing("t", 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        world.logs.is_elsewhere = lambda name: name == TopicPartition("t", 1)
        assert world.logs.missing("t", 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_replica_is_cut_while_it_is_in_use(durability: str) -> None:  # F7
    async def main() -> None:
        disk = SimDisk()
        async with Logs(disk, durability) as world:
            partition = await world.opened()
            partition.follow(LeaderEpoch(1))
            replicate(partition, 5)
            await world.flusher.drained()
            partition.advance(Offset(2))
            replicate(partition, 6)  # unflushed
            waiting = asyncio.ensure_future(partition.committed(Offset(9)))
            await asyncio.sleep(0)
            cut = await world.logs.truncate(NAME, Offset(3), LeaderEpoch(2))
            with pytest.raises(NotLeaderError):
                await waiting
            assert (cut.log.log_end_offset, cut.log.high_watermark) == (3, 2)
            assert world.directory.recovery_point(NAME) <= 3
            assert world.logs.replica(NAME) is cut
            cut.lead(progress_of(cut, epoch=3))
            assert await stored(cut) == [0, 1, 2]
            await world.logs.checkpoint()
        async with Logs(disk.restarted(), durability) as world:
            assert (await world.opened()).log.log_end_offset == 3

    asyncio.run(main())


@scenario
async def test_a_fork_below_the_high_watermark_takes_the_replica_offline() -> None:  # F8
    async with Logs(SimDisk()) as world:
        partition = await world.opened()
        partition.follow(LeaderEpoch(1))
        replicate(partition)
        await world.flusher.drained()
        partition.advance(Offset(3))
        with pytest.raises(CorruptionError, match="at offset 2, below the high watermark, 3"):
            await world.logs.truncate(NAME, Offset(2), LeaderEpoch(2))
        assert world.logs.replica(NAME) is None
        assert world.logs.missing(*NAME) is ErrorCode.KAFKA_STORAGE_ERROR


@scenario
async def test_a_damaged_replica_is_replaced_by_a_new_one() -> None:  # D3
    disk = SimDisk()
    async with Logs(disk) as world:
        partition = await world.opened()
        partition.follow(LeaderEpoch(1))
        replicate(partition)
        await world.flusher.drained()
        await world.logs.checkpoint()
        partition.lead(progress_of(partition, epoch=2))
        snapshot, epochs = partition.log.start_snapshot(Offset(0))
    path = f"{NAME}/{0:020d}.log"
    disk = disk.restarted()
    disk.overwrite(path, b"garbage")
    async with Logs(disk) as world:
        replica = Replica(NAME, TOPIC_ID, LogConfig(), exists=True, leader_epoch=LeaderEpoch(9))
        assert await world.logs.open_replica(replica) is None
        assert NAME in world.logs.offline()
        new = await world.logs.begin_anew(NAME, Begin(Offset(2), snapshot, epochs))
        assert (new.log.log_start_offset, new.log.log_end_offset) == (2, 2)
        assert new.log.high_watermark == 2
        assert NAME not in world.logs.offline()
        await world.logs.stop()
    async with Logs(disk.restarted()) as world:
        assert (await world.opened()).log.log_start_offset == 2


@scenario
async def test_a_follower_begins_where_its_leader_does_and_deletes_nothing_itself() -> None:  # D4
    async with Logs(SimDisk()) as world:
        partition = await world.opened()
        world.logs.reconfigure(NAME, LogConfig(retention_ms=0, segment_ms=1))
        partition.follow(LeaderEpoch(1))
        replicate(partition)
        await world.flusher.drained()
        partition.advance(Offset(3))
        for later in (1, 2):
            await world.logs.upkeep(NOW_MS + later * 1_000_000)
            await world.flusher.drained()
        assert partition.log.log_start_offset == 0
        world.logs.raise_start(partition, Offset(5))
        world.logs.raise_start(partition, Offset(5))
        await world.logs.starts.ended()
        assert partition.log.log_start_offset == 3
        assert world.directory.log_start(NAME) == 3
