"""What recovery makes of each way in which a stop can leave the files (D2, D3, E15)."""

from random import Random

import pytest

from fencelog.errors import CorruptionError, ExhaustedError, StorageError
from fencelog.log import layout
from fencelog.log.config import LogConfig
from fencelog.wire.batch import iterate
from fencelog_sim.world.disk import Loss, SimDisk
from fencelog_sim.world.gate import Fault
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

UNSYNCED = ("sync_directory", DIRECTORY)
"""What fails where a partition is made, and leaves its names as a kill does."""


def without_epochs(data: bytes) -> bytes:
    """The batches without their leader epochs, of which only the order is protected."""
    return b"".join(bytes(batch[:12]) + bytes(batch[16:]) for _, batch in iterate(data))


def test_a_log_cut_at_any_byte_recovers_to_its_whole_batches() -> None:  # E15
    async def scenario() -> None:
        world = await one_segment()
        data = await world.read_all()
        ends = [0]
        for _, batch in iterate(data):
            ends.append(ends[-1] + len(batch))
        for size in range(len(data) + 1):
            truncated(world.disk, FIRST, size)
            again = await World.recover(world.disk)
            whole = max(end for end in ends if end <= size)
            assert await again.read_all() == data[:whole], size
            assert again.disk.contents(FIRST) == data[:whole]
            await again.store.close(clean=False)
            world.disk.overwrite(FIRST, data)

    run(scenario())


def test_no_flipped_bit_above_the_recovery_point_is_ever_served() -> None:  # D3
    async def scenario() -> None:
        world = await one_segment(3)
        data = await world.read_all()
        for position in range(len(data)):
            for durability in ("fsync", "os"):
                disk = world.disk.power_loss(Loss.NONE)
                disk.corrupt(FIRST, position, 1 << position % 8)
                try:
                    again = await World.recover(disk, durability=durability)
                except CorruptionError as error:
                    is_whole = "wrong CRC" not in str(error)
                    assert durability == "fsync" or is_whole, error  # noqa: PT017
                else:
                    served = without_epochs(await again.read_all())
                    assert without_epochs(data).startswith(served), position

    run(scenario())


def test_in_fsync_mode_a_sound_batch_after_a_bad_one_is_damage() -> None:  # D3
    async def scenario() -> None:
        world = await one_segment()
        world.disk.corrupt(FIRST, 70)
        with pytest.raises(CorruptionError, match=f"{FIRST}.*position 0, offset 0.*sound batch"):
            await World.recover(world.disk)

    run(scenario())


def test_in_os_mode_the_log_is_cut_at_the_first_bad_batch() -> None:  # D3
    async def scenario() -> None:
        world = await one_segment(durability="os")
        size = len(world.appended[0])
        world.disk.corrupt(FIRST, size + 70)
        again = await World.recover(world.disk, durability="os")
        assert await again.read_all() == world.appended[0]
        again.append_values(b"goes on")
        await again.flush()
        assert (await again.values())[-1] == b"goes on"

    run(scenario())


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_bad_batch_below_the_recovery_point_is_damage_and_named(durability: str) -> None:  # D3
    async def scenario() -> None:
        world = await one_segment(durability=durability)
        world.disk.corrupt(FIRST, len(world.appended[0]) + 70)
        with pytest.raises(CorruptionError, match=rf"{FIRST}.*offset 2: wrong CRC.*below 3"):
            await World.recover(world.disk, recovery_point=3, durability=durability)

    run(scenario())


