"""Runs of one broker's storage on one simulated disk, each ended by a stop or by a power cut."""

from dataclasses import dataclass
from random import Random

from fencelog.errors import StorageError
from fencelog.log.ownership import Owner
from fencelog.log.transactions import aborted_between
from fencelog.log.values import Appended
from fencelog.storage.clean_stop import CleanStop
from fencelog.storage.directory import DataDirectory
from fencelog.storage.writeback import WritebackLimits
from fencelog.types import TopicPartition
from fencelog.wire.batch import iterate
from fencelog.wire.control import OwnershipRecord, Seal, read_control
from fencelog_sim.world.clocks import SimRandom
from fencelog_sim.world.disk import PowerCut, SimDisk
from tests.support.log import flush_and_commit, owner
from tests.support.storage import NOW_MS, World, cut_at, run

PARTITION = TopicPartition("t", 0)


@dataclass
class History:
    """What may be and what must be in the partition."""

    durability: str
    limits: WritebackLimits | None = None
    """When recovery checkpoints are stored."""
    acknowledged: bytes = b""
    """Batches that were acknowledged to a producer."""
    appended: bytes = b""
    """These and all that were written after them."""


class Machine:
    """One run: open, do things, end."""

    def __init__(self, disk: SimDisk, history: History) -> None:
        self.disk = disk
        self.history = history

    async def start(self) -> None:
        """Open whatever is there and check it against the history."""
        self.directory = await DataDirectory.open(self.disk, SimRandom(Random(0)))
        durability = self.history.durability
        if PARTITION in await self.directory.partitions():
            self.world = await World.recover(
                self.disk,
                durability=durability,
                recovery_point=self.directory.recovery_point(PARTITION),
                log_start=self.directory.log_start(PARTITION),
                clean=self.directory.take_clean(PARTITION),
                limits=self.history.limits,
            )
        else:
            self.world = await World.create(
                self.disk, durability=durability, limits=self.history.limits
            )
        stored = await self.world.read_all()
        history = self.history
        assert stored.startswith(history.acknowledged), (len(stored), len(history.acknowledged))
        assert history.appended.startswith(stored), (len(stored), len(history.appended))
        check_state(self.world, stored)
        # What recovery served is durable from now on.
        history.acknowledged = history.appended = stored

    async def flush(self) -> None:
        end = await self.write()
        if self.history.durability == "fsync":
            await self.world.store.sync()
        flush_and_commit(self.world.log, end)
        self.history.acknowledged = self.history.appended

    async def write(self) -> int:
        tail = self.world.log.take_unflushed()
        self.history.appended += b"".join(bytes(b) for write in tail for b in write.buffers)
        end = await self.world.write(tail)
        await self.world.checkpointed()
        return end

    async def checkpoint(self) -> None:
        await self.world.store.sync()
        await self.directory.checkpoint({PARTITION: self.world.store.recovery_point})

    async def stop(self) -> None:
        await self.flush()
        checksum = await self.world.stop()
        end = CleanStop(self.world.log.log_end_offset, checksum)
        await self.directory.close({PARTITION: end})

    def append(self, size: int) -> None:
        if self.world.log.sealed_at is None:
            self.world.append_values(b"v" * size, b"second")

    def seal(self) -> None:
        """Nothing but markers and owners follows, in any later run either (R2)."""
        assert isinstance(self.world.log.seal(now_ms=NOW_MS), Appended)

    def append_transactional(self, producer_id: int) -> None:
        sequence = self._sequence_of(producer_id)
        if self.world.log.sealed_at is not None:
            return
        self.world.append_transactional(producer_id, sequence, b"in a transaction")

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        self.world.end_transaction(producer_id, commit=commit)

    def set_owner(self, group: str | None) -> None:
        """Grant it to the next one, or end what was granted."""
        known = self.world.log.owner(group)
        epoch = 1 if known is None else known.epoch + (not known.is_live)
        live = known is None or not known.is_live
        verdict = self.world.log.set_owner(owner(epoch, group, live=live), now_ms=NOW_MS)
        assert isinstance(verdict, Appended), verdict

    def _sequence_of(self, producer_id: int) -> int:
        for view in self.world.log.producers():
            if view.producer_id == producer_id:
                return view.last_sequence + 1
        return 0


def check_state(world: World, stored: bytes) -> None:
    """Producers, transactions, owners and seal are what a plain reading of the batches gives."""
    sealed_at = None
    owners: dict[str | None, OwnershipRecord] = {}
    last_sequences: dict[int, int] = {}
    first_offsets: dict[int, int] = {}
    aborted = []
    for header, batch in iterate(stored):
        producer_id = header.producer_id
        control = read_control(batch)
        if isinstance(control, OwnershipRecord):
            owners[control.group] = control
        elif isinstance(control, Seal):
            sealed_at = header.base_offset
        elif header.is_control:
            first = first_offsets.pop(producer_id, None)
            if first is not None and not control.commit:
                aborted.append((producer_id, first, header.base_offset))
        elif producer_id >= 0:
            last_sequences[producer_id] = header.base_sequence + header.last_offset_delta
            first_offsets.setdefault(producer_id, header.base_offset)
    log = world.log
    assert log.sealed_at == sealed_at  # R2
    assert {group: log.owner(group) for group in owners} == {
        group: Owner(*record[:-1]) for group, record in owners.items()
    }
    assert len(log.owners()) == len(owners)
    for group, record in owners.items():
        again = log.set_owner(Owner(*record[:-1]), now_ms=NOW_MS)
        assert again == Appended(record.offset, record.offset + 1), group  # O9
    assert {p.producer_id: p.last_sequence for p in log.producers()} == last_sequences
    assert {t.producer_id: t.first_offset for t in log.open_transactions()} == first_offsets
    found = aborted_between(log.aborted, log.log_start_offset, log.log_end_offset)
    assert [entry[:3] for entry in found] == aborted
    assert log.last_stable_offset == min([*first_offsets.values(), log.log_end_offset])


def live(
    disk: SimDisk, history: History, program, cut: int | None, fault: int | None = None
) -> bool:
    """Run once; returns False when the power was cut, or the disk failed."""
    if cut is not None:
        cut_at(disk, cut, fault=fault)
    try:
        run(program(Machine(disk, history)))
    except PowerCut:
        return False
    except StorageError as error:
        # The power is cut in a background sync, too: what follows says so.
        assert fault is not None or PowerCut.__name__ in str(error)  # noqa: PT017
        return False
    return True
