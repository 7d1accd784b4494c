"""Compaction on files: whatever stops it, the newest values are there, and old ones stay gone."""

import asyncio
from random import Random

import pytest

from fencelog.errors import CorruptionError, StorageError
from fencelog.log.config import LogConfig
from fencelog.log.layout import RECOVERY_CHECKPOINT
from fencelog.log.transactions import aborted_between
from fencelog.log.values import Isolation, ReadPlan
from fencelog.storage.compaction import Compaction, CompactionStoppedError
from fencelog.types import Offset
from fencelog.wire.batch import iterate
from fencelog.wire.records import RecordToWrite, build_batch, read_records
from fencelog_sim.world.disk import Loss, PowerCut, SimDisk, SimFile
from fencelog_sim.world.gate import Halt
from tests.support.compaction import CONFIG, OWNERS, compact, filled, restarted, write
from tests.support.storage import (
    AT_EACH_WRITE,
    DIRECTORY,
    FIRST,
    LOSSES,
    NOW_MS,
    World,
    cut_at,
    run,
)

RENAMED = ("rename", ".log")
Records = dict[int, tuple[bytes, bytes | None]]


async def compacted_once() -> tuple[World, int]:
    """A log whose segments are small by now, so that the next round joins some of them.

    A recovery checkpoint covers all of it.
    """
    world = await filled(limits=AT_EACH_WRITE)
    first_dirty = await compact(world)
    for number in range(4):
        await write(world, ("k0", f"again {number}" * 50), ("one", f"again {number}"))
    await write(world, ("last", "3" * 600))
    await world.store.sync()
    await world.checkpointed()
    assert world.disk.exists(f"{DIRECTORY}/{RECOVERY_CHECKPOINT}")
    need = world.log.compaction_need(Offset(first_dirty), world.store.recovery_point, NOW_MS)
    groups = world.log.compaction(Offset(first_dirty), need.end, NOW_MS).groups()
    assert max(len(group.base_offsets) for group in groups) > 2
    return world, first_dirty


async def records_of(world: World) -> Records:
    return {
        record.offset: (record.key, record.value)
        for header, batch in iterate(await world.read_all())
        if not header.is_control and not header.is_transactional
        for record in read_records(batch)
    }


def newest(records: Records) -> dict[bytes, tuple[int, bytes | None]]:
    return {key: (offset, value) for offset, (key, value) in sorted(records.items())}


async def check(world: World, before: Records, end: int) -> None:
    """What compaction may never change, however far it came."""
    after = await records_of(world)
    assert all(before[offset] == record for offset, record in after.items())
    assert newest(after) == newest(before)
    assert world.log.log_end_offset == end
    assert world.log.open_transactions() == []
    last = {p.producer_id: p.last_sequence for p in world.log.producers()}
    assert last == {11: 11, 12: 11}
    assert {each.group: each for each in world.log.owners()} == OWNERS
    for offset in range(world.log.log_start_offset, end):
        plan = world.log.read(Offset(offset), 1, Isolation.REPLICATED)
        assert isinstance(plan, ReadPlan)
        header, _ = next(iterate((await world.store.read(plan)).data))
        assert header.next_offset > offset, "a reader never goes back"


def test_a_round_leaves_the_newest_values_and_a_clean_start_agrees() -> None:  # D4
    async def scenario() -> None:
        filled_once = await filled()
        checksum = await filled_once.stop()
        world = await restarted(filled_once.disk, filled_once, clean=checksum)
        before, end = await records_of(world), world.log.log_end_offset
        await compact(world)
        await check(world, before, end)
        after = await records_of(world)
        assert len(after) < len(before) / 2
        names = await world.disk.list(DIRECTORY)
        assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
        bases = world.log.segment_base_offsets
        assert [int(n[:20]) for n in names if n.endswith(".log")] == bases
        checksum = await world.stop()
        again = await restarted(world.disk.power_loss(Loss.ALL), world, clean=checksum)
        assert again.log.segment_base_offsets == bases
        assert await records_of(again) == after
        await check(again, before, end)
        void = aborted_between(again.log.aborted, Offset(0), Offset(end))
        assert void == aborted_between(world.log.aborted, Offset(0), Offset(end))

    run(scenario())


