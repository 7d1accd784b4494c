"""``fencelog stream group``: create, list, describe, reset and delete the readers of streams."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

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
    default_format,
    fail,
    reported_errors,
    say,
    show_json,
    show_rows,
)

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.cluster import Cluster
    from fencelog.client.streams.group_model import ReaderGroupDescription
    from fencelog.client.streams.reader_group import ReaderGroup

T = TypeVar("T")
app = typer.Typer(
    name="group",
    help="Create, list, describe, reset and delete reader groups, which share a stream.",
    no_args_is_help=True,
)

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The reader group's name.")]
SEGMENT_COLUMNS = ("segment", "state", "reader", "position", "waits_for")
HINT = "`fencelog stream group list` shows the reader groups"


@app.command()
def create(
    group: GroupArgument,
    stream: Annotated[
        str, typer.Option("-s", "--stream", metavar="STREAM", help="The stream that it reads.")
    ],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="beginning, end, or a stream cut: as JSON, a file of it, or - for stdin.",
        ),
    ] = "beginning",
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Create a reader group. Harmless if it exists with the same settings."""
    from fencelog.cli.stream_cut import parse_place

    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            place = parse_place(start, "--from")
            if not place.is_cut and place.name is not None:
                raise UsageError(f"--from {start}: expected beginning, end or a stream cut")
            place.check(client.describe_stream(stream))
            _run(client, lambda cluster: _group(cluster, group, stream, place.start).create())
        rows: list[Row] = [{"group": group, "stream": stream, "created": True}]
        show_rows(rows, ("group", "stream", "created"), form)


@app.command("list")
def list_groups(
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """List reader groups."""
    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            rows = _run(client, _listed)
        show_rows(rows, ("group", "stream", "readers", "finished"), form)


@app.command()
def describe(
    group: GroupArgument,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Show the readers, who has which segment, and how far the group is.

    Positions are those that are committed. Markers and other control records count as unread, too.
    """
    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            shown = _run(client, lambda cluster: _described(_group(cluster, group)))
        if (form or default_format()) is Format.JSON:
            show_json(shown)
            return
        say(
            f"{shown['group']}  reads {shown['stream']}, {len(_list(shown['readers']))} readers, "
            f"{shown['unread']} unread, {shown['unread_bytes']} bytes"
            f"{', finished' if shown['finished'] else ''}"
        )
        show_rows(_list(shown["segments"]), SEGMENT_COLUMNS, Format.TABLE)
        if shown["checkpoints"]:
            show_rows(_list(shown["checkpoints"]), ("checkpoint", "complete"), Format.TABLE)


@app.command()
def reset(
    group: GroupArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="beginning, end, a checkpoint's name, or a stream cut: as JSON, a file of it, or "
            "- for stdin.",
        ),
    ],
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Let a reader group go on elsewhere. Its readers stop what they read, and begin anew."""
    from fencelog.cli.stream_cut import parse_place

    with reported_errors():
        place = parse_place(to, "--to")
        with connection(bootstrap, properties).open() as client:
            if place.is_cut:
                found = _run(client, lambda cluster: _group(cluster, group).get())
                place.check(client.describe_stream(found.stream))
            _run(client, lambda cluster: _group(cluster, group).reset(place.start))
            cut = _run(client, lambda cluster: _group(cluster, group).stream_cut())
        rows: list[Row] = [
            {"group": group, "segment": index, "position": offset}
            for index, offset in sorted(cut.items())
        ]
        show_rows(rows, ("group", "segment", "position"), form)


@app.command()
def offline(
    group: GroupArgument,
    reader: Annotated[str, typer.Argument(metavar="READER", help="The reader's name.")],
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Declare a reader offline: it is fenced, and others take its segments over at once.

    They go on at its committed positions.
    """
    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            found = _run(client, lambda cluster: _group(cluster, group).get())
            was_online = any(each.name == reader for each in found.readers)
            _run(client, lambda cluster: _group(cluster, group).reader_offline(reader))
        rows: list[Row] = [
            {"group": group, "reader": reader, "was_online": was_online, "offline": True}
        ]
        show_rows(rows, ("group", "reader", "was_online", "offline"), form)


@app.command()
def delete(
    group: GroupArgument,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Delete a reader group and its positions. Its readers end with an error."""
    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            _run(client, lambda cluster: _group(cluster, group).get())
            _run(client, lambda cluster: _group(cluster, group).delete())
        rows: list[Row] = [{"group": group, "deleted": True}]
        show_rows(rows, ("group", "deleted"), form)


def _group(
    cluster: "Cluster",
    name: str,
    stream: str | None = None,
    start: Any = "earliest",  # noqa: ANN401 - a cut, or where
) -> "ReaderGroup":
    from fencelog.client.streams.reader_group import ReaderGroup

    try:
        return ReaderGroup(cluster, name, stream, start=start)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _run(client: "Client", work: "Callable[[Cluster], Coroutine[Any, Any, T]]") -> T:
    """Run what a group is asked for in the client's loop; exit if there is no such group."""
    from fencelog.client.streams.group_model import ReaderGroupNotFoundError

    try:
        return client.run(work)
    except ReaderGroupNotFoundError as error:
        fail(ExitStatus.NOT_FOUND, str(error), HINT)


async def _listed(cluster: "Cluster") -> list[Row]:
    from fencelog.client.streams.group_model import ReaderGroupNotFoundError
    from fencelog.client.streams.reader_group import reader_groups

    rows: list[Row] = []
    for name in await reader_groups(cluster):
        try:
            found = await _group(cluster, name).get()
        except ReaderGroupNotFoundError:
            continue  # it was deleted meanwhile, or its creation was not completed
        rows.append(
            {
                "group": name,
                "stream": found.stream,
                "readers": len(found.readers),
                "finished": found.is_finished,
            }
        )
    return rows


async def _described(group: "ReaderGroup") -> Row:
    found = await group.get()
    cut = dict(await group.stream_cut())
    unread = Unread(await group.unread_events(), await group.unread_bytes())
    return description(found, cut, unread)


class Unread(NamedTuple):
    """What follows a group's positions: offsets, and stored bytes."""

    events: int
    size: int


def description(found: "ReaderGroupDescription", cut: dict[int, int], unread: Unread) -> Row:
    """The object that ``stream group describe`` prints."""
    owners = {index: each.name for each in found.readers for index in each.segments}
    segments: list[Row] = [
        {
            "segment": index,
            "state": "read" if index in owners else "unassigned",
            "reader": owners.get(index),
            "position": cut.get(index),
            "waits_for": [],
        }
        for index in sorted({*owners, *found.unassigned})
    ]
    segments += [
        {
            "segment": index,
            "state": "waiting",
            "reader": None,
            "position": None,
            "waits_for": list(waiting),
        }
        for index, waiting in sorted(found.future.items())
    ]
    return {
        "group": found.name,
        "stream": found.stream,
        "finished": found.is_finished,
        "unread": unread.events,
        "unread_bytes": unread.size,
        "readers": [
            {"reader": each.name, "incarnation": each.incarnation, "segments": [*each.segments]}
            for each in found.readers
        ],
        "segments": segments,
        "checkpoints": [
            {
                "checkpoint": name,
                "complete": positions is not None,
                "segments": None
                if positions is None
                else {str(index): offset for index, offset in sorted(positions.items())},
            }
            for name, positions in found.checkpoints.items()
        ],
    }


def _list(value: object) -> list[Row]:
    assert isinstance(value, list)
    return value
