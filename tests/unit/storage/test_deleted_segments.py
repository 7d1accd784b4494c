"""What is known of deleted segments after a start that reads all batches (E4, R2)."""

import asyncio
from random import Random

import pytest

from fencelog.log import layout
from fencelog.log.values import EpochStart
from fencelog.types import LeaderEpoch, Offset, ProducerId
from fencelog.wire.batch import iterate
from fencelog_sim.world.disk import Loss, PowerCut, SimDisk
from tests.support.storage import (
    DIRECTORY,
    SMALL_SEGMENTS,
    World,
    assert_same_state,
    cut_at,
    many_segments,
    run,
    truncated,
)


async def shortened(world: World, start: int) -> None:
    """Delete what is below an offset, as retention does."""
    assert isinstance(world.log.advance_start(Offset(start)), list)
    await world.store.delete_segments_below(Offset(start))


@pytest.mark.parametrize("is_within", [False, True])
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_the_producers_of_deleted_segments_are_known_though_all_batches_are_read(
    durability: str, is_within: bool
) -> None:  # E4, E5, R2
    async def scenario() -> None:
        world = await many_segments(durability=durability)
        await world.store.sync()
        bases = world.log.segment_base_offsets
        await shortened(world, bases[-1] + 1 if is_within else bases[-2])
        assert world.log.producer(ProducerId(101)) is not None
        start, disk = world.log.log_start_offset, world.disk
        for _ in range(2):  # also the start after a start that has read all batches
            again = await World.recover(
                disk.power_loss(Loss.ALL), durability=durability, log_start=start
            )
            disk = again.disk
            assert_same_state(again, world)
            assert again.store.is_rebuilt
            assert again.store.knows_deleted
            await again.store.close(clean=False)

    run(scenario())


def test_a_snapshot_that_was_not_written_or_is_damaged_is_made_anew_before_segments_go() -> None:
    # E4, R2
    async def scenario() -> None:
        for damage in ("missing", "torn"):
            world = await many_segments()
            start = world.log.segment_base_offsets[2]
            path = f"{DIRECTORY}/{layout.file_name(start, layout.SNAPSHOT)}"
            if damage == "missing":
                await world.disk.remove(path)
            else:
                truncated(world.disk, path, 20)
            await shortened(world, start)
            again = await World.recover(world.disk.power_loss(Loss.ALL), log_start=start)
            assert {view.producer_id for view in again.log.producers()} == {
                view.producer_id for view in world.log.producers()
            }
            producer = again.log.producer(ProducerId(101))
            assert producer == world.log.producer(ProducerId(101))

    run(scenario())


def test_without_the_snapshot_a_start_says_that_it_does_not_know_what_was_deleted() -> None:
    async def scenario() -> None:
        world = await many_segments()
        start = world.log.segment_base_offsets[2]
        await shortened(world, start)
        await world.disk.remove(f"{DIRECTORY}/{layout.file_name(start, layout.SNAPSHOT)}")
        again = await World.recover(world.disk, log_start=start)
        assert not again.store.knows_deleted
        assert again.log.producer(ProducerId(101)) is None

    run(scenario())


async def shortened_in_epochs(more: int) -> World:
    """Twelve leader epochs; all is deleted up to ``more`` offsets above the begin of a segment."""
    world = await World.create()
    for epoch in range(12):
        world.log.lead(LeaderEpoch(epoch))
        world.append_values(*[b"x" * 100] * 3)
    await world.flush()
    await shortened(world, world.log.segment_base_offsets[2] + more)
    return world


@pytest.mark.parametrize("was_compacted", [False, True])
@pytest.mark.parametrize("more", [0, 1, 8])
def test_the_epochs_of_what_was_deleted_last_are_known_though_all_batches_are_read(
    more: int, was_compacted: bool
) -> None:  # F7
    async def scenario() -> None:
        world = await shortened_in_epochs(more)
        start, epochs = world.log.log_start_offset, world.log._state.epochs.entries
        assert [each.offset < start for each in epochs[:3]] == [True, True, False]
        disk = world.disk
        for _ in range(2):  # also the start after a start that has read all batches
            again = await World.recover(
                disk.power_loss(Loss.ALL),
                log_start=start,
                leader_epoch=11,
                was_compacted=was_compacted,
            )
            disk = again.disk
            assert again.store.is_rebuilt
            assert again.log._state.epochs.entries == epochs
            for epoch in range(epochs[0].epoch, 12):
                assert again.log.end_of_epoch(epoch) == world.log.end_of_epoch(epoch)
            await again.store.close(clean=False)

    run(scenario())


def test_a_power_cut_in_a_start_forgets_no_epoch_below_a_compacted_log() -> None:  # F7
    async def recover(disk: SimDisk, start: Offset) -> World:
        return await World.recover(disk, log_start=start, leader_epoch=11, was_compacted=True)

    async def scenario() -> None:
        for number in range(1000):
            world = await shortened_in_epochs(0)
            start, epochs = world.log.log_start_offset, world.log._state.epochs.entries
            disk = world.disk.power_loss(Loss.ALL)
            cut_at(disk, number)
            try:
                await recover(disk, start)
            except PowerCut:
                pass
            else:
                assert number > 5
                return
            again = await recover(disk.power_loss(Loss.ALL), start)
            assert again.log._state.epochs.entries == epochs
        raise AssertionError("it never ends")

    run(scenario())


