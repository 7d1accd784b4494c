"""Truncation of a replica at a fork, and replicas that begin above offset 0 (F7)."""

from collections.abc import Iterator
from random import Random

import pytest

from fencelog.errors import CorruptionError, StorageError
from fencelog.log.values import Appended
from fencelog.storage.checkpointer import Begin, read_recovery_checkpoint
from fencelog.storage.directory import DataDirectory
from fencelog.storage.partition_store import PartitionStore
from fencelog.types import Offset, TopicPartition
from fencelog.wire.batch import iterate, read_header
from fencelog_sim.world.clocks import SimRandom
from fencelog_sim.world.disk import Loss, PowerCut, SimDisk
from tests.support.log import owner
from tests.support.storage import (
    AT_EACH_WRITE,
    DIRECTORY,
    NOW_MS,
    SMALL_SEGMENTS,
    TOPIC_ID,
    World,
    assert_same_state,
    batch_of,
    cut_at,
    run,
)

PARTITION = TopicPartition("t", 0)
CRASHES = pytest.mark.parametrize(
    ("durability", "loss"),
    [
        pytest.param("fsync", Loss.ALL, marks=pytest.mark.slow),
        ("fsync", Loss.TORN),
        pytest.param("fsync", Loss.NONE, marks=pytest.mark.slow),
        pytest.param("os", Loss.NONE, marks=pytest.mark.slow),
    ],
)
"""Power cuts in ``fsync`` mode, kills in ``os`` mode."""
DURABILITIES = pytest.mark.parametrize("durability", ["fsync", "os"])
LAST_EPOCH = 4


async def new_disk() -> SimDisk:
    """A data directory without partitions."""
    disk = SimDisk(operations=[])
    await DataDirectory.open(disk, SimRandom(Random(0)))
    return disk


