"""The segment files of one open partition: which there are, which of them are open, who reads them.

A file is open from its first write on, while it may be written or synced, and while a reader that
began then has it. Before and afterwards each read opens it, so that neither a long log needs a file
descriptor for each of its segments, nor a broker one for each partition that nobody writes to.
"""

from collections.abc import Iterator

from fencelog.errors import CorruptionError, StorageError
from fencelog.log import layout
from fencelog.ports import Disk, DiskFile
from fencelog.storage.open_segment import OpenSegment
from fencelog.types import Offset


class SegmentFiles:
    """The segments by base offset."""

    def __init__(self, disk: Disk, directory: str) -> None:
        """Start without segments."""
        self._disk = disk
        self._directory = directory
        self._segments: dict[Offset, OpenSegment] = {}
        self._names_made = 1
        """How many files were made here; an earlier run counts as one."""
        self._names_synced = 0
        """How many of them have a durable name."""

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self._segments)

    def __iter__(self) -> Iterator[OpenSegment]:
        """Iterate over the segments as they are now, oldest first."""
        return iter([self._segments[base] for base in self.base_offsets])

    def __contains__(self, base_offset: Offset) -> bool:
        """Tell whether there is a segment of this base offset."""
        return base_offset in self._segments

    def get(self, base_offset: Offset) -> OpenSegment | None:
        """Return the segment of this base offset, or None."""
        return self._segments.get(base_offset)

    @property
    def base_offsets(self) -> list[Offset]:
        """Base offset of each segment, oldest first."""
        return sorted(self._segments)

    @property
    def newest(self) -> OpenSegment:
        """The segment that is written to."""
        return self._segments[max(self._segments)]

    def path(self, base_offset: Offset, suffix: str = layout.LOG) -> str:
        """Return the path of a segment's file."""
        return f"{self._directory}/{layout.file_name(base_offset, suffix)}"

    # Which there are

    def add(self, base_offset: Offset) -> OpenSegment:
        """Add a segment whose file exists; it is not open."""
        segment = OpenSegment(base_offset, self.path(base_offset))
        self._segments[base_offset] = segment
        return segment

    async def make_newest(self, base_offset: Offset) -> None:
        """Add a segment and open its file, which is made if there is none."""
        file = await self._disk.open(self.path(base_offset), create=True)
        self.add(base_offset).file = file
        self._names_made += 1

    async def open_to_write(self, segment: OpenSegment) -> DiskFile:
        """Return the newest segment's file; the first write since the start opens it.

        Raises StorageError.
        """
        if segment.file is None:
            try:
                segment.file = await self._disk.open(segment.path)
            except FileNotFoundError as error:
                raise StorageError(f"{segment.path}: the file was removed") from error
        return segment.file

    def replace(self, base_offsets: tuple[Offset, ...], new: OpenSegment) -> None:
        """Put a segment in the place of others."""
        for base_offset in base_offsets:
            del self._segments[base_offset]
        self._segments[new.base_offset] = new

    async def remove(self, base_offset: Offset) -> None:
        """Remove a segment and its files; the names are gone for good after ``sync_directory``."""
        await self.retire(self._segments.pop(base_offset))
        await self.remove_files(base_offset)

    async def remove_files(self, base_offset: Offset) -> None:
        """Remove the files of a segment that is no longer here."""
        for suffix in (*layout.SEGMENT_SUFFIXES, layout.SNAPSHOT):
            await self._disk.remove(self.path(base_offset, suffix))

    # Names

    async def sync_names(self) -> None:
        """Return when the name of every file made here is durable."""
        while self._names_synced < self._names_made:
            made = self._names_made
            await self.sync_directory()
            self._names_synced = max(self._names_synced, made)

    def names_are_durable(self) -> None:
        """The names of all files are durable."""
        self._names_synced = self._names_made

    async def sync_directory(self) -> None:
        """Make every change of names durable."""
        await self._disk.sync_directory(self._directory)

    # Reading

    async def open(self, base_offset: Offset) -> DiskFile:
        """Open the file of a full segment.

        Raises FileNotFoundError if it was deleted meanwhile, CorruptionError if it is missing.
        """
        path = self.path(base_offset)
        try:
            return await self._disk.open(path)
        except FileNotFoundError as error:
            if base_offset in self._segments:
                raise CorruptionError(f"{path}: the file is missing") from error
            raise

    async def begin_read(self, segment: OpenSegment) -> DiskFile | None:
        """Return the file to read from, None if it was deleted meanwhile; raises as ``open``."""
        if segment.file is None:
            try:
                file = await self.open(segment.base_offset)
            except FileNotFoundError:
                return None
            if self._segments.get(segment.base_offset) is segment:
                return file
            # The segment was swapped meanwhile: the plan's positions may not fit this file.
            await file.close()
            return None
        segment.readers += 1
        return segment.file

    async def end_read(self, segment: OpenSegment, file: DiskFile) -> None:
        """End what ``begin_read`` began."""
        if file is not segment.file and file is not segment.retired:
            await file.close()
            return
        segment.readers -= 1
        await self._close_retired(segment)

    # Closing

    async def retire(self, segment: OpenSegment) -> None:
        """Close a segment's file once it has no readers."""
        segment.retired, segment.file = segment.file or segment.retired, None
        await self._close_retired(segment)

    @staticmethod
    async def _close_retired(segment: OpenSegment) -> None:
        if segment.retired is not None and segment.readers == 0:
            retired, segment.retired = segment.retired, None
            await retired.close()

    async def close(self) -> None:
        """Retire all segments; none is left."""
        segments, self._segments = self._segments, {}
        for segment in segments.values():
            await self.retire(segment)
