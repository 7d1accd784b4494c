"""What backup and salvage share: reads a data directory's files, and copies what is sound."""

import os
from pathlib import Path
from typing import NamedTuple

from fencelog.adapters.file_disk import FileDisk, sync_directory
from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.storage.segment import walk
from fencelog.types import Offset, TopicPartition
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


def read_offsets(directory: Path, name: str) -> dict[TopicPartition, Offset]:
    """Return the offsets of a checkpoint; none without the file. Raises CorruptionError."""
    path = directory / name
    try:
        return layout.decode_offsets(path.read_text("ascii"))
    except FileNotFoundError:
        return {}
    except CorruptionError as error:
        raise CorruptionError(f"{path}: {error}") from error


def base_offsets(directory: Path) -> list[Offset]:
    """Return the base offsets of the segments in a partition's directory, sorted."""
    parsed = map(layout.parse_file_name, os.listdir(directory))
    return sorted(each[0] for each in parsed if each is not None and each[1] == layout.LOG)


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
        sync_directory(each)
