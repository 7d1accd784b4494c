"""What is written is read back, synced in the right order, and given up after a failure."""

import asyncio

import pytest

from fencelog.errors import ExhaustedError, StorageError
from fencelog.log import layout
from fencelog.log.values import Isolation, ReadPlan
from fencelog.storage.partition_store import PartitionStore
from fencelog.storage.topic_id import read_topic_id
from fencelog.storage.writeback import WritebackLimits
from fencelog.types import Offset, TimestampMs
from fencelog.wire.batch import iterate
from fencelog_sim.world.disk import SimDisk, SimFile
from fencelog_sim.world.gate import Fault
from tests.support.storage import DIRECTORY, NOW_MS, SMALL_SEGMENTS, TOPIC_ID, World, run


def test_what_is_written_is_read_back_across_segments() -> None:
    async def scenario() -> None:
        world = await World.create()
        for number in range(60):
            world.append_values(b"%d" % number, b"x" * 40)
            if number % 7 == 0:
                await world.flush()
        await world.flush()
        assert len(world.log.segment_base_offsets) > 3
        assert await world.read_all() == b"".join(world.appended)
        assert await world.read_all(max_bytes=1) == b"".join(world.appended)

    run(scenario())


def test_a_read_begins_with_the_batch_that_holds_the_offset() -> None:
    async def scenario() -> None:
        world = await World.create()
        for number in range(30):
            world.append_values(b"%d" % number, b"a", b"b")
        await world.flush()
        for offset in range(world.log.log_end_offset):
            plan = world.log.read(Offset(offset), 100, Isolation.REPLICATED)
            assert isinstance(plan, ReadPlan)
            first, _ = next(iterate((await world.store.read(plan)).data))
            assert first.base_offset == offset // 3 * 3

    run(scenario())


def test_a_read_never_passes_the_plans_upper_offset() -> None:
    async def scenario() -> None:
        world = await World.create()
        world.append_values(b"stored")
        await world.flush()
        world.append_transactional(7, 0, b"open")
        await world.flush()
        plan = world.log.read(Offset(0), 1 << 20, Isolation.TRANSACTIONAL)
        assert isinstance(plan, ReadPlan)
        assert [h.base_offset for h, _ in iterate((await world.store.read(plan)).data)] == [0]

    run(scenario())


def test_data_then_directory_are_synced_before_a_new_segment_counts_as_durable() -> None:  # D1
    async def scenario() -> None:
        world = await World.create()
        world.append_values(b"x" * 900)
        await world.flush()
        world.append_values(b"y" * 900)
        world.disk.operations.clear()
        await world.flush()
        new = f"{DIRECTORY}/{1:020d}.log"
        logs = [op for op in world.disk.operations if op[1].endswith(".log") or op[1] == DIRECTORY]
        assert logs == [
            ("create", new),
            ("sync_directory", DIRECTORY),
            ("append", new),
            ("sync", new),
        ]

    run(scenario())


def test_a_full_segment_is_synced_before_its_successor_exists() -> None:  # D3
    async def scenario() -> None:
        world = await World.create()
        world.append_values(b"x" * 900)
        await world.write()
        world.append_values(b"y" * 900)
        world.disk.operations.clear()
        await world.write()
        old, new = f"{DIRECTORY}/{0:020d}.log", f"{DIRECTORY}/{1:020d}.log"
        logs = [op for op in world.disk.operations if op[1].endswith(".log")]
        assert logs == [("sync", old), ("create", new), ("append", new)]

    run(scenario())


def test_in_os_mode_a_full_segment_is_synced_beside_the_writes() -> None:  # D3
    async def scenario() -> None:
        world = await World.create(durability="os")
        for _ in range(3):
            world.append_values(b"x" * 900)
            await world.flush()
        assert world.store.recovery_point == 0
        await asyncio.sleep(0)
        assert world.store.recovery_point == 2
        synced = [path for verb, path in world.disk.operations if verb == "sync"]
        assert synced[-2:] == [f"{DIRECTORY}/{0:020d}.log", f"{DIRECTORY}/{1:020d}.log"]

    run(scenario())


def test_in_os_mode_a_sync_that_failed_beside_the_writes_ends_them() -> None:  # D2
    async def scenario() -> None:
        world = await World.create(durability="os")
        world.append_values(b"x" * 900)
        await world.flush()
        world.append_values(b"x" * 900)
        world.disk.failing_syncs = 1
        await world.flush()
        await asyncio.sleep(0)
        world.append_values(b"x" * 900)
        with pytest.raises(StorageError, match="accepts no more writes: sync failed"):
            await world.flush()
        with pytest.raises(StorageError):
            await world.store.close(clean=True)
        assert world.store.recovery_point == 0

    run(scenario())


