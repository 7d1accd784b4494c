"""What a start believes after a clean stop, and what it does where a file is not as it was left."""

import pytest

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.log.values import Isolation, ReadPlan
from fencelog.storage.clean_stop import checksum_of
from fencelog.types import Offset
from fencelog.wire.batch import iterate
from fencelog_sim.world.disk import Loss
from tests.support.storage import (
    DIRECTORY,
    FIRST,
    World,
    assert_same_state,
    many_segments,
    one_segment,
    run,
    truncated,
)


def test_a_clean_stop_needs_no_walk_through_full_segments_and_loses_nothing() -> None:
    async def scenario() -> None:
        world = await many_segments()
        checksum = await world.stop()
        end = world.log.log_end_offset
        disk = world.disk.power_loss(Loss.ALL)
        expected = await World.recover(world.disk, recovery_point=end)
        # A walk would stop at this damage; a fetch would hand it to the client, who checks it.
        disk.corrupt(FIRST, 70)
        loaded = await World.recover(disk, recovery_point=end, clean=checksum)
        assert_same_state(loaded, world)
        assert loaded.log.offset_for_timestamp(0) == expected.log.offset_for_timestamp(0)
        for offset in range(end):
            plan = loaded.log.read(Offset(offset), 100, Isolation.REPLICATED)
            assert plan == expected.log.read(Offset(offset), 100, Isolation.REPLICATED)
        loaded.append_values(b"goes on")
        await loaded.flush()

    run(scenario())


def test_a_clean_stop_keeps_producers_whose_records_were_all_deleted() -> None:  # E4
    async def scenario() -> None:
        world = await many_segments()
        newest = world.log.segment_base_offsets[-1]
        assert world.log.producers()
        assert isinstance(world.log.advance_start(newest), list)
        await world.store.delete_segments_below(newest)
        checksum = await world.stop()
        end = world.log.log_end_offset
        again = await World.recover(
            world.disk, recovery_point=end, log_start=newest, clean=checksum
        )
        assert again.log.segment_base_offsets == [newest]
        assert_same_state(again, world)

    run(scenario())


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_after_a_clean_stop_a_damaged_side_file_is_rebuilt(suffix: str) -> None:
    async def scenario() -> None:
        world = await many_segments()
        checksum = await world.stop()
        base_offset = world.log.segment_base_offsets[-1 if suffix == ".snapshot" else 1]
        path = f"{DIRECTORY}/{layout.file_name(base_offset, suffix)}"
        truncated(world.disk, path, max(len(world.disk.contents(path)) - 1, 0))
        if suffix == ".txnindex" and not world.disk.contents(path):
            await world.disk.remove(path)
        end = world.log.log_end_offset
        again = await World.recover(world.disk, recovery_point=end, clean=checksum)
        assert_same_state(again, world)

    run(scenario())


def test_no_flipped_bit_of_an_index_makes_a_read_skip_records() -> None:  # D3
    async def scenario() -> None:
        world = await many_segments(20)
        await world.store.close(clean=True)
        end = world.log.log_end_offset
        base_offset = world.log.segment_base_offsets[1]
        path = f"{DIRECTORY}/{layout.file_name(base_offset, '.index')}"
        found = 0
        for number in range(8 * len(world.disk.contents(path))):
            disk = world.disk.power_loss(Loss.NONE)
            disk.corrupt(path, number // 8, 1 << number % 8)
            # As if it had been so when the log was closed, or were so in memory.
            checksum = await checksum_of(disk, DIRECTORY, world.log.segment_base_offsets)
            again = await World.recover(disk, recovery_point=end, clean=checksum)
            for offset in range(base_offset, world.log.segment_base_offsets[2]):
                plan = again.log.read(Offset(offset), 1, Isolation.REPLICATED)
                assert isinstance(plan, ReadPlan)
                try:
                    data = (await again.store.read(plan)).data
                except CorruptionError:
                    found += 1
                    continue
                first, _ = next(iterate(data))
                assert first.base_offset <= offset <= first.last_offset
        assert found > 0

    run(scenario())


def test_a_log_longer_than_its_clean_stop_left_it_is_recovered_as_unclean() -> None:
    async def scenario() -> None:
        world = await one_segment()
        checksum = await world.stop()
        disk = world.disk
        disk.operations.clear()
        again = await World.recover(disk, recovery_point=4, clean=checksum)
        assert again.log.log_end_offset == 8
        assert [verb for verb, path in disk.operations if path == FIRST] == ["rewrite", "sync"]

    run(scenario())


async def stopped_and_started() -> World:
    """Several segments, after a clean stop and a start that trusts the files."""
    world = await many_segments()
    checksum = await world.stop()
    end = world.log.log_end_offset
    again = await World.recover(world.disk, recovery_point=end, clean=checksum)
    assert again.store.clean_stop == (end, checksum)
    return again


def test_a_clean_stop_does_nothing_to_a_partition_that_has_not_changed() -> None:
    async def scenario() -> None:
        world = await stopped_and_started()
        before = world.store.clean_stop
        world.disk.operations = []
        await world.store.close(clean=True)
        assert world.disk.operations == []
        assert world.store.clean_stop == before

    run(scenario())


async def written(world: World) -> None:
    world.append_values(b"more")
    await world.flush()


async def with_deleted_segments(world: World) -> None:
    newest = world.log.segment_base_offsets[-1]
    assert isinstance(world.log.advance_start(newest), list)
    await world.store.delete_segments_below(newest)


@pytest.mark.parametrize("change", [written, with_deleted_segments])
def test_a_partition_that_has_changed_is_stopped_with_a_new_checksum(change) -> None:
    async def scenario() -> None:
        world = await stopped_and_started()
        before = world.store.clean_stop
        await change(world)
        checksum = await world.stop()
        assert world.store.clean_stop != before
        bases = world.log.segment_base_offsets
        assert checksum == await checksum_of(world.disk, DIRECTORY, bases)

    run(scenario())


def test_a_small_partition_is_stopped_without_a_new_file() -> None:
    async def scenario() -> None:
        world = await one_segment(1)
        assert world.disk.operations is not None
        world.disk.operations.clear()
        await world.stop()
        assert not [verb for verb, *_ in world.disk.operations if verb in ("create", "rename")]

    run(scenario())
