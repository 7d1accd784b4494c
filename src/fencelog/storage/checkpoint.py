"""Small files that are replaced as a whole: after a crash the old or the new content is there."""

from fencelog.errors import CorruptionError
from fencelog.ports import Disk

_TEMPORARY = ".tmp"
SMALL_FILE_BYTES_MAX = 64 << 20


async def replace_file(disk: Disk, path: str, content: bytes, *, durable: bool = True) -> None:
    """Replace the file at ``path`` by ``content``, atomically; durably unless ``durable`` is false.

    Raises StorageError; the file then has the old content or the new.
    """
    temporary = path + _TEMPORARY
    file = await disk.open(temporary, create=True)
    if file.size > 0:
        # A crash left it: a new file takes its place.
        await file.close()
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
    """Return the whole file, or None if there is none."""
    try:
        file = await disk.open(path)
    except FileNotFoundError:
        return None
    try:
        if file.size > SMALL_FILE_BYTES_MAX:
            raise CorruptionError(
                f"{path}: the file has {file.size} bytes, the limit is {SMALL_FILE_BYTES_MAX}"
            )
        return await file.read(0, file.size)
    finally:
        await file.close()


async def remove_file(disk: Disk, path: str) -> None:
    """Remove a file durably; do nothing if there is none."""
    await disk.remove(path)
    await disk.sync_directory(parent_of(path))


def is_temporary(name: str) -> bool:
    """Whether a name is that of a temporary file of ``replace_file``, left by a crash."""
    return name.endswith(_TEMPORARY)


def parent_of(path: str) -> str:
    """Return the directory that holds a path."""
    return path.rpartition("/")[0]
