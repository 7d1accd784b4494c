"""The monitors of a run: a sound broker passes, and each thing that they watch for is noticed."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from fencelog.broker.handlers.group_offsets import commit_offsets
from fencelog.broker.partitions.partition import Partition
from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster, ClusterOptions
from fencelog.client.sender import ProducerOptions, open_sender
from fencelog.coordination.group.commit import Commit
from fencelog.coordination.group.records import CommittedOffset
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.log.values import Appended
from fencelog.node import Node
from fencelog.types import Instant, Offset, Sequence, TopicPartition
from fencelog.wire.batch import read_header
from fencelog.wire.records import RecordToWrite, build_batch
from fencelog_sim.monitors.invariants import ROUND_EVENTS, Monitor
from fencelog_sim.workloads.own import encode
from fencelog_sim.world.disk import Loss
from fencelog_sim.world.world import Setting, World, client_host
from tests.unit.sim.files import committed_offset

LIMIT_S = 60.0
NAME = TopicPartition("orders", 0)
TOPIC_CONFIG = {"retention.ms": "-1"}

Main = Callable[["Rig"], Coroutine[Any, Any, None]]


class Rig:
    """A world with a monitor, and a client that writes to it."""

    def __init__(self, seed: str = "monitored", **setting: Any) -> None:
        self.world = World(seed, Setting(**setting))
        self.monitor = Monitor(self.world)
        self._clients = 0

    def run(self, main: Main) -> str:
        """Start a broker, carry out ``main`` and return what the monitor says."""

        async def whole() -> None:
            await self.world.host.start()
            await main(self)

        self.world.loop.run(whole(), limit_s=LIMIT_S)
        assert not self.world.crashes, self.world.crashes
        assert not self.world.loop.errors, self.world.loop.errors
        return "\n".join(self.monitor.violations)

    @property
    def node(self) -> Node:
        assert self.world.host.node is not None
        return self.world.host.node

    @property
    def partition(self) -> Partition:
        found = self.node.logs.get(*NAME)
        assert found is not None
        return found

    async def as_client(self, name: str, work: Callable[[Cluster], Awaitable[None]]) -> None:
        """Do something as a process of its own."""
        done = asyncio.Event()

        async def main() -> None:
            cluster = Cluster(ClusterOptions(bootstrap_servers=self.world.bootstrap))
            try:
                await work(cluster)
            finally:
                await cluster.close()
                done.set()

        self._clients += 1
        self.world.start_client(f"{name}.{self._clients}", client_host(0), main)
        await done.wait()

    async def write(self, *, transactional: bool = False, count: int = 1) -> None:
        """Let a client create the topic and write to it, in committed transactions if asked."""

        async def work(cluster: Cluster) -> None:
            if self.node.logs.get(*NAME) is None:
                await Admin(cluster).create_topic(NAME.topic, 1, TOPIC_CONFIG, -1)
            options = ProducerOptions(transactional_id="t" if transactional else None)
            sender = await open_sender(cluster, options)
            for _ in range(count):
                if transactional:
                    await sender.begin()
                await sender.enqueue([encode(NAME, ["value"], 1.0)])
                await sender.flush()
                if transactional:
                    await sender.end(commit=True)
            await sender.close()

        await self.as_client("writer", work)

    async def in_broker(self, work: Callable[[], object]) -> None:
        """Do something in a step of the broker's process, and let one round of looks pass."""

        async def step() -> None:
            work()
            for _ in range(2 * ROUND_EVENTS):
                await asyncio.sleep(0)

        assert self.world.host.broker is not None
        await self.world.loop.start(self.world.host.broker, step())

    async def commit_offset(self, offset: int) -> None:
        """Commit a group's offset as a request does."""

        async def work() -> None:
            asked = Commit(group="g", offsets={NAME: CommittedOffset(Offset(offset))})
            await self.node.groups.decide(
                "g", lambda shard, now: commit_offsets(self.node.broker, shard, asked, now)
            )

        assert self.world.host.broker is not None
        await self.world.loop.start(self.world.host.broker, work())

    def _wall_ms(self) -> Any:
        return self.world.clock.now_ms()

    def append(self) -> Offset:
        """Append a batch as a request does; returns where it ends."""
        partition = self.partition
        batch = memoryview(build_batch([RecordToWrite(None, b"value", self._wall_ms())]))
        done = partition.append(batch, read_header(batch), now_ms=self._wall_ms())
        assert isinstance(done, Appended)
        return done.end_offset


