"""The simulated machine of a broker: its disk, its process, its power, its access to the metadata.

The disk and the metadata outlive the process. A host of a cluster has a session of the store that
all share; a broker that is alone has a store of its own.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fencelog.broker.config import BrokerConfig
from fencelog.broker.observer import Observer
from fencelog.errors import FencedError, FencelogError, StorageError
from fencelog.log.layout import CLEAN_SHUTDOWN, LOG, RECOVERY_CHECKPOINT, SNAPSHOT
from fencelog.log.values import MarkerToWrite, OpenTransaction
from fencelog.node import Node, Ports
from fencelog.storage.clean_stop import is_side_file
from fencelog.storage.writeback import WritebackLimits
from fencelog.types import CoordinatorEpoch
from fencelog_sim.world.clocks import SimRandom, SimStopwatch
from fencelog_sim.world.disk import Loss, SimDisk
from fencelog_sim.world.disk_image import Directory, Inode
from fencelog_sim.world.gate import Fault, Gate, Halt
from fencelog_sim.world.loop import Process
from fencelog_sim.world.metadata import SimMetadata

if TYPE_CHECKING:
    from fencelog_sim.world.world import World

BROKER_PORT = 9092
GROUP_SESSION_MS_MIN = 100
GROUP_DELAY_S = 0.1
EXPIRY_CHECK_S = 5.0
AGAIN_S = 0.5
LIFE_END_S = 10.0
"""How long the stop of a life that has lost its lease may take once all is sound."""
SURVIVED = (FencedError, StorageError)
"""What ends one life of a cluster's broker: its lease is lost, or the store is out of reach."""
SEGMENTS_WITH_TRUST = 2
"""A log of one segment is walked at every start."""
WRITEBACK_LIMITS = (
    WritebackLimits(),  # no log of a run is so long
    WritebackLimits(each=8 << 10, total=16 << 10, least=4 << 10, at_once=2),
    WritebackLimits(each=80 << 10, total=160 << 10, least=20 << 10, unsynced=40 << 10),
)
"""With a recovery checkpoint never, after every other batch, and now and then."""


def broker_host(number: int) -> str:
    """The address of the host of broker ``number``."""
    return f"10.0.0.{number}"


class Watcher(Observer):
    """Looks on at the broker's lives, and at what happens in each."""

    def booting(self, node: Node) -> None:
        """A node is about to start on the disk as it is."""

    def attach(self, node: Node) -> None:
        """The node begins to serve."""

    def crashed(self, loss: Loss | None) -> None:
        """The broker's process has ended; ``loss`` where its host lost power, running or not."""


