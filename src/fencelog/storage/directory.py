"""The data directory: its cluster and node id, its partitions, and their checkpoints.

Names and contents are Kafka's: ``meta.properties``, ``topic-partition`` directories, the offset
checkpoints, and the clean shutdown marker. (The lock that keeps a second broker out is in the
adapter, because it ends with the process.)
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Self

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.ports import Disk, Random
from fencelog.storage.checkpoint import read_file, remove_file, replace_file
from fencelog.storage.clean_stop import CleanStop
from fencelog.storage.granted import Granted
from fencelog.storage.recover import Durability
from fencelog.types import Offset, TopicId, TopicPartition

# A name in a file system has at most 255 bytes; partition number, topic id and suffix take 51.
_DELETED_TOPIC_CHARACTERS = 200

FORMAT_VERSION = 1
"""The version of the directory's format; one without a version is an older one of the same files.

It is raised by a change that an older broker would misread.
"""
_FORMAT = "fencelog.format"
_BOOT_ID = "fencelog.boot.id"
_DURABILITY = "fencelog.durability"
"""The mode of the last run, or ``os`` if one since the last clean stop was in that mode.

A directory without it is of an older fencelog, and counts as ``os``.
"""
_PRODUCER_IDS = "fencelog.producer.ids"
_COORDINATOR_EPOCH = "fencelog.coordinator.epoch"


class DataDirectory:
    """The files at the top of the data directory. One broker at a time uses it."""

    def __init__(
        self, disk: Disk, *, cluster_id: str, node_id: int, directory_id: str = ""
    ) -> None:
        """See ``open``."""
        self._disk = disk
        self.cluster_id = cluster_id
        self.directory_id = directory_id
        """Made once, with the directory: another one has lost what this one had."""
        self.node_id = node_id
        self._clean: dict[TopicPartition, str] = {}
        self._recovery_points: dict[TopicPartition, Offset] = {}
        self._log_starts: dict[TopicPartition, Offset] = {}
        self._first_dirty: dict[TopicPartition, Offset] = {}
        self._high_watermarks: dict[TopicPartition, Offset] = {}
        self._is_compacting = False
        self._is_replicated = False
        self._has_unsynced = False
        self.may_lack_records = False
        """Whether the machine has restarted since a run in ``os`` mode, which did not end cleanly.

        What that run had written and not synced may be lost; True until ``know_run``.
        """
        self.granted = Granted()
        """What the cluster's metadata had granted, as ``know_granted`` says."""
        self._written: dict[str, bytes] = {}
        self._checkpointing = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        disk: Disk,
        random: Random,
        *,
        node_id: int = 1,
        cluster_id: str | None = None,
        boot_id: str | None = None,
    ) -> Self:
        """Read the files of the last run, and begin a run that counts as unclean until ``close``.

        ``cluster_id`` is that of the cluster of several brokers that this one is in, and
        ``boot_id`` says which start of the machine this is. Raises CorruptionError if the top files
        are unreadable, belong to another node or cluster, or have a newer format than this
        broker's.
        """
        # A killed run may have left names that were never synced; they are relied on from now on.
        await disk.sync_directory("")
        properties = await _read_properties(disk, random, node_id, cluster_id)
        directory = cls(
            disk,
            cluster_id=properties["cluster.id"],
            node_id=node_id,
            directory_id=properties.get("directory.id", ""),
        )
        present = set(await directory.partitions())
        directory._recovery_points = await _read_offsets(disk, layout.RECOVERY_POINT_CHECKPOINT)
        directory._log_starts = await _read_offsets(disk, layout.LOG_START_CHECKPOINT)
        directory._first_dirty = await _read_offsets(disk, layout.CLEANER_CHECKPOINT)
        directory._is_compacting = bool(directory._first_dirty)
        if cluster_id is not None:
            directory._is_replicated = True
            directory._high_watermarks = await _read_offsets(disk, layout.HIGH_WATERMARK_CHECKPOINT)
        directory.granted = Granted(
            _number(properties, _PRODUCER_IDS, 0), _number(properties, _COORDINATOR_EPOCH, -1)
        )
        marker = await read_file(disk, layout.CLEAN_SHUTDOWN)
        clean = {} if marker is None else _clean(marker)
        directory._clean = {name: clean[name] for name in present & clean.keys()}
        # A partition that failed, or could not be closed, is not in the marker.
        is_clean = present == directory._clean.keys()
        directory._has_unsynced = not is_clean and properties.get(_DURABILITY) != "fsync"
        is_same_boot = boot_id is None or properties.get(_BOOT_ID) == boot_id
        directory.may_lack_records = directory._has_unsynced and not is_same_boot
        if marker is not None:
            # Last: where this fails before, the next start is as clean as this one was.
            await remove_file(disk, layout.CLEAN_SHUTDOWN)
        return directory

    @staticmethod
    async def cluster_of(disk: Disk, node_id: int) -> str | None:
        """Return the cluster that the directory on this disk belongs to; None if it is new.

        Raises CorruptionError as ``open`` does.
        """
        content = await read_file(disk, layout.META_PROPERTIES)
        return None if content is None else _properties(content, node_id)["cluster.id"]

    async def partitions(self) -> list[TopicPartition]:
        """Partitions that have a directory here."""
        return await self.partitions_of(self._disk)

    @staticmethod
    async def partitions_of(disk: Disk) -> list[TopicPartition]:
        """Partitions that have a directory on this disk."""
        names = map(layout.parse_directory_name, await disk.list(""))
        return sorted(name for name in names if name is not None)

    @staticmethod
    def path_of(partition: TopicPartition) -> str:
        """Directory of a partition, relative to the data directory."""
        return layout.directory_name(partition)

    def take_clean(self, partition: TopicPartition) -> str | None:
        """Return the checksum over the files of a partition that was closed cleanly; else None.

        Call it once, before the partition's recovery: it is unclean from then on until ``close``
        names it. A partition that no run has opened since a crash stays unclean.
        """
        return self._clean.pop(partition, None)

    def recovery_point(self, partition: TopicPartition) -> Offset:
        """Return the offset below which everything was synced; 0 if unknown."""
        return self._recovery_points.get(partition, Offset(0))

    def log_start(self, partition: TopicPartition) -> Offset:
        """Return the offset below which everything was deleted; 0 if nothing was."""
        return self._log_starts.get(partition, Offset(0))

    def high_watermark(self, partition: TopicPartition) -> Offset | None:
        """Return the high watermark as far as it is known; None: all that is here is committed.

        It is known if the broker is one of several: the stored one, or 0 if none was stored.
        """
        return self._high_watermarks.get(partition, Offset(0)) if self._is_replicated else None

    async def know_run(self, boot_id: str, durability: Durability) -> None:
        """Store what this run is: what an earlier boot has lost is taken care of.

        Raises StorageError.
        """
        if self._has_unsynced and not self.may_lack_records:
            durability = "os"  # what an earlier run of this boot has left is not synced yet
        await self._set_properties({_BOOT_ID: boot_id, _DURABILITY: durability})
        self.may_lack_records = False

    async def know_granted(self, granted: Granted) -> None:
        """Store that these producer ids and coordinator epochs are in use.

        The metadata store says it, too, but may be restored from an older copy. What is known
        already is not lowered. Raises StorageError.
        """
        before, self.granted = self.granted, self.granted.and_also(granted)
        if self.granted != before:
            values = dict(zip((_PRODUCER_IDS, _COORDINATOR_EPOCH), self.granted, strict=True))
            await self._set_properties({k: str(v) for k, v in values.items() if v >= 0})

    async def _set_properties(self, values: Mapping[str, str]) -> None:
        async with self._checkpointing:
            path = layout.META_PROPERTIES
            content = await read_file(self._disk, path)
            properties = _properties(content or b"", self.node_id)
            known = {**properties, **values}
            if known != properties:
                await replace_file(self._disk, path, layout.encode_properties(known).encode())

    def first_dirty(self, partition: TopicPartition) -> Offset | None:
        """Return where compaction continues; None for a partition that was never compacted."""
        return self._first_dirty.get(partition)

    async def checkpoint_cleaner(self, partition: TopicPartition, first_dirty: Offset) -> None:
        """Store how far a partition is compacted, durably.

        The first entry must be stored before any record is removed: without it, recovery treats
        missing offsets as damage.
        """
        self._is_compacting = True
        self._first_dirty[partition] = first_dirty
        await self._write_checkpoints()

    async def checkpoint(
        self,
        recovery_points: Mapping[TopicPartition, Offset],
        log_starts: Mapping[TopicPartition, Offset] | None = None,
        high_watermarks: Mapping[TopicPartition, Offset] | None = None,
    ) -> None:
        """Store these offsets durably; partitions that are not named keep theirs.

        ``high_watermarks`` are those of all partitions at one instant: a backup ends there, without
        a part of a transaction or a group's offset past its data. Only replicas begin with them.

        A log start must be stored here before the segments below it are deleted. One that is below
        the stored one is stale, and is ignored.
        """
        self._recovery_points.update(recovery_points)
        for partition, start in (log_starts or {}).items():
            self._log_starts[partition] = max(start, self.log_start(partition))
        if high_watermarks is not None:
            kept = self._high_watermarks if self._is_replicated else {}
            self._high_watermarks = {**kept, **high_watermarks}
        await self._write_checkpoints()

    async def begin_replica(self, partition: TopicPartition, offset: Offset) -> None:
        """Store, durably, that a new replica of a partition begins at this offset."""
        self._recovery_points[partition] = self._log_starts[partition] = offset
        self._high_watermarks[partition] = offset
        await self._write_checkpoints()

    async def remove_partitions(self, partitions: Mapping[TopicPartition, TopicId]) -> None:
        """Remove the directories of deleted topics' partitions, durably, by renaming them.

        Their stores must be closed. A missing directory is ignored. ``finish_deletions`` deletes
        the files, in this run or the next.
        """
        # The offsets first: a new partition of this name must not inherit them, and offsets without
        # a directory mean that the directory was lost (``check_new``).
        tables = (
            self._recovery_points,
            self._log_starts,
            self._first_dirty,
            self._high_watermarks,
        )
        known = any(partition in table for table in tables for partition in partitions)
        for partition in partitions:
            for table in tables:
                table.pop(partition, None)
            self._clean.pop(partition, None)
        if known:
            await self._write_checkpoints()
        present = set(await self._disk.list(""))
        renamed = False
        for partition, topic_id in partitions.items():
            path = self.path_of(partition)
            if path not in present:
                continue
            short = partition._replace(topic=partition.topic[:_DELETED_TOPIC_CHARACTERS])
            deleted = layout.deleted_directory_name(short, topic_id)
            if deleted in present:
                # A crash may have left a partly deleted directory under this name.
                await self._disk.remove(deleted)
            await self._disk.rename(path, deleted)
            renamed = True
        if renamed:
            await self._disk.sync_directory("")

    async def finish_deletions(self) -> None:
        """Delete the files of all directories that ``remove_partitions`` has renamed."""
        for name in await self._disk.list(""):
            if layout.is_deleted_directory_name(name):
                await self._disk.remove(name)

    def check_new(self, partition: TopicPartition, *, was_created: bool = False) -> None:
        """Raise CorruptionError if a partition without a directory had one before (D3)."""
        end = self.recovery_point(partition)
        if end > 0 or was_created:
            had = f"had synced records below offset {end}" if end > 0 else "was stored"
            raise CorruptionError(
                f"{self.path_of(partition)}: the directory is missing, but it {had}: put it back "
                "or restore a backup; `fencelog partition salvage` lets it begin anew"
            )

    async def close(self, clean_stops: Mapping[TopicPartition, CleanStop]) -> None:
        """Mark the stop as clean for these partitions, whose stores were closed cleanly before.

        Opened partitions that are not named (failed, damaged) are recovered at the next start.
        """
        await self.checkpoint({name: stop.end_offset for name, stop in clean_stops.items()})
        clean = self._clean | {name: stop.checksum for name, stop in clean_stops.items()}
        # Clean partitions are listed, not unclean ones: a damaged name then trusts no partition.
        named = {self.path_of(p): clean[p] for p in await self.partitions() if p in clean}
        marker = {"version": 0, "brokerEpoch": -1, "clean": named}
        await replace_file(self._disk, layout.CLEAN_SHUTDOWN, json.dumps(marker).encode("ascii"))

    async def _write_checkpoints(self) -> None:
        async with self._checkpointing:
            for path, offsets in (
                (layout.LOG_START_CHECKPOINT, self._log_starts),
                (layout.RECOVERY_POINT_CHECKPOINT, self._recovery_points),
                (layout.CLEANER_CHECKPOINT, self._first_dirty),
                (layout.HIGH_WATERMARK_CHECKPOINT, self._high_watermarks),
            ):
                if path == layout.CLEANER_CHECKPOINT and not self._is_compacting:
                    continue
                is_watermarks = path == layout.HIGH_WATERMARK_CHECKPOINT
                if is_watermarks and not offsets and not self._is_replicated:
                    continue
                content = layout.encode_offsets(offsets).encode("ascii")
                if content != self._written.get(path):
                    await replace_file(self._disk, path, content)
                    self._written[path] = content


