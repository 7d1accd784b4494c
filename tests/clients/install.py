"""Installs the clients that are not in our own environment, each once, into the user's cache.

npm's clients come from a committed lock by ``npm ci``, Go's by the sums of its modules, kcat from
Debian, and frameworks in Python, each into an environment of its own, from committed locks. What
cannot be had is told by the command that failed and what it said.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fencelog.spark.java import cache_directory

HERE = Path(__file__).parent
RUN = HERE.parent.parent / ".cache" / "clients"
RUN_UV = HERE.parent.parent / "tools" / "run_uv.py"
DRIVERS = HERE / "drivers"
DEADLINE_S = 420.0

# Only where the makers' own binary cannot be downloaded: a build for a test, as fast as can be.
BUILD = {"CKJS_LINKING": "dynamic", "CFLAGS": "-O0 -g0", "CXXFLAGS": "-O0 -g0"}
KCAT_PACKAGES = ("kcat", "librdkafka1", "libyajl2")


class NotInstalled(Exception):  # noqa: N818 - it names a fact
    """A client cannot be had here; the message names the command that failed and its last words."""


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run an install command; raises NotInstalled with the errors that it printed."""
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"`{shown}` failed: {error}") from error
    if done.returncode != 0:
        lines = done.stdout.strip().splitlines()
        said = [line for line in lines if "error" in line.lower()][:10] or lines[-10:]
        raise NotInstalled(f"`{shown}` failed with status {done.returncode}:\n" + "\n".join(said))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of the installation meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def npm(name: str) -> Path:
    """Install the package list of the folder ``name`` by its lock; returns where programs can run.

    That is a folder of this checkout, with the drivers in it and what is installed linked beside
    them, so that they import clients as anybody does. Packages are built in the user's cache: once
    for all checkouts, and where no path has a space, which their makefiles do not bear.
    """
    source = HERE / name
    lock = (source / "package-lock.json").read_bytes()
    version = f"{name}-{hashlib.sha256(lock).hexdigest()[:12]}"
    modules = _installed(source, cache() / version)
    folder = RUN / version
    with alone(folder):
        link = folder / "node_modules"
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(modules)
        for driver in DRIVERS.glob("*.mjs"):
            shutil.copy(driver, folder)
    return folder


def cache() -> Path:
    """Where installations are kept."""
    return cache_directory(os.environ) / "clients"


def python_environment(lock: Path) -> Path:
    """The Python of an environment of its own, with the packages that a lock pins."""
    version = f"{lock.stem}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    folder = cache() / f"python{sys.version_info.major}.{sys.version_info.minor}" / version
    # uv has a lock file of its own in an environment, of the name that ours has.
    environment = folder / "environment"
    python = environment / "bin" / "python"
    with alone(folder):
        done = folder / "installed"
        if not done.exists():
            uv = [sys.executable, str(RUN_UV)]
            venv = ["venv", "--quiet", "--clear", "--python", sys.executable, str(environment)]
            run([*uv, *venv], folder)
            # PySpark is a source distribution of compressed data: see dev.
            (folder / "build.cfg").write_text("[bdist_wheel]\ncompression = stored\n")
            stored = {"DIST_EXTRA_CONFIG": str(folder / "build.cfg")}
            pinned = ["--require-hashes", "-r", str(lock)]
            into = ["--quiet", "--python", str(python)]
            run([*uv, "pip", "install", *into, *pinned], folder, stored)
            done.touch()
    return python


def packages_of(lock: Path) -> Path:
    """The folder of such an environment's packages, to be put before those of another one."""
    python = python_environment(lock)
    (found,) = python.parent.parent.glob("lib/python*/site-packages")
    return found


def _installed(source: Path, folder: Path) -> Path:
    """The modules that the lock of ``source`` names, in ``folder``."""
    with alone(folder):
        done = folder / "installed"
        if not done.exists():
            for file in ("package.json", "package-lock.json"):
                shutil.copy(source / file, folder)
            if shutil.which("npm") is None:
                raise NotInstalled("`npm ci` failed: there is no npm on the PATH")
            run(["npm", "ci", "--foreground-scripts", "--no-audit", "--no-fund"], folder, BUILD)
            done.touch()
    return folder / "node_modules"


def node_of(folder: Path) -> str:
    """The Node that was installed with these clients, else the one of the PATH."""
    own = sorted(folder.glob("node_modules/node-linux-*/bin/node"))
    return str(own[0]) if own else "node"


def kcat() -> Path:
    """The kcat of the PATH, or Debian's, installed where one may and unpacked where one may not."""
    if os.geteuid() == 0 or shutil.which("kcat"):
        return debian("kcat", "kcat")
    folder = cache() / "kcat"
    with alone(folder):
        return unpacked_kcat(folder)


def debian(program: str, package: str) -> Path:
    """The program of the PATH, or Debian's: installed where one may, else unpacked."""
    if found := shutil.which(program):
        return Path(found)
    folder = cache() / package
    with alone(folder):
        if os.geteuid() != 0:
            unpacked = folder / "usr" / "bin" / program
            if not unpacked.exists():
                unpack(package, folder)
            return unpacked
        install = ["apt-get", "install", "--yes", "--no-install-recommends", package]
        try:
            run(install, folder, {"DEBIAN_FRONTEND": "noninteractive"})
        except NotInstalled:
            run(["apt-get", "update"], folder)
            run(install, folder, {"DEBIAN_FRONTEND": "noninteractive"})
        return Path(shutil.which(program) or program)


def unpack(package: str, folder: Path) -> None:
    """Unpack a package of Debian's, without those that it needs."""
    run(["apt-get", "download", package], folder)
    for file in folder.glob("*.deb"):
        run(["dpkg", "-x", file.name, "."], folder)


def unpacked_kcat(folder: Path) -> Path:
    """Debian's kcat and its libraries in a folder, and a program there that finds them."""
    program = folder / "kcat"
    if not program.exists():
        run(["apt-get", "download", *KCAT_PACKAGES], folder)
        for package in folder.glob("*.deb"):
            run(["dpkg", "-x", package.name, "."], folder)
        (libraries,) = {path.parent for path in folder.rglob("librdkafka.so.1")}
        program.write_text(
            f"#!/bin/sh\nLD_LIBRARY_PATH='{libraries}' exec '{folder}/usr/bin/kcat' \"$@\"\n"
        )
        program.chmod(0o755)
    return program


def franz_go() -> Path:
    """The program of the folder ``go``, built with the modules that its ``go.sum`` names."""
    source = HERE / "go"
    files = [source / name for name in ("main.go", "go.mod", "go.sum")]
    version = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    folder = cache() / f"franz-go-{version}"
    program = folder / "franz"
    with alone(folder):
        if not program.exists():
            for file in files:
                shutil.copy(file, folder)
            run(["go", "build", "-o", program.name, "."], folder)
    return program
