"""Kafka's jars from Maven Central, pinned and checked, fetched once into the user's cache.

``jars.lock`` names them. What a local Maven repository holds already is taken from there, if its
checksum is right. ``FENCELOG_MAVEN`` names another repository of the same shape.
"""

import hashlib
import os
import shutil
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path, PurePosixPath

from fencelog.spark.java import cache_directory

LOCK = Path(__file__).with_name("jars.lock")
REPOSITORY = "https://repo1.maven.org/maven2"
DOWNLOAD_TIMEOUT_S = 30
ATTEMPTS = 3


class JarsMissingError(Exception):
    """A jar is neither here nor to be had; the text says which, and from where."""


@cache
def class_path(section: str) -> str:
    """The class path of a section of ``jars.lock``: ``client`` or ``tools``.

    Fetches what is missing. Raises JarsMissingError.
    """
    folder = cache_directory(os.environ) / "jars"
    folder.mkdir(exist_ok=True)
    with ThreadPoolExecutor(8) as pool:
        jars = pool.map(lambda row: _jar(folder, *row), locked(section))
        return os.pathsep.join(str(jar) for jar in jars)


def locked(section: str) -> list[tuple[str, str]]:
    """The checksum and the path of each jar of a section."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for line in LOCK.read_text("utf-8").splitlines():
        if line.startswith("["):
            name = line.strip("[]")
            rows[name] = []
        elif line and not line.startswith("#"):
            checksum, path = line.split()
            rows[name].append((checksum, path))
    return rows[section]


def _jar(folder: Path, checksum: str, path: str) -> Path:
    # Under its checksum's beginning: two versions of one jar may have one name in two places.
    jar = folder / f"{checksum[:8]}-{PurePosixPath(path).name}"
    local = Path.home() / ".m2" / "repository" / path
    if not _is(jar, checksum):
        handle, written = tempfile.mkstemp(dir=folder)
        os.close(handle)
        if _is(local, checksum):
            shutil.copyfile(local, written)
        else:
            _download(path, Path(written))
        if not _is(Path(written), checksum):
            Path(written).unlink()
            raise JarsMissingError(f"{path}: what came is not what jars.lock names")
        # Two runs may fetch at once: each writes its own file, and the last rename stands.
        Path(written).rename(jar)
    return jar


def _is(jar: Path, checksum: str) -> bool:
    return jar.is_file() and hashlib.sha256(jar.read_bytes()).hexdigest() == checksum


def _download(path: str, to: Path) -> None:
    url = f"{os.environ.get('FENCELOG_MAVEN', REPOSITORY)}/{path}"
    for left in reversed(range(ATTEMPTS)):
        try:
            with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_S) as answer:
                to.write_bytes(answer.read())
        except OSError as error:
            if not left:
                to.unlink()
                raise JarsMissingError(f"GET {url} failed: {error}") from error
        else:
            return
