"""A small file system of its own for a broker's data, which can be filled to the last byte.

An ext4 image on a loop device, where mounting is permitted. Elsewhere the broker's files are kept
from growing (RLIMIT_FSIZE on the running process): a real failure of a real write, with EFBIG.
"""

import contextlib
import errno
import os
import resource
import subprocess
from pathlib import Path
from typing import Protocol

from tests.support.closing import Closing

FILL_STEP_BYTES_MIN = 4096


class FullDisk(Protocol):
    """Where a broker writes, and how to keep it from writing."""

    data_dir: Path
    fault: str
    """What a full disk is here, in words."""

    def fill(self, pid: int) -> None:
        """From now on writes of this broker fail."""
        ...

    def free(self, pid: int) -> None:
        """There is room again."""
        ...


class LoopDisk(Closing):
    """An ext4 image, mounted in ``folder``. A context manager: leaving unmounts."""

    fault = "disk full (ENOSPC)"

    def __init__(self, folder: Path, mebibytes: int) -> None:
        """Raises OSError where mounting is not permitted."""
        self._mounted = folder / "disk"
        self._filler = self._mounted / "filler"
        self.data_dir = self._mounted / "data"
        image = folder / "disk.img"
        self._mounted.mkdir()
        with image.open("wb") as file:
            file.truncate(mebibytes << 20)
        _run("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1", str(image))
        _run("mount", "-o", "loop", str(image), str(self._mounted))

    def fill(self, pid: int) -> None:
        """Take every block that is free, and again what was freed meanwhile."""
        step = 1 << 30
        with self._filler.open("ab") as file:
            while step >= FILL_STEP_BYTES_MIN:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2

    def free(self, pid: int) -> None:
        """Give the blocks back."""
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount; also where a dying process still holds a file."""
        with contextlib.suppress(OSError):
            _run("umount", "-l", str(self._mounted))


class LimitedFiles(Closing):
    """A plain folder, and a broker whose files may not grow."""

    fault = "files kept from growing (EFBIG)"

    def __init__(self, folder: Path) -> None:
        """Nothing to prepare."""
        self.data_dir = folder / "data"

    def fill(self, pid: int) -> None:
        """No write may extend a file."""
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))

    def free(self, pid: int) -> None:
        """As before."""
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

    def close(self) -> None:
        """Nothing to undo."""


def small_disk(folder: Path, mebibytes: int) -> LoopDisk | LimitedFiles:
    """The best that this machine permits."""
    try:
        return LoopDisk(folder, mebibytes)
    except OSError:
        return LimitedFiles(folder)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        raise OSError(f"{command[0]}: {error.stderr.decode(errors='replace')}") from error
