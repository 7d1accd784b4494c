"""Backup and restore of a data directory, of a running broker too.

A backup ends at one instant: at the high watermarks of all partitions that the broker stored
together with its last checkpoint. Up to there the copy is what a kill at that instant would have
left: no group's offset is past its data, and a transaction is whole or aborted at the next start.
The metadata is copied after that instant was stored, so no producer id is given again; a segment
that was sealed meanwhile lacks its seal in the copy, and gets one at the next start. If anything
that is needed has been deleted or compacted meanwhile, the backup begins again at a later instant;
segments that it has copied are not copied again.
"""

import asyncio
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fencelog.adapters.file_disk import DirectoryInUseError, DirectoryLock, FileDisk
from fencelog.adapters.segment_copy import (
    NO_LIMIT,
    base_offsets,
    copy_part,
    read_offsets,
    sound_part,
    sync_tree,
)
from fencelog.adapters.sqlite_metadata import METADATA_FILE
from fencelog.errors import CorruptionError, StorageError
from fencelog.log import layout
from fencelog.types import Offset, TopicPartition

MANIFEST = "backup.json"
ATTEMPTS = 6
WAIT_S = 5.0
"""Between two attempts: half the time between two checkpoints of a broker."""

Offsets = dict[TopicPartition, Offset]


class ChangedError(StorageError):
    """The running broker has deleted or compacted what the backup needs."""


@dataclass
class Copied:
    """What a backup or a restore did."""

    partitions: int = 0
    segments_copied: int = 0
    segments_kept: int = 0
    """Segments that an earlier backup had copied."""
    bytes_copied: int = 0
    ends: Offsets = field(default_factory=dict)
    """The end of each partition in the copy."""


async def back_up(directory: Path, target: Path) -> Copied:
    """Back up a data directory, of a running broker or not; ``target`` may have an older backup.

    Raises StorageError and CorruptionError; ``target`` is no complete backup then.
    """
    _check_directory(directory)
    _check_target(directory, target)
    (target / MANIFEST).unlink(missing_ok=True)
    copied = Copied()
    for left in reversed(range(ATTEMPTS)):
        try:
            lock = DirectoryLock.acquire(directory)
        except DirectoryInUseError:
            lock = None
        try:
            copied = await _Copy(directory, target, is_running=lock is None, done=copied).run()
            break
        except (ChangedError, FileNotFoundError) as error:
            if lock is not None or left == 0:
                raise StorageError(
                    f"the directory changes too fast: {error}; try again, or stop the broker"
                ) from error
        finally:
            if lock is not None:
                lock.release()
        await asyncio.sleep(WAIT_S)
    _write_manifest(target, copied.ends)
    return copied


async def restore(target: Path, directory: Path) -> Copied:
    """Copy a complete backup into a new or empty directory, for a broker to be started on.

    Raises StorageError and CorruptionError.
    """
    ends = _read_manifest(target)
    _make_empty(directory)
    copied = await _Copy(target, directory, is_running=False, done=Copied()).run()
    for name, end in ends.items():
        if copied.ends.get(name) != end:
            raise CorruptionError(
                f"{target}: {name} ends at offset {copied.ends.get(name)}, the backup had {end}"
            )
    return copied