async def live(rig: Rig) -> None:
    """Writes, a kill, a power cut and a clean stop, and writes after each."""
    await rig.write(transactional=True, count=3)
    await rig.commit_offset(3)
    await rig.commit_offset(1)
    rig.world.host.kill()
    await rig.world.host.start()
    await rig.write(count=20)
    rig.world.host.cut_power(Loss.TORN)
    await rig.world.host.start()
    await rig.write(transactional=True, count=3)
    await rig.world.host.stop()
    await rig.world.host.start()
    await rig.write()
    await rig.world.host.stop()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_sound_broker_passes_and_was_looked_at(durability: str) -> None:
    rig = Rig(durability=durability, topic_defaults=(("segment.bytes", "1024"),))
    loss = live if durability == "fsync" else live_without_power_cuts
    assert rig.run(loss) == ""
    counts = rig.monitor.counts
    assert counts["broker processes observed"] == 4 - (durability == "os")
    assert counts["broker steps observed"] > 100
    assert counts["batches observed"] > 20
    assert counts["recoveries observed"] >= 4
    assert counts["replays compared"] > 10


async def live_without_power_cuts(rig: Rig) -> None:
    await rig.write(transactional=True, count=3)
    rig.world.host.kill()
    await rig.world.host.start()
    await rig.write(count=5)
    await rig.world.host.stop()
    await rig.world.host.start()
    await rig.write()
    rig.world.host.kill()


def test_monitors_leave_no_trace_in_a_run() -> None:
    digests = []
    for is_monitored in (True, False):
        rig = Rig()
        if not is_monitored:
            rig.world.host.watcher = rig.world.loop.after_event = None
        rig.run(live)
        digests.append(rig.world.loop.digest())
    assert digests[0] == digests[1]


def high_watermark_back(rig: Rig) -> None:
    rig.partition.log.high_watermark = Offset(1)


def high_watermark_ahead(rig: Rig) -> None:
    rig.partition.log.high_watermark = Offset(99)


def last_stable_offset_ahead(rig: Rig) -> None:
    rig.partition.log.last_stable_offset = Offset(4)


def last_stable_offset_behind(rig: Rig) -> None:
    rig.append()
    rig.partition.log.last_stable_offset = Offset(2)


def log_start_ahead(rig: Rig) -> None:
    rig.partition.log._state.log_start = Offset(9)


def end_back(rig: Rig) -> None:
    rig.partition.log._state.log_end = Offset(3)


def answered_before_the_flush(rig: Rig) -> None:
    rig.partition.log.high_watermark = rig.append()


@pytest.mark.parametrize(
    ("tamper", "expected"),
    [
        (high_watermark_back, "orders-0: the HW goes from 5 back to 1"),
        (high_watermark_ahead, "log start 0 ≤ LSO 5 ≤ HW 99 ≤ LEO 5 does not hold"),
        (last_stable_offset_ahead, "orders-0: the LSO is 4, expected 5 (E10)"),
        (last_stable_offset_behind, "orders-0: the LSO goes from 5 back to 2"),
        (log_start_ahead, "log start 9 ≤ LSO 5 ≤ HW 5 ≤ LEO 5 does not hold"),
        (end_back, "orders-0: the LEO goes from 5 back to 3"),
        (answered_before_the_flush, "orders-0: HW 6, though the disk has 5 (D1)"),
    ],
)
def test_an_offset_that_is_wrong_after_a_step_is_noticed(
    tamper: Callable[[Rig], None], expected: str
) -> None:
    async def main(rig: Rig) -> None:
        await rig.write(count=5)
        await rig.in_broker(lambda: tamper(rig))

    rig = Rig()
    # What the tampered log stumbles over afterwards is not the point.
    rig.world.loop.set_exception_handler(lambda loop, context: None)
    assert expected in rig.run(main)


@pytest.mark.parametrize("loss", [Loss.ALL, None])
def test_a_promise_that_a_crash_breaks_is_noticed(loss: Loss | None) -> None:  # D1
    async def main(rig: Rig) -> None:
        await rig.write()
        rig.node.flusher._sync = False  # answers before it syncs
        rig.append()
        await asyncio.sleep(0.5)
        if loss is None:
            rig.world.host.kill()
        else:
            rig.world.host.cut_power(loss)
        await rig.world.host.start()

    said = Rig().run(main)
    assert ("orders-0: ends at 1 after a crash, though 2 was promised" in said) == bool(loss)


def test_in_os_mode_a_power_cut_takes_only_what_was_not_synced() -> None:  # D1
    async def main(rig: Rig) -> None:
        await rig.write()
        await rig.world.host.stop()
        await rig.world.host.start()
        await rig.write()
        rig.world.host.cut_power(Loss.ALL)
        await rig.world.host.start()
        assert rig.partition.log.log_end_offset == 1

    assert Rig(durability="os").run(main) == ""