def test_a_log_that_ends_below_the_recovery_point_is_damage() -> None:  # D3
    async def scenario() -> None:
        world = await one_segment()
        truncated(world.disk, FIRST, len(world.appended[0]))
        with pytest.raises(CorruptionError, match=r"ends at offset 2.*below 8"):
            await World.recover(world.disk, recovery_point=8)

    run(scenario())


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_log_that_ends_below_its_start_is_damage_and_gives_no_offset_twice(
    durability: str,
) -> None:  # D3
    async def scenario() -> None:
        world = await one_segment(durability=durability)
        for size in (0, len(world.appended[0]), len(world.appended[0]) + 70):
            disk = world.disk.power_loss(Loss.NONE)
            truncated(disk, FIRST, size)
            with pytest.raises(CorruptionError, match="below 6 was synced"):
                await World.recover(disk, durability=durability, log_start=6)

    run(scenario())


def test_a_bad_batch_in_a_segment_with_a_successor_is_damage_in_fsync_mode() -> None:  # D3
    async def scenario() -> None:
        world = await many_segments()
        world.disk.corrupt(FIRST, len(world.disk.contents(FIRST)) - 1)
        with pytest.raises(CorruptionError, match=f"{FIRST}.*follows it"):
            await World.recover(world.disk)

    run(scenario())


@pytest.mark.parametrize("missing", [0, 2])
def test_a_missing_segment_is_damage(missing: int) -> None:  # D3
    async def scenario() -> None:
        world = await many_segments()
        base_offset = world.log.segment_base_offsets[missing]
        await world.disk.remove(f"{DIRECTORY}/{layout.file_name(base_offset, layout.LOG)}")
        with pytest.raises(CorruptionError):
            await World.recover(world.disk)

    run(scenario())


def test_an_empty_directory_that_held_records_is_damage() -> None:  # D3
    async def scenario() -> None:
        world = await one_segment()
        await world.disk.remove(FIRST)
        with pytest.raises(CorruptionError, match="missing; offsets 0 to 7 were stored and not"):
            await World.recover(world.disk, recovery_point=8)

    run(scenario())