async def deleted_up_to_its_end() -> World:
    """One segment, all of whose batches are deleted: it stays, as the newest."""
    world = await World.create()
    for number in range(3):
        world.log.lead(LeaderEpoch(number))
        world.append_transactional(100 + number, 0, b"t")
        world.end_transaction(100 + number, commit=True)
    await world.flush()
    await shortened(world, world.log.log_end_offset)
    assert world.log.segment_base_offsets == [0]
    return world


async def begin_a_segment(world: World) -> None:
    """Append a batch that is too large for the newest segment."""
    world.append_values(b"x" * SMALL_SEGMENTS.segment_bytes)
    await world.flush()
    assert world.log.segment_base_offsets == [0, world.log.log_start_offset]


def known(world: World) -> dict[int, object]:
    return {
        view.producer_id: world.log.producer(view.producer_id) for view in world.log.producers()
    }


@pytest.mark.parametrize("was_compacted", [False, True])
def test_a_power_cut_at_the_first_segment_after_all_was_deleted_forgets_no_producer_and_epoch(
    was_compacted: bool,
) -> None:  # E4, D4, F7
    async def recover(disk: SimDisk, start: Offset) -> World:
        return await World.recover(
            disk, log_start=start, leader_epoch=2, was_compacted=was_compacted
        )

    def below(world: World) -> list[EpochStart]:
        return [e for e in world.log._state.epochs.entries if e.offset < world.log.log_start_offset]

    async def scenario() -> None:
        for number in range(1000):
            world = await deleted_up_to_its_end()
            expected, start = known(world), world.log.log_start_offset
            assert len(expected) == 3
            assert [each.epoch for each in below(world)] == [1, 2]
            cut_at(world.disk, number)
            try:
                await begin_a_segment(world)
            except PowerCut:
                pass
            else:
                assert number > 5
                return
            for loss in Loss:
                again = await recover(world.disk.power_loss(loss), start)
                # The start has removed the segment; what it has kept is durable.
                later = await recover(again.disk.power_loss(Loss.ALL), start)
                for each in (again, later):
                    assert below(each) == below(world)
                    assert each.store.knows_deleted != was_compacted
                    assert was_compacted or known(each) == expected
        raise AssertionError("it never ends")

    run(scenario())


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_while_the_next_segment_is_begun_and_the_last_one_goes_forgets_no_producer(
    seed: int,
) -> None:  # E4, D4
    async def scenario() -> None:
        for number in range(1000):
            world = await deleted_up_to_its_end()
            expected, start = known(world), world.log.log_start_offset

            async def delete(world: World = world, start: Offset = start) -> None:
                while world.store._segments.base_offsets[-1] < start:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0)
                await world.store.delete_segments_below(start)

            random = Random(seed)

            async def slow(verb: str, name: str, size: int, random: Random = random) -> None:
                for _ in range(random.randrange(6)):
                    await asyncio.sleep(0)

            world.disk.delay = slow
            cut_at(world.disk, number)
            deleting = asyncio.create_task(delete())
            try:
                await begin_a_segment(world)
                await deleting
            except PowerCut:
                deleting.cancel()
                await asyncio.wait([deleting])
            else:
                assert world.store._segments.base_offsets == [start]
                return
            for loss in Loss:
                again = await World.recover(
                    world.disk.power_loss(loss), log_start=start, leader_epoch=2
                )
                assert known(again) == expected
        raise AssertionError("it never ends")

    run(scenario())


@pytest.mark.parametrize("damage", ["flipped", "incomplete", "a newer epoch"])
def test_of_segments_that_are_damaged_a_start_keeps_no_producers(damage: str) -> None:  # D4
    async def scenario() -> None:
        world = await deleted_up_to_its_end()
        if damage == "a newer epoch":
            world.log.lead(LeaderEpoch(3))
        await begin_a_segment(world)
        start = world.log.log_start_offset
        await world.disk.remove(f"{DIRECTORY}/{layout.file_name(start, layout.SNAPSHOT)}")
        path = f"{DIRECTORY}/{layout.file_name(0, layout.LOG)}"
        content = world.disk.contents(path)
        *_, (last, _) = iterate(content)
        if damage == "flipped":
            world.disk.overwrite(path, content[:100] + b"?" + content[101:])
        elif damage == "incomplete":
            truncated(world.disk, path, len(content) - last.size)
        again = await World.recover(world.disk, log_start=start, leader_epoch=3)
        is_known = damage == "a newer epoch"
        assert again.store.knows_deleted == is_known
        assert again.log.segment_base_offsets == [start]
        assert again.log.log_end_offset == world.log.log_end_offset
        assert (known(again) == known(world)) == is_known

    run(scenario())


@pytest.mark.slow  # a power cut at each operation
def test_a_power_cut_while_segments_are_deleted_forgets_no_producer() -> None:  # E4, R2
    async def scenario() -> None:
        for number in range(1000):
            world = await many_segments()
            expected = {view.producer_id for view in world.log.producers()}
            start = world.log.segment_base_offsets[3]
            cut_at(world.disk, number)
            try:
                world.log.advance_start(start)
                await world.store.delete_segments_below(start)
            except PowerCut:
                pass
            else:
                assert number > 10
                return
            for loss in Loss:
                again = await World.recover(world.disk.power_loss(loss), log_start=start)
                assert {view.producer_id for view in again.log.producers()} == expected
        raise AssertionError("it never ends")

    run(scenario())
