"""Cases that Kafka's own tests of loading try; ``docs/internals/parity-log.md`` lists all."""

from itertools import pairwise

import pytest

from fencelog.log import layout
from fencelog.log.values import Isolation, ReadPlan
from fencelog.types import Offset, TimestampMs
from fencelog.wire.batch import attributes, iterate, read_header, seal
from fencelog.wire.records import RecordToWrite, build_batch
from fencelog_sim.world.disk import Loss, SimDisk
from tests.support.compaction import CONFIG, compact, filled, restarted
from tests.support.log import complete_indexes
from tests.support.storage import DIRECTORY, NOW_MS, TOPIC_ID, World, run


async def segments(count: int) -> World:
    """Full segments of one batch each, and an empty newest one where a roll just happened."""
    world = await World.create()
    for number in range(count):
        world.append_values(b"%d" % number * 900)
        await world.flush()
    assert len(world.log.segment_base_offsets) == count
    return world


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_newest_segment_that_is_empty_is_written_to(is_clean: bool) -> None:
    async def scenario() -> None:
        world = await segments(3)
        world.log._appender.roll(0, NOW_MS, NOW_MS)
        complete_indexes(world.log)
        await world.flush()
        checksum = await world.stop() if is_clean else None
        again = await World.recover(world.disk, recovery_point=3, clean=checksum)
        assert again.log.segment_base_offsets == [0, 1, 2, 3]
        again.append_values(b"goes on")
        await again.flush()
        assert (await again.values())[-1] == b"goes on"
        name = f"{DIRECTORY}/{layout.file_name(3, layout.LOG)}"
        assert world.disk.contents(name) != b""

    run(scenario())


def test_a_directory_with_no_segment_yet_gets_its_first() -> None:
    async def scenario() -> None:
        disk = SimDisk()
        world = await World.create(disk)
        await world.store.close(clean=False)
        await disk.remove(f"{DIRECTORY}/{layout.file_name(0, layout.LOG)}")
        again = await World.recover(disk)
        assert (again.log.log_start_offset, again.log.log_end_offset) == (0, 0)
        again.append_values(b"first")
        await again.flush()
        assert await again.values() == [b"first"]

    run(scenario())


@pytest.mark.parametrize("is_clean", [False, True])
def test_files_that_belong_to_no_segment_are_nobodys_state(is_clean: bool) -> None:
    async def scenario() -> None:
        world = await segments(3)
        checksum = await world.stop() if is_clean else None
        strays = [(1000, suffix) for suffix in (*layout.SEGMENT_SUFFIXES[1:], layout.SNAPSHOT)]
        strays += [(1, layout.SNAPSHOT)] if is_clean else []
        for base_offset, suffix in strays:
            path = f"{DIRECTORY}/{layout.file_name(base_offset, suffix)}"
            await world.disk.remove(path)
            file = await world.disk.open(path, create=True)
            await file.append([b"nonsense"])
            await file.close()
        again = await World.recover(world.disk, recovery_point=3, clean=checksum)
        assert again.log.segment_base_offsets == [0, 1, 2]
        assert again.log.producers() == []
        names = await world.disk.list(DIRECTORY)
        assert not [name for name in names if name.startswith("00000000000000001000")]

    run(scenario())


def test_snapshots_go_with_the_segments_that_they_belong_to() -> None:
    async def scenario() -> None:
        world = await segments(5)
        world.log.advance_start(Offset(3))
        await world.store.delete_segments_below(Offset(3))
        names = await world.disk.list(DIRECTORY)
        kept = [name for name in names if name.endswith(layout.SNAPSHOT)]
        assert kept == [layout.file_name(base, layout.SNAPSHOT) for base in (3, 4)]
        assert {name[:20] for name in names if name[:20].isdigit()} == {f"{n:020d}" for n in (3, 4)}

    run(scenario())


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_garbage_in_a_segment_below_the_log_start_is_ignored(durability: str) -> None:  # D3
    async def scenario() -> None:
        world = await segments(6)
        disk = world.disk.power_loss(Loss.NONE)
        disk.overwrite(f"{DIRECTORY}/{layout.file_name(1, layout.LOG)}", b"corruptRecord")
        again = await World.recover(disk, log_start=4, recovery_point=6, durability=durability)
        assert (again.log.log_start_offset, again.log.log_end_offset) == (4, 6)
        assert await again.read_all() == b"".join(world.appended[4:])
        assert again.log.segment_base_offsets == [4, 5]

    run(scenario())


def test_a_control_batch_without_records_only_takes_offsets() -> None:  # E15
    async def scenario() -> None:
        world = await World.create()
        world.append_transactional(7, 0, b"open")
        template = read_header(build_batch([RecordToWrite(None, b"", NOW_MS)]))
        empty = template._replace(
            attributes=attributes(transactional=True, control=True),
            producer_id=7,
            producer_epoch=0,
            record_count=0,
        )
        world.append(seal(empty, b""))
        world.append_values(b"after")
        await world.flush()
        again = await World.recover(world.disk)
        assert again.log.log_end_offset == 3
        assert [each.first_offset for each in again.log.open_transactions()] == [0]
        assert again.log.last_stable_offset == 0

    run(scenario())


def test_a_read_of_an_offset_that_was_compacted_away_begins_behind_it() -> None:  # D4
    async def scenario() -> None:
        world = await filled()
        await compact(world)
        again = await restarted(world.disk, world)
        stored = [header for header, _ in iterate(await again.read_all())]
        gaps = 0
        for before, after in pairwise(stored):
            for offset in range(before.next_offset, after.base_offset):
                plan = again.log.read(Offset(offset), 1, Isolation.REPLICATED)
                assert isinstance(plan, ReadPlan)
                first = [header for header, _ in iterate((await again.store.read(plan)).data)][:1]
                # Behind the last batch of a file there is nothing: whoever asked goes on there.
                assert first == [after] or (first == [] and after.base_offset > offset)
                gaps += 1
        assert gaps > 3

    run(scenario())


def test_a_time_is_sought_before_between_and_behind_all_records() -> None:
    async def scenario() -> None:
        world = await World.create(config=CONFIG)
        for number in range(30):
            records = [RecordToWrite(b"k", b"v" * 60, NOW_MS + 10 * number)]
            world.append(build_batch(records))
        await world.flush()
        for log in (world, await World.recover(world.disk, config=CONFIG)):
            for number in (0, 1, 17, 29):
                found = await log.find_timestamp(TimestampMs(NOW_MS + 10 * number - 5))
                assert found == (number, NOW_MS + 10 * number)
            assert await log.find_timestamp(TimestampMs(0)) == (0, NOW_MS)
            assert await log.find_timestamp(TimestampMs(NOW_MS + 291)) is None

    run(scenario())


def test_a_topic_id_that_a_crash_came_before_is_stored_at_the_next_start() -> None:
    async def scenario() -> None:
        world = await segments(1)
        path = f"{DIRECTORY}/{layout.PARTITION_METADATA}"
        await world.disk.remove(path)
        again = await World.recover(world.disk)
        assert await again.values() == [b"0" * 900]
        stored = world.disk.contents(path).decode("ascii")
        assert layout.decode_partition_metadata(stored) == TOPIC_ID

    run(scenario())
