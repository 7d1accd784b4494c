"""Small files that are replaced as a whole: after a crash the old one or the new one is there."""

from fencelog.errors import CorruptionError
from fencelog.ports import Disk

_TEMPORARY = ".tmp"
SMALL_FILE_BYTES_MAX = 64 << 20


async def replace_file(disk: Disk, path: str, content: bytes, *, durable: bool = True) -> None:
    """Make ``content`` the file at ``path``, atomically, and durably unless told otherwise.

    Raises StorageError; the old content then still stands, or the new one already does.
    """
    temporary = path + _TEMPORARY
    # What a crash left under this name would otherwise be appended to.
    await disk.remove(temporary)
    file = await disk.open(temporary, create=True)
    try:
        await file.append([content])
        if durable:
            await file.sync()
    finally:
        await file.close()
    await disk.rename(temporary, path)
    if durable:
        await disk.sync_directory(parent_of(path))


async def read_file(disk: Disk, path: str) -> bytes | None:
    """Return the whole file, or None where there is none."""
    try:
        file = await disk.open(path)
    except FileNotFoundError:
        return None
    try:
        if file.size > SMALL_FILE_BYTES_MAX:
            raise CorruptionError(f"{path}: {file.size} bytes, at most {SMALL_FILE_BYTES_MAX}")
        return await file.read(0, file.size)
    finally:
        await file.close()


async def remove_file(disk: Disk, path: str) -> None:
    """Remove a file durably; nothing happens where there is none."""
    await disk.remove(path)
    await disk.sync_directory(parent_of(path))


def is_temporary(name: str) -> bool:
    """Whether a name is what a crash left of ``replace_file``."""
    return name.endswith(_TEMPORARY)


def parent_of(path: str) -> str:
    """Return the directory that holds a path."""
    return path.rpartition("/")[0]
