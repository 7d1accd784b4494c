"""The simulated disk under kills, faults and delays, and when it is full."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from fencelog.errors import StorageError
from fencelog_sim.world.disk import Loss, SimDisk, SimFile
from fencelog_sim.world.gate import NO_SPACE, Fault, Halt

_T = TypeVar("_T")


def steer(disk: SimDisk, verb: str, verdict: Halt | Fault) -> None:
    """Inject this at every operation of a kind."""
    disk.gate = lambda asked, _path, _size: verdict if asked == verb else None


async def stuck(operation: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Begin an operation and make sure that it does not return."""
    task = asyncio.ensure_future(operation)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def made(disk: SimDisk, path: str, data: bytes = b"") -> SimFile:
    file = await disk.open(path, create=True)
    await file.append([data])
    return file


def test_the_gate_sees_every_operation_and_only_real_waits_are_delayed() -> None:
    gated: list[tuple[str, str, int]] = []
    delayed: list[tuple[str, str, int]] = []

    async def delay(verb: str, path: str, size: int) -> None:
        delayed.append((verb, path, size))

    async def scenario() -> None:
        disk = SimDisk()
        disk.gate = lambda *operation: gated.append(operation)
        disk.delay = delay
        await disk.make_directory("d")
        file = await made(disk, "d/a", b"abc")
        await file.append([])
        await file.sync()
        await file.read(0, 2)
        await disk.sync_directory("d")
        await disk.rename("d/a", "d/b")
        await (await disk.open("d/b")).close()
        await disk.list("d")
        await disk.remove("d")
        await disk.remove("nowhere")

    asyncio.run(scenario())
    assert gated == [
        ("mkdir", "d", 0),
        ("create", "d/a", 0),
        ("append", "d/a", 3),
        ("sync", "d/a", 3),
        ("read", "d/a", 2),
        ("sync_directory", "d", 1),
        ("rename", "d/b", 0),
        ("open", "d/b", 0),
        ("list", "d", 0),
        ("remove", "d", 1),
    ]
    assert delayed == [
        ("mkdir", "d", 0),
        ("create", "d/a", 0),
        ("sync", "d/a", 3),
        ("sync_directory", "d", 1),
        ("rename", "d/b", 0),
        ("remove", "d", 1),
        ("remove", "nowhere", 0),
    ]


def test_changes_are_traced_where_a_list_is_given_and_nowhere_else() -> None:
    operations: list[tuple[str, str]] = []
    for disk in (SimDisk(), SimDisk(operations=operations)):
        asyncio.run(made(disk, "a", b"abc"))
        asyncio.run(disk.list(""))
    assert operations == [("create", "a"), ("append", "a")]


async def test_a_kill_in_an_append_leaves_a_prefix_and_the_append_never_returns() -> None:
    disk = SimDisk()
    file = await made(disk, "a", b"abc")
    found: list[bytes] = []
    steer(disk, "append", Halt(2, lambda: found.append(disk.contents("a"))))
    await stuck(file.append([b"d", b"efg"]))
    assert found == [b"abcde"]
    after = disk.restarted()
    assert after.contents("a") == b"abcde"
    again = await after.open("a")
    await again.append([b"!"])
    assert await again.read(0, 10) == b"abcde!"


async def test_nothing_of_a_killed_process_takes_effect_or_returns() -> None:
    disk = SimDisk()
    await disk.make_directory("d")
    file = await made(disk, "a", b"abc")
    after = disk.restarted()
    for operation in (
        file.append([b"def"]),
        file.read(0, 1),
        file.sync(),
        disk.open("b", create=True),
        disk.open("a"),
        disk.list(""),
        disk.make_directory("e"),
        disk.rename("a", "b"),
        disk.remove("a"),
        disk.remove("d"),
        disk.sync_directory(""),
    ):
        await stuck(operation)
    assert await after.list("") == ["a", "d"]
    assert after.contents("a") == b"abc"
    assert await after.power_loss(Loss.ALL).list("") == []


async def test_a_kill_loses_nothing_and_makes_nothing_stable() -> None:
    disk = SimDisk()
    file = await made(disk, "a", b"abc")
    await file.sync()
    await disk.sync_directory("")
    await file.append([b"def"])
    assert disk.open_files == 1
    after = disk.restarted()
    assert after.open_files == 0
    assert after.contents("a") == b"abcdef"
    assert after.power_loss(Loss.ALL).contents("a") == b"abc"
    again = await after.open("a")
    await again.sync()
    assert after.power_loss(Loss.ALL).contents("a") == b"abcdef"


async def test_a_sync_under_way_when_the_process_is_killed_does_nothing() -> None:
    disk = SimDisk()
    file = await made(disk, "a", b"abc")
    await disk.sync_directory("")
    may_end = asyncio.Event()

    async def wait(verb: str, path: str, size: int) -> None:
        await may_end.wait()

    disk.delay = wait
    syncs = [await stuck(file.sync()), await stuck(disk.sync_directory(""))]
    after = disk.restarted()
    may_end.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not any(sync.done() for sync in syncs)
    assert after.power_loss(Loss.ALL).contents("a") == b""


