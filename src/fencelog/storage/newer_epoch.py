"""Finds a log that was written in a newer leader epoch than the metadata store knows of (F7).

A leader writes in an epoch that is stored there, so it has lost what it had: somebody has restored
an older backup of it. Opened with the store's epoch, the newest batches would count as damage.
"""

from fencelog.errors import CorruptionError
from fencelog.log import layout
from fencelog.ports import Disk
from fencelog.storage.checkpoint import read_file
from fencelog.storage.segment import walk
from fencelog.types import LeaderEpoch
from fencelog.wire.batch import BatchHeader


async def newer_epoch(disk: Disk, directory: str, newest: LeaderEpoch) -> LeaderEpoch | None:
    """Return the log's last leader epoch if it is above ``newest``, else None.

    Only if the checkpoint and a batch have it: neither has a checksum over it, so one alone may be
    a flipped bit. Raises StorageError.
    """
    path = f"{directory}/{layout.LEADER_EPOCH_CHECKPOINT}"
    try:
        text = (await read_file(disk, path) or b"").decode("ascii", "replace")
        entries = layout.decode_leader_epochs(text)
    except CorruptionError:
        return None
    if not entries or entries[-1].epoch <= newest:
        return None
    last = entries[-1]
    names = map(layout.parse_file_name, await disk.list(directory))
    bases = sorted(name[0] for name in names if name is not None and name[1] == layout.LOG)
    earlier = [base for base in bases if base <= last.offset]
    for base in bases[max(len(earlier) - 1, 0) :]:
        if await _has_epoch(disk, f"{directory}/{layout.file_name(base, layout.LOG)}", last.epoch):
            return LeaderEpoch(last.epoch)
    return None


async def _has_epoch(disk: Disk, path: str, epoch: int) -> bool:
    found = False

    def visit(header: BatchHeader, batch: memoryview, position: int) -> str | None:
        nonlocal found
        del batch, position
        found = found or header.leader_epoch == epoch
        return "found" if found else None

    file = await disk.open(path)
    try:
        await walk(file, visit)
    finally:
        await file.close()
    return found
