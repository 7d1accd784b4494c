"""Stores the recovery checkpoint of one open partition, and removes it where it would be wrong.

It is stored after all that it covers: the batches are synced first, then the side files of full
segments. An older one stays right when segments are added, when the oldest are deleted, and when
recovery truncates the log above it. Only compaction makes it wrong: it is removed before a swap.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.log.partition_log import PartitionLog
from fencelog.log.recovery_checkpoint import (
    RecoveryCheckpoint,
    checkpoint_at,
    decode_recovery_checkpoint,
)
from fencelog.log.values import EpochStart, SideFiles
from fencelog.ports import Disk
from fencelog.storage.checkpoint import read_file, remove_file, replace_file
from fencelog.storage.segment_files import SegmentFiles
from fencelog.types import Offset


class Captured(NamedTuple):
    """A checkpoint to be stored, unless segments are replaced before."""

    checkpoint: RecoveryCheckpoint
    version: int


class Begin(NamedTuple):
    """Where a replica begins whose leader has deleted what is before: its log start."""

    offset: Offset
    snapshot: bytes
    """The producers and owners there (E4)."""
    leader_epochs: Sequence[EpochStart]
    """Those that began up to there."""


async def store_begin(disk: Disk, directory: str, begin: Begin) -> None:
    """Store what is known of a replica before its first batch. Raises StorageError."""
    checkpoint = checkpoint_at(begin.offset, (), begin.snapshot, begin.leader_epochs)
    await replace_file(disk, f"{directory}/{layout.RECOVERY_CHECKPOINT}", checkpoint.encode())


class Checkpointer:
    """The recovery checkpoint of one partition."""

    def __init__(self, disk: Disk, directory: str, segments: SegmentFiles) -> None:
        """There may be a stored one."""
        self._disk = disk
        self._path = f"{directory}/{layout.RECOVERY_CHECKPOINT}"
        self._segments = segments
        self._may_exist = True
        self._version = 0
        """Grows when segments are replaced."""
        self._lock = asyncio.Lock()

    def capture(self, log: PartitionLog) -> Captured | None:
        """Return the checkpoint of the log's end, up to which everything must be written.

        None while a full segment has no side files (compaction replaces it), or the newest has them
        (it is being closed).
        """
        checksums = {
            each.base_offset: each.checksum for each in self._segments if each.checksum is not None
        }
        *full, newest_base_offset = log.segment_base_offsets
        newest = self._segments.get(newest_base_offset)
        if newest is None or newest.checksum is not None or not checksums.keys() >= set(full):
            return None
        side_files = SideFiles(*map(bytes, newest.side_files))
        return Captured(log.checkpoint(checksums, side_files), self._version)

    async def store(self, captured: Captured) -> bool:
        """Store a checkpoint, below which all batches are synced; return whether it is stored.

        It is not if segments were replaced since it was captured. Raises StorageError.
        """
        async with self._lock:
            if captured.version != self._version:
                return False
            for segment in self._segments:
                if segment.checksum is not None and not segment.are_side_files_synced:
                    await segment.sync_side_files(self._disk)
            self._may_exist = True
            await replace_file(self._disk, self._path, captured.checkpoint.encode())
            return True

    @asynccontextmanager
    async def removed(self) -> AsyncIterator[None]:
        """Have no checkpoint on disk meanwhile, durably; none that was captured before is stored.

        Raises StorageError.
        """
        async with self._lock:
            try:
                if self._may_exist:
                    await remove_file(self._disk, self._path)
                    self._may_exist = False
                yield
            finally:
                self._version += 1


async def read_recovery_checkpoint(disk: Disk, directory: str) -> RecoveryCheckpoint | None:
    """Return the stored checkpoint; None if there is none or it is damaged."""
    try:
        content = await read_file(disk, f"{directory}/{layout.RECOVERY_CHECKPOINT}")
        return None if content is None else decode_recovery_checkpoint(content)
    except CorruptionError:
        return None
