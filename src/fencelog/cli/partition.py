"""``fencelog partition``: checks a stopped broker's partitions; elects leaders in a cluster."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fencelog.adapters.file_disk import DirectoryLock
from fencelog.adapters.salvage import Checked, partitions
from fencelog.adapters.salvage import check as check_partition
from fencelog.adapters.salvage import salvage as salvage_partition
from fencelog.cli import partition_elect
from fencelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    FormatOption,
    PropertyOption,
    connection,
)
from fencelog.cli.output import (
    ExitStatus,
    Format,
    Row,
    UsageError,
    fail,
    reported_errors,
    say,
    show_rows,
    status_follows,
)
from fencelog.errors import StorageError
from fencelog.log import layout
from fencelog.settings.kinds import INT32_MAX
from fencelog.types import TopicPartition

app = typer.Typer(
    name="partition",
    help="Check and salvage a stopped broker's partitions; elect a partition's leader.",
    no_args_is_help=True,
)
NOTHING = "every partition is led by its first replica already"
COLUMNS = ("partition", "log_start", "sound_end", "offsets_lost", "problem")

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The data directory.")]


@app.callback()
def partition() -> None:
    """Check and salvage a stopped broker's partitions; elect a partition's leader."""


@app.command()
def check(
    directory: DirectoryArgument,
    name: Annotated[
        str | None, typer.Argument(metavar="[TOPIC-P]", help="One partition. Default: all.")
    ] = None,
    form: FormatOption = None,
) -> None:
    """Check every batch of a partition, or of all; changes nothing.

    The exit status is 1 if one is damaged.
    """
    with reported_errors(), _stopped(directory):
        names = partitions(directory) if name is None else [_named(directory, name)]
        found = [asyncio.run(check_partition(directory, each)) for each in names]
        with status_follows():
            show_rows([_row(each) for each in found], COLUMNS, form)
        damaged = [each for each in found if each.problem is not None]
        if damaged:
            fail(
                ExitStatus.FAILED,
                f"{len(damaged)} of {len(found)} partitions are damaged",
                f"restore a backup, or see `fencelog partition salvage {directory} "
                f"{damaged[0].name}`",
            )
        say(f"{len(found)} partitions are sound")


@app.command()
def salvage(
    directory: DirectoryArgument,
    name: Annotated[str, typer.Argument(metavar="TOPIC-P", help="The partition.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Default: only show it.")] = False,
    form: FormatOption = None,
) -> None:
    """Replace a damaged partition by its sound beginning.

    Without --yes this shows what would be lost and changes nothing. The old files
    are kept beside the new ones.
    """
    with reported_errors(), _stopped(directory):
        found = asyncio.run(check_partition(directory, _named(directory, name)))
        show_rows([_row(found)], COLUMNS, form)
        if found.problem is None:
            say(f"{name} is sound: nothing to salvage")
        elif not yes:
            say(f"nothing is changed; with --yes {_loss(found)}")
        else:
            kept = asyncio.run(salvage_partition(directory, found))
            say(_loss(found))
            if kept is not None:
                say(f"the old files are in {kept}")


@app.command()
def elect(
    name: Annotated[
        str | None, typer.Argument(metavar="[TOPIC/INDEX]", help="The partition.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All partitions, each with its first replica.")
    ] = False,
    broker: Annotated[
        int | None,
        typer.Option(
            "--broker",
            metavar="N",
            min=0,
            max=INT32_MAX,
            help="Elect this replica, though it may lack committed records. Default: the first "
            "replica, if it is in sync.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --broker: do it. Default: only show what is lost.")
    ] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Elect the leader of a cluster's partition, or of all of them.

    Without --broker the first replica leads again, and nothing is lost. With --all
    this shows each partition that its first replica did not lead; the exit status is
    1 if one could not be elected, because it is not in sync.

    With --broker, a partition that none of its in-sync or eligible replicas can lead
    is led by this one: what it does not have is lost. Without --yes this shows what
    each replica has, and changes nothing.
    """
    with reported_errors():
        if every or name is None:
            _elect_all(name, broker, bootstrap, properties, form, every=every)
            return
        partition = partition_elect.named(name)
        with connection(bootstrap, properties).open() as client:
            if broker is not None:
                found = partition_elect.described(client, partition)
                ends = client.replica_ends(partition, found.replicas)
                show_rows(partition_elect.rows(found, ends), partition_elect.COLUMNS, form)
                losses = partition_elect.loss(partition, broker, ends)
                reason = partition_elect.needless(partition, broker, found, ends)
                if reason is None:
                    for line in losses:
                        say(line)
                if not yes:
                    say(reason or f"with --yes broker {broker} leads {name}")
                    say("nothing is changed")
                    return
            say(partition_elect.elect(client, partition, broker))


def _elect_all(
    name: str | None,
    broker: int | None,
    bootstrap: str,
    properties: list[str] | None,
    form: Format | None,
    *,
    every: bool,
) -> None:
    """Elect the first replicas of all partitions, if that is what is asked for."""
    if not every:
        raise UsageError("name a partition, such as orders/0, or --all")
    if name is not None or broker is not None:
        raise UsageError("--all elects the first replica of each partition: name no other")
    with connection(bootstrap, properties).open() as client:
        rows = partition_elect.elect_all(client)
    with status_follows():
        show_rows(rows, partition_elect.ELECTED_COLUMNS, form)
    failed = sum(row["problem"] is not None for row in rows)
    if failed:
        fail(
            ExitStatus.FAILED,
            f"{failed} of {len(rows)} first replicas do not lead",
            "`fencelog topic describe` shows which replicas are in sync",
        )
    say(f"{len(rows)} partitions are led by their first replica again" if rows else NOTHING)


def _loss(found: Checked) -> str:
    if not found.segments:
        return f"{found.name} begins anew, at offset {found.known_end}, without records"
    return (
        f"{found.name} ends at offset {found.end}; at least {found.known_end - found.end} offsets "
        "are lost, and new records get them"
    )


@contextmanager
def _stopped(directory: Path) -> Iterator[None]:
    """Keep brokers out of the directory."""
    if not (directory / layout.META_PROPERTIES).exists():
        raise StorageError(
            f"{directory} has no {layout.META_PROPERTIES}: it is no data directory of fencelog"
        )
    lock = DirectoryLock.acquire(directory)
    try:
        yield
    finally:
        lock.release()


def _named(directory: Path, text: str) -> TopicPartition:
    name = layout.parse_directory_name(text)
    if name is None:
        raise UsageError(f"{text}: expected a topic and a partition, such as orders-0")
    if name not in partitions(directory):
        fail(
            ExitStatus.NOT_FOUND,
            f"{directory} has no partition {text}",
            f"`fencelog partition check {directory}` shows the partitions",
        )
    return name


def _row(found: Checked) -> Row:
    return {
        "partition": str(found.name),
        "log_start": found.start,
        "sound_end": found.end,
        "offsets_lost": found.known_end - found.end,
        "problem": found.problem,
    }
