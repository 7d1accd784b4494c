"""What a clean stop records of a partition's files, so that the next start can trust them.

Indexes, snapshots and the leader epoch checkpoint have no checksum of their own, because Kafka's
format has no place for one. The clean shutdown marker has one over all that a clean start reads
without walking the log. If it does not match, everything is rebuilt from the log, as after a crash.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from crc32c import crc32c

from fencelog.log import layout
from fencelog.ports import Disk
from fencelog.types import Offset


class CleanStop(NamedTuple):
    """The end offset of a cleanly closed partition, and the checksum over its files."""

    end_offset: Offset
    checksum: str


def is_side_file(name: str) -> bool:
    """Whether a file of a partition can be rebuilt from its log."""
    parsed = layout.parse_file_name(name)
    return name == layout.LEADER_EPOCH_CHECKPOINT or (
        parsed is not None and parsed[1] != layout.LOG
    )


async def remove_side_files(disk: Disk, directory: str, kept: Collection[str | None]) -> None:
    """Remove all that can be rebuilt, but for the files of these names. Raises StorageError."""
    names = [each for each in await disk.list(directory) if is_side_file(each)]
    removed = [each for each in names if each not in kept]
    for name in removed:
        await disk.remove(f"{directory}/{name}")
    if removed:
        await disk.sync_directory(directory)


def _is_believed(name: str, base_offsets: Sequence[Offset]) -> bool:
    parsed = layout.parse_file_name(name)
    is_of_newest = parsed is not None and parsed[0] == base_offsets[-1]
    return is_side_file(name) and (not is_of_newest or name.endswith(layout.SNAPSHOT))


async def checksum_of(disk: Disk, directory: str, base_offsets: Sequence[Offset]) -> str:
    """Return the checksum over what a clean start trusts: 8 hexadecimal digits.

    That is the size of each segment and, of all but the newest, every side file. The newest segment
    is walked at every start, so a partition with one segment has no other file to trust. Raises
    StorageError and CorruptionError.
    """
    if len(base_offsets) == 1:
        names = [layout.file_name(base_offsets[0], layout.LOG)]
    else:
        names = sorted(await disk.list(directory))
    value = 0
    for name in names:
        parsed = layout.parse_file_name(name)
        is_segment = parsed is not None and parsed[1] == layout.LOG
        if not is_segment and not _is_believed(name, base_offsets):
            continue
        value = crc32c(f"{name}\n".encode("ascii"), value)
        file = await disk.open(f"{directory}/{name}")
        try:
            value = crc32c(file.size.to_bytes(8), value)
            if not is_segment:
                value = crc32c(await file.read(0, file.size), value)
        finally:
            await file.close()
    return f"{value:08x}"


async def synced_checksum(disk: Disk, directory: str, base_offsets: Sequence[Offset]) -> str:
    """Sync what a clean start trusts, names included; return ``checksum_of`` it."""
    if len(base_offsets) > 1:
        for name in await disk.list(directory):
            if is_side_file(name):
                file = await disk.open(f"{directory}/{name}")
                try:
                    await file.sync()
                finally:
                    await file.close()
        await disk.sync_directory(directory)
    return await checksum_of(disk, directory, base_offsets)
