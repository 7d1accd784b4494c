"""One round of compaction on the files of a partition.

Reads full segments in the background, writes their remaining records into new files, and replaces
the old files by them. A crash, a full disk or a stop before the swap leaves the old files as they
are.
"""

import asyncio
from collections.abc import Callable

from fencelog.errors import CorruptionError, FencelogError
from fencelog.log.compaction_round import GroupCleaner, Round
from fencelog.ports import DiskFile
from fencelog.storage.partition_store import PartitionStore
from fencelog.storage.segment import Passed, walk
from fencelog.types import Offset
from fencelog.wire.batch import BatchHeader

CHUNK_BYTES = 256 << 10
"""Bytes read between two yields to the loop: a few milliseconds of work."""


class CompactionStoppedError(FencelogError):
    """The round was stopped, because the broker stops or the log has changed; nothing is lost."""


class Compaction:
    """A round in progress."""

    def __init__(
        self, store: PartitionStore, compaction: Round, should_continue: Callable[[], bool]
    ) -> None:
        """``should_continue`` is called after each chunk."""
        self._store = store
        self._round = compaction
        self._should_continue = should_continue

    async def map(self) -> Offset:
        """Read the dirty part; return the end offset of this round.

        Raises CompactionStoppedError, CorruptionError where a segment is damaged, StorageError.
        """
        mapped = self._round.map

        def visit(header: BatchHeader, batch: memoryview, position: int) -> None:
            mapped.visit(header, batch)

        for base_offset in self._round.dirty():
            if mapped.is_full:
                break
            await self._walk(base_offset, visit, self._pause)
        return self._round.end

    async def clean(self) -> int:
        """Write and swap every group that changes; return the bytes saved.

        Raises as ``map`` does. Groups that were swapped before stay swapped.
        """
        saved = 0
        for group in self._round.groups():
            saved += await self._clean(group)
        return saved

    async def _clean(self, group: GroupCleaner) -> int:
        base_offset = group.base_offsets[0]
        try:
            file = await self._store.open_cleaned(base_offset)
        except FileNotFoundError as error:
            raise CompactionStoppedError("the partition was deleted meanwhile") from error
        read = 0

        def visit(header: BatchHeader, batch: memoryview, position: int) -> None:
            nonlocal read
            read += len(batch)
            group.visit(header, batch)

        async def write(position: int, good: memoryview) -> None:
            buffers = group.take()
            if buffers:
                await file.append(buffers)
            await self._pause(position, good)

        is_whole = False
        try:
            for each in group.base_offsets:
                await self._walk(each, visit, write)
            cleaned = group.finish()
            assert file.size == cleaned.segment.size, (file.size, cleaned.segment.size)
            if group.is_changed:
                await file.sync()
                is_whole = True
        finally:
            await file.close()
            if not is_whole:
                await self._store.drop_cleaned(base_offset)
        if not is_whole:
            return 0
        if not await self._store.swap(cleaned):
            raise CompactionStoppedError("segments were deleted meanwhile")
        return read - cleaned.segment.size

    async def _walk(
        self,
        base_offset: Offset,
        visit: Callable[[BatchHeader, memoryview, int], None],
        passed: Passed,
    ) -> None:
        file = await self._open(base_offset)
        try:
            end = await walk(file, visit, CHUNK_BYTES, passed=passed)
        finally:
            await file.close()
        if end.problem is not None:
            raise CorruptionError(
                f"segment {base_offset}: damaged at position {end.position}: {end.problem}"
            )

    async def _open(self, base_offset: Offset) -> DiskFile:
        try:
            return await self._store.open_segment(base_offset)
        except FileNotFoundError as error:
            raise CompactionStoppedError("segments were deleted meanwhile") from error

    async def _pause(self, position: int, good: memoryview) -> None:
        await asyncio.sleep(0)
        if not self._should_continue():
            raise CompactionStoppedError("the broker is stopping")
