"""A recovery checkpoint: what it saves, what makes it wrong, and what it never changes (ADR 16)."""

import asyncio

import pytest

from fencelog.errors import CorruptionError, StorageError
from fencelog.log import layout
from fencelog.log.recovery_checkpoint import decode_recovery_checkpoint
from fencelog.types import Offset
from fencelog_sim.world.disk import Loss, SimDisk
from fencelog_sim.world.gate import NO_SPACE, Fault
from tests.support.storage import (
    AT_EACH_WRITE,
    DIRECTORY,
    FIRST,
    World,
    assert_same_state,
    run,
    truncated,
)

CHECKPOINT = f"{DIRECTORY}/{layout.RECOVERY_CHECKPOINT}"


async def lived(durability: str = "os", *, after: int = 0) -> World:
    """Several segments with transactions, all below a checkpoint but the last ``after`` batches."""
    world = await World.create(durability=durability, limits=AT_EACH_WRITE)
    for number in range(30):
        world.append_values(b"%d" % number, b"x" * 60)
        world.append_transactional(100 + number, 0, b"t%d" % number)
        if number % 3:
            world.end_transaction(100 + number, commit=number % 3 == 1)
        if number == 17:
            world.log.leader_epoch += 1
        await world.flush()
        await world.checkpointed()
    assert len(world.log.segment_base_offsets) > 4
    world.store._writeback._limits = AT_EACH_WRITE._replace(each=1 << 30, total=1 << 30)
    for number in range(after):
        world.append_transactional(101, 1 + number, b"after")
        await world.flush()
    return world


def end_of(disk: SimDisk) -> int:
    return decode_recovery_checkpoint(disk.contents(CHECKPOINT)).end_offset


class Reads:
    """What is read of the segment files of a disk."""

    def __init__(self, disk: SimDisk) -> None:
        self.size = 0
        disk.gate = self._note

    def _note(self, verb: str, path: str, size: int) -> None:
        if verb == "read" and path.endswith(layout.LOG):
            self.size += 0 if size == 61 else size  # the first header says how old a segment is


async def recovered(disk: SimDisk, **options) -> World:
    return await World.recover(disk, **{"durability": "os", "leader_epoch": 1, **options})


@pytest.mark.parametrize("after", [0, 3, 20])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_only_what_follows_the_checkpoint_is_read_and_all_is_as_it_was(
    durability: str, after: int
) -> None:  # E15
    async def scenario() -> None:
        world = await lived(durability, after=after)
        data = await world.read_all()
        disk = world.disk.restarted()
        disk.operations = []
        again = await recovered(disk, durability=durability)
        assert not again.store.is_rebuilt
        assert_same_state(again, world)
        assert await again.read_all() == data
        rewritten = {path for verb, path in disk.operations if verb == "rewrite"}
        assert (rewritten == set()) == (after == 0)
        assert FIRST not in rewritten
        assert not [path for verb, path in disk.operations if verb == "remove"]

    run(scenario())


def test_an_unclean_start_reads_no_batch_below_the_checkpoint() -> None:
    async def scenario() -> None:
        disk = (await lived()).disk.restarted()
        reads = Reads(disk)
        await recovered(disk)
        assert reads.size == 0

    run(scenario())


def test_a_log_goes_on_from_a_checkpoint_as_from_a_replay() -> None:  # E15
    async def scenario() -> None:
        world = await lived(after=2)
        other = world.disk.power_loss(Loss.NONE)
        await other.remove(CHECKPOINT)
        resumed = await recovered(world.disk.restarted())
        rebuilt = await recovered(other)
        assert (resumed.store.is_rebuilt, rebuilt.store.is_rebuilt) == (False, True)
        for again in (resumed, rebuilt):
            for number in range(12):
                again.append_values(b"more %d" % number, b"y" * 70)
                await again.flush()
        assert_same_state(resumed, rebuilt)
        assert await resumed.read_all() == await rebuilt.read_all()
        for mine, theirs in zip(
            resumed.log._state.segments, rebuilt.log._state.segments, strict=True
        ):
            assert mine.index.encode() == theirs.index.encode()
            assert mine.time_index.encode() == theirs.time_index.encode()

    run(scenario())


def trusted_files(disk: SimDisk, names: list[str]) -> list[str]:
    newest = decode_recovery_checkpoint(disk.contents(CHECKPOINT)).newest.base_offset
    found = [CHECKPOINT]
    for name in names:
        parsed = layout.parse_file_name(name)
        if parsed and parsed[0] < newest and parsed[1] not in (layout.LOG, layout.SNAPSHOT):
            found.append(f"{DIRECTORY}/{name}")
    return found


