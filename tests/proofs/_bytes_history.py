"""The proof of every byte: recorded histories, as the files that a stop leaves and what they mean.

Each history is made by the product on the simulated disk. Beside it stands what the log meant after
each append, as the live broker had it: a recovery that ends there has to come to the same.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import NamedTuple

from fencelog.log import layout
from fencelog.log.config import LogConfig
from fencelog.log.recovery_checkpoint import decode_recovery_checkpoint
from fencelog.storage.clean_stop import CleanStop
from fencelog.storage.compaction import Compaction
from fencelog.storage.directory import DataDirectory
from fencelog.storage.writeback import WritebackLimits
from fencelog.types import LeaderEpoch, Offset, ProducerId, TopicPartition
from fencelog.wire.batch import SEQUENCE_MODULUS, BatchHeader, iterate
from fencelog.wire.records import RecordToWrite, build_batch
from fencelog_sim.world.clocks import SimRandom
from fencelog_sim.world.disk import PowerCut, SimDisk
from fencelog_sim.world.disk_image import Directory, Inode
from tests.proofs._bytes_meaning import Meaning, meaning_of
from tests.support.log import complete_indexes
from tests.support.storage import AT_EACH_WRITE, DIRECTORY, NOW_MS, World, batch_of, run

PARTITION = TopicPartition("t", 0)
STOPS = ("clean", "crash", "crash, all synced", "crash, little synced")
"""Closed; killed with the recovery point before the last three batches, at the end, far back."""
LAST_BATCHES = 3
_SMALL = LogConfig(segment_bytes=1024, index_interval_bytes=100)
_COMPACTED = replace(_SMALL, cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000)


class Stored(NamedTuple):
    """A batch in its file."""

    path: str
    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """Where it ends in the file."""
        return self.position + self.header.size


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a stop left, and what was known of it."""

    name: str
    durability: str
    stop: str
    config: LogConfig
    leader_epoch: int
    files: dict[str, bytes]
    recovery_point: int
    end: int
    meanings: dict[int, Meaning]
    """What the log meant to the live broker when it ended at an offset."""
    batches: tuple[Stored, ...]

    @property
    def segments(self) -> list[str]:
        """The log's files, oldest first."""
        return [path for path in self.files if path.endswith(layout.LOG)]

    @property
    def swapped(self) -> bool:
        """Whether it was stopped in the last step of a round of compaction."""
        return any(path.endswith(layout.SWAP) for path in self.files)

    @property
    def last_batches(self) -> tuple[Stored, ...]:
        """Those of which every bit is flipped; all in the newest segment."""
        last = self.batches[-LAST_BATCHES:]
        assert {each.path for each in last} == {self.segments[-1]}
        return last


@dataclass
class Recorder:
    """A broker's storage at work, and what it meant step by step."""

    disk: SimDisk
    directory: DataDirectory
    world: World
    meanings: dict[int, Meaning]

    @classmethod
    async def begin(cls, durability: str, config: LogConfig) -> "Recorder":
        disk = SimDisk(operations=[])
        directory = await DataDirectory.open(disk, SimRandom(Random(0)))
        world = await World.create(disk, config=config, durability=durability)
        return cls(disk, directory, world, {0: meaning_of(world.log)})

    async def plain(self, *values: bytes) -> None:
        await self.append(batch_of(*values))

    async def keyed(self, *pairs: tuple[bytes, bytes | None]) -> None:
        await self.append(build_batch([RecordToWrite(k, v, NOW_MS) for k, v in pairs]))

    async def append(self, batch: bytearray) -> None:
        self.world.append(batch)
        await self.settle()

    async def transactional(self, producer_id: int, sequence: int, value: bytes) -> None:
        self.world.append_transactional(producer_id, sequence, value)
        await self.settle()

    async def end(self, producer_id: int, *, commit: bool) -> None:
        self.world.end_transaction(producer_id, commit=commit)
        await self.settle()

    async def settle(self) -> None:
        await self.world.flush()
        self.meanings[self.world.log.log_end_offset] = meaning_of(self.world.log)

    async def checkpoint(self) -> None:
        await self.world.store.sync()
        log = self.world.log
        points = {PARTITION: self.world.store.recovery_point}
        await self.directory.checkpoint(points, {PARTITION: log.log_start_offset})

    async def delete_below(self, offset: int) -> None:
        start = Offset(offset)
        await self.directory.checkpoint({}, {PARTITION: start})
        assert isinstance(self.world.log.advance_start(start), list)
        await self.world.store.delete_segments_below(start)
        await self.settle()

    async def compact(self, first_dirty: int) -> int:
        log, store = self.world.log, self.world.store
        need = log.compaction_need(Offset(first_dirty), store.recovery_point, NOW_MS)
        work = Compaction(
            store, log.compaction(Offset(first_dirty), need.end, NOW_MS), lambda: True
        )
        end = await work.map()
        await self.directory.checkpoint_cleaner(PARTITION, Offset(first_dirty))
        await work.clean()
        await self.directory.checkpoint_cleaner(PARTITION, end)
        return end

    async def close(self) -> None:
        complete_indexes(self.world.log)
        await self.world.flush()
        checksum = await self.world.stop()
        end = self.world.log.log_end_offset
        await self.directory.close({PARTITION: CleanStop(end, checksum)})


