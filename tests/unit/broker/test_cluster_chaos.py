"""A cluster's metadata under everything at once; what must always hold is checked all the time."""

import asyncio
import contextlib
from collections.abc import Sequence
from random import Random

import pytest

from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.cluster_state import ClusterState, broker_key
from fencelog.broker.metadata.controller import NewTopic
from fencelog.broker.metadata.registration import fence
from fencelog.coordination.controller.model import (
    NO_LEADER,
    PARTITION_PREFIX,
    PartitionState,
    Registration,
)
from fencelog.errors import FencelogError
from fencelog.types import Instant
from fencelog_sim.world.loop import SimLoop
from fencelog_sim.world.metadata import SimStore
from tests.support.cluster_metadata import Host, in_virtual_time, lose_some

STEPS = 60


class Checked(SimStore):
    """A store that looks at each commit."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        """Looks at the partitions, and at these hosts."""
        super().__init__()
        self.hosts = hosts
        self.states: dict[str, PartitionState] = {}
        self.elections = 0

    def look(self) -> None:
        """Check what has changed since the last look."""
        for key, (value, _) in self.values.items():
            if key.startswith(PARTITION_PREFIX):
                state = PartitionState.decode(key, value)
                before = self.states.get(key)
                self.states[key] = state
                if before is not None and before != state:
                    self._changed(before, state)
        now = Instant(asyncio.get_running_loop().time())
        for host in self.hosts:
            if host.process.alive and host.registration.is_valid(now):
                self._registered(host)

    def _changed(self, before: PartitionState, after: PartitionState) -> None:
        led_anew = (before.leader, before.leader_life) != (after.leader, after.leader_life)
        assert after.leader_epoch == before.leader_epoch + led_anew, (before, after)
        if after.leader != NO_LEADER:
            assert after.leader in after.isr
            assert after.leader in (*before.isr, *before.eligible), (before, after)
        assert after.isr
        self.elections += led_anew

    def _registered(self, host: Host) -> None:
        """No broker answers requests that the others may take for gone."""
        cell = self.values.get(broker_key(host.node))
        assert cell is not None, host.node
        assert Registration.decode("", cell[0]).incarnation == (
            host.registration.registration.incarnation
        )


class Chaos:
    """A cluster of three, and what happens to it."""

    def __init__(self, seed: int) -> None:
        """Nothing runs yet."""
        self.random = Random(seed)
        self.hosts: list[Host] = []
        self.store = Checked(self.hosts)
        self.lives = dict.fromkeys((1, 2, 3), 0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.loop = loop
        loop.after_event = lambda _process: self.store.look()

    async def begin(self) -> None:
        """Start all brokers and make topics, while nothing is wrong yet."""
        for number in self.lives:
            self.hosts.append(await self.start(number, faults=False))
        first = self.hosts[0]
        await first.state.until(lambda: len(first.state.brokers) == 3)
        new = [NewTopic("t", 70, {}), NewTopic("u", 3, {})]
        created = await first.do(first.topics.create_topics, new)
        assert all(isinstance(each, Topic) for each in created), created
        for each in self.hosts:
            self.disturb(each)

    def disturb(self, host: Host) -> None:
        """Let answers be lost and watches be late."""
        lose_some(host.session, self.random, 0.1)
        host.session.lateness = lambda: self.random.choice([0.0, 0.0, 0.0, 0.2, 3.0])

    async def start(self, number: int, *, faults: bool = True) -> Host:
        """Start the next life of a broker; one that does not get that far has another one."""
        while True:
            self.lives[number] += 1
            host = Host(self.store, number, life=self.lives[number])
            if faults:
                self.disturb(host)
            try:
                return await host.join()
            except FencelogError:
                host.kill()
                await asyncio.sleep(1)

    async def step(self) -> None:
        """Let one thing happen."""
        random, host = self.random, self.random.choice(self.hosts)
        await asyncio.sleep(random.choice([0.0, 0.1, 1.0, 5.0]))
        what = random.choice(["kill", "cut", "heal", "heal", "pause", "compact", "stop"])
        if what == "kill" or host.lost_at:
            await self.restart(host)
        elif what == "cut":
            host.session.cut()
        elif what == "heal":
            host.session.heal()
        elif what == "pause":
            self.loop.pause(host.process)
            self.loop.call_later(random.choice([1.0, 20.0]), self.loop.resume, host.process)
        elif what == "compact":
            self.store.compact()
        elif not host.process.paused:
            await self.stop(host)

    async def restart(self, host: Host, *, faults: bool = True) -> None:
        """Kill a broker and start it again; another one may see that it is gone."""
        host.kill()
        observer = self.random.choice([each for each in self.hosts if each is not host])
        found = observer.state.brokers.get(host.node)
        if self.random.random() < 0.5 and found is not None and not observer.process.paused:
            with contextlib.suppress(FencelogError):
                await fence(observer.session, observer.state, host.node, found.version)
        await asyncio.sleep(self.random.choice([0.0, 3.0]))
        self.hosts[self.hosts.index(host)] = await self.start(host.node, faults=faults)

    async def stop(self, host: Host) -> None:
        """Stop a broker as an operator does, and start it again."""
        with contextlib.suppress(FencelogError, TimeoutError):
            async with asyncio.timeout(5):
                await host.do(host.registration.announce_stop)
                await asyncio.sleep(1)
                await host.do(host.registration.end)
        await self.restart(host)

    async def calm(self) -> None:
        """End all faults, and start anew who has lost its lease."""
        for host in self.hosts:
            host.session.heal()
            host.session.lose = host.session.lateness = None
            if host.process.paused:
                self.loop.resume(host.process)
        await asyncio.sleep(30)
        for host in [each for each in self.hosts if each.lost_at]:
            await self.restart(host, faults=False)
        await asyncio.sleep(60)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 10))]
)
def test_whatever_happens_the_metadata_stays_sound_and_the_cluster_comes_back(seed: int) -> None:
    async def main() -> None:
        chaos = Chaos(seed)
        await chaos.begin()
        for _ in range(STEPS):
            await chaos.step()
        await chaos.calm()
        assert chaos.store.elections > 10
        assert len(chaos.store.states) == 73
        assert all(each.leader != NO_LEADER for each in chaos.store.states.values())
        assert [each.controller.is_controller for each in chaos.hosts].count(True) == 1
        for each in chaos.hosts:
            fresh = ClusterState(chaos.store.session())
            await fresh.start()
            assert each.state.partitions == fresh.partitions
            assert each.state.brokers == fresh.brokers

    in_virtual_time(main, seed=str(seed))
