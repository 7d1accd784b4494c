"""Rounds of compaction on the files of a partition."""

from fencelog.log.config import LogConfig
from fencelog.storage.compaction import Compaction
from fencelog.storage.writeback import WritebackLimits
from fencelog.types import Offset
from fencelog.wire.records import RecordToWrite, build_batch
from fencelog_sim.world.disk import SimDisk
from tests.support.log import owner
from tests.support.storage import NOW_MS, World

CONFIG = LogConfig(
    segment_bytes=1024,
    index_interval_bytes=100,
    delete_retention_ms=1000,
    cleanup_policy=frozenset({"compact"}),
)

OWNED_AT = {1: owner(1), 2: owner(1, "g"), 6: owner(2), 7: owner(2, live=False)}
"""The owners of a log and when they are granted."""
OWNERS = {None: OWNED_AT[7], "g": OWNED_AT[2]}


async def write(world: World, *records: tuple[str, str | None], producer_id: int = -1) -> None:
    sequence = -1
    if producer_id >= 0:
        last = {p.producer_id: p.last_sequence for p in world.log.producers()}
        sequence = last.get(producer_id, -1) + 1
    batch = build_batch(
        [RecordToWrite(k.encode(), v and v.encode(), NOW_MS) for k, v in records],
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
    )
    world.append(batch)
    await world.flush()


async def filled(
    disk: SimDisk | None = None,
    durability: str = "fsync",
    limits: WritebackLimits | None = None,
) -> World:
    """Segments with every case of compaction, and several cases in each."""
    world = await World.create(disk, config=CONFIG, durability=durability, limits=limits)
    for number in range(12):
        await write(world, (f"k{number % 3}", f"{number}" * 70), ("one", f"{number}"))
        await write(world, (f"k{number % 5}", f"{number}" * 60), producer_id=11)
        world.append_transactional(12, number, f"transaction {number}".encode())
        world.end_transaction(12, commit=number % 2 == 0)
        if number == 4:
            await write(world, ("k1", None), ("gone", None))
        if number in OWNED_AT:
            world.log.set_owner(OWNED_AT[number], now_ms=NOW_MS)
            await world.flush()
    await write(world, ("last", "1" * 500))
    await write(world, ("last", "2" * 500))
    await world.store.sync()
    await world.checkpointed()
    assert len(world.log.segment_base_offsets) > 4
    return world


async def compact(world: World, first_dirty: int = 0, now_ms: int = NOW_MS) -> int:
    """A round, due or not; returns where it ended."""
    need = world.log.compaction_need(Offset(first_dirty), world.store.recovery_point, now_ms)
    compaction = Compaction(
        world.store, world.log.compaction(Offset(first_dirty), need.end, now_ms), lambda: True
    )
    end = await compaction.map()
    size = world.log.size
    saved = await compaction.clean()
    assert saved == size - world.log.size
    await world.checkpointed()
    return end


async def restarted(disk: SimDisk, world: World, *, clean: str | None = None) -> World:
    return await World.recover(
        disk,
        config=CONFIG,
        durability=world.durability,
        recovery_point=world.store.recovery_point,
        clean=clean,
    )
