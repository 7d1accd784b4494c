"""A broker of a cluster whose disk is full says so, until what it tries to write has room."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fencelog.broker.replicas.full_disk import PROBE, PROBE_BYTES, WAIT_MAX_S, FullDisk
from fencelog.errors import StorageError
from fencelog_sim.world.disk import SimDisk
from fencelog_sim.world.gate import NO_SPACE, Fault
from tests.support.cluster_metadata import in_virtual_time

HOUR_S = 3600.0


class Broker:
    """A disk, and what was stored of it."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.told: list[bool] = []
        self.lost_answers = 0
        self.has_room = asyncio.Event()
        self.watch = FullDisk(self.disk, self.announce)

    async def announce(self, is_full: bool) -> None:
        if self.lost_answers:
            self.lost_answers -= 1
            raise StorageError("no answer")
        self.told.append(is_full)
        if not is_full:
            self.has_room.set()

    @property
    def is_full(self) -> bool:
        return self.told[-1:] == [True]


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def watching() -> AsyncIterator[Broker]:
    broker = Broker()
    task = asyncio.get_running_loop().create_task(broker.watch.run())
    yield broker
    task.cancel()
    await asyncio.wait([task])
    assert not broker.disk.exists(PROBE)


def test_it_is_told_at_once_and_taken_back_when_there_is_room() -> None:
    async def main() -> None:
        async with watching() as broker:
            await asyncio.sleep(1)
            assert broker.told == []
            broker.disk.free_bytes = PROBE_BYTES - 1
            broker.watch.noticed()
            await asyncio.sleep(100)
            assert broker.told == [True]
            broker.disk.free_bytes = PROBE_BYTES
            await asyncio.sleep(WAIT_MAX_S)
            assert broker.told == [True, False]
            assert broker.disk.free_bytes == PROBE_BYTES

    in_virtual_time(main)


def test_a_disk_that_gets_full_again_and_again_is_tried_less_and_less() -> None:
    async def main() -> None:
        async with watching() as broker:
            lasted = []
            for _ in range(8):
                begun = now()
                broker.watch.noticed()
                await broker.has_room.wait()
                broker.has_room.clear()
                lasted.append(round(now() - begun))
            assert lasted == [1, 2, 4, 8, 16, WAIT_MAX_S, WAIT_MAX_S, WAIT_MAX_S]
            await asyncio.sleep(HOUR_S / 2)
            broker.watch.noticed()
            await asyncio.sleep(1.1)
            assert not broker.is_full

    in_virtual_time(main)


def test_what_a_store_has_not_taken_is_told_again() -> None:
    async def main() -> None:
        async with watching() as broker:
            broker.lost_answers = 3
            broker.watch.noticed()
            await asyncio.sleep(3.5)
            assert broker.is_full
            await asyncio.sleep(1)
            assert not broker.is_full

    in_virtual_time(main)


def test_a_disk_stays_full_whatever_of_a_write_fails() -> None:
    async def main() -> None:
        async with watching() as broker:
            for verb in ("create", "append", "sync"):
                broker.disk.gate = lambda each, path, size: (
                    Fault(NO_SPACE) if each == verb else None  # noqa: B023 - called in the loop
                )
                broker.watch.noticed()
                await asyncio.sleep(WAIT_MAX_S * 3)
                assert broker.is_full
                broker.disk.gate = None
                await asyncio.sleep(WAIT_MAX_S * 2)
                assert not broker.is_full

    in_virtual_time(main)


def test_a_file_that_a_killed_process_has_left_is_removed() -> None:
    async def main() -> None:
        broker = Broker()
        await (await broker.disk.open(PROBE, create=True)).close()
        task = asyncio.get_running_loop().create_task(broker.watch.run())
        await asyncio.sleep(1)
        assert not broker.disk.exists(PROBE)
        task.cancel()

    in_virtual_time(main)
