"""Rot in a run: a bit that flips on the disk, what a power cut makes of it, and its repair."""

from fencelog.log.layout import CLEAN_SHUTDOWN, RECOVERY_CHECKPOINT
from fencelog_sim.world.disk import Loss
from fencelog_sim.world.world import Setting, World

FOLDER = "orders-0"
LOG = f"{FOLDER}/00000000000000000000.log"
CHECKPOINT = f"{FOLDER}/{RECOVERY_CHECKPOINT}"
LIMIT_S = 60.0


async def store(world: World, path: str, data: bytes) -> None:
    """Write a file, with all that a power cut could take of it."""
    file = await world.disk.open(path, create=True)
    await file.append([data])
    await file.sync()
    await file.close()
    for folder in (FOLDER, ""):
        await world.disk.sync_directory(folder)


async def stop_cleanly(world: World) -> None:
    """Leave what a clean stop leaves of one partition."""
    await world.disk.make_directory(FOLDER)
    await store(world, CHECKPOINT, b"all below 8 was synced")
    await store(world, CLEAN_SHUTDOWN, b"closed: orders-0")
    await store(world, LOG, b"first")


def test_a_power_cut_leaves_a_flipped_bit_and_brings_back_no_mark_that_hides_it() -> None:
    for loss in Loss:
        world = World("rot", Setting())
        world.loop.run(stop_cleanly(world), limit_s=LIMIT_S)
        world.flip_a_bit()
        world.cut_power(loss)
        assert world.flipped == [LOG]
        assert world.disk.contents(LOG) != b"first"
        assert not world.disk.exists(CLEAN_SHUTDOWN)
        assert not world.disk.exists(CHECKPOINT)
        world.flip_back()
        assert world.flipped == []
        assert world.disk.contents(LOG) == b"first"


def test_a_repair_leaves_a_topic_alone_that_was_made_again_under_the_name() -> None:
    world = World("rot", Setting())

    async def delete_and_make_again() -> None:
        await world.disk.remove(FOLDER)
        await stop_cleanly(world)

    world.loop.run(stop_cleanly(world), limit_s=LIMIT_S)
    world.flip_a_bit()
    world.loop.run(delete_and_make_again(), limit_s=LIMIT_S)
    assert world.flipped == []
    world.flip_back()
    assert world.disk.contents(LOG) == b"first"


def test_a_removal_that_a_power_cut_undoes_brings_back_the_flipped_bit() -> None:
    world = World("rot", Setting())
    world.loop.run(stop_cleanly(world), limit_s=LIMIT_S)
    world.flip_a_bit()
    world.loop.run(world.disk.remove(FOLDER), limit_s=LIMIT_S)
    world.cut_power(Loss.ALL)
    assert world.flipped == [LOG]
