"""Opens one partition: as an earlier run left it, cut at a fork, or a new one. And closes it."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from fencelog.broker.partitions.partition import Partition
from fencelog.errors import CorruptionError, ExhaustedError, StorageError
from fencelog.log.config import LogConfig
from fencelog.log.leader_epochs import FIRST_EPOCH
from fencelog.log.partition_log import PartitionLog
from fencelog.ports import Disk
from fencelog.storage.checkpointer import Begin
from fencelog.storage.clean_stop import CleanStop
from fencelog.storage.directory import DataDirectory
from fencelog.storage.partition_store import PartitionStore
from fencelog.storage.recover import Durability
from fencelog.storage.seal_store import SealStore
from fencelog.storage.topic_id import check_topic_id
from fencelog.storage.writeback import Writeback
from fencelog.types import LeaderEpoch, Offset, TopicId, TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replica:
    """A partition to open on this broker."""

    name: TopicPartition
    topic_id: TopicId
    config: LogConfig
    exists: bool
    """Whether its directory exists from an earlier run."""
    was_created: bool = False
    """Whether the metadata says that its files were durable: if they are missing, they are lost."""
    is_always_synced: bool = False
    """Whether an acknowledgement waits for stable storage in ``os`` mode, too (O3)."""
    leader_epoch: LeaderEpoch = FIRST_EPOCH
    """The newest one that the metadata has: no batch has a newer one (D3)."""
    seal: bytes | None = None
    """All that is left of a segment whose files are removed; None: it has files."""


class How(NamedTuple):
    """How a replica is opened, if not as the last run left it."""

    clean: str | None = None
    """The checksum of its close in this run."""
    truncate_to: Offset | None = None
    """Where its log forks from its leader's."""
    begin: Begin | None = None
    """Where a new one begins, if above offset 0."""


async def open_files(
    disk: Disk,
    directory: DataDirectory,
    replica: Replica,
    how: How,
    shared: tuple[Durability, Writeback],
) -> tuple[PartitionStore | SealStore, PartitionLog]:
    """Open what there is of a partition, or create it. Raises CorruptionError and StorageError.

    Files of a segment that is to have none are removed, or stay for the next start: its seal needs
    none.
    """
    name, (durability, writeback) = replica.name, shared
    if replica.seal is not None:
        try:
            if replica.exists:
                await check_topic_id(disk, directory.path_of(name), replica.topic_id)
                await directory.remove_partitions({name: replica.topic_id})
        except (CorruptionError, StorageError) as error:
            log.error("%s: the files of a deleted segment stay: %s", name, error)  # noqa: TRY400
        seal_log = PartitionLog.of_seal(replica.config, replica.seal)
        return SealStore(replica.seal, seal_log), seal_log
    if replica.is_always_synced:
        durability = "fsync"
    if replica.exists:
        return await PartitionStore.recover(
            disk,
            directory.path_of(name),
            replica.config,
            clean=directory.take_clean(name) or how.clean,
            recovery_point=directory.recovery_point(name),
            log_start=directory.log_start(name),
            durability=durability,
            topic_id=replica.topic_id,
            was_compacted=directory.first_dirty(name) is not None,
            was_created=replica.was_created,
            leader_epoch=replica.leader_epoch,
            writeback=writeback,
            high_watermark=directory.high_watermark(name),
            truncate_to=how.truncate_to,
        )
    directory.check_new(name, was_created=replica.was_created)
    return await PartitionStore.create(
        disk,
        directory.path_of(name),
        replica.topic_id,
        replica.config,
        durability=durability,
        writeback=writeback,
        begin=how.begin,
    )


async def obstacles(
    disk: Disk, directory: DataDirectory, names: Sequence[TopicPartition]
) -> dict[TopicPartition, str]:
    """Return why some of these new partitions would reuse files of no topic (D3)."""
    present = set(await disk.list(""))
    problems: dict[TopicPartition, str] = {}
    for name in names:
        path = directory.path_of(name)
        if path in present:
            problems[name] = (
                f"the directory {path} exists but belongs to no topic: move it away, then create "
                "the topic"
            )
            continue
        try:
            directory.check_new(name)
        except CorruptionError as error:
            problems[name] = str(error)
    return problems


async def sync_or_skip(partition: Partition) -> None:
    """Sync a partition, unless something has run out."""
    with suppress(ExhaustedError):
        await partition.sync()


async def close_one(partition: Partition, stops: dict[TopicPartition, CleanStop]) -> None:
    """Close one partition's files; after a clean close, add its CleanStop to ``stops``."""
    try:
        stop = await partition.close(clean=partition.failure is None)
    except StorageError as error:
        log.error("%s could not be closed: %s", partition.name, error)  # noqa: TRY400
        return
    if stop is not None and partition.failure is None:
        stops[partition.name] = stop