def _clean(marker: bytes) -> dict[TopicPartition, str]:
    """Return the partitions that a clean shutdown marker names, with their checksums.

    Empty if the marker is damaged, or Kafka's own: ignoring it costs only a longer start.
    """
    try:
        named = json.loads(marker).get("clean")
    except (ValueError, AttributeError):
        named = None
    if not isinstance(named, dict):
        return {}
    partitions = {layout.parse_directory_name(name): text for name, text in named.items()}
    return {p: text for p, text in partitions.items() if p is not None and isinstance(text, str)}


async def _read_offsets(disk: Disk, path: str) -> dict[TopicPartition, Offset]:
    content = await read_file(disk, path)
    try:
        return {} if content is None else layout.decode_offsets(content.decode("ascii", "replace"))
    except CorruptionError as error:
        raise CorruptionError(f"{path}: {error}") from error


async def _read_properties(
    disk: Disk, random: Random, node_id: int, cluster_id: str | None
) -> dict[str, str]:
    """Return the contents of ``meta.properties``; create that file for a new directory.

    Raises CorruptionError for a damaged file, and for one of another node or cluster, or of a newer
    format.
    """
    path = layout.META_PROPERTIES
    content = await read_file(disk, path)
    if content is None:
        held = await DataDirectory.partitions_of(disk)
        if held:
            raise CorruptionError(
                f"{path} is missing, but there are partition directories, such as {held[0]}: "
                "restore it from a backup of this directory"
            )
        properties = {
            "cluster.id": cluster_id or layout.topic_id_text(TopicId(random.bytes(16))),
            "directory.id": layout.topic_id_text(TopicId(random.bytes(16))),
            "node.id": str(node_id),
            "version": "1",
        }
    else:
        properties = _properties(content, node_id)
        if cluster_id not in {None, properties["cluster.id"]}:
            raise CorruptionError(
                f"{path}: the directory belongs to cluster {properties['cluster.id']}, "
                f"this is cluster {cluster_id}"
            )
    # Last: a start that is refused above leaves the file as it is.
    if properties.get(_FORMAT) != str(FORMAT_VERSION):
        properties[_FORMAT] = str(FORMAT_VERSION)
        await replace_file(disk, path, layout.encode_properties(properties).encode("ascii"))
    return properties


