"""The monitor of replication: sound histories pass, and each thing that it watches for is noticed.

Three hosts without brokers: the tests write to their disks and to the store as brokers would.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fencelog.broker.metadata.catalog import Topic
from fencelog.coordination.controller.model import (
    BROKER_PREFIX,
    NO_LEADER,
    PartitionState,
    Registration,
)
from fencelog.log.layout import LOG, RECOVERY_POINT_CHECKPOINT, encode_offsets, file_name
from fencelog.ports import MetadataWrite
from fencelog.storage.checkpoint import replace_file
from fencelog.types import LeaderEpoch, NodeId, Offset, TopicId, TopicPartition
from fencelog.wire.records import RecordToWrite, build_batch
from fencelog_sim.monitors.replication import ReplicationMonitor
from fencelog_sim.world.disk import Loss
from fencelog_sim.world.world import Setting, World

ID = TopicId(bytes(range(16)))
NAME = TopicPartition("orders", 0)
KEY = f"partition/{ID.hex()}/0"
ALL = (1, 2, 3)


class Rig:
    """A partition on three hosts, led by broker 1 in epoch 0."""

    def __init__(self, *, durability: str = "os", min_isr: int = 2) -> None:
        self.world = World("replication", Setting(durability=durability), brokers=3)  # type: ignore[arg-type]
        self.leads: dict[int, int] = {1: 0}
        self.monitor = ReplicationMonitor(
            self.world,
            lambda node, _: self.leads.get(node),
            lambda _: min_isr,  # type: ignore[call-overload]
        )
        self.topic("delete")
        self.state(1, 0, ALL)
        for host in self.world.hosts:
            assert host.watcher is not None
            host.watcher.booting(host.number)  # type: ignore[arg-type]  # stands for its broker

    def topic(self, policy: str) -> None:
        topic = Topic(name="orders", topic_id=ID, partitions=1, settings={"cleanup.policy": policy})
        self.world.store.commit([MetadataWrite("topic/orders", topic.encode())])

    def state(
        self,
        leader: int,
        epoch: int,
        isr: tuple[int, ...],
        eligible: tuple[int, ...] = (),
        life: str = "a",
    ) -> None:
        """Store a state; its leader leads from now on."""
        state = PartitionState(
            tuple(map(NodeId, ALL)),
            NodeId(leader),
            LeaderEpoch(epoch),
            tuple(map(NodeId, isr)),
            tuple(map(NodeId, eligible)),
            life if leader != NO_LEADER else "",
        )
        self.leads = {leader: epoch}
        self.world.store.commit([MetadataWrite(KEY, state.encode())])

    def register(self, number: int, begun_at: int = 0) -> None:
        """Store the registration of a broker's life, the first one or a later one."""
        node_id = NodeId(number)
        life = Registration(node_id, "h", 9092, "life", "directory", begun_at=begun_at)
        self.world.store.commit([MetadataWrite(f"{BROKER_PREFIX}{number}", life.encode())])

    def play(self, story: Callable[[], Awaitable[None]]) -> list[str]:
        async def main() -> None:
            await story()

        self.world.loop.run(main(), limit_s=60.0)
        return self.monitor.violations

    async def write(
        self,
        number: int,
        *offsets: int,
        epoch: int = 0,
        value: bytes = b"v",
        sync: bool = False,
    ) -> None:
        """Append a batch of one record at each of these offsets."""
        disk = self.world.hosts[number - 1].disk
        await disk.make_directory(str(NAME))
        file = await disk.open(f"{NAME}/{0:020d}.log", create=True)
        for offset in offsets:
            record = RecordToWrite(key=None, value=value + b"%d" % offset, timestamp_ms=1)
            await file.append([build_batch([record], base_offset=offset, leader_epoch=epoch)])
        if sync:
            await file.sync()
        await file.close()

    async def cut(self, number: int, batches: int) -> None:
        """Truncate a log to so many batches of one record each."""
        file = await self.world.hosts[number - 1].disk.open(f"{NAME}/{0:020d}.log")
        size = len(build_batch([RecordToWrite(key=None, value=b"v0", timestamp_ms=1)]))
        await file.truncate(batches * size)
        await file.close()

    def watermark(self, number: int, high_watermark: int) -> None:
        watcher = self.world.hosts[number - 1].watcher
        assert watcher is not None
        watcher.high_watermark_moved(NAME, Offset(high_watermark))
        self.monitor.after_event(self.world.loop.outside)

    async def committed(self, *offsets: int) -> None:
        """Write these on all hosts, and let the leader commit them, then the followers."""
        for number in ALL:
            await self.write(number, *offsets, sync=True)
        leader = next(iter(self.leads))
        for number in (leader, *(n for n in ALL if n != leader)):
            self.watermark(number, offsets[-1] + 1)