@pytest.mark.parametrize(
    "joins",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["one by one", "joined"],
)
@LOSSES
def test_a_power_cut_at_any_operation_loses_nothing_and_brings_nothing_back(
    loss: Loss, joins: bool
) -> None:
    async def scenario(cut: int) -> bool:  # D4, E15
        world, first_dirty = await compacted_once() if joins else (await filled(), 0)
        before, end = await records_of(world), world.log.log_end_offset
        cut_at(world.disk, cut)
        finished = True
        try:
            await compact(world, first_dirty)
        except PowerCut:
            finished = False
        after_cut = world.disk.power_loss(loss, Random(cut))
        again = await restarted(after_cut, world)
        await check(again, before, end)
        await compact(again)
        await compact(again, end, NOW_MS + 2000)
        await check(again, {o: r for o, r in before.items() if r[1] is not None}, end)
        await write(again, ("k0", "new"))
        once_more = await restarted(again.disk.power_loss(Loss.ALL), again)
        assert newest(await records_of(once_more))[b"k0"] == (end, b"new")
        return finished

    cut = 0
    while not run(scenario(cut)):
        cut += 1 if loss is Loss.ALL else 3
    assert cut > 20, "a round has many steps to be cut at"


@pytest.mark.slow  # a power cut at each of many operations
@pytest.mark.parametrize("loss", [Loss.ALL, Loss.TORN])
def test_a_power_cut_in_the_recovery_of_a_swap_changes_nothing(loss: Loss) -> None:  # E15
    async def scenario(first_cut: int, cut: int) -> bool:
        world, first_dirty = await compacted_once()
        before, end = await records_of(world), world.log.log_end_offset
        cut_at(world.disk, first_cut)
        with pytest.raises(PowerCut):
            await compact(world, first_dirty)
        crashed = world.disk.power_loss(Loss.NONE)
        assert [n for n in await crashed.list(DIRECTORY) if n.endswith(".swap")]
        cut_at(crashed, cut)
        finished = True
        try:
            await restarted(crashed, world)
        except PowerCut:
            finished = False
        again = await restarted(crashed.power_loss(loss, Random(cut)), world)
        await check(again, before, end)
        return finished

    async def cuts_in_a_swap() -> list[int]:
        world, first_dirty = await compacted_once()
        count = len(world.disk.operations)
        await compact(world, first_dirty)
        operations = world.disk.operations[count:]
        begins = [n for n, (_, path) in enumerate(operations) if path.endswith(".swap")]
        ends = [n for n, (verb, path) in enumerate(operations) if (verb, path[-4:]) == RENAMED]
        # From where the name says that it stands for the others to where it has their place.
        return [begins[0] + 1, min(end for end in ends if end > begins[0])]

    for first_cut in run(cuts_in_a_swap()):
        cut = 0
        while not run(scenario(first_cut, cut)):
            cut += 2
        assert cut > 3


def halt_at_names_after(disk: SimDisk, verb: str) -> None:
    """Stop the world where names are made durable after such a change of a segment's name."""
    is_due = False

    def cut() -> None:
        raise PowerCut

    def gate(each: str, path: str, size: int) -> Halt | None:
        nonlocal is_due
        is_due = is_due or (each == verb and path.endswith(".log"))
        return Halt(0, cut) if is_due and each == "sync_directory" else None

    disk.gate = gate


@pytest.mark.parametrize("seed", range(10))
def test_what_a_killed_swap_removed_is_gone_before_its_recovery_renames(seed: int) -> None:  # E15
    async def scenario() -> None:
        world, first_dirty = await compacted_once()
        before, end = await records_of(world), world.log.log_end_offset
        halt_at_names_after(world.disk, "remove")
        with pytest.raises(PowerCut):
            await compact(world, first_dirty)
        killed = world.disk.restarted()  # it sees the names as they were changed
        assert [n for n in await killed.list(DIRECTORY) if n.endswith(".swap")]
        halt_at_names_after(killed, "rename")
        with pytest.raises(PowerCut):
            await restarted(killed, world)
        again = await restarted(killed.power_loss(Loss.TORN, Random(seed)), world)
        await check(again, before, end)

    run(scenario())


