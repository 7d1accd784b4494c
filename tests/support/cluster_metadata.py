"""Brokers of a cluster as far as the metadata goes: over one simulated store, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from fencelog.broker.config import BrokerConfig
from fencelog.broker.metadata.catalog import Catalog, Topic
from fencelog.broker.metadata.cluster_controller import ClusterController
from fencelog.broker.metadata.cluster_feed import ClusterFeed
from fencelog.broker.metadata.cluster_state import ClusterState, PartitionKey
from fencelog.broker.metadata.cluster_topics import ClusterTopics, ReplicationFactors
from fencelog.broker.metadata.registration import BrokerRegistration
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.replicas.handovers import Handovers
from fencelog.broker.replicas.led import Key, Led, LedPartitions
from fencelog.coordination.controller.model import PartitionState, Registration
from fencelog.errors import NotLeaderError
from fencelog.log.config import LogConfig
from fencelog.ports import MetadataWrite
from fencelog.types import LeaderEpoch, NodeId, TopicPartition
from fencelog_sim.world.clocks import SimRandom
from fencelog_sim.world.gate import Lost
from fencelog_sim.world.loop import Process, SimLoop
from fencelog_sim.world.metadata import SimMetadata, SimStore

TTL_S = 9.0
INTERNAL_FACTOR = 3


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, None]], *, seed: str = "0") -> None:
    """Run a test's coroutine; what it has started and left is dropped."""
    loop = SimLoop(seed)
    loop.run(main(), limit_s=3600)
    assert loop.errors == []


_background: list[asyncio.Future[Any]] = []
"""Kept: a task that nobody refers to is collected."""


def in_background(work: Coroutine[Any, Any, Any]) -> "asyncio.Future[Any]":
    """Run something until the loop ends."""
    task = asyncio.ensure_future(work)
    _background.append(task)
    return task


class NoLogs:
    """A log manager in which nothing is open."""

    def get(self, topic: str, index: int) -> None:
        """Nothing."""

    def find(self, name: TopicPartition) -> None:
        """Nothing is open."""
        raise NotLeaderError(f"{name} is not open")

    def reconfigure(self, name: TopicPartition, config: LogConfig) -> None:
        """Nothing."""

    def withdraw(self, names: Iterable[TopicPartition]) -> None:
        """Nothing."""


class LeadsAsStored(LedPartitions):
    """Leads what the metadata say that this life of a broker leads, until it has resigned."""

    def __init__(self, state: ClusterState, life: str) -> None:
        """Whatever this life was elected for."""
        super().__init__()
        self._state = state
        self._life = life
        self.resigned: list[tuple[Key, LeaderEpoch]] = []
        """In this order."""
        self.unsettled: set[Key] = set()
        """Partitions of which a write is on its way."""

    def get(self, key: Key) -> Led | None:
        """What stands for a led partition."""
        stored = self._state.partitions.get(PartitionKey(*key))
        if stored is None or stored.state.leader_life != self._life:
            return None
        epoch = stored.state.leader_epoch
        if (key, epoch) in self.resigned:
            return None
        progress = SimpleNamespace(leader_epoch=epoch, is_settled=key not in self.unsettled)
        return cast(Led, SimpleNamespace(key=key, progress=progress))

    def give_up(self, led: Led) -> None:
        """Lead a partition no more in this epoch."""
        self.resigned.append((led.key, led.progress.leader_epoch))


