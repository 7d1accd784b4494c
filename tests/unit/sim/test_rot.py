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
    file = await world.host.disk.open(path, create=True)
    await file.append([data])
    await file.sync()
    await file.close()
    for folder in (FOLDER, ""):
        await world.host.disk.sync_directory(folder)


async def stop_cleanly(world: World) -> None:
    """Leave what a clean stop leaves of one partition."""
    await world.host.disk.make_directory(FOLDER)
    await store(world, CHECKPOINT, b"all below 8 was synced")
    await store(world, CLEAN_SHUTDOWN, b"closed: orders-0")
    await store(world, LOG, b"first")


def test_a_power_cut_leaves_a_flipped_bit_and_brings_back_no_mark_that_hides_it() -> None:
    for loss in Loss:
        world = World("rot", Setting())
        world.loop.run(stop_cleanly(world), limit_s=LIMIT_S)
        world.host.flip_a_bit()
        world.host.cut_power(loss)
        assert world.host.flipped == [LOG]
        assert world.host.disk.contents(LOG) != b"first"
        assert not world.host.disk.exists(CLEAN_SHUTDOWN)
        assert not world.host.disk.exists(CHECKPOINT)
        world.host.flip_back()
        assert world.host.flipped == []
        assert world.host.disk.contents(LOG) == b"first"


def test_a_repair_leaves_a_topic_alone_that_was_made_again_under_the_name() -> None:
    world = World("rot", Setting())

    async def delete_and_make_again() -> None:
        await world.host.disk.remove(FOLDER)
        await stop_cleanly(world)

    world.loop.run(stop_cleanly(world), limit_s=LIMIT_S)
    world.host.flip_a_bit()
    world.loop.run(delete_and_make_again(), limit_s=LIMIT_S)
    assert world.host.flipped == []
    world.host.flip_back()
    assert world.host.disk.contents(LOG) == b"first"


def test_a_removal_that_a_power_cut_undoes_brings_back_the_flipped_bit() -> None:
    world = World("rot", Setting())
    world.loop.run(stop_cleanly(world), limit_s=LIMIT_S)
    world.host.flip_a_bit()
    world.loop.run(world.host.disk.remove(FOLDER), limit_s=LIMIT_S)
    world.host.cut_power(Loss.ALL)
    assert world.host.flipped == [LOG]