@pytest.mark.parametrize("is_open", [False, True])
def test_a_reader_never_looks_into_a_new_file_with_an_old_plan(is_open: bool) -> None:
    async def scenario() -> None:
        world = await filled()
        before = await records_of(world)
        plan = world.log.read(Offset(3), 1 << 20, Isolation.REPLICATED)
        expected = bytes((await world.store.read(plan)).data)
        begun, gate = asyncio.Event(), asyncio.Event()
        open_file = world.disk.open

        async def slow(path: str, *, create: bool = False):
            file = await open_file(path, create=create)
            if path.endswith("0.log") and not begun.is_set():
                begun.set()
                await gate.wait()
                if not is_open:
                    await file.close()
                    file = await open_file(path)
            return file

        world.disk.open = slow
        reading = asyncio.create_task(world.store.read(plan))
        await begun.wait()
        await compact(world)
        gate.set()
        # It cannot know whose file it opened: it reads nothing, and the caller asks again.
        assert bytes((await reading).data) == b""
        assert newest(await records_of(world)) == newest(before)
        assert world.disk.open_files == 1, "only the newest segment is held open"
        assert len(expected) > 61

    run(scenario())


def test_a_read_during_the_swap_is_whole() -> None:
    async def scenario() -> None:
        world = await filled()
        before = await records_of(world)
        seen = []

        async def look(verb: str, path: str, size: int) -> None:
            if verb == "sync_directory" and len(seen) < 20:
                seen.append(newest(await records_of(world)))

        world.disk.delay = look
        await compact(world)
        assert len(seen) > 3
        assert all(each == newest(before) for each in seen)

    run(scenario())


def test_the_log_start_may_pass_what_is_about_to_be_swapped() -> None:  # D4
    async def scenario() -> None:
        world = await filled()
        bases = world.log.segment_base_offsets
        moved = False

        async def move(verb: str, path: str, size: int) -> None:
            nonlocal moved
            is_swapping = any(n.endswith(".swap") for n in await world.disk.list(DIRECTORY))
            if verb == "sync_directory" and is_swapping and not moved:
                moved = True
                assert world.log.advance_start(bases[2]) == bases[:2]

        world.disk.delay = move
        with pytest.raises(CompactionStoppedError):
            await compact(world)
        assert moved
        names = await world.disk.list(DIRECTORY)
        assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
        await world.store.delete_segments_below(bases[2])
        assert world.log.segment_base_offsets == bases[2:]
        before = await records_of(world)
        await compact(world, first_dirty=bases[2])
        assert newest(await records_of(world)) == newest(before)

    run(scenario())


def test_segments_that_retention_takes_meanwhile_stop_the_round() -> None:
    async def scenario() -> None:
        world = await filled()
        end = world.log.log_end_offset
        start = world.log.segment_base_offsets[2]

        def may_go_on() -> bool:
            if mapped:
                world.log.advance_start(start)
            return True

        mapped = False
        need = world.log.compaction_need(Offset(0), world.store.recovery_point, NOW_MS)
        compaction = Compaction(
            world.store, world.log.compaction(Offset(0), need.end, NOW_MS), may_go_on
        )
        await compaction.map()
        mapped = True
        with pytest.raises(CompactionStoppedError):
            await compaction.clean()
        await world.store.delete_segments_below(start)
        names = await world.disk.list(DIRECTORY)
        assert not [name for name in names if name.endswith(".cleaned")]
        before = newest(await records_of(world))
        await compact(world)
        assert newest(await records_of(world)) == before
        assert (world.log.log_start_offset, world.log.log_end_offset) == (start, end)

    run(scenario())


def test_a_stop_and_a_full_disk_leave_the_log_as_it_was_and_in_service() -> None:  # D2
    async def scenario() -> None:
        world = await filled()
        before, end = await records_of(world), world.log.log_end_offset
        compaction = Compaction(
            world.store, world.log.compaction(Offset(0), Offset(end), NOW_MS), lambda: False
        )
        with pytest.raises(CompactionStoppedError):
            await compaction.map()
        world.disk.free_bytes = 30
        with pytest.raises(StorageError):
            await compact(world)
        world.disk.free_bytes = None
        assert await records_of(world) == before
        await write(world, ("k0", "still written"))
        await compact(world)
        assert newest(await records_of(world))[b"k0"] == (end, b"still written")

    run(scenario())


def test_a_damaged_segment_is_never_compacted_away() -> None:  # D3
    async def scenario() -> None:
        world = await filled()
        base = world.log.segment_base_offsets[1]
        world.disk.corrupt(f"{DIRECTORY}/{base:020d}.log", 300)
        content = world.disk.contents(f"{DIRECTORY}/{base:020d}.log")
        with pytest.raises(CorruptionError, match=str(base)):
            await compact(world)
        assert world.disk.contents(f"{DIRECTORY}/{base:020d}.log") == content

    run(scenario())