async def test_a_sync_may_be_done_and_never_answered() -> None:
    disk = SimDisk()
    file = await made(disk, "a", b"abcdef")
    await disk.sync_directory("")
    for done, stable in ((0, b""), (4, b"abcd"), (100, b"abcdef")):
        steer(disk, "sync", Halt(done))
        await stuck(file.sync())
        disk = disk.restarted()
        assert disk.power_loss(Loss.ALL).contents("a") == stable
        file = await disk.open("a")


async def test_a_kill_in_the_removal_of_a_tree_leaves_a_part_of_it() -> None:
    for done in range(4):
        disk = SimDisk()
        await disk.make_directory("d/e")
        await made(disk, "d/a")
        await made(disk, "d/e/b")
        steer(disk, "remove", Halt(done))
        await stuck(disk.remove("d"))
        after = disk.restarted()
        left = [path for path in ("d", "d/a", "d/e/b", "d/e") if after._find(path) is not None]
        assert left == ["d", "d/a", "d/e/b", "d/e"][:1] + ["d/a", "d/e/b", "d/e"][done:]


@pytest.mark.parametrize("done", [0, 2])
async def test_a_failed_append_is_in_the_file_in_part_and_ends_it(done: int) -> None:  # D2
    disk = SimDisk()
    file = await made(disk, "a", b"abc")
    steer(disk, "append", Fault(done=done))
    with pytest.raises(StorageError, match="write failed: a: Input/output error"):
        await file.append([b"def"])
    disk.gate = None
    with pytest.raises(StorageError, match="accepts no more writes"):
        await file.append([b"ghi"])
    assert disk.contents("a") == b"abcdef"[: 3 + done]


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("create", "open failed: d/b"),
        ("open", "open failed: d/a"),
        ("read", "read failed: d/a"),
        ("list", "list failed: d"),
        ("mkdir", "make directory failed: d/e"),
        ("rename", "rename failed: d/b"),
        ("remove", "remove failed: d/a"),
        ("sync_directory", "sync directory failed: d"),
    ],
)
async def test_any_operation_can_fail_and_changes_nothing_then(verb: str, words: str) -> None:
    disk = SimDisk()
    await disk.make_directory("d")
    file = await made(disk, "d/a", b"abc")
    steer(disk, verb, Fault(NO_SPACE))
    operations = {
        "create": lambda: disk.open("d/b", create=True),
        "open": lambda: disk.open("d/a"),
        "read": lambda: file.read(0, 1),
        "list": lambda: disk.list("d"),
        "mkdir": lambda: disk.make_directory("d/e"),
        "rename": lambda: disk.rename("d/a", "d/b"),
        "remove": lambda: disk.remove("d/a"),
        "sync_directory": lambda: disk.sync_directory("d"),
    }
    with pytest.raises(StorageError, match=f"{words}: {NO_SPACE}"):
        await operations[verb]()
    disk.gate = None
    assert await disk.list("d") == ["a"]
    assert await file.read(0, 9) == b"abc"
    assert await disk.power_loss(Loss.ALL).list("") == []


async def test_a_sync_beside_one_that_failed_fails_too() -> None:  # D2
    disk = SimDisk()
    file = await made(disk, "a", b"abc")
    disk.failing_syncs = 1
    disk.delay = lambda _verb, _path, _size: asyncio.sleep(0)
    first, second = await asyncio.gather(file.sync(), file.sync(), return_exceptions=True)
    assert isinstance(first, StorageError)
    assert isinstance(second, StorageError)


async def test_a_full_disk_writes_nothing_and_removals_free_space() -> None:  # D2
    disk = SimDisk(free_bytes=5)
    kept = await made(disk, "kept", b"abc")
    with pytest.raises(StorageError, match="write failed: more: No space left on device"):
        await made(disk, "more", b"defg")
    assert (disk.contents("more"), disk.free_bytes) == (b"", 2), "cut back"
    await disk.remove("more")
    await made(disk, "open", b"de")
    await disk.remove("open")
    assert disk.free_bytes == 0, "the file is open"
    disk = disk.restarted()
    assert disk.free_bytes == 2, "it was open in a process that has ended"
    await (await made(disk, "new", b"gh")).close()
    await disk.rename("new", "kept")
    assert disk.free_bytes == 3
    await disk.remove("kept")
    assert disk.free_bytes == 5
    disk.free_bytes = None
    await made(disk, "a", bytes(1000))
    disk.free_bytes = 7
    assert disk.power_loss(Loss.ALL).free_bytes == 1007
    await kept.close()
    assert disk.free_bytes == 7


async def test_stored_bytes_can_be_changed_behind_every_reader() -> None:
    disk = SimDisk()
    file = await made(disk, "a", b"abc")
    await file.sync()
    await disk.sync_directory("")
    disk.corrupt("a", 1, 0x03)
    assert await file.read(0, 9) == b"aac"
    assert disk.power_loss(Loss.ALL).contents("a") == b"aac"
    disk.overwrite("a", b"x")
    assert disk.power_loss(Loss.ALL).contents("a") == b"x"