def violation_of(rig: Rig, story: Callable[[], Awaitable[None]]) -> str:
    violations = rig.play(story)
    assert violations
    return violations[0]


def test_a_sound_history_passes() -> None:
    rig = Rig(durability="fsync")

    async def story() -> None:
        await rig.committed(0, 1, 2)
        await rig.write(1, 3)  # of the leader alone, not committed
        rig.state(2, 1, (2, 3))
        await rig.write(2, 3, epoch=1, value=b"w", sync=True)
        await rig.write(3, 3, epoch=1, value=b"w", sync=True)
        rig.watermark(2, 4)
        await rig.cut(1, 3)
        await rig.write(1, 3, epoch=1, value=b"w", sync=True)
        rig.watermark(1, 4)
        rig.state(2, 1, ALL)
        rig.state(1, 2, ALL, life="b")
        rig.state(1, 2, (1,), (2, 3), life="b")
        rig.monitor.finish()

    assert rig.play(story) == []
    assert (rig.monitor.states, rig.monitor.batches) == (5, 13)


def test_an_elected_replica_lacks_what_is_committed() -> None:
    rig = Rig()

    async def story() -> None:
        await rig.committed(0)
        rig.state(1, 0, (1, 2))
        await rig.write(1, 1)
        await rig.write(2, 1)
        rig.watermark(1, 2)
        rig.state(3, 1, (3,))

    assert "broker 3 leads in epoch 1: committed is" in violation_of(rig, story)


def test_a_replica_joins_before_it_has_caught_up() -> None:
    rig = Rig()

    async def story() -> None:
        rig.state(1, 0, (1, 2))
        await rig.write(1, 0)
        await rig.write(2, 0)
        rig.watermark(1, 1)
        rig.state(1, 0, ALL)

    assert "broker 3 is in sync or eligible in epoch 0" in violation_of(rig, story)


def test_an_eligible_replica_lacks_what_is_committed() -> None:
    rig = Rig()

    async def story() -> None:
        rig.state(1, 0, (1, 2))
        await rig.write(1, 0)
        await rig.write(2, 0)
        rig.watermark(1, 1)
        rig.state(1, 0, (1,), (2, 3))

    assert "broker 3 is in sync or eligible in epoch 0" in violation_of(rig, story)


def test_the_high_watermark_passes_an_in_sync_replica() -> None:
    rig = Rig()

    async def story() -> None:
        await rig.write(1, 0)
        await rig.write(2, 0)
        rig.watermark(1, 1)

    assert "not durable at [3]" in violation_of(rig, story)


def test_what_is_only_written_counts_in_fsync_mode() -> None:
    rig = Rig(durability="fsync")

    async def story() -> None:
        await rig.write(1, 0, sync=True)
        await rig.write(2, 0, sync=True)
        await rig.write(3, 0)
        rig.watermark(1, 1)

    assert "not durable at [3]" in violation_of(rig, story)


def test_the_minimum_of_in_sync_replicas_is_ignored() -> None:
    rig = Rig()

    async def story() -> None:
        rig.state(1, 0, (1,))
        await rig.write(1, 0)
        rig.watermark(1, 1)

    assert "min.insync.replicas ignored" in violation_of(rig, story)