@pytest.mark.slow  # a start for each of many bits
def test_a_flipped_bit_in_what_it_trusts_costs_only_the_time_to_read_all() -> None:  # D3
    async def scenario() -> None:
        world = await lived(after=1)
        data = await world.read_all()
        names = await world.disk.list(DIRECTORY)
        found = 0
        for path in trusted_files(world.disk, names):
            for position in range(0, len(world.disk.contents(path)), 7):
                disk = world.disk.power_loss(Loss.NONE)
                disk.corrupt(path, position, 1 << position % 8)
                again = await recovered(disk)
                assert again.store.is_rebuilt, (path, position)
                assert_same_state(again, world)
                assert await again.read_all() == data
                found += 1
        assert found > 100

    run(scenario())


def test_a_missing_or_shorter_file_costs_only_the_time_to_read_all() -> None:  # D3
    async def scenario() -> None:
        world = await lived()
        data = await world.read_all()
        for path in trusted_files(world.disk, await world.disk.list(DIRECTORY)):
            for is_removed in (True, False):
                disk = world.disk.power_loss(Loss.NONE)
                if is_removed:
                    await disk.remove(path)
                elif disk.contents(path):
                    truncated(disk, path, len(disk.contents(path)) - 1)
                else:
                    continue
                again = await recovered(disk)
                assert again.store.is_rebuilt, path
                assert await again.read_all() == data

    run(scenario())


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_log_that_ends_below_the_checkpoint_is_damage_at_each_start(durability: str) -> None:
    async def scenario() -> None:  # D3
        world = await lived(durability)
        newest = world.log.segment_base_offsets[-1]
        path = f"{DIRECTORY}/{layout.file_name(newest, layout.LOG)}"
        disk = world.disk.restarted()
        truncated(disk, path, len(disk.contents(path)) - 1)
        for _ in range(2):
            with pytest.raises(CorruptionError, match=rf"{path}.*below {end_of(disk)} was synced"):
                await recovered(disk, durability=durability)
            disk = disk.restarted()

    run(scenario())


def test_it_is_still_right_when_the_oldest_segments_are_deleted() -> None:  # D4
    async def scenario() -> None:
        world = await lived(after=1)
        start = world.log.segment_base_offsets[2]
        assert isinstance(world.log.advance_start(start), list)
        await world.store.delete_segments_below(start)
        data = await world.read_all()
        again = await recovered(world.disk.restarted(), log_start=start)
        assert not again.store.is_rebuilt
        assert_same_state(again, world)
        assert await again.read_all() == data

    run(scenario())


def test_it_is_not_used_once_its_newest_segment_is_deleted() -> None:  # D4
    async def scenario() -> None:
        world = await lived(after=20)
        start = world.log.segment_base_offsets[-1]
        assert start > end_of(world.disk)
        assert isinstance(world.log.advance_start(start), list)
        await world.store.delete_segments_below(start)
        data = await world.read_all()
        again = await recovered(world.disk.restarted(), log_start=start)
        assert again.store.is_rebuilt
        assert_same_state(again, world)
        assert await again.read_all() == data

    run(scenario())


def test_a_torn_end_above_it_is_cut_off_and_the_rest_is_kept() -> None:  # D3
    async def scenario() -> None:
        world = await lived(after=2)
        data = await world.read_all()
        newest = world.log.segment_base_offsets[-1]
        path = f"{DIRECTORY}/{layout.file_name(newest, layout.LOG)}"
        disk = world.disk.restarted()
        truncated(disk, path, len(disk.contents(path)) - 1)
        again = await recovered(disk)
        assert again.store.truncated is not None
        assert not again.store.is_rebuilt
        assert await again.read_all() == data[: -len(world.appended[-1])]
        once_more = await recovered(disk.power_loss(Loss.ALL))
        assert await once_more.read_all() == await again.read_all()

    run(scenario())


def test_segments_that_a_kill_left_without_a_durable_name_are_served_with_one() -> None:  # D2
    async def scenario() -> None:
        world = await lived()
        for number in range(8):
            world.append_values(b"%d" % number, b"x" * 600)
        await world.flush()
        data = await world.read_all()
        killed = world.disk.restarted()
        again = await recovered(killed, was_created=True)
        assert not again.store.is_rebuilt
        assert await again.read_all() == data
        after = killed.power_loss(Loss.ALL)
        once_more = await recovered(after, recovery_point=again.log.log_end_offset)
        assert await once_more.read_all() == data

    run(scenario())