class _Copy:
    """One attempt to copy a data directory."""

    def __init__(self, directory: Path, target: Path, *, is_running: bool, done: Copied) -> None:
        self._source = directory
        self._target = target
        self._is_running = is_running
        self._copied = Copied(segments_copied=done.segments_copied, bytes_copied=done.bytes_copied)
        self._limits: Offsets = {}
        self._topics: dict[TopicPartition, bytes] = {}

    async def run(self) -> Copied:
        disk = FileDisk(self._source)
        try:
            if self._is_running:
                # First: what follows is of a later instant. The checkpoint loses a topic's offsets
                # before its name is free, so what it has is of these topics.
                self._topics = _topics(self._source)
                self._limits = read_offsets(self._source, layout.HIGH_WATERMARK_CHECKPOINT)
                if not self._limits:
                    raise ChangedError("the broker has stored no checkpoint yet")
            created = self._copy_metadata()
            starts: Offsets = {}
            for name in sorted(created):
                starts[name] = await self._copy_partition(disk, name)
            self._remove_others({str(name) for name in created})
            self._write_checkpoints(starts)
        finally:
            disk.close()
        meta = layout.META_PROPERTIES
        shutil.copyfile(self._source / meta, self._target / meta)
        self._copied.partitions = len(created)
        sync_tree(self._target)
        return self._copied

    # Metadata

    def _copy_metadata(self) -> set[TopicPartition]:
        """Copy the metadata into one file; return the partitions that it says were created."""
        path, copy = self._source / METADATA_FILE, self._target / METADATA_FILE
        for each in self._target.glob(f"{METADATA_FILE}*"):
            each.unlink()
        try:
            if self._is_running:
                with (
                    closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as running,
                    closing(sqlite3.connect(copy)) as into,
                ):
                    running.backup(into)
            else:
                _copy_stopped(path, copy)
            with closing(sqlite3.connect(copy, isolation_level=None)) as store:
                store.execute("PRAGMA user_version = 0")
                store.execute("PRAGMA journal_mode = DELETE").fetchone()
                return _created(store)
        except sqlite3.Error as error:
            raise StorageError(f"{path}: {error}") from error

    # Partitions

    async def _copy_partition(self, disk: FileDisk, name: TopicPartition) -> Offset:
        """Copy the segments below the limit; return the first offset of the copy."""
        source, target = self._source / str(name), self._target / str(name)
        limit = self._limits.get(name, Offset(0)) if self._is_running else NO_LIMIT
        found = base_offsets(source)
        if not found:
            raise ChangedError(f"{source} has no segment")
        target.mkdir(exist_ok=True)
        shutil.copyfile(source / layout.PARTITION_METADATA, target / layout.PARTITION_METADATA)
        end = min(limit, found[0])
        bases = [base for base in found if base <= limit] or [end]
        for stray in set(os.listdir(target)) - {
            layout.PARTITION_METADATA,
            *(layout.file_name(base, layout.LOG) for base in bases),
        }:
            (target / stray).unlink()
        if bases[0] not in found:
            (target / layout.file_name(bases[0], layout.LOG)).write_bytes(b"")
        else:
            for base, after in zip(bases, [*bases[1:], None], strict=True):
                if after is not None and self._has(name, base):
                    self._copied.segments_kept += 1
                else:
                    end = await self._copy_segment(disk, name, base, limit)
        if self._is_running:
            self._check_copy(name, end, limit, newest=found[-1])
        self._copied.ends[name] = end
        return bases[0]

    def _has(self, name: TopicPartition, base: Offset) -> bool:
        """Whether an earlier backup has copied, and checked, this full segment as it is now."""
        path = f"{name}/{layout.file_name(base, layout.LOG)}"
        try:
            found, kept = ((each / path).stat() for each in (self._source, self._target))
        except FileNotFoundError:
            return False
        return (found.st_size, found.st_mtime_ns) == (kept.st_size, kept.st_mtime_ns)

    async def _copy_segment(
        self, disk: FileDisk, name: TopicPartition, base: Offset, limit: Offset
    ) -> Offset:
        """Copy one segment up to the limit; return the offset after it."""
        path = f"{name}/{layout.file_name(base, layout.LOG)}"
        source, target = self._source / path, self._target / path
        before = source.stat()
        sound = await sound_part(disk, path, base, limit)
        if sound.problem is not None:
            raise CorruptionError(
                f"{source}: damaged at position {sound.size}, offset {sound.end}: {sound.problem}; "
                f"`fencelog partition check {self._source} {name}` shows what can be saved"
            )
        await copy_part(disk, path, sound.size, target)
        if sound.size == before.st_size:
            os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
        self._copied.segments_copied += 1
        self._copied.bytes_copied += sound.size
        return sound.end

    def _check_copy(
        self, name: TopicPartition, end: Offset, limit: Offset, *, newest: Offset
    ) -> None:
        """Raise ChangedError unless the copy has all that the partition had below the limit."""
        topic = (self._source / str(name) / layout.PARTITION_METADATA).read_bytes()
        if name in self._limits and topic != self._topics.get(name):
            raise ChangedError(f"{name} was deleted and created again")
        if end < limit:  # after a power cut in ``os`` mode, until the next checkpoint
            raise ChangedError(f"{name} ends at offset {end}, its checkpoint has {limit}")
        is_compacted = name in read_offsets(self._source, layout.CLEANER_CHECKPOINT)
        if is_compacted and newest > limit:
            # Records may be gone for the sake of later ones, which are not in this backup.
            raise ChangedError(f"{name} was compacted above offset {limit}")

    # The rest

    def _remove_others(self, names: set[str]) -> None:
        """Remove partitions from the copy that the source does not have any more."""
        for each in self._target.iterdir():
            if each.is_dir() and layout.parse_directory_name(each.name) and each.name not in names:
                shutil.rmtree(each)

    def _write_checkpoints(self, starts: Offsets) -> None:
        """Write the top files, so that a start checks that all of the copy is there."""
        ends = self._copied.ends
        log_starts = read_offsets(self._source, layout.LOG_START_CHECKPOINT)
        first_dirty = read_offsets(self._source, layout.CLEANER_CHECKPOINT)
        files: Mapping[str, Offsets] = {
            layout.LOG_START_CHECKPOINT: {
                name: min(max(start, log_starts.get(name, start)), ends[name])
                for name, start in starts.items()
            },
            layout.RECOVERY_POINT_CHECKPOINT: ends,
            layout.HIGH_WATERMARK_CHECKPOINT: ends,
            layout.CLEANER_CHECKPOINT: {
                name: min(offset, ends[name])
                for name, offset in first_dirty.items()
                if name in ends
            },
        }
        for file, offsets in files.items():
            path = self._target / file
            path.unlink(missing_ok=True)
            if offsets:
                path.write_text(layout.encode_offsets(offsets), "ascii")