def test_who_has_lost_what_it_acknowledged_counts_towards_the_minimum() -> None:
    rig = Rig()

    async def story() -> None:
        rig.state(1, 0, (1, 2))
        await rig.write(1, 0)
        rig.monitor.ended(rig.world.hosts[1], Loss.ALL)
        rig.watermark(1, 1)

    assert rig.play(story) == []


def test_the_high_watermark_passes_an_eligible_replica() -> None:
    rig = Rig(min_isr=1)

    async def story() -> None:
        rig.state(1, 0, (1,), (2,))
        await rig.write(1, 0)
        rig.watermark(1, 1)

    assert "not durable at [2]" in violation_of(rig, story)


def test_two_batches_have_one_offset_in_one_epoch() -> None:
    rig = Rig()

    async def story() -> None:
        await rig.write(1, 0)
        await rig.write(2, 0, value=b"w")

    assert "broker 2: another batch in this epoch" in violation_of(rig, story)


def test_a_follower_has_something_else_below_its_high_watermark() -> None:
    rig = Rig()

    async def story() -> None:
        await rig.committed(0, 1)
        await rig.cut(3, 1)
        rig.state(2, 1, (1, 2))
        await rig.write(3, 1, epoch=1, value=b"w")
        rig.watermark(3, 2)

    assert "broker 3 has it below its high watermark" in violation_of(rig, story)


def test_a_follower_is_ahead_of_all_that_is_committed() -> None:
    rig = Rig()

    async def story() -> None:
        await rig.committed(0)
        await rig.write(2, 1)
        rig.watermark(2, 2)

    assert "committed is all below 1" in violation_of(rig, story)


@pytest.mark.parametrize(
    ("leader", "epoch", "isr", "eligible", "life", "what"),
    [
        (2, 0, (1, 2), (), "a", "the leader epoch"),
        (1, 1, ALL, (), "a", "the leader epoch"),
        (1, 0, ALL, (), "b", "the leader epoch"),
        (1, -1, ALL, (), "a", "the leader epoch"),
        (2, 1, (1, 3), (), "a", "an impossible state"),
        (1, 0, (1, 2), (2,), "a", "an impossible state"),
    ],
    ids=["new leader", "no new leader", "new life", "back", "not in sync", "both"],
)
def test_a_state_is_impossible(
    leader: int, epoch: int, isr: tuple, eligible: tuple, life: str, what: str
) -> None:
    rig = Rig()

    async def story() -> None:
        rig.state(leader, epoch, isr, eligible, life)

    assert what in violation_of(rig, story)


def test_a_broker_leads_in_an_epoch_that_is_not_its_own() -> None:
    rig = Rig()

    async def story() -> None:
        await rig.committed(0)
        rig.state(2, 1, ALL)
        rig.leads = {1: 1}
        rig.watermark(1, 1)

    assert "broker 1 leads in epoch 1 of (2, 'a')" in violation_of(rig, story)


def test_who_lost_power_in_os_mode_is_not_elected_before_it_has_caught_up() -> None:
    rig = Rig()

    async def story() -> None:
        await rig.committed(0)
        rig.world.hosts[2].cut_power(Loss.ALL)
        rig.state(1, 0, (1, 2), (3,))  # nobody knows yet
        rig.state(1, 0, (1, 2))
        assert rig.monitor.violations == []
        rig.state(3, 1, (2, 3))

    assert "broker 3 leads in epoch 1" in violation_of(rig, story)


def test_who_lost_power_in_os_mode_may_be_taken_in_until_it_has_registered_anew() -> None:  # F8
    rig = Rig()

    async def story() -> None:
        rig.state(1, 0, (1, 2))
        await rig.committed(0)
        rig.world.hosts[2].cut_power(Loss.ALL)
        rig.state(1, 0, (1, 2))
        rig.register(3, begun_at=7)  # what the last life has asked for comes late
        rig.register(2)
        rig.state(1, 0, ALL)  # by what it has acknowledged before
        rig.state(1, 0, (1, 2))
        assert rig.monitor.violations == []
        rig.register(3)
        rig.state(1, 0, ALL)

    assert "broker 3 is in sync or eligible in epoch 0" in violation_of(rig, story)


