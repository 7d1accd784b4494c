"""The simulated machines of one run: a broker with its disk, its clients, and what befalls them.

Everything random is drawn from streams named after the run's seed, one per purpose, so that a
change in one place does not shift the draws of all others.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fencelog.broker.config import BrokerConfig, Durability
from fencelog.errors import FencelogError
from fencelog.node import Node, Ports
from fencelog.sim.clocks import SimRandom, SimWallClock
from fencelog.sim.disk import Loss, SimDisk
from fencelog.sim.loop import Process, SimLoop
from fencelog.sim.metadata import SimMetadata
from fencelog.sim.network import Network, Weather
from fencelog.sim.trampolines import EPOCH_S

log = logging.getLogger(__name__)

BROKER_HOST = "10.0.0.1"
BROKER_PORT = 9092
START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Setting:
    """What a run is set up with, apart from its faults."""

    durability: Durability = "fsync"
    weather: Weather = field(default_factory=Weather)
    sync_s: float = 0.002
    """Mean time of a sync; other disk operations take a hundredth."""
    topic_defaults: tuple[tuple[str, str], ...] = ()
    internal_partitions: int = 2


class World:
    """One run's machines. The broker's disk and metadata outlive its process."""

    def __init__(self, seed: str, setting: Setting) -> None:
        """Nothing runs yet."""
        self.seed = seed
        self.setting = setting
        self.loop = SimLoop(seed)
        self.network = Network(self.loop, self.stream("network"), setting.weather)
        self.loop.wires = self.network
        self.disk = SimDisk()
        self.metadata = SimMetadata()
        self.clock = SimWallClock(self.loop.time, int(EPOCH_S * 1000))
        self.broker: Process | None = None
        self.node: Node | None = None
        self.clients: dict[str, Process] = {}
        self.ends: list[str] = []
        """Why brokers ended by themselves."""
        self.crashes: list[str] = []
        """Exceptions that ended a client: no workload lets one through."""
        self.started: Callable[[Node], None] | None = None
        """Called with each node that serves: where the monitors are attached."""

    def stream(self, name: str) -> Random:
        """A random stream of this run, for one purpose."""
        return Random(f"{self.seed}/{name}")

    @property
    def bootstrap(self) -> str:
        """Where clients connect to."""
        return f"{BROKER_HOST}:{BROKER_PORT}"

    # -- the broker ----------------------------------------------------------------------------

    async def start_broker(self) -> None:
        """Start a broker on the disk as it is; returns when it serves, or when it has ended."""
        assert self.broker is None
        self.network.power(BROKER_HOST, on=True)
        process = self.broker = self.loop.process("broker", BROKER_HOST)
        config = BrokerConfig(
            data_dir="simulated",
            host=BROKER_HOST,
            port=BROKER_PORT,
            durability=self.setting.durability,
            internal_partitions=self.setting.internal_partitions,
            **self._topic_defaults(),
        )
        random = SimRandom(self.stream(f"broker/{process.number}"))
        ports = Ports(disk=self.disk, metadata=self.metadata, clock=self.clock, random=random)
        node = Node(config, ports)
        serving = asyncio.Event()
        self.loop.start(process, self._run_broker(process, node, serving))
        while not serving.is_set() and process.alive:
            await asyncio.sleep(0.01)

    def kill_broker(self) -> None:
        """End the broker's process as ``kill -9`` does; what it wrote stays in the page cache."""
        process = self._take_broker()
        if process is not None:
            self.loop.kill(process)
            self.network.process_ended(process, silently=False)
            self.disk = self.disk.restarted()
            self.metadata = self.metadata.restarted()

    def cut_power(self, loss: Loss) -> None:
        """Take the power from the broker's host; ``start_broker`` gives it back."""
        process = self._take_broker()
        if process is not None:
            self.loop.kill(process)
            self.network.process_ended(process, silently=True)
        self.network.power(BROKER_HOST, on=False)
        random = self.stream(f"power/{self.loop.events}")
        self.disk = self.disk.power_loss(loss, random)
        self.metadata = self.metadata.power_loss(random)

    async def stop_broker(self) -> None:
        """Stop the broker cleanly; it takes what time it needs."""
        process, node = self.broker, self.node
        if process is None or node is None or process.paused:
            return
        stopping = self.loop.start(process, node.stop())
        while not stopping.done() and process.alive:
            await asyncio.sleep(0.01)
        if process.alive:
            self.kill_broker()

    async def _run_broker(self, process: Process, node: Node, serving: asyncio.Event) -> None:
        try:
            await node.start()
            self.node = node
            if self.started is not None:
                self.started(node)
            serving.set()
            await node.wait_failed()
            error = node.failure()
        except FencelogError as refused:
            error = refused
        if error is not None:
            self.ends.append(f"{type(error).__name__}: {error}")
        if self.broker is process:
            self.kill_broker()

    def _take_broker(self) -> Process | None:
        process, self.broker, self.node = self.broker, None, None
        return process

    def _topic_defaults(self) -> dict[str, Any]:
        return {}

    # -- clients -------------------------------------------------------------------------------

    def start_client(
        self, name: str, host: str, main: Callable[[], Coroutine[Any, Any, None]]
    ) -> Process:
        """Run a client as a process of its own."""
        process = self.clients[name] = self.loop.process(name, host)
        self.loop.start(process, self._run_client(name, process, main))
        return process

    def kill_client(self, name: str) -> None:
        """End a client's process as ``kill -9`` does."""
        process = self.clients.pop(name)
        self.loop.kill(process)
        self.network.process_ended(process, silently=False)

    async def _run_client(
        self, name: str, process: Process, main: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            await main()
        except Exception as error:  # noqa: BLE001 - whatever it is, the run reports it
            self.crashes.append(f"client {name} ended: {type(error).__name__}: {error}")
        if self.clients.get(name) is process:
            del self.clients[name]
        self.network.process_ended(process, silently=False)