async def leaders_log(durability: str = "fsync", batches: int = 18, limits=None) -> World:
    """Several segments and leader epochs, transactions, owners, a seal; all of it flushed."""
    world = await World.create(await new_disk(), durability=durability, limits=limits)
    for number in range(batches):
        world.log.lead(number * LAST_EPOCH // (batches - 1))
        world.append_values(b"%d" % number, b"x" * 120)
        world.append_transactional(100 + number, 0, b"t%d" % number)
        if number % 3:
            world.end_transaction(100 + number, commit=number % 3 == 1)
        if number % 5 == 0:
            world.log.set_owner(owner(number + 1), now_ms=NOW_MS)
        if number % 4 == 0:
            await world.flush()
            await world.checkpointed()
    world.log.seal(now_ms=NOW_MS)
    world.log.set_owner(owner(batches + 1), now_ms=NOW_MS)
    await world.flush()
    await world.checkpointed()
    return world


def ends_of(stored: bytes) -> list[Offset]:
    """Where a leader's log may have forked from it: at the end of each batch."""
    return [header.next_offset for header, _ in iterate(stored)]


async def copied(stored: bytes, end: Offset, durability: str = "fsync") -> World:
    """A replica that never had anything above an offset."""
    world = await World.create(await new_disk(), durability=durability)
    world.log.follow(LAST_EPOCH)
    replicate(world, stored, end)
    await world.flush()
    return world


def replicate(world: World, stored: bytes, end: Offset) -> None:
    for header, batch in iterate(stored):
        if world.log.log_end_offset <= header.base_offset < end:
            view = memoryview(bytearray(batch))
            outcome = world.log.append_replicated(view, read_header(view))
            assert isinstance(outcome, Appended), outcome


async def truncated(world: World, fork: Offset, *, high_watermark: int = 0) -> World:
    """What the broker does: stop, lower the recovery point, open anew."""
    checksum = await world.stop()
    directory = await DataDirectory.open(world.disk, SimRandom(Random(0)))
    await directory.checkpoint({PARTITION: min(world.store.recovery_point, fork)})
    return await World.recover(
        world.disk,
        durability=world.durability,
        recovery_point=directory.recovery_point(PARTITION),
        clean=checksum,
        leader_epoch=LAST_EPOCH,
        high_watermark=Offset(high_watermark),
        truncate_to=fork,
    )


async def restarted(disk: SimDisk, durability: str, **more: object) -> World:
    """A start after a crash, with what the directory has stored."""
    directory = await DataDirectory.open(disk, SimRandom(Random(0)))
    stored = {
        "recovery_point": directory.recovery_point(PARTITION),
        "log_start": directory.log_start(PARTITION),
        "high_watermark": Offset(0),
    }
    return await World.recover(
        disk, durability=durability, leader_epoch=LAST_EPOCH, **{**stored, **more}
    )


def commit_all(world: World) -> World:
    world.log.advance_high_watermark(world.log.log_end_offset)
    return world


async def assert_equal(world: World, expected: World) -> None:
    """Same bytes, same state, apart from where segments begin."""
    commit_all(world)
    commit_all(expected)
    assert await world.read_all() == await expected.read_all()
    bases = world.log.segment_base_offsets
    if bases == expected.log.segment_base_offsets:
        assert_same_state(world, expected)
    assert world.log.producers() == expected.log.producers()
    assert world.log.open_transactions() == expected.log.open_transactions()
    assert world.log.owners() == expected.log.owners()
    assert world.log.last_epoch == expected.log.last_epoch
    assert world.log.last_stable_offset == expected.log.last_stable_offset


@DURABILITIES
def test_a_truncated_log_is_one_that_never_had_more(durability: str) -> None:
    async def main() -> None:
        stored = await (await leaders_log()).read_all()
        for fork in ends_of(stored):
            world = await leaders_log(durability)
            assert len(world.log.segment_base_offsets) > 4
            cut = await truncated(world, fork)
            assert (cut.log.log_end_offset, cut.store.truncated) == (fork, None)
            await assert_equal(cut, await copied(stored, fork))
            cut.log.follow(LAST_EPOCH)
            replicate(cut, stored, Offset(1 << 30))
            await cut.flush()
            again = await restarted(cut.disk.power_loss(Loss.NONE), durability)
            await assert_equal(again, await copied(stored, Offset(1 << 30)))

    run(main())


def test_only_the_batches_from_the_newest_snapshot_on_are_read() -> None:
    async def main() -> None:
        world = await leaders_log()
        bases = world.log.segment_base_offsets
        fork = Offset(bases[-2] + 1)
        cut = await truncated(world, fork, high_watermark=Offset(bases[-2]))
        assert not cut.store.is_rebuilt
        checkpoint = await read_recovery_checkpoint(world.disk, DIRECTORY)
        assert checkpoint is not None
        assert checkpoint.end_offset == bases[-2]

    run(main())


def test_a_damaged_snapshot_costs_only_time() -> None:
    async def main() -> None:
        world = await leaders_log()
        stored = await world.read_all()
        base = world.log.segment_base_offsets[-2]
        path = f"{DIRECTORY}/{base:020d}.snapshot"
        checksum = await world.stop()
        world.disk.overwrite(path, b"garbage")
        cut = await World.recover(
            world.disk,
            clean=checksum,
            leader_epoch=LAST_EPOCH,
            high_watermark=Offset(0),
            truncate_to=Offset(base + 1),
        )
        await assert_equal(cut, await copied(stored, cut.log.log_end_offset))

    run(main())


def test_a_fork_below_the_high_watermark_is_refused_and_cuts_nothing() -> None:  # F8
    async def main() -> None:
        world = await leaders_log()
        stored = await world.read_all()
        fork = ends_of(stored)[10]
        with pytest.raises(CorruptionError, match=f"offset {fork}, below .*{fork + 1}"):
            await truncated(world, fork, high_watermark=Offset(fork + 1))
        again = await restarted(world.disk, "fsync")
        await assert_equal(again, await copied(stored, Offset(1 << 30)))

    run(main())


def test_damage_below_the_fork_is_no_fork() -> None:  # D3
    async def main() -> None:
        world = await leaders_log()
        fork = ends_of(await world.read_all())[10]
        checksum = await world.stop()
        first = f"{DIRECTORY}/{0:020d}.log"
        data = bytearray(world.disk.contents(first))
        data[100] ^= 1
        world.disk.overwrite(first, bytes(data))
        with pytest.raises(CorruptionError, match="wrong CRC"):
            await World.recover(
                world.disk,
                clean=checksum,
                recovery_point=fork,
                leader_epoch=LAST_EPOCH,
                high_watermark=Offset(0),
                truncate_to=Offset(2),
            )

    run(main())


def crashes(program, make) -> Iterator[tuple[int, SimDisk]]:
    """The disk as a crash at each operation of a program leaves it."""
    number, is_cut = 0, True
    disks: list[SimDisk] = []

    async def main() -> None:
        world = await make()
        disks.append(world.disk)
        cut_at(world.disk, number)
        await program(world)

    while is_cut:
        try:
            run(main())
            is_cut = False
        except (PowerCut, StorageError) as error:
            # In a background sync, too: what follows says so.
            assert PowerCut.__name__ in repr(error)  # noqa: PT017
            yield number, disks.pop()
        number += 1


@CRASHES
def test_a_crash_at_any_operation_of_a_truncation_leaves_what_can_be_truncated_again(
    durability: str, loss: Loss
) -> None:
    stored = run(_stored())
    fork = ends_of(stored)[9]
    expected = run(copied(stored, fork))
    limits = AT_EACH_WRITE if loss is Loss.TORN or durability == "os" else None
    count = 0
    for number, disk in crashes(
        lambda world: truncated(world, fork), lambda: leaders_log(durability, limits=limits)
    ):
        world = run(restarted(disk.power_loss(loss, Random(number)), durability))
        assert world.log.log_end_offset >= fork, number
        assert stored.startswith(run(_read(world))), number
        again = run(truncated(world, fork))
        run(assert_equal(again, expected))
        count += 1
    assert count > 20


async def _stored() -> bytes:
    return await (await leaders_log()).read_all()


async def _read(world: World) -> bytes:
    return await commit_all(world).read_all()


def test_recovery_knows_no_more_than_the_high_watermark() -> None:
    async def main() -> None:
        world = await World.create(await new_disk(), limits=AT_EACH_WRITE)
        world.append_transactional(7, 0, b"in")
        world.append_values(b"x" * 2000)
        world.end_transaction(7, commit=True)
        world.append_values(b"x" * 2000)
        world.append_values(b"after")
        await world.flush()
        await world.checkpointed()
        for marker_is_known, high_watermark in ((False, 2), (True, 3)):
            disk = world.disk.power_loss(Loss.NONE)
            checkpoint = await read_recovery_checkpoint(disk, DIRECTORY)
            assert checkpoint is not None
            assert checkpoint.end_offset > 3
            again = await restarted(disk, "fsync", high_watermark=Offset(high_watermark))
            stable = high_watermark if marker_is_known else 0
            assert again.log.high_watermark == high_watermark
            assert again.log.last_stable_offset == stable
        checksum = await world.stop()
        again = await World.recover(
            world.disk, clean=checksum, recovery_point=5, high_watermark=Offset(2)
        )
        assert (again.log.high_watermark, again.log.last_stable_offset) == (2, 0)

    run(main())


def test_in_fsync_mode_a_log_below_its_high_watermark_is_damaged() -> None:  # D3
    async def main() -> None:
        world = await leaders_log()
        beyond = Offset(world.log.log_end_offset + 1)
        with pytest.raises(CorruptionError, match=f"everything below {beyond} was synced"):
            await restarted(world.disk.power_loss(Loss.NONE), "fsync", high_watermark=beyond)
        again = await restarted(world.disk.power_loss(Loss.NONE), "os", high_watermark=beyond)
        assert again.log.high_watermark == world.log.log_end_offset

    run(main())


def test_an_epoch_whose_batches_were_lost_does_not_contradict_later_ones() -> None:
    """The batches are gone, and the checkpoint that names their epoch is not written durably."""

    async def main() -> None:
        world = await leaders_log("os", batches=4)
        newest = world.log.segment_base_offsets[-1]
        world.log.lead(LAST_EPOCH)
        await world.store.sync()
        path = f"{DIRECTORY}/leader-epoch-checkpoint"
        end = world.log.log_end_offset
        text = world.disk.contents(path).decode()
        count = int(text.split("\n")[1])
        stale = text.replace(f"0\n{count}\n", f"0\n{count + 1}\n") + f"8 {end + 2}\n"
        world.disk.overwrite(path, stale.encode())
        assert newest > 0
        again = await World.recover(
            world.disk.power_loss(Loss.NONE), durability="os", leader_epoch=8
        )
        again.log.lead(9)
        again.log.set_owner(owner(99), now_ms=NOW_MS)  # a seal lets that follow
        await again.flush()
        for seed in range(20):
            disk = again.disk.power_loss(Loss.TORN, Random(seed))
            await World.recover(disk, durability="os", leader_epoch=9)

    run(main())


# A replica that begins above offset 0


async def begin_of(world: World, start: int) -> Begin:
    end = world.log.keep_owners(Offset(start))
    assert isinstance(end, int)
    await world.flush()
    world.log.advance_start(Offset(start))
    return Begin(world.log.log_start_offset, *world.log.start_snapshot(Offset(start)))


async def begun(begin: Begin, disk: SimDisk | None = None, durability: str = "fsync") -> World:
    disk = disk or await new_disk()
    store, log = await PartitionStore.create(
        disk, DIRECTORY, TOPIC_ID, SMALL_SEGMENTS, durability, begin=begin
    )
    return World(disk, store, log, durability)


@DURABILITIES
def test_a_replica_begins_where_the_leader_does_and_knows_its_producers(durability: str) -> None:
    async def main() -> None:
        leader = await leaders_log()
        begin = await begin_of(leader, 20)
        replica = await begun(begin, durability=durability)
        assert (replica.log.log_start_offset, replica.log.log_end_offset) == (20, 20)
        assert replica.log.high_watermark == 20
        replica.log.follow(LAST_EPOCH)
        replicate(replica, await leader.read_all(), Offset(1 << 30))
        await replica.flush()
        commit_all(replica)
        for each in (replica, await restarted(replica.disk.power_loss(Loss.NONE), durability)):
            assert await commit_all(each).read_all() == await leader.read_all()
            known = {view.producer_id: view for view in each.log.producers()}
            assert known == {view.producer_id: view for view in leader.log.producers()}
            assert each.log.open_transactions() == leader.log.open_transactions()
            assert each.log.owners() == leader.log.owners()

    run(main())


@DURABILITIES
def test_a_log_start_inside_the_first_batch_survives_every_stop(durability: str) -> None:  # E4
    async def main() -> None:
        leader = await World.create(await new_disk(), durability=durability)
        leader.append(batch_of(b"deleted", producer_id=7, sequence=0))
        leader.append(batch_of(b"deleted", b"first", b"second", producer_id=7, sequence=1))
        await leader.flush()
        leader.log.advance_start(Offset(2))
        begin = Begin(Offset(1), *leader.log.start_snapshot(Offset(1)))
        replica = await begun(begin, durability=durability)
        replica.log.follow(LAST_EPOCH)
        replicate(replica, await leader.read_all(), Offset(1 << 30))
        await replica.flush()
        commit_all(replica)
        replica.log.advance_start(Offset(2))
        expected = [(view.producer_id, view.last_sequence) for view in leader.log.producers()]
        more = {"recovery_point": Offset(4), "log_start": Offset(2), "high_watermark": Offset(4)}
        checksum = await replica.stop()
        for clean in (checksum, None):
            disk = replica.disk.power_loss(Loss.ALL)
            again = await restarted(disk, durability, clean=clean, **more)
            assert (again.log.log_start_offset, again.log.log_end_offset) == (2, 4)
            known = [(view.producer_id, view.last_sequence) for view in again.log.producers()]
            assert known == expected == [(7, 3)]
            assert await again.read_all() == await leader.read_all()

    run(main())


def test_a_replica_knows_its_producers_also_below_a_later_checkpoint() -> None:  # E4
    async def main() -> None:
        leader = await leaders_log()
        begin = await begin_of(leader, 20)
        replica = await begun(begin)
        replica.log.follow(LAST_EPOCH)
        replicate(replica, await leader.read_all(), Offset(1 << 30))
        await replica.flush()
        checksum = await replica.stop()
        for clean in (checksum, None):
            disk = replica.disk.power_loss(Loss.ALL)
            more = {"recovery_point": Offset(20), "log_start": Offset(20)}
            again = await restarted(disk, "fsync", high_watermark=Offset(25), clean=clean, **more)
            known = {view.producer_id for view in again.log.producers()}
            assert known == {view.producer_id for view in leader.log.producers()}

    run(main())


@CRASHES
def test_a_crash_at_any_operation_of_a_beginning_leaves_an_empty_replica(
    durability: str, loss: Loss
) -> None:
    begin = run(_begin())
    number = 0
    while True:
        disk = run(new_disk())
        cut_at(disk, number)
        try:
            run(begun(begin, disk, durability))
            break
        except PowerCut:
            after = disk.power_loss(loss, Random(number))
        number += 1
        if run(DataDirectory.partitions_of(after)):
            again = run(restarted(after, durability))
            assert again.log.log_start_offset == again.log.log_end_offset
            if again.log.log_end_offset > 0:
                assert again.log.log_end_offset == begin.offset
                assert again.log.start_snapshot(begin.offset) == (
                    begin.snapshot,
                    tuple(begin.leader_epochs),
                )
    assert number > 5


async def _begin() -> Begin:
    return await begin_of(await leaders_log(), 20)
