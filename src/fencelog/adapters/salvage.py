"""Checks the files of a stopped broker's partitions, and saves what is sound of a damaged one.

A salvaged partition has its sound beginning: a new directory takes the place of the damaged one,
which is kept beside it under another name.
"""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from fencelog.adapters.backup import created_partitions
from fencelog.adapters.file_disk import FileDisk
from fencelog.adapters.segment_copy import (
    base_offsets,
    copy_part,
    read_offsets,
    sound_part,
    sync_tree,
)
from fencelog.errors import StorageError
from fencelog.log import layout
from fencelog.types import Offset, TopicPartition

KEPT = ".damaged"
"""After the name of a directory that was replaced."""
_CHECKPOINTS = (
    layout.LOG_START_CHECKPOINT,
    layout.RECOVERY_POINT_CHECKPOINT,
    layout.HIGH_WATERMARK_CHECKPOINT,
    layout.CLEANER_CHECKPOINT,
)


class Checked(NamedTuple):
    """What is sound of a partition, and what is not."""

    name: TopicPartition
    start: Offset
    end: Offset
    """Everything below is sound."""
    known_end: Offset
    """Everything below was stored, as far as checkpoints and files tell."""
    problem: str | None
    segments: tuple[tuple[Offset, int], ...]
    """Base offset and sound bytes of the segments that are saved."""


async def check(directory: Path, name: TopicPartition) -> Checked:
    """Check every batch of a partition; change nothing. Raises StorageError, CorruptionError."""
    start = read_offsets(directory, layout.LOG_START_CHECKPOINT).get(name, Offset(0))
    known = max(
        read_offsets(directory, each).get(name, Offset(0))
        for each in (layout.RECOVERY_POINT_CHECKPOINT, layout.HIGH_WATERMARK_CHECKPOINT)
    )
    is_compacted = name in read_offsets(directory, layout.CLEANER_CHECKPOINT)
    folder = directory / str(name)
    bases = base_offsets(folder) if folder.exists() else []
    # Segments below the log start were to be deleted.
    while len(bases) > 1 and bases[1] <= start:
        del bases[0]
    disk = FileDisk(directory)
    segments: list[tuple[Offset, int]] = []
    problem = _missing(folder, bases, start)
    end = start
    try:
        for base in bases if problem is None else ():
            path = f"{name}/{layout.file_name(base, layout.LOG)}"
            if segments and base != end and not (is_compacted and base > end):
                problem = f"{path}: offsets {end} to {base - 1} are missing before it"
                break
            sound = await sound_part(disk, path, base)
            segments.append((base, sound.size))
            end = max(sound.end, start)
            if sound.problem is not None:
                problem = f"{path}: damaged at position {sound.size}: {sound.problem}"
                break
    finally:
        disk.close()
    known = max(known, end, *bases[-1:])
    if problem is None and end < known:
        problem = f"{name}: ends at offset {end}, but everything below {known} was stored"
    return Checked(name, start, end, known, problem, tuple(segments))


async def salvage(directory: Path, checked: Checked) -> Path | None:
    """Replace a damaged partition by what is sound of it; return where the old files are.

    A crash meanwhile leaves the old partition, or none, or the new one; the old files are kept.
    Raises StorageError.
    """
    name = checked.name
    old, new = directory / str(name), directory / f"{name}.salvaged"
    kept = _free_name(directory, name)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    disk = FileDisk(directory)
    try:
        for base, size in checked.segments:
            file = layout.file_name(base, layout.LOG)
            await copy_part(disk, f"{name}/{file}", size, new / file)
    finally:
        disk.close()
    if not checked.segments:
        # Nothing is left: no offset of a lost record is given to another one.
        (new / layout.file_name(checked.known_end, layout.LOG)).touch()
    if (old / layout.PARTITION_METADATA).exists():
        shutil.copyfile(old / layout.PARTITION_METADATA, new / layout.PARTITION_METADATA)
    sync_tree(new)
    moved = old.exists()
    if moved:
        old.rename(kept)
    _correct_checkpoints(directory, checked)
    new.rename(old)
    (directory / layout.CLEAN_SHUTDOWN).unlink(missing_ok=True)
    sync_tree(directory)
    return kept if moved else None


def partitions(directory: Path) -> list[TopicPartition]:
    """Return the partitions that have a directory, or should have one."""
    named = map(layout.parse_directory_name, os.listdir(directory))
    found = {name for name in named if name is not None}
    stored = (read_offsets(directory, each) for each in _CHECKPOINTS)
    return sorted(found.union(created_partitions(directory), *stored))


def _missing(directory: Path, bases: list[Offset], start: Offset) -> str | None:
    if not directory.exists():
        return f"{directory.name}: the directory is missing"
    if not bases or bases[0] > start:
        return f"{directory.name}/{layout.file_name(start, layout.LOG)}: the segment is missing"
    return None


def _correct_checkpoints(directory: Path, checked: Checked) -> None:
    """Let no checkpoint be above the end of the salvaged partition."""
    for each in _CHECKPOINTS:
        offsets = read_offsets(directory, each)
        is_log_start = each == layout.LOG_START_CHECKPOINT and not checked.segments
        end = checked.end if checked.segments else checked.known_end
        if is_log_start or offsets.get(checked.name, Offset(0)) > end:
            offsets[checked.name] = end
            temporary = directory / f"{each}.tmp"
            temporary.write_text(layout.encode_offsets(offsets), "ascii")
            descriptor = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(descriptor)
            os.close(descriptor)
            temporary.replace(directory / each)


def _free_name(directory: Path, name: TopicPartition) -> Path:
    for number in range(1, 1000):
        path = directory / f"{name}{KEPT}{number}.old"
        if not path.exists():
            return path
    raise StorageError(f"{directory}: too many directories {name}{KEPT}…: remove old ones")
