"""The simulated machines of one run: brokers with their disks, their clients, and their crashes.

Everything random is drawn from streams named after the run's seed, one per purpose, so that a
change in one place does not shift the draws of all others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeAlias

from fencelog.broker.config import BrokerConfig
from fencelog.node import Node, Ports
from fencelog_sim.world.clocks import SimWallClock
from fencelog_sim.world.host import BROKER_PORT, BrokerHost
from fencelog_sim.world.loop import Process, SimLoop
from fencelog_sim.world.metadata import SimMetadata, SimStore
from fencelog_sim.world.network import Network, Weather
from fencelog_sim.world.trampolines import EPOCH_S

Main = Coroutine[Any, Any, None]
Build: TypeAlias = Callable[[BrokerHost, BrokerConfig, Ports], Awaitable[Node]]
"""Makes the broker of a host, in its process; it is not started yet."""


def client_host(number: int) -> str:
    """The address of the host of client ``number``, whichever process runs there."""
    return f"10.0.1.{number + 1}"


async def alone(host: BrokerHost, config: BrokerConfig, ports: Ports) -> Node:
    """Make a broker that is no cluster's."""
    return Node(config, ports, observer=host.watcher)


@dataclass(frozen=True)
class Setting:
    """What a run is set up with, apart from its faults."""

    durability: Literal["os", "fsync"] = "fsync"
    weather: Weather = field(default_factory=Weather)
    sync_s: float = 0.002
    """Mean time of a sync; other disk operations take a hundredth."""
    topic_defaults: tuple[tuple[str, str], ...] = ()
    internal_partitions: int = 2
    upkeep_s: float = 1.0
    """How often retention is looked after."""
    expiry_min: int = 0
    """After how many minutes offsets and transactional ids are forgotten; 0: the defaults."""
    compaction_s: float = 0.5
    """How long the cleaner waits between two rounds."""
    replicas: int = 1
    """Of each partition; what follows is a cluster's."""
    broker_session_s: float = 9.0
    """How long a broker counts as alive without a word."""
    replica_lag_s: float = 30.0
    """How long a replica may be behind before it leaves the in-sync ones."""
    commits_at_all: bool = False
    """Whether all replicas must have what is committed, in sync or not."""


class World:
    """One run's machines. Several brokers share one metadata store, which never stops itself."""

    def __init__(
        self, seed: str, setting: Setting, *, brokers: int = 1, build: Build = alone
    ) -> None:
        """Nothing runs yet."""
        self.seed = seed
        self.setting = setting
        self.build = build
        self.loop = SimLoop(seed)
        self.network = Network(self.loop, self.stream("network"), setting.weather)
        self.loop.wires = self.network
        self.faults = self.stream("faults")
        self.clock = SimWallClock(self.loop.time, int(EPOCH_S * 1000))
        self.clients: dict[str, Process] = {}
        self.crashes: list[str] = []
        """Exceptions that ended a client: no workload lets one through."""
        self.lost_at: float | None = None
        """When a power cut last took what ``os`` mode had not synced; None if that never was."""
        self.is_cluster = brokers > 1
        self.store = SimStore()
        """What the brokers of a cluster share."""
        self.hosts = [
            BrokerHost(
                self, number, self.store.session(number) if self.is_cluster else SimMetadata()
            )
            for number in range(1, brokers + 1)
        ]

    def stream(self, name: str) -> Random:
        """A random stream of this run, for one purpose."""
        return Random(f"{self.seed}/{name}")

    @property
    def host(self) -> BrokerHost:
        """The host of the broker, where there is one."""
        return self.hosts[0]

    @property
    def bootstrap(self) -> str:
        """Where clients connect to."""
        return ",".join(f"{host.address}:{BROKER_PORT}" for host in self.hosts)

    @property
    def ends(self) -> list[BaseException]:
        """Why brokers have ended by themselves, or could not stop cleanly."""
        return [error for host in self.hosts for error in host.ends]

    # -- clients -------------------------------------------------------------------------------

    def start_client(self, name: str, host: str, main: Callable[[], Main]) -> Process:
        """Run a client as a process of its own."""
        process = self.loop.process(name, host)
        self.clients[name] = process
        self.loop.start(process, self._run_client(process, main))
        return process

    def client_of(self, host: str) -> Process | None:
        """The client that runs on a host, if any."""
        return next((each for each in self.clients.values() if each.host == host), None)

    def client_hosts(self) -> list[str]:
        """The hosts that have a client."""
        return sorted({each.host for each in self.clients.values()})

    def kill_client(self, process: Process) -> None:
        """End a client's process as ``kill -9`` does."""
        self.loop.kill(process)
        self._ended(process)

    async def _run_client(self, process: Process, main: Callable[[], Main]) -> None:
        try:
            await main()
        except (Exception, asyncio.CancelledError) as ended:  # noqa: BLE001 - the run reports it
            error: BaseException = ended
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self.crashes.append(f"client {process.name} ended: {type(error).__name__}: {error}")
        process.alive = False
        self._ended(process)

    def _ended(self, process: Process) -> None:
        del self.clients[process.name]
        self.network.process_ended(process, silently=False)
        if process.on_end is not None:
            process.on_end()

    def resume_all(self) -> None:
        """Let every paused process go on."""
        for process in [*(host.broker for host in self.hosts), *self.clients.values()]:
            if process is not None and process.paused:
                self.loop.resume(process)
