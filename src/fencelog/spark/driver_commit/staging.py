"""Files that carry record batches from the tasks to the driver.

A file is named in its attempt's message only, and only that driver's commit reads it: after a crash
the tasks write new ones. So whatever the newest run finds of others nobody needs.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, cast
from urllib.parse import unquote, urlsplit

from fencelog.errors import FencelogError
from fencelog.spark.identity import BatchIdentity
from fencelog.spark.options import OptionError, SinkOptions

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

FOLDER: Final = "fencelog-staging"
"""Beside Spark's own folders in the checkpoint location."""
ONCE: Final = "once"
"""The folder of writes without a number. No later run of theirs removes what a crash left."""
KEPT: Final = timedelta(days=7)
"""Longer than any such write runs; a broker of ours forgets their apps after that time too."""
SPARKS_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}


class StagingError(FencelogError):
    """The files cannot be written or read."""


class Output(Protocol):
    """A file that is written from its start to its end."""

    def write(self, data: bytes, /) -> object:
        """Append."""
        ...

    def close(self) -> None:
        """Return once it is stored."""
        ...


@dataclass(frozen=True)
class Staging:
    """A folder for the files of all runs. ``is_local``: on a disk of this machine."""

    location: str
    files: "FileSystem"
    root: str
    is_local: bool

    def prepare(self) -> None:
        """Make the folder, on the driver. Raises OptionError if that is not possible."""
        try:
            self.files.create_dir(self.root, recursive=True)
        except OSError as error:
            raise OptionError(
                f"the staging location {self.location} cannot be written: {error}. Set option"
                " 'stagingLocation' to a folder that the driver and all executors can write"
            ) from error

    def create(self, identity: BatchIdentity, name: str) -> tuple[str, Output]:
        """Create an attempt's file. Raises StagingError."""
        folder = f"{self._of_run(identity)}/{identity.version}"
        path = f"{folder}/{name}"
        with self._explained():
            if not self.is_local:
                return path, cast(Output, self.files.open_output_stream(path))
            if not Path(self.root).is_dir():
                raise StagingError(
                    f"the staging location {self.location} does not exist where this task runs,"
                    " but where the driver runs: set option 'stagingLocation' to a file system"
                    " that the driver and all executors share"
                )
            Path(folder).mkdir(parents=True, exist_ok=True)
            return path, _Synced(Path(path), Path(self.root))

    def append(self, file: Output, content: bytes) -> None:
        """Write on. Raises StagingError, as where the disk is full."""
        with self._explained():
            file.write(content)

    def finish(self, file: Output) -> None:
        """Return once the file is stored. Raises StagingError."""
        with self._explained():
            file.close()

    def open(self, path: str) -> BinaryIO:
        """Open a file of this location. Raises StagingError."""
        try:
            return cast(BinaryIO, self.files.open_input_stream(path))
        except OSError as error:
            raise StagingError(
                f"the staged file {path} cannot be read where the driver runs ({error}): either"
                " another driver of this query removed it, or the staging location"
                f" {self.location} is not shared with the executors (option 'stagingLocation')"
            ) from error

    def read(self, file: BinaryIO, size: int) -> bytearray:
        """The next bytes of a file, fewer at its end. Raises StagingError."""
        try:
            return bytearray(file.read(size))
        except OSError as error:
            raise StagingError(
                f"a staged file in {self.location} cannot be read: {error}"
            ) from error

    def remove(self, path: str) -> None:
        """Delete one file, if it is there."""
        with suppress(OSError):  # left to the next run
            self.files.delete_file(path)

    def remove_run(self, identity: BatchIdentity) -> None:
        """Delete what this run has staged; none of it is needed once a commit has ended."""
        self._remove(self._of_run(identity))

    def remove_other_runs(self, identity: BatchIdentity) -> None:
        """Delete what other runs of the app left behind."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self._of_app(identity), allow_not_found=True)
        try:
            found = self.files.get_file_info(selector)
        except OSError:
            return
        for each in found:
            if each.type == FileType.Directory and each.base_name != _digest(identity.run_id):
                self._remove(each.path)

    def remove_old_writes(self, now: datetime) -> None:
        """Delete what writes without a number left behind, by its age."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(f"{self.root}/{ONCE}", allow_not_found=True, recursive=True)
        try:
            found = self.files.get_file_info(selector)
        except OSError:
            return
        for each in found:
            if each.type == FileType.File and each.mtime is not None and now - each.mtime > KEPT:
                run, _, _ = each.path.rpartition("/")[0].rpartition("/")
                self._remove(run)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StagingError(
                f"staging in {self.location} failed: {error}. It has to be a folder that the driver"
                " and all executors can write (option 'stagingLocation')"
            ) from error

    def _remove(self, folder: str) -> None:
        with suppress(OSError):  # there is none, or it is left to the next run
            self.files.delete_dir(folder)

    def _of_run(self, identity: BatchIdentity) -> str:
        return f"{self._of_app(identity)}/{_digest(identity.run_id)}"

    def _of_app(self, identity: BatchIdentity) -> str:
        if not identity.query_id:
            return f"{self.root}/{ONCE}/{_digest(identity.app)}"
        return f"{self.root}/{_digest(identity.app)}"


class _Synced:
    """A local file that is on the disk, with its name, once it is closed."""

    def __init__(self, path: Path, root: Path) -> None:
        self._file = path.open("xb")
        self._folders = [each for each in path.parents if each == root or root in each.parents]

    def write(self, data: bytes, /) -> object:
        return self._file.write(data)

    def close(self) -> None:
        if self._file.closed:
            return
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        for folder in self._folders:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def staging_of(options: SinkOptions) -> Staging | None:
    """The staging location; None where neither it nor a checkpoint is named. Raises OptionError."""
    location = options.staging_location
    if location is None and options.checkpoint_location is not None:
        location = f"{options.checkpoint_location.rstrip('/')}/{FOLDER}"
    return None if location is None else open_location(location)


def open_location(location: str) -> Staging:
    """Find the file system of a path or a URI. Raises OptionError for one that is not known."""
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem, LocalFileSystem

    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        path = unquote(parts.path) if parts.scheme else location
        return Staging(location, LocalFileSystem(), str(Path(path).absolute()), is_local=True)
    scheme = SPARKS_SCHEMES.get(parts.scheme, parts.scheme)
    try:
        files, root = FileSystem.from_uri(parts._replace(scheme=scheme).geturl())
    except (ArrowException, OSError, ValueError, ImportError) as error:
        raise OptionError(
            f"the staging location {location} is on a file system that pyarrow does not open"
            f" ({error}): set option 'stagingLocation' to one that it does (a path, file:, s3:,"
            " gs:, abfs:, hdfs:), which the driver and all executors share"
        ) from error
    return Staging(location, files, root.rstrip("/"), is_local=False)


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