Program = Callable[[Recorder], Awaitable[None]]


async def plain(recorder: Recorder) -> None:
    """One segment of batches that nobody numbered."""
    for number in range(4):
        await recorder.plain(b"%d" % number, b"second")


async def everything(recorder: Recorder) -> None:
    """Several segments: numbered batches, transactions, leader epochs, deleted records."""
    world = recorder.world
    for number in range(13):
        await recorder.append(batch_of(b"i%d" % number, producer_id=7, sequence=number))
        await recorder.transactional(20 + number % 2, number // 2, b"t" * 40)
        if number % 3 == 2:
            await recorder.end(20, commit=number % 2 == 0)
            await recorder.end(21, commit=number == 5)
        if number in (4, 6):
            world.log.leader_epoch = LeaderEpoch(number)
        if number == 7:
            await recorder.checkpoint()
            recorder.meanings.clear()
            await recorder.delete_below(world.log.segment_base_offsets[1] + 1)
    wrap = SEQUENCE_MODULUS - 1
    await recorder.append(batch_of(b"at", b"the wrap", producer_id=8, sequence=wrap))
    await recorder.append(batch_of(b"after", producer_id=8, sequence=1))
    await recorder.end(22, commit=False)  # a fencing marker, of nobody's transaction
    await recorder.transactional(ProducerId(23), 0, b"open to the end")
    world.log.leader_epoch = LeaderEpoch(9)


async def resumed(recorder: Recorder) -> None:
    """Several segments below a recovery checkpoint; only the last batches follow it."""
    writeback = recorder.world.store._writeback
    writeback._limits = AT_EACH_WRITE
    for number in range(10):
        await recorder.append(batch_of(b"i%d" % number, producer_id=7, sequence=number))
        await recorder.transactional(20 + number % 2, number // 2, b"t" * 40)
        if number % 3 == 2:
            await recorder.end(20, commit=number == 5)
        if number == 4:
            recorder.world.log.leader_epoch = LeaderEpoch(4)
        await recorder.world.checkpointed()
    writeback._limits = WritebackLimits()


async def compacted(recorder: Recorder) -> None:
    """Segments that lack most of what they had, and newer ones."""
    await _to_compact(recorder)
    await recorder.compact(0)
    recorder.meanings.clear()
    await recorder.keyed((b"k1", b"newer"))
    await recorder.checkpoint()


async def swap(recorder: Recorder) -> None:
    """A round of compaction, joining files, ended by a kill once it could not be undone."""
    await _to_compact(recorder)
    end = await recorder.compact(0)
    for number in range(4):
        await recorder.keyed((b"k0", b"again %d" % number * 50), (b"one", b"%d" % number))
    await recorder.keyed((b"k2", b"3" * 500))
    await recorder.keyed((b"k1", b"newer"))
    await recorder.checkpoint()
    for _ in range(LAST_BATCHES):
        await recorder.plain(b"last")
    recorder.disk.gate = _stops_behind_swap
    try:
        await recorder.compact(end)
    except PowerCut:
        recorder.disk.gate = None
    else:
        raise AssertionError("this round changes nothing")


def _stops_behind_swap(verb: str, path: str, size: int) -> None:
    if verb == "remove" and path.endswith(layout.LOG):
        raise PowerCut


async def _to_compact(recorder: Recorder) -> None:
    for number in range(9):
        await recorder.keyed((b"k%d" % (number % 3), b"%d" % number * 60), (b"one", b"%d" % number))
        await recorder.transactional(12, number, b"t")
        await recorder.end(12, commit=number % 2 == 0)
    await recorder.keyed((b"k2", b"1" * 500))
    await recorder.keyed((b"k2", b"2" * 500))
    await recorder.checkpoint()


PROGRAMS: dict[str, tuple[Program, LogConfig]] = {
    "plain": (plain, _SMALL),
    "everything": (everything, _SMALL),
    "resumed": (resumed, _SMALL),
    "compacted": (compacted, _COMPACTED),
    "swap": (swap, _COMPACTED),
}


ENDED = {
    "resumed": ("crash", "crash, little synced"),
    "compacted": STOPS[:3],
    "swap": ("crash",),
}
"""Where not every stop can follow, or one says nothing new."""


async def _record(name: str, durability: str, stop: str) -> Left:
    program, config = PROGRAMS[name]
    recorder = await Recorder.begin(durability, config)
    log = recorder.world.log
    await program(recorder)
    if name != "swap":
        if stop != "crash, little synced":
            await recorder.checkpoint()
        for _ in range(LAST_BATCHES):
            await recorder.plain(b"last")
            if name == "everything":
                log.leader_epoch = LeaderEpoch(log.leader_epoch + 2)
    if stop == "crash, all synced":
        await recorder.checkpoint()
    if stop == "clean":
        await recorder.close()
    files = files_of(recorder.disk)
    checkpoint = files.get(layout.RECOVERY_POINT_CHECKPOINT, b"0\n0\n")
    points = layout.decode_offsets(checkpoint.decode("ascii"))
    return Left(
        name=name,
        durability=durability,
        stop=stop,
        config=config,
        leader_epoch=log._state.epochs.latest,
        files=files,
        recovery_point=max(points.get(PARTITION, 0), _covered(files)),
        end=log.log_end_offset,
        meanings={**recorder.meanings, log.log_end_offset: meaning_of(log)},
        batches=_batches(files),
    )


def _covered(files: dict[str, bytes]) -> int:
    """The end of the recovery checkpoint, below which everything was synced."""
    data = files.get(f"{DIRECTORY}/{layout.RECOVERY_CHECKPOINT}")
    return 0 if data is None else decode_recovery_checkpoint(data).end_offset


@cache
def recorded(name: str, durability: str, stop: str) -> Left:
    """The same in every process."""
    return run(_record(name, durability, stop))


def all_left() -> list[Left]:
    """Every history, in both modes, ended in each way that it can be."""
    return [
        recorded(name, durability, stop)
        for name in PROGRAMS
        for durability in ("fsync", "os")
        for stop in STOPS
        if stop in ENDED.get(name, STOPS)
    ]


def files_of(disk: SimDisk) -> dict[str, bytes]:
    """Every file of a disk by its path."""
    files: dict[str, bytes] = {}

    def walk(directory: Directory, above: str) -> None:
        for name, entry in sorted(directory.names.items()):
            if isinstance(entry, Inode):
                files[above + name] = bytes(entry.data)
            else:
                walk(entry, f"{above}{name}/")

    walk(disk.image.root, "")
    return files


def disk_of(files: dict[str, bytes]) -> SimDisk:
    """A disk of these files, all of them stable."""
    disk = SimDisk(operations=[])
    for path, data in files.items():
        directory = disk.image.root
        *above, name = path.split("/")
        for part in above:
            if part not in directory.names:
                directory.names[part] = directory.stable[part] = Directory()
            found = directory.names[part]
            assert isinstance(found, Directory)
            directory = found
        directory.names[name] = directory.stable[name] = Inode(bytearray(data), len(data))
    return disk


def _batches(files: dict[str, bytes]) -> tuple[Stored, ...]:
    """Every batch, as recovery is to find it: a file of a swap stands for what it was made of."""
    found: list[Stored] = []
    for path in sorted(path for path in files if path.endswith(layout.LOG)):
        data = files.get(path + layout.SWAP, files[path])
        end = found[-1].header.next_offset if found else -1
        position = 0
        for header, batch in iterate(data if base_of(path) >= end else b""):
            found.append(Stored(path, position, header))
            position += len(batch)
    return tuple(found)


def base_of(path: str) -> int:
    """The offset in a segment's name."""
    parsed = layout.parse_file_name(path.rpartition("/")[2])
    assert parsed is not None, path
    return parsed[0]