class BrokerHost:
    """One broker's machine. Brokers are numbered from 1 on."""

    def __init__(self, world: "World", number: int, metadata: SimMetadata) -> None:
        """No broker runs yet."""
        self._world = world
        self.number = number
        self.address = broker_host(number)
        self.boots = 1
        """How often the machine has started: what a broker takes for its boot id follows."""
        self.disk = SimDisk()
        self.metadata = metadata
        self._delays = world.stream("disk" if number == 1 else f"disk/{number}").random
        self.gate: Gate | None = None
        """The fault at an operation of disk or metadata, in the same step; set by the nemesis."""
        self.failing = ""
        """The verb whose next operation on a log fails with an I/O error."""
        self.sync_factor = 1.0
        self.needs_restart = False
        """Whether a failed disk has taken partitions out of service for as long as it runs."""
        self.is_cut_from_store = False
        self._plug_in(self.disk, self.metadata)
        self.broker: Process | None = None
        self._starts = 0
        self._changed = asyncio.Event()
        self.node: Node | None = None
        self._is_ending = False
        """Whether a life that has lost its lease is being stopped."""
        self.ends: list[BaseException] = []
        """Why brokers have ended by themselves, or could not stop cleanly."""
        self.watcher: Watcher | None = None

    @property
    def boot_id(self) -> str:
        """What the machine's kernel calls this start of it."""
        return f"boot-{self.number}-{self.boots}"

    @property
    def is_up(self) -> bool:
        """Whether the host has power."""
        return self.address not in self._world.network.dark

    async def start(self) -> None:
        """Start a broker on the disk as it is; returns when it serves, or when it has ended."""
        assert self.broker is None
        world = self._world
        world.network.power(self.address, on=True)
        process = self.broker = world.loop.process("broker", self.address)
        ports = Ports(
            disk=self.disk,
            metadata=self.metadata,
            clock=world.clock,
            random=SimRandom(world.stream(f"broker/{process.number}")),
            stopwatch=SimStopwatch(world.stream(f"work/{process.number}")),
        )
        self._starts += 1
        world.loop.start(process, self._run_broker(process, self._config(process), ports))
        while self.broker is process and self.node is None:
            await self._change()

    def _config(self, process: Process) -> BrokerConfig:
        world, setting = self._world, self._world.setting
        return BrokerConfig(
            data_dir="simulated",
            host=self.address,
            port=BROKER_PORT,
            durability=setting.durability,
            node_id=self.number,
            replication_factor=setting.replicas,
            internal_replication_factor=setting.replicas,
            replication_commit="all" if setting.commits_at_all else "isr",
            replica_lag_s=setting.replica_lag_s,
            session_timeout_s=setting.broker_session_s,
            internal_partitions=setting.internal_partitions,
            upkeep_interval_s=setting.upkeep_s,
            compaction_interval_s=setting.compaction_s,
            group_session_timeout_ms_min=GROUP_SESSION_MS_MIN,
            group_initial_delay_s=GROUP_DELAY_S,
            topic_defaults=dict(setting.topic_defaults),
            **_expiry(setting.expiry_min),
            # Readers at the end of a log are served from memory, from the files, and in between.
            tail_bytes_max=world.stream(f"tail/{process.number}").choice((0, 4096, 1 << 25)),
            writeback=world.stream(f"writeback/{process.number}").choice(WRITEBACK_LIMITS),
        )

    def kill(self) -> None:
        """End the broker's process as ``kill -9`` does; what it wrote stays in the page cache."""
        process = self._take_broker()
        if process is not None:
            self._world.loop.kill(process)
            self._world.network.process_ended(process, silently=False)
            if self.watcher is not None:
                self.watcher.crashed(None)
            self._plug_in(self.disk.restarted(), self.metadata.restarted(self._world.faults))

    def cut_power(self, loss: Loss) -> None:
        """Take the power from the broker's host; ``start`` gives it back."""
        process = self._take_broker()
        if process is not None:
            self._world.loop.kill(process)
            self._world.network.process_ended(process, silently=True)
        if self.watcher is not None:
            self.watcher.crashed(loss)
        self._world.network.power(self.address, on=False)
        self.boots += 1
        loses = self._world.setting.durability == "os" and loss is not Loss.NONE
        if loses and not self._world.is_cluster:
            self._world.lost_at = self._world.loop.time()
            # The whole site loses power: no client goes on with a producer that may be forgotten.
            for client in list(self._world.clients.values()):
                self._world.kill_client(client)
        disk, metadata = self.disk.power_loss(loss, self._world.faults), self.metadata
        self._plug_in(disk, metadata.power_loss(self._world.faults))

    async def stop(self) -> bool:
        """Stop the broker cleanly; it takes what time it needs. Whether it came to that."""
        process, node = self.broker, self.node
        if process is None or node is None or process.paused:
            return False
        self.node = None
        loop = self._world.loop
        stopping = loop.start(process, node.stop())
        stopping.add_done_callback(lambda _: self._changed.set(), context=loop.outside.context)
        while not stopping.done() and self.broker is process:
            await self._change()
        if self.broker is not process:
            return False
        self.kill()
        if error := stopping.exception():
            # A full disk, for one, leaves no room for the checkpoints of a clean stop.
            self.ends.append(error)
            return False
        return True

    async def _change(self) -> None:
        """Return when the broker has begun to serve, or has ended."""
        self._changed.clear()
        await self._changed.wait()

    async def _run_broker(self, process: Process, config: BrokerConfig, ports: Ports) -> None:
        node = None
        try:
            node = await self._world.build(self, config, ports)
            if self.watcher is not None:
                self.watcher.booting(node)
            await node.start()
            self.node = node
            if self.watcher is not None:
                self.watcher.attach(node)
            self._changed.set()
            await node.wait_failed()
            error = node.failure()
        except FencelogError as refused:
            error = refused
        if error is None and self.node is not node:
            return  # its first task to end says that it is being stopped: ``stop`` waits
        if self.broker is not process:
            return
        is_survived = self._world.is_cluster and isinstance(error, SURVIVED)
        if is_survived and node is not None and self.node is node:
            await self._end_life(node)
        self.kill()
        if is_survived:
            self._world.loop.start(self._world.loop.outside, self._begin_again(self._starts))
        elif error is not None:
            self.ends.append(error)

    async def _end_life(self, node: Node) -> None:
        """Stop a broker that has lost its lease: its process goes on, with another life."""
        self.node, self._is_ending = None, True
        with suppress(StorageError):
            await node.stop()

    async def life_ended(self) -> None:
        """Return when no life is ending any more; the disk and the store are sound by now."""
        try:
            async with asyncio.timeout(LIFE_END_S):
                while self._is_ending:
                    await self._change()
        except TimeoutError:
            late = f"a life that has lost its lease has not ended within {LIFE_END_S:.0f} s"
            self.ends.append(TimeoutError(late))

    async def _begin_again(self, starts: int) -> None:
        """Start the next life, as whoever keeps brokers running does; not if another did."""
        await asyncio.sleep(AGAIN_S)
        if self._starts == starts and self.broker is None and self.is_up:
            await self.start()

    def _take_broker(self) -> Process | None:
        process, self.broker, self.node = self.broker, None, None
        self._is_ending = False
        self._changed.set()
        return process

    def _plug_in(self, disk: SimDisk, metadata: SimMetadata) -> None:
        """Give the next process its view of what is stored."""
        disk.free_bytes = self.disk.free_bytes
        lose, lateness = self.metadata.lose, self.metadata.lateness
        self.disk, self.metadata = disk, metadata
        disk.gate = metadata.gate = self._operation
        disk.delay = metadata.delay = self._wait
        metadata.lose, metadata.lateness = lose, lateness
        if self.is_cut_from_store:
            metadata.cut()

    def cut_from_store(self) -> None:
        """Let the metadata store be out of reach for this host, and for nobody else."""
        self.is_cut_from_store = True
        self.metadata.cut()

    def heal_store(self) -> None:
        """Let it be in reach, on time, with no answer lost."""
        self.is_cut_from_store = False
        self.metadata.lose = self.metadata.lateness = None
        self.metadata.heal()

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
            path, file = self._world.faults.choice(logs)
            file.flipped = self._world.faults.randrange(file.synced)
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
            random = self._world.faults
            path, size = random.choice(found)
            self.disk.corrupt(path, random.randrange(size), 1 << random.randrange(8))

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
                    partition.append_markers([late], now_ms=self._world.clock.now_ms())
                    return True
        return False

    def _late_marker(self, transaction: OpenTransaction) -> MarkerToWrite:
        commit, dead = self._world.faults.random() < 0.5, self._world.faults.random() < 0.5
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
        self._world.loop.note(f"{verb} {name} {size};".encode())
        if verb == self.failing and name.endswith(".log"):
            self.failing = ""
            return Fault(done=int(size * self._world.faults.random()))
        if self.gate is None or self.broker is None:
            return None  # with no broker running it is the world's own doing
        return self.gate(verb, name, size)

    async def _wait(self, verb: str, name: str, size: int) -> None:
        del name, size
        sync_s = self._world.setting.sync_s
        mean = sync_s if verb.startswith("sync") else sync_s / 100
        await asyncio.sleep(mean * self.sync_factor * 2 * self._delays())


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
