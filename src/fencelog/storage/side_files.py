"""The side files of a full segment: its indexes, which can be rebuilt from its batches."""

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.log.values import SideFiles
from fencelog.ports import Disk
from fencelog.storage.checkpoint import read_file, replace_file

SIDE_SUFFIXES = (layout.INDEX, layout.TIME_INDEX, layout.TXN_INDEX)
"""In the order of ``SideFiles``."""


async def read_side_files(disk: Disk, segment: str) -> SideFiles:
    """Return the side files of a segment's path. Raises CorruptionError if one is missing."""
    contents = []
    for suffix in SIDE_SUFFIXES:
        path = segment.removesuffix(layout.LOG) + suffix
        content = await read_file(disk, path)
        if content is None:
            raise CorruptionError(f"{path}: the file is missing")
        contents.append(content)
    return SideFiles(*contents)


async def write_side_files(disk: Disk, segment: str, side_files: SideFiles) -> None:
    """Replace the side files of a segment's path, each as a whole; they are not synced."""
    for suffix, content in zip(SIDE_SUFFIXES, side_files, strict=True):
        path = segment.removesuffix(layout.LOG) + suffix
        await replace_file(disk, path, content, durable=False)


async def sync_side_files(disk: Disk, segment: str) -> None:
    """Sync the contents of the side files of a segment's path; those that are gone are left out."""
    for suffix in SIDE_SUFFIXES:
        try:
            file = await disk.open(segment.removesuffix(layout.LOG) + suffix)
        except FileNotFoundError:
            continue  # the segment was deleted meanwhile
        try:
            await file.sync()
        finally:
            await file.close()
