"""A broker of a cluster whose disk is full leads nothing that another one can, until it has room.

Whether there is room shows a file that is written and removed again. What comes of it is stored in
the broker's registration, and the controller acts on it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fencelog.broker.replicas.repair import Pauses
from fencelog.errors import StorageError
from fencelog.ports import Disk
from fencelog.types import Instant

PROBE = "room-probe"
"""The file's name in the data directory."""
PROBE_BYTES = 1 << 20
"""As much as a batch has, by default, at most."""
WAIT_MAX_S = 30.0
"""At most so long after there is room, leaders come back."""
RETRY_S = 1.0
"""After which time a store that has not answered is told again."""


class FullDisk:
    """Tells the cluster when this broker's disk gets full, and when it has room again."""

    def __init__(self, disk: Disk, announce: Callable[[bool], Awaitable[None]]) -> None:
        """``announce`` stores it; it may raise StorageError."""
        self._disk = disk
        self._announce = announce
        self._news = asyncio.Event()
        self._pauses = Pauses(WAIT_MAX_S)

    def noticed(self) -> None:
        """Something could not be written for lack of room."""
        self._news.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._remove_probe()  # a process that has ended may have left it
        while True:
            await self._news.wait()
            await self._tell(is_full=True)
            while not await self._has_room():
                pass
            self._news.clear()
            await self._tell(is_full=False)

    async def _tell(self, *, is_full: bool) -> None:
        while True:
            try:
                return await self._announce(is_full)
            except StorageError:
                await asyncio.sleep(RETRY_S)

    async def _has_room(self) -> bool:
        """Wait, and then try."""
        await asyncio.sleep(self._pauses.next(Instant(asyncio.get_running_loop().time())))
        try:
            file = await self._disk.open(PROBE, create=True)
            try:
                await file.append([bytes(PROBE_BYTES)])
                await file.sync()
            finally:
                await file.close()
        except StorageError:
            return False
        finally:
            await self._remove_probe()
        return True

    async def _remove_probe(self) -> None:
        with suppress(StorageError):
            await self._disk.remove(PROBE)