def test_a_damaged_swap_is_named_and_not_served() -> None:  # D3
    async def scenario() -> None:
        world = await filled()
        cut_at(world.disk, await _first_swap())
        with pytest.raises(PowerCut):
            await compact(world)
        crashed = world.disk.power_loss(Loss.NONE)
        (name,) = [n for n in await crashed.list(DIRECTORY) if n.endswith(".swap")]
        crashed.corrupt(f"{DIRECTORY}/{name}", 100)
        with pytest.raises(CorruptionError, match=name):
            await restarted(crashed, world)

    async def _first_swap() -> int:
        world = await filled()
        count = len(world.disk.operations)
        await compact(world)
        paths = [path for _, path in world.disk.operations[count:]]
        return next(n for n, path in enumerate(paths) if path.endswith(".swap")) + 1

    run(scenario())


def test_a_log_that_was_compacted_may_have_gaps_under_any_policy() -> None:  # D3
    async def scenario() -> None:
        world = await filled()
        before = newest(await records_of(world))
        await compact(world)
        after = world.disk.power_loss(Loss.ALL)
        plain = LogConfig(segment_bytes=1024, index_interval_bytes=100)
        again = await World.recover(
            after, config=plain, recovery_point=world.store.recovery_point, was_compacted=True
        )
        assert newest(await records_of(again)) == before
        with pytest.raises(CorruptionError, match="missing"):
            await World.recover(after, config=plain, recovery_point=world.store.recovery_point)

    run(scenario())


def test_a_time_is_found_behind_batches_that_were_emptied() -> None:
    async def scenario() -> None:
        world = await World.create(config=CONFIG)
        late = NOW_MS + 100_000
        for number in range(4):
            batch = build_batch([RecordToWrite(b"k%d" % (number // 3), b"v" * 500, late - number)])
            world.append(batch)
            await world.flush()
        await write(world, ("end", "v" * 600))
        await world.store.sync()
        await compact(world)
        headers = [header for header, _ in iterate(await world.read_all())]
        assert [header.record_count for header in headers][:3] == [0, 0, 1]
        assert await world.find_timestamp(late - 50) == (2, late - 2)
        assert await world.find_timestamp(late - 2) == (2, late - 2)
        assert await world.find_timestamp(late - 1) is None
        assert await world.find_timestamp(NOW_MS) == (2, late - 2)

    run(scenario())


@pytest.mark.parametrize("change", ["swapped", "deleted"])
def test_a_time_is_found_in_what_takes_the_place_of_a_segment_during_a_lookup(change: str) -> None:
    """None would send a consumer that seeks by time to the end, past records that it wants."""

    async def scenario() -> None:
        world = await filled()
        expected = await world.find_timestamp(NOW_MS)
        assert expected == (0, NOW_MS)
        changed = []
        open_file = world.disk.open

        async def change_before_it_is_open(path: str, *, create: bool = False) -> SimFile:
            if path == FIRST and not changed:
                changed.append(path)
                if change == "swapped":
                    await compact(world)
                else:
                    start = Offset(world.log.segment_base_offsets[1])
                    assert world.log.advance_start(start) == [0]
                    await world.store.delete_segments_below(start)
            return await open_file(path, create=create)

        world.disk.open = change_before_it_is_open
        found = await world.find_timestamp(NOW_MS)
        assert changed
        assert found == (await first_with_a_time(world), NOW_MS)

    run(scenario())


async def first_with_a_time(world: World) -> int:
    """Offset of the first record that is left and has a time; a transaction's marker has one."""
    return min(
        record.offset
        for header, batch in iterate(await world.read_all())
        if not header.is_undated
        for record in read_records(batch)
    )


def test_a_segment_that_is_missing_from_a_compacted_log_is_damage() -> None:  # D3
    async def scenario() -> None:
        world = await filled()
        await compact(world)
        bases = world.log.segment_base_offsets
        assert len(bases) > 3
        crashed = world.disk.power_loss(Loss.ALL)
        await crashed.remove(f"{DIRECTORY}/{bases[1]:020d}.log")
        with pytest.raises(CorruptionError, match=f"ends at {bases[1]}"):
            await restarted(crashed, world)

    run(scenario())