def created_partitions(directory: Path) -> set[TopicPartition]:
    """Return the partitions that the metadata of a stopped broker has; empty without metadata.

    Raises StorageError.
    """
    path = directory / METADATA_FILE
    with tempfile.TemporaryDirectory(prefix="fencelog-") as folder:
        copy = Path(folder) / METADATA_FILE
        try:
            _copy_stopped(path, copy)
            with closing(sqlite3.connect(copy)) as store:
                return _created(store)
        except FileNotFoundError:
            return set()
        except sqlite3.Error as error:
            raise StorageError(f"{path}: {error}") from error


def _copy_stopped(path: Path, copy: Path) -> None:
    """Copy the metadata as files: SQLite would move the WAL into the main file of the source."""
    shutil.copyfile(path, copy)
    wal = path.with_name(f"{METADATA_FILE}-wal")
    if wal.exists():
        shutil.copyfile(wal, copy.with_name(wal.name))


def _created(store: sqlite3.Connection) -> set[TopicPartition]:
    rows = store.execute(
        "SELECT substr(key, 7), value FROM cells WHERE substr(key, 1, 6) = 'topic/'"
    )
    return {
        TopicPartition(topic, index)
        for topic, value in rows
        for first, last in json.loads(value).get("created", ())
        for index in range(first, last + 1)
    }


def _check_directory(directory: Path) -> None:
    for name in (layout.META_PROPERTIES, METADATA_FILE):
        if not (directory / name).exists():
            raise StorageError(f"{directory} has no {name}: it is no data directory of fencelog")


def _topics(directory: Path) -> dict[TopicPartition, bytes]:
    """Return of which topic each partition in a data directory is."""
    found = {}
    for name in map(layout.parse_directory_name, os.listdir(directory)):
        if name is not None:
            with suppress(FileNotFoundError):
                path = directory / str(name) / layout.PARTITION_METADATA
                found[name] = path.read_bytes()
    return found


def _make_empty(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()):
        raise StorageError(f"{directory} is not empty: restore into a new directory")
    directory.mkdir(parents=True, exist_ok=True)


def _check_target(directory: Path, target: Path) -> None:
    if target.resolve().is_relative_to(directory.resolve()):
        raise StorageError(f"{target} is inside of {directory}: choose another place")
    if target.exists() and any(target.iterdir()) and not _is_backup(directory, target):
        raise StorageError(
            f"{target} is not empty, and has no backup of {directory}: choose another place"
        )
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(directory / layout.META_PROPERTIES, target / layout.META_PROPERTIES)


def _is_backup(directory: Path, target: Path) -> bool:
    """Whether the target has a backup of this cluster, complete or not."""
    found = [each / layout.META_PROPERTIES for each in (directory, target)]
    if not all(path.exists() for path in found) or (target / ".lock").exists():
        return False
    ids = [layout.decode_properties(path.read_text("ascii")).get("cluster.id") for path in found]
    return ids[0] == ids[1]


def _write_manifest(target: Path, ends: Offsets) -> None:
    manifest = {
        "version": 1,
        "finished_ms": int(time.time() * 1000),
        "ends": {str(name): end for name, end in sorted(ends.items())},
    }
    temporary = target / f"{MANIFEST}.tmp"
    with temporary.open("w", encoding="ascii") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target / MANIFEST)
    sync_tree(target)


def _read_manifest(target: Path) -> Offsets:
    path = target / MANIFEST
    try:
        manifest = json.loads(path.read_text("ascii"))
        if manifest["version"] != 1:
            raise StorageError(f"{path}: version {manifest['version']} is of a newer fencelog")
        named = {layout.parse_directory_name(name): end for name, end in manifest["ends"].items()}
        return {name: Offset(end) for name, end in named.items() if name is not None}
    except FileNotFoundError:
        raise StorageError(
            f"{target} has no complete backup ({MANIFEST} is missing): run `fencelog backup` again"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(f"{path}: {error}") from error
