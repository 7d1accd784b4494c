"""A segment of an open partition: its file while it is needed, and its unwritten side files."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fencelog.log.recovery_checkpoint import side_checksum
from fencelog.log.values import SideFiles
from fencelog.ports import Disk, DiskFile
from fencelog.storage.side_files import sync_side_files, write_side_files
from fencelog.types import Offset


@dataclass(slots=True)
class OpenSegment:
    """A segment file, and the content of its side files until they are written.

    ``SegmentFiles`` says when the file is open.
    """

    base_offset: Offset
    path: str
    file: DiskFile | None = None
    readers: int = 0
    retired: DiskFile | None = None
    """The file when it is no longer written, but still has readers."""
    side_files: tuple[bytearray, bytearray, bytearray] = field(
        default_factory=lambda: (bytearray(), bytearray(), bytearray())
    )
    is_dirty: bool = False
    is_complete: bool = False
    """Whether it is full and its side files are written."""
    checksum: int | None = None
    """That of the side files, once the segment is full and they are written."""
    are_side_files_synced: bool = False

    def extend_side_files(self, more: Sequence[bytes]) -> None:
        """Add entries of index, time index and transaction index."""
        for content, entries in zip(self.side_files, more, strict=True):
            content.extend(entries)

    async def sync(self) -> None:
        """Return when what was written to the file is on stable storage. Raises StorageError."""
        assert self.file is not None, self.path
        self.is_dirty = False
        await self.file.sync()

    async def write_side_files(self, disk: Disk) -> None:
        """Write the side files. Raises StorageError; what is to be written stays then."""
        side_files = SideFiles(*map(bytes, self.side_files))
        await write_side_files(disk, self.path, side_files)
        self.checksum = side_checksum(side_files)
        for content in self.side_files:
            content.clear()

    async def sync_side_files(self, disk: Disk) -> None:
        """Return when the contents of the side files are on stable storage. Raises StorageError."""
        await sync_side_files(disk, self.path)
        self.are_side_files_synced = True