def test_batches_and_side_files_are_synced_before_it_is_stored() -> None:  # D2
    async def scenario() -> None:
        world = await World.create(durability="os", limits=AT_EACH_WRITE)
        world.append_values(b"x" * 900)
        await world.flush()
        await world.checkpointed()
        world.append_values(b"x" * 900)
        world.disk.operations.clear()
        await world.flush()
        await world.checkpointed()
        operations = world.disk.operations
        stored = operations.index(("rename", CHECKPOINT))
        stem = FIRST.removesuffix(layout.LOG)
        second = f"{DIRECTORY}/{layout.file_name(Offset(1), layout.LOG)}"
        for path in (second, *(stem + each for each in layout.SEGMENT_SUFFIXES[1:])):
            assert ("sync", path) in operations[:stored], path
        assert end_of(world.disk) == world.store.recovery_point == 2

    run(scenario())


def test_a_sync_that_fails_for_it_ends_the_writes_and_stores_nothing() -> None:  # D2
    async def scenario() -> None:
        world = await lived()
        before = world.disk.contents(CHECKPOINT)
        world.store._writeback._limits = AT_EACH_WRITE
        world.append_values(b"more")
        world.disk.failing_syncs = 1
        await world.flush()
        await world.checkpointed()
        assert world.disk.contents(CHECKPOINT) == before
        world.append_values(b"refused")
        with pytest.raises(StorageError, match="accepts no more writes: sync failed"):
            await world.flush()

    run(scenario())


def test_a_full_disk_only_leaves_the_older_one() -> None:  # D2
    async def scenario() -> None:
        world = await lived()
        before = world.disk.contents(CHECKPOINT)
        world.store._writeback._limits = AT_EACH_WRITE

        def full(verb: str, path: str, size: int) -> Fault | None:
            is_checkpoint = verb == "append" and path.startswith(CHECKPOINT)
            return Fault(NO_SPACE) if is_checkpoint else None

        world.disk.gate = full
        world.append_values(b"more")
        await world.flush()
        await world.checkpointed()
        assert world.disk.contents(CHECKPOINT) == before
        world.disk.gate = None
        world.append_values(b"and more")
        await world.flush()
        await world.checkpointed()
        assert end_of(world.disk) == world.log.log_end_offset

    run(scenario())


def test_nothing_waits_for_it_but_a_close() -> None:  # D1
    async def scenario() -> None:
        world = await World.create(durability="os", limits=AT_EACH_WRITE)
        may_end = asyncio.Event()

        async def slow(verb: str, path: str, size: int) -> None:
            if verb == "sync":
                await may_end.wait()

        world.disk.delay = slow
        for _ in range(3):
            world.append_values(b"x" * 60)
            await world.flush()
        assert world.acknowledged == 3
        assert world.store.recovery_point == 0
        closing = asyncio.ensure_future(world.store.close(clean=False))
        await asyncio.sleep(0)
        assert not closing.done()
        may_end.set()
        await closing

    run(scenario())


def test_one_captured_while_a_round_replaces_files_is_never_stored() -> None:  # D4
    async def scenario() -> None:
        world = await lived()
        checkpointer = world.store._checkpointer
        before = checkpointer.capture(world.log)
        async with checkpointer.removed():
            assert not world.disk.exists(CHECKPOINT)
            meanwhile = checkpointer.capture(world.log)
        for captured in (before, meanwhile):
            assert captured is not None
            assert not await checkpointer.store(captured)
        assert not world.disk.exists(CHECKPOINT)
        after = checkpointer.capture(world.log)
        assert after is not None
        assert await checkpointer.store(after)

    run(scenario())


def test_a_partition_that_is_being_closed_gets_none_without_its_newest_indexes() -> None:  # E15
    async def scenario() -> None:
        world = await lived()
        await world.store._segments.newest.write_side_files(world.disk)
        assert world.store._checkpointer.capture(world.log) is None

    run(scenario())


def test_after_a_clean_stop_the_newest_segment_is_checked_though_it_covers_it() -> None:  # D3
    async def scenario() -> None:
        world = await lived()
        checksum = await world.stop()
        newest = world.log.segment_base_offsets[-1]
        path = f"{DIRECTORY}/{layout.file_name(newest, layout.LOG)}"
        world.disk.corrupt(path, 70)
        with pytest.raises(CorruptionError, match=path):
            await recovered(world.disk, recovery_point=world.log.log_end_offset, clean=checksum)

    run(scenario())
