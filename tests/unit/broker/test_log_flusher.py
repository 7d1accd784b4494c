"""The order of writes and syncs: a burst to many partitions holds nobody else up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from fencelog.broker.network.time_slices import ITEMS_PER_SLICE
from fencelog.broker.partitions.log_flusher import (
    RECENT_MAX,
    ROLLS_MAX,
    SYNCS_MAX,
    LogFlusher,
)
from fencelog.broker.partitions.partition import Partition
from fencelog.types import Offset
from tests.support.node import until


class Flushed:
    """Stands in for partitions: notes in which order they are written and synced."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.synced: list[str] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    def partition(self, name: str) -> Partition:
        """Return one of them."""
        return cast("Partition", One(self, name))


class One:
    """One partition, that always has something to flush."""

    def __init__(self, files: Flushed, name: str) -> None:
        self._files = files
        self._name = name
        self.begins_segment = name.startswith("rolls")
        self.must_sync = name.startswith("ahead")
        self.recovery_point = self.synced_below = Offset(0)

    async def write(self) -> Offset:
        self._files.written.append(self._name)
        if self.begins_segment:
            await self._files.go_on.wait()
        return Offset(1)

    async def sync(self) -> bool:
        self._files.synced.append(self._name)
        await self._files.go_on.wait()
        return True

    def flushed(self, end_offset: Offset) -> None:
        """Nobody waits."""


@asynccontextmanager
async def running(*, sync: bool) -> AsyncIterator[LogFlusher]:
    """A flusher that runs."""
    flusher = LogFlusher(sync=sync)
    task = asyncio.create_task(flusher.run())
    yield flusher
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("before", [1, 8])
async def test_what_is_appended_amid_a_burst_is_written_soon(before: int) -> None:
    """``before``: how many time slices of the burst come before it; ten in all."""
    files = Flushed()
    async with running(sync=False) as flusher:
        for number in range(10):
            for index in range(ITEMS_PER_SLICE):
                flusher.enqueue(files.partition(f"{number}-{index}"))
            if number == before:
                flusher.enqueue(files.partition("other"))
            await asyncio.sleep(0)
        await flusher.drained()
    assert files.written.index("other") <= (before + 2) * ITEMS_PER_SLICE


@pytest.mark.parametrize("sync", [False, True])
async def test_writes_that_begin_segments_delay_no_other_and_are_few_at_a_time(sync: bool) -> None:
    files = Flushed()
    async with running(sync=sync) as flusher:
        files.go_on.clear()
        rolling = [files.partition(f"rolls-{index}") for index in range(3 * ROLLS_MAX)]
        for partition in rolling:
            flusher.enqueue(partition)
        flusher.enqueue(files.partition("other"))
        await until(lambda: "other" in files.written, "it does not wait")
        assert len(files.written) == ROLLS_MAX + 1
        flusher.enqueue(rolling[0])  # amid its write: it is written once more, after that
        flusher.enqueue(rolling[-1])
        await asyncio.sleep(0)
        assert files.written.count("rolls-0") == 1
        files.go_on.set()
        await flusher.drained()
    assert files.written.count("rolls-0") == 2
    assert len(files.written) >= 3 * ROLLS_MAX + 2


async def test_in_os_mode_what_is_far_ahead_of_the_disk_waits_for_it_and_delays_no_other() -> None:
    files = Flushed()
    ahead, other = files.partition("ahead"), files.partition("other")
    files.go_on.clear()
    async with running(sync=False) as flusher:
        for _ in range(2):
            for each in (ahead, other):
                flusher.enqueue(each)
            for _ in range(5):
                await asyncio.sleep(0)
        assert files.written == ["ahead", "other", "other"]
        assert files.synced == ["ahead"]
        files.go_on.set()
        await flusher.drained()
    assert files.written[3:] == ["ahead"]
    assert files.synced == ["ahead"] * 2


async def test_a_partition_that_was_synced_recently_does_not_wait_for_a_burst() -> None:
    files, other = Flushed(), "other"
    async with running(sync=True) as flusher:
        often = files.partition(other)
        flusher.enqueue(often)
        await flusher.drained()
        files.go_on.clear()
        for index in range(10 * SYNCS_MAX):
            flusher.enqueue(files.partition(f"{index}"))
        flusher.enqueue(often)
        await until(lambda: len(files.written) == 10 * SYNCS_MAX + 2, "all are written")
        files.go_on.set()
        await flusher.drained()
    assert files.synced.index(other, 1) <= 1 + SYNCS_MAX + 2
    assert len(files.synced) == 2 + 10 * SYNCS_MAX


async def test_a_partition_that_was_not_synced_recently_gets_every_other_sync() -> None:
    files = Flushed()
    async with running(sync=True) as flusher:
        often = [files.partition("often") for _ in range(4 * SYNCS_MAX)]
        for partition in often:
            flusher.enqueue(partition)
        await flusher.drained()
        files.synced.clear()
        files.go_on.clear()
        for partition in often:
            flusher.enqueue(partition)
        for _ in range(10):
            flusher.enqueue(files.partition("rare"))
        await until(lambda: len(files.written) == 8 * SYNCS_MAX + 10, "all are written")
        files.go_on.set()
        await flusher.drained()
    assert files.synced[:20].count("rare") == 10


async def test_as_many_partitions_count_as_synced_recently_as_the_limit_says() -> None:
    files = Flushed()
    async with running(sync=True) as flusher:
        for index in range(RECENT_MAX + 10):
            flusher.enqueue(files.partition(f"{index}"))
        await flusher.drained()
        assert len(flusher._recent) == RECENT_MAX


async def test_no_more_syncs_are_begun_than_the_disk_has_use_for() -> None:
    files = Flushed()
    files.go_on.clear()
    async with running(sync=True) as flusher:
        for index in range(3 * SYNCS_MAX):
            flusher.enqueue(files.partition(f"{index}"))
        await until(lambda: len(files.written) == 3 * SYNCS_MAX, "all are written")
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(files.synced) == SYNCS_MAX
        files.go_on.set()
        await flusher.drained()
    assert len(files.synced) == 3 * SYNCS_MAX
