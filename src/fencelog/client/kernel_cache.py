"""Where the compiled kernels are kept for later processes, and who compiles them ahead of need.

Nothing here imports numba: that alone takes most of a second.
"""

import hashlib
import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

SOURCES: Final = tuple(Path(__file__).with_name(name) for name in ("kernel.py", "kernel_encode.py"))
COMPILE: Final = "import fencelog.client.kernel, fencelog.client.kernel_encode"


def private_folder() -> Path | None:
    """Return a folder that only this user can write (its contents are run), or None."""
    path = Path(tempfile.gettempdir()) / f"fencelog-numba-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return path if private and not found.st_mode & 0o077 else None


def compile_ahead() -> threading.Thread | None:
    """Let another process compile the kernels into numba's cache; returns without waiting.

    Returns who waits for it, or None if one has done it before, from these sources. A process that
    needs them earlier, or finds the cache gone, compiles them itself.
    """
    folder = private_folder()
    if folder is None or (mark := folder / _name_of_mark()).exists():
        return None
    waiting = threading.Thread(target=_compile, args=(mark,), name="fencelog-kernels", daemon=True)
    waiting.start()
    return waiting


def _compile(mark: Path) -> None:
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet, check=False)  # noqa: S603  (this Python)
    if done.returncode == 0:
        mark.touch()


def _name_of_mark() -> str:
    """A name for this Python, cache folder and sources: numba keeps code for each."""
    parts = [sys.version, os.environ.get("NUMBA_CACHE_DIR")]
    for source in SOURCES:
        found = source.stat()
        parts += [str(source), f"{found.st_mtime_ns} {found.st_size}"]
    return f"compiled-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
