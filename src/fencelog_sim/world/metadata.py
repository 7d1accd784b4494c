"""The simulated metadata store: versioned cells in memory, with writes in flight.

A write that returned is stable, as each is synced. Those in flight when the process ends may or may
not be there afterwards, in the order in which they were asked for.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from fencelog.errors import StorageError
from fencelog.ports import MetadataWrite
from fencelog_sim.world.gate import Device, Fault, Halt


@dataclass(slots=True)
class _Cells:
    """What is stored. One counter gives all versions, so that no cell ever has an old one again."""

    values: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    last_version: int = 0

    def put(self, key: str, value: bytes, expected_version: int) -> int | None:
        _, version = self.values.get(key, (b"", 0))
        if version != expected_version:
            return None
        self.last_version += 1
        self.values[key] = (value, self.last_version)
        return self.last_version

    def delete(self, key: str, expected_version: int) -> bool:
        _, version = self.values.get(key, (b"", 0))
        if version == 0 or version != expected_version:
            return False
        del self.values[key]
        return True

    def commit(self, writes: Sequence[MetadataWrite]) -> bool:
        for key, _, expected in writes:
            _, version = self.values.get(key, (b"", 0))
            if expected is not None and version != expected:
                return False
        self.last_version += 1
        for key, value, _ in writes:
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = (value, self.last_version)
        return True


_Write = Callable[[_Cells], int | bool | None]
"""A write that does not know yet when it takes effect; what it returns is true if it did."""


class SimMetadata(Device):
    """MetadataStore in memory; one process's view of it.

    Verbs of the hooks: ``get``, ``list``, ``put``, ``delete`` and ``commit``, all of which may be
    delayed. They take effect in the order of the calls, as in the one thread of the real store.
    """

    def __init__(self) -> None:
        """An empty store."""
        super().__init__()
        self._cells = _Cells()
        self._lock = asyncio.Lock()
        self._closed = False
        self._in_flight: list[_Write] = []
        self._doubtful: _Write | None = None
        """A write that failed and may be in the file all the same, until another one succeeds."""

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """Value and version of a key, or None."""
        async with self._lock:
            await self._reach("get", key)
            return self._cells.values.get(key)

    async def list(self, prefix: str) -> list[tuple[str, bytes, int]]:
        """Key, value and version of each key with this prefix, in key order."""
        async with self._lock:
            await self._reach("list", prefix)
            cells = sorted(self._cells.values.items())
            return [(key, *cell) for key, cell in cells if key.startswith(prefix)]

    async def put(self, key: str, value: bytes, *, expected_version: int) -> int | None:
        """Compare and set; 0 expects absence. Returns the new version, or None when it lost."""
        stored = bytes(value)
        return await self._write(
            "put", key, len(stored), lambda cells: cells.put(key, stored, expected_version)
        )

    async def delete(self, key: str, *, expected_version: int) -> bool:
        """Remove a key at this version; False when the version is another one."""
        deleted = await self._write(
            "delete", key, 0, lambda cells: cells.delete(key, expected_version)
        )
        return bool(deleted)

    async def commit(self, writes: Sequence[MetadataWrite]) -> bool:
        """Apply all writes at once; False when a version is another one."""
        stored = list(writes)
        size = sum(len(each.value or b"") for each in stored)
        done = await self._write("commit", stored[0].key, size, lambda cells: cells.commit(stored))
        return bool(done)

    async def close(self) -> None:
        """Release the store, after the operations asked for; a second close does nothing."""
        async with self._lock:
            self._closed = True

    def restarted(self, random: Random | None = None) -> "SimMetadata":
        """The store as the next process finds it after a kill; this view has ended.

        ``random`` decides how many of the writes in flight took effect, the first ones first;
        without it none did.
        """
        self._ended = True
        after = SimMetadata()
        cells = after._cells = _Cells(dict(self._cells.values), self._cells.last_version)
        if random is not None:
            # What failed is older than what is in flight: each success overwrites it.
            if self._doubtful is not None and random.random() < 0.5:
                self._doubtful(cells)
            for write in self._in_flight[: random.randint(0, len(self._in_flight))]:
                write(cells)
        return after

    def power_loss(self, random: Random) -> "SimMetadata":
        """The store as the next boot finds it: as after a kill, since every write is synced."""
        return self.restarted(random)

    async def _write(self, verb: str, key: str, size: int, write: _Write) -> int | None:
        self._in_flight.append(write)
        try:
            async with self._lock:
                return await self._take_effect(verb, key, size, write)
        finally:
            if write in self._in_flight:
                self._in_flight.remove(write)

    async def _take_effect(self, verb: str, key: str, size: int, write: _Write) -> int | None:
        try:
            verdict = await self._reach(verb, key, size, write)
        except asyncio.CancelledError:
            # The real store's thread has begun the write, and ends it without the caller.
            if not self._ended:
                write(self._cells)
            raise
        answer = write(self._cells)
        if answer:
            self._doubtful = None
        if verdict is not None:
            self._in_flight.remove(write)
            await self.halt(verdict)
        return answer

    async def _reach(
        self, verb: str, key: str, size: int = 0, write: _Write | None = None
    ) -> Halt | None:
        """Return when the operation may take effect, with the halt that follows it, if any."""
        assert not self._closed, "the store is closed"
        await self.wait(verb, key, size)
        verdict = self.verdict(verb, key, size)
        if isinstance(verdict, Fault):
            if verdict.done:
                self._doubtful = write
            raise StorageError(f"metadata: {verb} {key}: {verdict.reason}")
        if verdict is not None and not (verdict.done and write):
            await self.halt(verdict)
        return verdict
