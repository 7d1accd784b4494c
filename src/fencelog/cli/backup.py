"""``fencelog backup`` and ``fencelog restore``: copies of a data directory that a start can use."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from fencelog.adapters.backup import Copied, back_up
from fencelog.adapters.backup import restore as restore_backup
from fencelog.cli.output import reported_errors, say, show_json

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The data directory.")]
TargetArgument = Annotated[Path, typer.Argument(metavar="TARGET", help="The backup's directory.")]


def backup(directory: DirectoryArgument, target: TargetArgument) -> None:
    """Back up a data directory, also while its broker runs.

    TARGET is new, or has an older backup of the same directory, whose unchanged
    segments are kept. Every batch is checked. With a running broker the backup is
    of one instant, at most some seconds ago.
    """
    with reported_errors():
        _show(asyncio.run(back_up(directory.resolve(), target.resolve())))
        say(f"`fencelog restore {target} NEW_DIR` restores it")


def restore(target: TargetArgument, directory: DirectoryArgument) -> None:
    """Restore a backup into a new directory; every batch is checked."""
    with reported_errors():
        _show(asyncio.run(restore_backup(target.resolve(), directory.resolve())))
        say(f"`fencelog serve --data-dir {directory}` starts a broker on it")


def _show(copied: Copied) -> None:
    show_json(
        {
            "partitions": copied.partitions,
            "segments_copied": copied.segments_copied,
            "segments_kept": copied.segments_kept,
            "bytes_copied": copied.bytes_copied,
        }
    )