def _properties(content: bytes, node_id: int) -> dict[str, str]:
    """Return the properties of a directory that this broker can use."""
    path = layout.META_PROPERTIES
    try:
        properties = layout.decode_properties(content.decode("ascii"))
    except (CorruptionError, UnicodeDecodeError) as error:
        raise CorruptionError(f"{path}: {error}") from error
    if not properties.get("cluster.id") or properties.get("version") != "1":
        raise CorruptionError(f"{path}: cluster.id is missing, or the version is not 1")
    if properties.get("node.id") != str(node_id):
        raise CorruptionError(
            f"{path}: the directory belongs to node {properties.get('node.id')}, "
            f"this is node {node_id}"
        )
    written = _number(properties, _FORMAT, 0)
    if written > FORMAT_VERSION:
        raise CorruptionError(
            f"{path}: the directory has format {written}, this fencelog knows formats up to "
            f"{FORMAT_VERSION}: use the newer fencelog that wrote it, or restore a backup"
        )
    return properties


def _number(properties: Mapping[str, str], name: str, missing: int) -> int:
    """Return a property that is a number. Raises CorruptionError for anything else."""
    written = properties.get(name)
    if written is None:
        return missing
    if not (written.isascii() and written.isdigit()):
        raise CorruptionError(f"{layout.META_PROPERTIES}: {name}={written} is not a number")
    return int(written)