def test_what_a_sync_has_not_covered_still_counts_as_not_synced() -> None:
    async def scenario() -> None:
        limits = WritebackLimits(least=1, unsynced=200)
        world = await World.create(durability="os", limits=limits)
        world.append_values(b"x" * 300)
        await world.write()
        assert world.store.must_sync
        may_end = asyncio.Event()
        file_sync = SimFile.sync

        async def slow(file: SimFile) -> None:
            await may_end.wait()
            await file_sync(file)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SimFile, "sync", slow)
            sync = asyncio.ensure_future(world.store.sync())
            await asyncio.sleep(0)
            world.append_values(b"y" * 300)
            await world.write()
            may_end.set()
            await sync
        assert world.store.must_sync, "the second one was written during the sync"
        await world.store.sync()
        assert not world.store.must_sync
        await world.store.close(clean=False)

    run(scenario())


def test_a_sync_waits_for_the_one_under_way() -> None:  # D1
    async def scenario() -> None:
        world = await World.create()
        world.append_values(b"one")
        await world.write()
        may_end = asyncio.Event()
        file_sync = SimFile.sync

        async def slow(file: SimFile) -> None:
            await may_end.wait()
            await file_sync(file)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SimFile, "sync", slow)
            first = asyncio.ensure_future(world.store.sync())
            second = asyncio.ensure_future(world.store.sync())
            for _ in range(5):
                await asyncio.sleep(0)
            assert not second.done()
            may_end.set()
            await first
            await second
        assert world.store.recovery_point == 1

    run(scenario())


def test_nothing_is_synced_after_a_failed_sync() -> None:  # D2
    async def scenario() -> None:
        world = await World.create()
        world.append_values(b"one")
        await world.write()
        world.disk.failing_syncs = 1
        with pytest.raises(StorageError):
            await world.store.sync()
        world.disk.operations.clear()
        with pytest.raises(StorageError, match="accepts no more writes"):
            await world.store.sync()
        world.append_values(b"two")
        with pytest.raises(StorageError, match="accepts no more writes"):
            await world.write()
        assert world.disk.operations == []
        assert world.store.recovery_point == 0

    run(scenario())


def test_a_full_disk_leaves_no_half_batch_and_what_is_left_is_written_later() -> None:
    async def scenario() -> None:  # D2
        world = await World.create()
        world.append_values(b"one")
        await world.flush()
        world.append_values(b"two" * 100)
        left = world.log.take_unflushed()
        log = f"{DIRECTORY}/{layout.file_name(Offset(0), layout.LOG)}"
        whole = world.disk.contents(log)
        world.disk.free_bytes = 100
        for _ in range(2):
            with pytest.raises(ExhaustedError, match="No space left"):
                await world.store.write(left)
        assert world.disk.contents(log) == whole
        world.disk.free_bytes = None
        await world.store.write(left)
        await world.store.close(clean=True)
        again = await World.recover(world.disk, recovery_point=1)
        assert await again.values() == [b"one", b"two" * 100]

    run(scenario())


def test_without_a_free_file_the_first_write_after_a_start_is_done_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_more(*_: object, **__: object) -> SimFile:
        raise ExhaustedError("Too many open files")

    async def scenario() -> None:  # D2
        world = await World.create()
        world.append_values(b"one")
        await world.flush()
        checksum = await world.stop()
        again = await World.recover(world.disk, recovery_point=1, clean=checksum)
        again.append_values(b"two")
        left = again.log.take_unflushed()
        with monkeypatch.context() as patch:
            patch.setattr(SimDisk, "open", no_more)
            with pytest.raises(ExhaustedError):
                await again.store.write(left)
        await again.store.write(left)
        await again.store.close(clean=True)
        once_more = await World.recover(world.disk, recovery_point=2)
        assert await once_more.values() == [b"one", b"two"]

    run(scenario())


def test_the_recovery_point_is_the_end_of_what_was_written_before_the_sync() -> None:
    async def scenario() -> None:
        world = await World.create()
        world.append_values(b"one", b"two")
        await world.write()
        assert world.store.recovery_point == 0
        await world.store.sync()
        assert world.store.recovery_point == 2

    run(scenario())


def test_the_first_record_at_or_after_a_timestamp_is_found() -> None:
    async def scenario() -> None:
        world = await World.create()
        for number in range(40):
            world.append_values(b"%d" % number, b"b", b"c")
        await world.flush()
        assert await world.find_timestamp(TimestampMs(NOW_MS)) == (0, NOW_MS)
        assert await world.find_timestamp(TimestampMs(NOW_MS + 1)) == (1, NOW_MS + 1)
        assert await world.find_timestamp(TimestampMs(NOW_MS + 3)) is None

    run(scenario())


