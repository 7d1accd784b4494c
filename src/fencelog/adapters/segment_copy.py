"""Copies segment files of the real file system, and checks every batch of what is copied."""

import os
from pathlib import Path
from typing import NamedTuple

from fencelog.adapters.file_disk import FileDisk
from fencelog.errors import CorruptionError
from fencelog.storage.segment import walk
from fencelog.types import Offset
from fencelog.wire.batch import BatchHeader

_COPY_BYTES = 4 << 20
NO_LIMIT = Offset((1 << 63) - 1)


class Sound(NamedTuple):
    """The sound beginning of a segment."""

    size: int
    """In bytes."""
    end: Offset
    """The offset after it."""
    problem: str | None
    """Why the next batch is not sound; None at the end of the file or at the limit."""


async def sound_part(
    disk: FileDisk, path: str, base_offset: Offset, limit: Offset = NO_LIMIT
) -> Sound:
    """Check each batch of a segment below ``limit``: its place and its CRC.

    Raises FileNotFoundError, and StorageError.
    """
    end, size = base_offset, 0
    is_at_limit = False

    def visit(header: BatchHeader, batch: memoryview, position: int) -> str | None:
        nonlocal end, size, is_at_limit
        if header.base_offset < end:
            return f"base offset {header.base_offset} after {end - 1}"
        if header.next_offset > limit:
            is_at_limit = True
            return "above the limit"
        end, size = header.next_offset, position + header.size
        return None

    file = await disk.open(path)
    try:
        found = await walk(file, visit)
    finally:
        await file.close()
    return Sound(size, end, None if is_at_limit else found.problem)


async def copy_part(source: FileDisk, path: str, size: int, target: Path) -> None:
    """Copy the first bytes of a file durably; replace an older copy."""
    temporary = target.with_name(f"{target.name}.tmp")
    file = await source.open(path)
    try:
        with temporary.open("wb") as copy:
            at = 0
            while at < size:
                data = await file.read(at, min(_COPY_BYTES, size - at))
                if not data:
                    raise CorruptionError(f"{path}: the file shrank while it was copied")
                copy.write(data)
                at += len(data)
            copy.flush()
            os.fsync(copy.fileno())
    finally:
        await file.close()
    temporary.replace(target)


def sync_tree(folder: Path) -> None:
    """Make the names in a folder and in its folders durable."""
    for each in (*(path for path in folder.iterdir() if path.is_dir()), folder):
        descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
