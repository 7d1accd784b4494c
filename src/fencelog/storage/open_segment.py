"""A segment of an open partition: its file while it is needed, and its unwritten side files."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fencelog.ports import DiskFile
from fencelog.types import Offset


@dataclass(slots=True)
class OpenSegment:
    """A segment file, and the content of its side files until they are written.

    The file is open while it may be written or synced. Later each read opens it, so that a long log
    does not need a file descriptor for each of its segments.
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

    def extend_side_files(self, more: Sequence[bytes]) -> None:
        """Add entries of index, time index and transaction index."""
        for content, entries in zip(self.side_files, more, strict=True):
            content.extend(entries)