async def three_epochs() -> tuple[World, int]:
    """Batches of epochs 0, 5 and 6, and where the last one begins."""
    world = await one_segment(1)
    for epoch in (5, 6):
        world.log.leader_epoch = epoch
        world.append_values(b"%d" % epoch)
    await world.flush()
    return world, len(world.disk.contents(FIRST)) - len(world.appended[-1])


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("loses_checkpoint", [False, True])
def test_a_whole_batch_of_a_wrong_leader_epoch_is_damage(
    durability: str, loses_checkpoint: bool
) -> None:  # D3
    async def scenario() -> None:
        world, last = await three_epochs()
        checkpoint = f"{DIRECTORY}/{layout.LEADER_EPOCH_CHECKPOINT}"
        found = 0
        for bit in range(32):
            disk = world.disk.power_loss(Loss.NONE)
            disk.corrupt(FIRST, last + 15 - bit // 8, 1 << bit % 8)
            if loses_checkpoint:
                await disk.remove(checkpoint)
            try:
                await World.recover(disk, durability=durability, leader_epoch=6)
            except CorruptionError as error:
                assert f"{FIRST}: damaged at position {last}" in str(error)  # noqa: PT017
                found += 1
        assert found == 32

    run(scenario())


def test_a_flipped_epoch_between_two_others_is_found_by_the_checkpoint() -> None:  # D3
    async def scenario() -> None:
        world = await one_segment(1)
        for epoch in (4, 4, 6):
            world.log.leader_epoch = epoch
            world.append_values(b"%d" % epoch)
        await world.flush()
        sizes = [len(batch) for batch in world.appended]
        for number, flip in ((1, 1 << 2), (2, 1 << 0), (2, 1 << 1)):
            disk = world.disk.power_loss(Loss.NONE)
            disk.corrupt(FIRST, sum(sizes[:number]) + 15, flip)
            for _ in range(2):
                with pytest.raises(CorruptionError, match=layout.LEADER_EPOCH_CHECKPOINT):
                    await World.recover(disk, durability="os", leader_epoch=6)

    run(scenario())


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_whole_batch_in_a_wrong_place_is_damage_even_at_the_end(durability: str) -> None:  # D3
    async def scenario() -> None:
        config = LogConfig(cleanup_policy=frozenset({"compact"}))
        world = await one_segment(3)
        last = len(world.disk.contents(FIRST)) - len(world.appended[-1])
        for bit in range(64):
            disk = world.disk.power_loss(Loss.NONE)
            disk.corrupt(FIRST, last + 7 - bit // 8, 1 << bit % 8)
            with pytest.raises(CorruptionError, match=f"{FIRST}: damaged at position {last}"):
                await World.recover(disk, durability=durability, config=config)

    run(scenario())


def test_a_log_that_was_cut_says_so() -> None:  # D3
    async def scenario() -> None:
        world = await one_segment()
        truncated(world.disk, FIRST, len(world.disk.contents(FIRST)) - 1)
        again = await World.recover(world.disk)
        assert again.store.truncated is not None
        assert again.store.truncated.startswith(f"{FIRST}: damaged at position")
        assert (await World.recover(again.disk.restarted())).store.truncated is None

    run(scenario())


def test_what_recovery_serves_survives_a_power_cut_that_follows() -> None:  # D2
    async def scenario() -> None:
        world = await World.create(durability="os")
        for number in range(40):
            world.append_values(b"%d" % number, b"x" * 60)
        await world.flush()
        after_kill = world.disk.power_loss(Loss.NONE)
        # After a kill the pages are there and unsynced, however clean the system says they are.
        for name in await after_kill.list(DIRECTORY):
            if name.endswith(".log"):
                after_kill._file(f"{DIRECTORY}/{name}").synced = 0
        served = await World.recover(after_kill, durability="os")
        data = await served.read_all()
        assert data == b"".join(world.appended)
        after_cut = after_kill.power_loss(Loss.ALL)
        again = await World.recover(after_cut, durability="os", recovery_point=80)
        assert await again.read_all() == data

    run(scenario())


def test_what_a_failed_sync_took_for_clean_is_written_once_more() -> None:  # D2
    async def scenario() -> None:
        world = await one_segment(durability="os")
        data = await world.read_all()
        world.disk.failing_syncs = 1
        with pytest.raises(StorageError):
            await world.store.sync()
        killed = world.disk.restarted()
        again = await World.recover(killed, durability="os")
        assert await again.read_all() == data
        after = killed.power_loss(Loss.ALL)
        once_more = await World.recover(after, durability="os", recovery_point=8)
        assert await once_more.read_all() == data

    run(scenario())


def test_a_partition_that_a_kill_left_without_durable_names_has_them_when_it_is_open() -> None:
    async def scenario() -> None:  # D3
        disk = SimDisk()
        disk.gate = lambda verb, path, _: Fault() if (verb, path) == UNSYNCED else None
        with pytest.raises(StorageError):
            await World.create(disk)
        disk.gate = None
        killed = disk.restarted()
        await killed.sync_directory("")
        await World.recover(killed)
        assert killed.power_loss(Loss.ALL).exists(FIRST)

    run(scenario())


def test_bytes_below_the_recovery_point_are_not_written() -> None:  # D2
    async def scenario() -> None:
        world = await many_segments()
        world.disk.operations.clear()
        await World.recover(world.disk, recovery_point=world.log.log_end_offset)
        assert not [op for op in world.disk.operations if op[1].endswith((".log", ".cleaned"))]

    run(scenario())


def test_producers_and_transactions_are_rebuilt_from_the_log_alone() -> None:  # E15
    async def scenario() -> None:
        world = await many_segments()
        for name in await world.disk.list(DIRECTORY):
            if not name.endswith(".log"):
                await world.disk.remove(f"{DIRECTORY}/{name}")
        again = await World.recover(world.disk)
        assert_same_state(again, world)

    run(scenario())


def test_side_files_are_not_trusted_after_an_unclean_stop() -> None:  # E15
    async def scenario() -> None:
        world = await many_segments()
        for name in await world.disk.list(DIRECTORY):
            if not name.endswith((".log", ".metadata")):
                path = f"{DIRECTORY}/{name}"
                await world.disk.remove(path)
                file = await world.disk.open(path, create=True)
                await file.append([b"nonsense"])
        again = await World.recover(world.disk)
        assert_same_state(again, world)
        assert await again.read_all() == await world.read_all()

    run(scenario())


def test_segments_below_the_log_start_that_a_crash_left_are_removed() -> None:
    async def scenario() -> None:
        world = await many_segments()
        start = world.log.segment_base_offsets[2]
        again = await World.recover(world.disk, log_start=start)
        assert again.log.log_start_offset == start
        assert again.log.segment_base_offsets == world.log.segment_base_offsets[2:]
        assert FIRST.split("/")[1] not in await world.disk.list(DIRECTORY)

    run(scenario())


def test_what_an_earlier_recovery_left_half_done_is_removed_and_not_used() -> None:  # D2
    async def scenario() -> None:
        world = await one_segment()
        for name in (".cleaned", ".deleted", ".tmp"):
            file = await world.disk.open(FIRST + name, create=True)
            await file.append([bytes(50)])
        again = await World.recover(world.disk)
        assert await again.read_all() == b"".join(world.appended)
        names = await world.disk.list(DIRECTORY)
        assert not [name for name in names if name.endswith((".cleaned", ".deleted", ".tmp"))]

    run(scenario())


def test_side_files_of_a_damaged_partition_are_gone_before_anything_can_trust_them() -> None:
    async def scenario() -> None:  # D3
        world = await many_segments()
        checksum = await world.stop()
        world.disk.corrupt(FIRST, 70)
        end = world.log.log_end_offset
        for clean in (None, checksum):
            with pytest.raises(CorruptionError):
                await World.recover(world.disk, recovery_point=end, clean=clean)

    run(scenario())


def test_noise_in_the_leader_epoch_checkpoint_is_no_text_and_no_obstacle() -> None:
    async def scenario() -> None:
        world = await many_segments()
        path = f"{DIRECTORY}/{layout.LEADER_EPOCH_CHECKPOINT}"
        world.disk.overwrite(path, b"\xff\xfe")
        again = await World.recover(world.disk)
        assert_same_state(again, world)
        assert world.disk.contents(path) == b"0\n1\n0 0\n"

    run(scenario())


def test_another_topics_directory_is_refused() -> None:
    async def scenario() -> None:
        world = await one_segment()
        path = f"{DIRECTORY}/{layout.PARTITION_METADATA}"
        await world.disk.remove(path)
        file = await world.disk.open(path, create=True)
        await file.append([layout.encode_partition_metadata(bytes(16)).encode()])
        with pytest.raises(CorruptionError, match="topic id"):
            await World.recover(world.disk)

    run(scenario())


def test_an_overwritten_tail_never_crashes_recovery() -> None:
    async def scenario() -> None:
        world = await one_segment(3)
        data = await world.read_all()
        random = Random(7)
        for _ in range(300):
            start = random.randrange(len(data))
            noise = random.choice([bytes(80), random.randbytes(80), b"\xff" * 80, b"\x02" * 80])
            disk = world.disk.power_loss(Loss.NONE)
            disk.overwrite(FIRST, data[:start] + noise + data[start + 80 :])
            again = await World.recover(disk, durability="os")
            assert data.startswith(await again.read_all())

    run(scenario())


def test_a_partition_for_which_there_was_no_room_outlives_a_power_cut_once_there_was() -> None:
    async def scenario() -> None:  # D1
        disk = SimDisk(operations=[])
        disk.free_bytes = 0
        with pytest.raises(ExhaustedError):
            await World.create(disk)
        disk.free_bytes = None
        world = await World.recover(disk)
        world.append_values(b"kept")
        await world.flush()
        again = await World.recover(world.disk.power_loss(Loss.ALL))
        assert await again.values() == [b"kept"]

    run(scenario())