def test_a_partition_that_goes_offline_for_no_reason_is_noticed() -> None:  # E15
    async def main(rig: Rig) -> None:
        await rig.write(count=2)
        await rig.world.host.stop()
        rig.world.host.disk.corrupt("orders-0/00000000000000000000.log", 70)
        await rig.world.host.start()

    assert "orders-0: offline after a start, though nothing damaged it" in Rig().run(main)


def test_a_shard_that_is_not_its_replay_is_noticed_at_a_crash() -> None:
    async def main(rig: Rig) -> None:
        await rig.write(transactional=True)
        for loaded in rig.node.transactions.loaded():
            shard: TransactionShard = loaded.shard
            shard._transactions.pop("t", None)
        rig.world.host.kill()

    assert "the shard is not its replay: _transactions['t'] is None" in Rig().run(main)


def test_a_record_that_was_appended_and_is_not_on_disk_yet_is_in_the_replay() -> None:
    async def main(rig: Rig) -> None:
        await rig.commit_offset(1)

        async def work() -> None:
            rig.world.loop.start(rig.world.loop.outside, kill())
            asked = Commit(group="g", offsets={NAME: CommittedOffset(Offset(2))})
            await rig.node.groups.decide(
                "g", lambda shard, now: commit_offsets(rig.node.broker, shard, asked, now)
            )

        killed = asyncio.Event()

        async def kill() -> None:
            rig.world.host.kill()
            killed.set()

        assert rig.world.host.broker is not None
        rig.world.loop.start(rig.world.host.broker, work())
        await killed.wait()

    assert Rig().run(main) == ""


def test_a_log_whose_state_is_not_its_replay_is_noticed_at_a_crash() -> None:
    async def main(rig: Rig) -> None:
        await rig.write()
        for state in rig.partition.log._state.producers.values():
            state.next_sequence = Sequence(17)
        rig.world.host.kill()

    assert "orders-0: producers[0] is ProducerState(" in Rig().run(main)


def test_a_list_of_aborted_transactions_that_is_one_short_is_noticed() -> None:  # E10
    async def main(rig: Rig) -> None:
        async def work(cluster: Cluster) -> None:
            sender = await open_sender(cluster, ProducerOptions(transactional_id="t"))
            await sender.begin()
            await sender.enqueue([encode(NAME, ["value"], 1.0)])
            await sender.flush()
            await sender.end(commit=False)
            await sender.close()

        await rig.write()
        await rig.as_client("aborter", work)
        await asyncio.sleep(1.0)
        rig.partition.log._state.transactions.aborted.pop()
        rig.world.host.kill()

    assert "orders-0: aborted is [], its log says [(" in Rig().run(main)


def test_a_group_that_goes_back_by_itself_is_noticed() -> None:
    async def main(rig: Rig) -> None:
        await rig.commit_offset(5)
        rig.node.broker.observer = None  # so that no request waits for the next one
        await rig.commit_offset(4)

    assert "group g goes from 5 back to 4 on orders-0, and no client asked" in Rig().run(main)


@pytest.mark.parametrize("how", ["decided", "read"])
def test_an_answer_that_outruns_its_commit_is_noticed(how: str) -> None:  # E16
    async def main(rig: Rig) -> None:
        await rig.commit_offset(5)

        async def at_once(loaded: object) -> None:
            del loaded

        groups = rig.node.groups
        if how == "read":
            sound, groups.await_commit = groups.await_commit, at_once  # type: ignore[method-assign]

            async def work() -> None:
                loaded = groups.loaded()[0]
                groups._append(loaded, (committed_offset(6),), Instant(rig.world.loop.time()))
                await groups.read("g", lambda shard: shard.fetch("g"))
                groups.await_commit = sound  # type: ignore[method-assign]

            assert rig.world.host.broker is not None
            await rig.world.loop.start(rig.world.host.broker, work())
        else:
            groups.await_commit = at_once  # type: ignore[method-assign]
            await rig.commit_offset(6)

    assert "answered at HW 1, though the answer reveals what is below 2 (E16)" in Rig().run(main)


def test_a_producer_id_that_is_given_again_is_noticed() -> None:  # E1, E7
    async def main(rig: Rig) -> None:
        await rig.write()
        rig.node.broker.producer_ids._next = 0
        await rig.write()

    assert "producer id 0 is given again (E1, E7)" in Rig().run(main)
