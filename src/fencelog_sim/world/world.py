"""The simulated machines of one run: a broker with its disk, its clients, and their crashes.

Everything random is drawn from streams named after the run's seed, one per purpose, so that a
change in one place does not shift the draws of all others.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from fencelog.broker.config import BrokerConfig
from fencelog.broker.observer import Observer
from fencelog.errors import FencelogError
from fencelog.log.layout import CLEAN_SHUTDOWN, LOG, RECOVERY_CHECKPOINT, SNAPSHOT
from fencelog.log.values import MarkerToWrite, OpenTransaction
from fencelog.node import Node, Ports
from fencelog.storage.clean_stop import is_side_file
from fencelog.storage.writeback import WritebackLimits
from fencelog.types import CoordinatorEpoch
from fencelog_sim.world.clocks import SimRandom, SimStopwatch, SimWallClock
from fencelog_sim.world.disk import Loss, SimDisk
from fencelog_sim.world.disk_image import Directory, Inode
from fencelog_sim.world.gate import Fault, Gate, Halt
from fencelog_sim.world.loop import Process, SimLoop
from fencelog_sim.world.metadata import SimMetadata
from fencelog_sim.world.network import Network, Weather
from fencelog_sim.world.trampolines import EPOCH_S

Main = Coroutine[Any, Any, None]

BROKER_HOST = "10.0.0.1"
BROKER_PORT = 9092
GROUP_SESSION_MS_MIN = 100
GROUP_DELAY_S = 0.1
EXPIRY_CHECK_S = 5.0
SEGMENTS_WITH_TRUST = 2
WRITEBACK_LIMITS = (
    WritebackLimits(),  # no log of a run is so long
    WritebackLimits(each=8 << 10, total=16 << 10, least=4 << 10, at_once=2),
    WritebackLimits(each=80 << 10, total=160 << 10, least=20 << 10, unsynced=40 << 10),
)
"""With a recovery checkpoint never, after every other batch, and now and then."""
"""A log of one segment is walked at every start."""


def client_host(number: int) -> str:
    """The address of the host of client ``number``, whichever process runs there."""
    return f"10.0.1.{number + 1}"


class Watcher(Observer):
    """Looks on at the broker's lives, and at what happens in each."""

    def booting(self, node: Node) -> None:
        """A node is about to start on the disk as it is."""

    def attach(self, node: Node) -> None:
        """The node begins to serve."""

    def crashed(self, loss: Loss | None) -> None:
        """The broker's process has ended; ``loss`` where its host lost power, running or not."""


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