class Host:
    """One life of one broker."""

    def __init__(self, store: SimStore, number: int, *, life: int = 1, rack: str | None = None):
        """Nothing runs yet."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.loop = loop
        self.node = NodeId(number)
        self.session: SimMetadata = store.session()
        self.process: Process = loop.process(f"broker {number}", f"host {number}")
        self.state = ClusterState(self.session)
        self.lost_at: list[float] = []
        self.registration = BrokerRegistration(
            self.session,
            self.state,
            Registration(self.node, "h", 9092, f"{number}/{life}", f"directory {number}", rack),
            ttl_s=TTL_S,
            on_lost=lambda: self.lost_at.append(loop.time()),
        )
        config = BrokerConfig(data_dir="", node_id=number, internal_partitions=2)
        self.catalog = Catalog(self.session)
        self.settings = Settings(config, self.session)
        logs = cast(LogManager, NoLogs())
        self.feed = ClusterFeed(self.state, self.catalog, self.settings, logs)
        self.controller = ClusterController(
            self.session, self.state, self.registration, self.feed.min_isr, INTERNAL_FACTOR
        )
        self.led = LeadsAsStored(self.state, f"{number}/{life}")
        self.handovers = Handovers(self.session, self.state, self.led, self.led.give_up)
        self.topics = ClusterTopics(
            config,
            self.catalog,
            self.settings,
            self.state,
            self.session,
            logs,
            SimRandom(Random(f"{number}/{life}")),
            ReplicationFactors(3, INTERNAL_FACTOR),
        )

    async def join(self, *, controls: bool = True) -> "Host":
        """Start as a broker does."""
        await self.do(self._join, controls)
        return self

    async def do(self, work: Callable[..., Coroutine[Any, Any, Any]], *args: object) -> Any:
        """Run something as part of the broker's process."""
        return await self.loop.start(self.process, work(*args))

    async def _join(self, controls: bool) -> None:
        await self.state.start()
        self.tasks = [asyncio.ensure_future(self.state.run())]
        await self.registration.begin()
        self.tasks.append(asyncio.ensure_future(self.registration.run()))
        self.tasks.append(asyncio.ensure_future(self.handovers.run()))
        if controls:
            self.tasks.append(asyncio.ensure_future(self.controller.run()))

    def kill(self) -> None:
        """End the process; its lease goes on."""
        self.loop.kill(self.process)
        self.session.restarted()


async def cluster(store: SimStore, *numbers: int) -> list[Host]:
    """Brokers that have joined and see each other, and one of them as the controller."""
    hosts = [await Host(store, number).join() for number in numbers]
    for each in hosts:
        await each.state.until(
            lambda: len(each.state.brokers) == len(hosts) and each.state.controller is not None  # noqa: B023
        )
    return hosts


def controller_of(hosts: Sequence[Host]) -> Host:
    """The host that holds the controller's key."""
    (found,) = [each for each in hosts if each.controller.is_controller]
    return found


async def make_topic(
    host: Host, name: str, states: Sequence[PartitionState], settings: dict[str, str] | None = None
) -> Topic:
    """Store a topic with these partitions, past all rules."""
    topic = Topic(
        name=name,
        topic_id=topic_id_of(name),
        partitions=len(states),
        settings=settings or {},
    )
    writes = [MetadataWrite(f"topic/{name}", topic.encode(), 0)]
    writes += [
        MetadataWrite(PartitionKey(topic.topic_id, index).text, state.encode(), 0)
        for index, state in enumerate(states)
    ]
    assert host.session.store.commit(writes)
    await host.state.until(lambda: name in host.state.topics)
    return topic


def topic_id_of(name: str) -> Any:
    """A topic id made from its name."""
    return name.encode().ljust(16, b"\0")[:16]


def stored(store: SimStore, topic: str, partition: int = 0) -> PartitionState:
    """The state of a partition of such a topic."""
    key = PartitionKey(topic_id_of(topic), partition).text
    return PartitionState.decode(key, store.values[key][0])


def lose_some(session: SimMetadata, random: Random, share: float = 0.3) -> None:
    """Let a part of the answers be lost, in all three ways."""

    def lose(verb: str, key: str) -> Lost | None:
        del verb, key
        if random.random() >= share:
            return None
        return random.choice([Lost(False), Lost(True), Lost(True, after_s=random.random())])

    session.lose = lose


async def within(seconds: float, waiting: Awaitable[Any]) -> None:
    """Wait for something that must come, in virtual time."""
    async with asyncio.timeout(seconds):
        await waiting