def test_at_the_end_a_replica_has_not_all() -> None:
    rig = Rig()

    async def story() -> None:
        rig.state(1, 0, (1, 2))
        await rig.write(1, 0)
        await rig.write(2, 0)
        rig.watermark(1, 1)
        rig.monitor.finish()

    assert "broker 3 at the end" in violation_of(rig, story)


def test_a_compacted_log_may_lack_batches() -> None:
    rig = Rig()

    async def story() -> None:
        rig.world.store.commit([MetadataWrite(KEY, None)])
        rig.topic("compact")
        rig.state(1, 0, ALL)
        for number in ALL:
            await rig.write(number, 0)
        rig.watermark(1, 1)
        await rig.cut(3, 0)
        rig.monitor.finish()

    assert rig.play(story) == []


def test_a_replica_in_sync_is_cut() -> None:
    rig = Rig()

    async def story() -> None:
        await rig.committed(0, 1)
        await rig.cut(3, 1)
        await asyncio.sleep(0)

    assert "broker 3 was cut" in violation_of(rig, story)


@pytest.mark.parametrize("point", [2, 3])
def test_a_log_is_cut_below_its_recovery_point(point: int) -> None:  # F7
    rig = Rig()

    async def story() -> None:
        await rig.committed(0, 1)
        await rig.write(2, 2)
        points = encode_offsets({NAME: Offset(point), TopicPartition("other", 0): Offset(9)})
        path = RECOVERY_POINT_CHECKPOINT
        await replace_file(rig.world.hosts[1].disk, path, points.encode("ascii"))
        await rig.cut(2, 2)

    told = ["orders-0: broker 2: it is cut to 2, its recovery point is 3"] if point > 2 else []
    assert [each.partition(" [")[0] for each in rig.play(story)] == told


def test_a_log_is_cut_to_the_begin_of_its_newest_segment() -> None:  # F7
    rig = Rig()

    async def story() -> None:
        points = encode_offsets({NAME: Offset(2)})
        disk = rig.world.hosts[1].disk
        await replace_file(disk, RECOVERY_POINT_CHECKPOINT, points.encode("ascii"))
        await disk.make_directory("orders-0")
        path = "orders-0/" + file_name(Offset(2), LOG)
        file = await disk.open(path, create=True)
        await file.truncate(0)
        await asyncio.sleep(0)

    assert rig.play(story) == []


def test_at_the_end_a_replica_knows_other_producers() -> None:  # E4
    rig = Rig()
    asked: list[object] = []

    def differ(leader: object, followers: object, name: TopicPartition) -> list[str]:
        asked.append((leader, followers, name))
        return ["producer 7 is another one"]

    rig.monitor._differ = differ

    async def story() -> None:
        await rig.committed(0)
        rig.state(2, 1, ALL)
        rig.monitor.finish()
        del rig.monitor._nodes[3]  # its broker has just ended
        rig.monitor.finish()

    assert "orders-0: producer 7 is another one" in violation_of(rig, story)
    assert asked == [(2, [1, 2, 3], NAME), (2, [1, 2], NAME)]


def test_a_replica_may_have_deleted_what_is_below_its_first_segment() -> None:
    rig = Rig()

    async def story() -> None:
        await rig.committed(0, 1)
        disk = rig.world.hosts[2].disk
        await disk.open(f"{NAME}/{2:020d}.log", create=True)
        await disk.remove(f"{NAME}/{0:020d}.log")
        rig.monitor.finish()

    assert rig.play(story) == []


def test_the_files_of_a_deleted_topic_are_not_those_of_the_next_one() -> None:
    rig = Rig()

    async def story() -> None:
        await rig.committed(0)
        rig.world.store.commit([MetadataWrite("topic/orders", None)])
        await rig.world.hosts[2].disk.remove(str(NAME))
        rig.state(1, 0, (1, 3))  # its states are removed after it
        rig.world.store.commit([MetadataWrite(KEY, None)])
        rig.topic("delete")
        rig.state(1, 0, ALL)
        await rig.write(2, 0, value=b"w")
        rig.watermark(1, 1)
        rig.monitor.finish()

    assert rig.play(story) == []