class World:
    """One run's machines. The broker's disk and metadata outlive its process."""

    def __init__(self, seed: str, setting: Setting) -> None:
        """Nothing runs yet."""
        self.seed = seed
        self.setting = setting
        self.loop = SimLoop(seed)
        self.network = Network(self.loop, self.stream("network"), setting.weather)
        self.loop.wires = self.network
        self.faults = self.stream("faults")
        self.disk = SimDisk()
        self.metadata = SimMetadata()
        self._delays = self.stream("disk").random
        self.gate: Gate | None = None
        """The fault at an operation of disk or metadata, in the same step; set by the nemesis."""
        self.failing = ""
        """The verb whose next operation on a log fails with an I/O error."""
        self.sync_factor = 1.0
        self.needs_restart = False
        """Whether a failed disk has taken partitions out of service for as long as it runs."""
        self._plug_in(self.disk, self.metadata)
        self.clock = SimWallClock(self.loop.time, int(EPOCH_S * 1000))
        self.broker: Process | None = None
        self._changed = asyncio.Event()
        self.node: Node | None = None
        self.clients: dict[str, Process] = {}
        self.ends: list[BaseException] = []
        """Why brokers have ended by themselves, or could not stop cleanly."""
        """Why brokers ended by themselves."""
        self.crashes: list[str] = []
        """Exceptions that ended a client: no workload lets one through."""
        self.watcher: Watcher | None = None
        self.lost_at: float | None = None
        """When a power cut last took what ``os`` mode had not synced; None if that never was."""

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
            upkeep_interval_s=self.setting.upkeep_s,
            compaction_interval_s=self.setting.compaction_s,
            group_session_timeout_ms_min=GROUP_SESSION_MS_MIN,
            group_initial_delay_s=GROUP_DELAY_S,
            topic_defaults=dict(self.setting.topic_defaults),
            **_expiry(self.setting.expiry_min),
            # Readers at the end of a log are served from memory, from the files, and in between.
            tail_bytes_max=self.stream(f"tail/{process.number}").choice((0, 4096, 1 << 25)),
            writeback=self.stream(f"writeback/{process.number}").choice(WRITEBACK_LIMITS),
        )
        random = SimRandom(self.stream(f"broker/{process.number}"))
        ports = Ports(
            disk=self.disk,
            metadata=self.metadata,
            clock=self.clock,
            random=random,
            stopwatch=SimStopwatch(self.stream(f"work/{process.number}")),
        )
        node = Node(config, ports, observer=self.watcher)
        if self.watcher is not None:
            self.watcher.booting(node)
        self.loop.start(process, self._run_broker(process, node))
        while self.broker is process and self.node is None:
            await self._change()

    def kill_broker(self) -> None:
        """End the broker's process as ``kill -9`` does; what it wrote stays in the page cache."""
        process = self._take_broker()
        if process is not None:
            self.loop.kill(process)
            self.network.process_ended(process, silently=False)
            if self.watcher is not None:
                self.watcher.crashed(None)
            self._plug_in(self.disk.restarted(), self.metadata.restarted(self.faults))

    def cut_power(self, loss: Loss) -> None:
        """Take the power from the broker's host; ``start_broker`` gives it back."""
        process = self._take_broker()
        if process is not None:
            self.loop.kill(process)
            self.network.process_ended(process, silently=True)
        if self.watcher is not None:
            self.watcher.crashed(loss)
        self.network.power(BROKER_HOST, on=False)
        if self.setting.durability == "os" and loss is not Loss.NONE:
            self.lost_at = self.loop.time()
            # The whole site loses power: no client goes on with a producer that may be forgotten.
            for client in list(self.clients.values()):
                self.kill_client(client)
        disk, metadata = self.disk.power_loss(loss, self.faults), self.metadata
        self._plug_in(disk, metadata.power_loss(self.faults))

    async def stop_broker(self) -> bool:
        """Stop the broker cleanly; it takes what time it needs. Whether it came to that."""
        process, node = self.broker, self.node
        if process is None or node is None or process.paused:
            return False
        self.node = None
        stopping = self.loop.start(process, node.stop())
        stopping.add_done_callback(lambda _: self._changed.set(), context=self.loop.outside.context)
        while not stopping.done() and self.broker is process:
            await self._change()
        if self.broker is not process:
            return False
        self.kill_broker()
        if error := stopping.exception():
            # A full disk, for one, leaves no room for the checkpoints of a clean stop.
            self.ends.append(error)
            return False
        return True

    async def _change(self) -> None:
        """Return when the broker has begun to serve, or has ended."""
        self._changed.clear()
        await self._changed.wait()

    async def _run_broker(self, process: Process, node: Node) -> None:
        try:
            await node.start()
            self.node = node
            if self.watcher is not None:
                self.watcher.attach(node)
            self._changed.set()
            await node.wait_failed()
            error = node.failure()
        except FencelogError as refused:
            error = refused
        if error is not None:
            self.ends.append(error)
        elif self.node is not node:
            return  # its first task to end says that it is being stopped: ``stop_broker`` waits
        if self.broker is process:
            self.kill_broker()

    def _take_broker(self) -> Process | None:
        process, self.broker, self.node = self.broker, None, None
        self._changed.set()
        return process

    def _plug_in(self, disk: SimDisk, metadata: SimMetadata) -> None:
        """Give the next process its view of what is stored."""
        disk.free_bytes = self.disk.free_bytes
        self.disk, self.metadata = disk, metadata
        disk.gate = metadata.gate = self._operation
        disk.delay = metadata.delay = self._wait

    def heal_disk(self) -> None:
        """End what ails the disk; what it has done to the broker stays."""
        self.disk.free_bytes = None
        self.failing = ""
        self.sync_factor = 1.0

    @property
    def flipped(self) -> list[str]:
        """The files in which a bit is wrong, as they are called now."""
        return [path for path, file in self._files() if file.flipped is not None]

    def flip_a_bit(self) -> None:
        """Damage a batch in the newest segment of a client's partition, while no broker runs.

        Only what is synced: a clean stop has put the recovery point behind it. The next start
        looks: of what a clean stop or a recovery checkpoint covers it does not read every batch,
        so the marks of both are gone, whatever happens before that start.
        """
        if self.broker is not None or self.flipped:
            return
        newest = {
            path.partition("/")[0]: (path, file)
            for path, file in self._files()
            if path.endswith(LOG) and not path.startswith("__")
        }
        logs = [(path, file) for path, file in newest.values() if file.synced > 0]
        if logs:
            path, file = self.faults.choice(logs)
            file.flipped = self.faults.randrange(file.synced)
            self.disk.corrupt(path, file.flipped)
            self.disk.lose(CLEAN_SHUTDOWN)
            self.disk.lose(f"{path.partition('/')[0]}/{RECOVERY_CHECKPOINT}")

    def flip_back(self) -> None:
        """Repair it from a copy, as an operator would; what was cut off does not come back.

        Only that file: a topic that was made again has another one of the same name.
        """
        for path, file in self._files():
            position, file.flipped = file.flipped, None
            if position is not None and position < len(file.data):
                self.disk.corrupt(path, position)

    def _files(self) -> Iterator[tuple[str, Inode]]:
        """Each file of a directory below the root, with its path, in order."""
        for folder, entry in sorted(self.disk.image.root.names.items()):
            for name, file in sorted(entry.names.items()) if isinstance(entry, Directory) else ():
                if isinstance(file, Inode):
                    yield f"{folder}/{name}", file

    def flip_beside(self) -> None:
        """Damage an index, a snapshot or a leader epoch checkpoint, while no broker runs.

        One that a start may trust: of a log with several segments, and not the indexes of the
        newest; or a recovery checkpoint.
        """
        if self.broker is not None:
            return
        found = [
            (f"{folder}/{name}", size)
            for folder, entry in sorted(self.disk.image.root.names.items())
            if isinstance(entry, Directory)
            for name, size in _trusted(entry)
        ]
        if found:
            path, size = self.faults.choice(found)
            self.disk.corrupt(path, self.faults.randrange(size), 1 << self.faults.randrange(8))

    def mark_late(self) -> bool:
        """Let a marker arrive late; whether there was a transaction for it to end.

        It is a dead coordinator's, refused where a newer one's came before (E17), or the one of the
        transaction before once more, which has the epoch of this one in version 2 (E14).
        """
        if self.node is None:
            return False
        broker = self.node.broker
        for partition in broker.logs.partitions():
            for transaction in partition.log.open_transactions():
                if transaction.coordinator_epoch >= 0:
                    late = self._late_marker(transaction)
                    partition.append_markers([late], now_ms=self.clock.now_ms())
                    return True
        return False

    def _late_marker(self, transaction: OpenTransaction) -> MarkerToWrite:
        commit, dead = self.faults.random() < 0.5, self.faults.random() < 0.5
        known = transaction.coordinator_epoch
        is_dead = dead and known > 0
        return MarkerToWrite(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            commit=commit,
            coordinator_epoch=CoordinatorEpoch(known - 1) if is_dead else known,
            is_bumped=not is_dead,
        )

    def _operation(self, verb: str, name: str, size: int) -> Halt | Fault | None:
        self.loop.note(f"{verb} {name} {size};".encode())
        if verb == self.failing and name.endswith(".log"):
            self.failing = ""
            return Fault(done=int(size * self.faults.random()))
        if self.gate is None or self.broker is None:
            return None  # with no broker running it is the world's own doing
        return self.gate(verb, name, size)

    async def _wait(self, verb: str, name: str, size: int) -> None:
        del name, size
        mean = self.setting.sync_s if verb.startswith("sync") else self.setting.sync_s / 100
        await asyncio.sleep(mean * self.sync_factor * 2 * self._delays())

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
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the run reports it
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
        for process in [self.broker, *self.clients.values()]:
            if process is not None and process.paused:
                self.loop.resume(process)


def _expiry(minutes: int) -> dict[str, Any]:
    """The broker's settings where it forgets after so many minutes."""
    if not minutes:
        return {}
    return {
        "offsets_retention_minutes": minutes,
        "offsets_retention_check_s": EXPIRY_CHECK_S,
        "transactional_id_expiration_ms": minutes * 60_000,
        "transactional_id_check_s": EXPIRY_CHECK_S,
    }


def _trusted(directory: Directory) -> list[tuple[str, int]]:
    """The side files that a start may trust, each with its size."""
    newest = max((name for name in directory.names if name.endswith(LOG)), default="")
    stem = newest.removesuffix(LOG)
    is_only_one = sum(name.endswith(LOG) for name in directory.names) < SEGMENTS_WITH_TRUST
    return [
        (name, len(file.data))
        for name, file in sorted(directory.names.items())
        if isinstance(file, Inode)
        and file.data
        and (
            name == RECOVERY_CHECKPOINT
            or (
                is_side_file(name)
                and not is_only_one
                and (not name.startswith(stem) or name.endswith(SNAPSHOT))
            )
        )
    ]