def test_a_read_that_began_before_a_roll_ends_undisturbed() -> None:
    async def scenario() -> None:
        world = await World.create()
        world.append_values(b"x" * 900)
        await world.flush()
        may_end = asyncio.Event()
        file_read = SimFile.read

        async def slow(file: SimFile, position: int, size: int) -> bytes:
            if file._path.endswith(".log"):
                await may_end.wait()
            return await file_read(file, position, size)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SimFile, "read", slow)
            plan = world.log.read(Offset(0), 1 << 20, Isolation.REPLICATED)
            assert isinstance(plan, ReadPlan)
            read = asyncio.ensure_future(world.store.read(plan))
            await asyncio.sleep(0)
            world.append_values(b"y" * 900)
            await world.flush()
            await world.store.close(clean=True)
            may_end.set()
            assert bytes((await read).data) == world.appended[0]

    run(scenario())


def test_only_a_segment_that_is_written_to_holds_an_open_file() -> None:
    async def scenario() -> None:
        for durability in ("fsync", "os"):
            disk = SimDisk()
            world = await World.create(disk, durability=durability)
            for number in range(60):
                world.append_values(b"%d" % number, b"x" * 60)
            await world.flush()
            await asyncio.sleep(0)
            assert len(world.log.segment_base_offsets) > 5
            assert disk.open_files == 1
            assert await world.read_all() == b"".join(world.appended)
            assert disk.open_files == 1
            checksum = await world.stop()
            assert disk.open_files == 0
            for clean in (checksum, None):
                again = await World.recover(disk, recovery_point=120, clean=clean)
                assert await again.read_all() == b"".join(world.appended)
                assert disk.open_files == 0
                again.append_values(b"more")
                await again.flush()
                assert disk.open_files == 1
                await again.store.close(clean=False)
                world.appended += again.appended
                assert disk.open_files == 0

    run(scenario())


def test_a_segment_that_was_removed_before_the_first_write_ends_the_writes() -> None:  # D2
    async def scenario() -> None:
        world = await World.create()
        world.append_values(b"kept")
        await world.flush()
        checksum = await world.stop()
        again = await World.recover(world.disk, recovery_point=1, clean=checksum)
        await world.disk.remove(f"{DIRECTORY}/{0:020d}.log")
        again.append_values(b"lost")
        with pytest.raises(StorageError, match="was removed"):
            await again.flush()
        assert again.store.failure is not None
        await again.store.close(clean=False)

    run(scenario())


def test_deleted_segments_are_gone_and_the_rest_is_read() -> None:
    async def scenario() -> None:
        world = await World.create()
        for number in range(40):
            world.append_values(b"%d" % number, b"x" * 60)
        await world.flush()
        start = world.log.segment_base_offsets[2]
        world.log.advance_start(start)
        await world.store.delete_segments_below(start)
        assert await world.read_all() == b"".join(world.appended[start // 2 :])
        await world.store.close(clean=False)
        again = await World.recover(world.disk, log_start=start)
        assert again.log.log_start_offset == start
        assert await again.read_all() == b"".join(world.appended[start // 2 :])

    run(scenario())


def test_a_partition_is_made_once_and_says_whose_it_is() -> None:
    async def scenario() -> None:
        disk = SimDisk(operations=[])
        assert await read_topic_id(disk, DIRECTORY) is None
        await World.create(disk)
        assert await read_topic_id(disk, DIRECTORY) == TOPIC_ID
        synced = [path for verb, path in disk.operations if verb == "sync_directory"]
        assert (synced[0], disk.operations[-1]) == ("", ("sync_directory", DIRECTORY))
        with pytest.raises(StorageError, match="already has segment files"):
            await PartitionStore.create(disk, DIRECTORY, TOPIC_ID, SMALL_SEGMENTS, "fsync")

    run(scenario())


@pytest.mark.parametrize("verb", ["append", "rename", "sync_directory"])
def test_a_partition_that_cannot_be_created_keeps_no_file_open(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_files: set[SimFile] = set()
    opened, closed = SimDisk.open, SimFile.close

    async def counted_open(self: SimDisk, path: str, *, create: bool = False) -> SimFile:
        file = await opened(self, path, create=create)
        open_files.add(file)
        return file

    async def counted_close(self: SimFile) -> None:
        open_files.discard(self)
        await closed(self)

    monkeypatch.setattr(SimDisk, "open", counted_open)
    monkeypatch.setattr(SimFile, "close", counted_close)

    async def scenario() -> None:
        disk = SimDisk(operations=[])
        disk.gate = lambda asked, _path, _size: Fault() if asked == verb else None
        with pytest.raises(StorageError):
            await World.create(disk)
        assert not open_files
        verbs = [each for each, _ in disk.operations]
        assert verbs.index(verb) == len(verbs) - 1, "nothing is written once it has failed"

    run(scenario())
