"""``fencelog stream``: create, list, describe, split, merge, cut and delete streams."""

import shutil
import sys
from typing import Annotated

import typer

from fencelog.cli import stream_group
from fencelog.cli.options import (
    BROKERS_DEFAULT,
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    CountOption,
    FormatOption,
    PropertyOption,
    RecordFormatOption,
    connection,
)
from fencelog.cli.output import (
    Format,
    Row,
    UsageError,
    default_format,
    reported_errors,
    say,
    show_json,
    show_rows,
)
from fencelog.settings.kinds import INT16_MAX, INT32_MAX

app = typer.Typer(
    name="stream",
    help="Create, describe, split, merge and delete streams: topics whose partitions, the "
    "segments, grow and shrink in number while each key stays in order.",
    no_args_is_help=True,
)
app.add_typer(stream_group.app, name="group")

NameArgument = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.")]
SEGMENT_COLUMNS = ("id", "low", "high", "state", "predecessors", "successors", "end_offset")


@app.command()
def create(
    name: NameArgument,
    segments: Annotated[
        int,
        typer.Option(
            "-s",
            "--segments",
            min=1,
            max=INT32_MAX,
            help="Segments at first, of equal ranges.",
        ),
    ] = 1,
    least: Annotated[
        int | None,
        typer.Option(
            "--min",
            min=1,
            max=INT32_MAX,
            help="The fewest open segments: a merge below it is refused. Default: 1.",
            show_default=False,
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--max",
            min=1,
            max=INT32_MAX,
            help="The most open segments: a split above it is refused.",
            show_default=False,
        ),
    ] = None,
    rates: Annotated[
        list[str] | None,
        typer.Option(
            "--rate",
            metavar="RATE",
            help="What a segment should take, as 100/s (records) or 500KB/s: the broker splits a "
            "busier one and merges idle ones. Both may be given. Default: never by itself.",
        ),
    ] = None,
    configs: Annotated[
        list[str] | None,
        typer.Option(
            "-c",
            "--set",
            "--topic-config",
            metavar="KEY=VALUE",
            help="A topic config, as retention.ms=60000; repeatable.",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "-r",
            "--replicas",
            "--replication-factor",
            min=1,
            max=INT16_MAX,
            help="Replicas of each segment. Default: default.replication.factor.",
        ),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Create a stream."""
    from fencelog.cli.stream_settings import stream_settings

    with reported_errors():
        settings = stream_settings(configs or (), least=least, most=most, rates=rates or ())
        with connection(bootstrap, properties).open() as client:
            client.create_stream(name, segments, settings, replicas or BROKERS_DEFAULT)
        rows: list[Row] = [{"name": name, "segments": segments, "created": True}]
        show_rows(rows, ("name", "segments", "created"), form)


@app.command("list")
def list_streams(
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """List streams."""
    from fencelog.cli.stream_view import listed

    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            rows = [listed(each) for each in client.describe_streams()]
        show_rows(rows, ("name", "open", "sealed", "resizing"), form)


@app.command()
def describe(
    name: NameArgument,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Show the segments of a stream, and draw how they were split and merged."""
    from fencelog.cli.stream_view import as_json, chosen, headline, show_chart

    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            stream = client.describe_stream(name)
        if (form or default_format()) is Format.JSON:
            show_json(as_json(stream))
            return
        say(headline(stream))
        show_chart(stream.stream, shutil.get_terminal_size().columns)
        rows, left_out = chosen(stream)
        sys.stdout.flush()
        show_rows(rows, SEGMENT_COLUMNS, Format.TABLE)
        if left_out:
            say(f"{left_out} more segments: --format json has all")


@app.command()
def split(
    name: NameArgument,
    segment: Annotated[
        int, typer.Argument(metavar="SEGMENT", min=0, max=INT32_MAX, help="An open segment.")
    ],
    at: Annotated[
        float | None,
        typer.Option(
            "--at",
            min=0.0,
            max=1.0,
            help="Where the second part begins, between the segment's low and high. Default: the "
            "middle.",
            show_default=False,
        ),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Split a segment in two, and show its successors once they are open."""
    from fencelog.cli.stream_view import successor_rows
    from fencelog.coordination.streams.model import HASH_SPACE

    with reported_errors():
        place = None if at is None else round(at * HASH_SPACE)
        with connection(bootstrap, properties).open() as client:
            successors = client.split_segment(name, segment, place)
            rows = successor_rows(client.describe_stream(name), successors)
        show_rows(rows, SEGMENT_COLUMNS, form)


@app.command()
def merge(
    name: NameArgument,
    segments: Annotated[
        list[int],
        typer.Argument(
            metavar="SEGMENT SEGMENT…",
            min=0,
            max=INT32_MAX,
            help="Two or more open segments with adjacent ranges.",
            show_default=False,
        ),
    ],
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Merge adjacent segments, and show their successor once it is open."""
    from fencelog.cli.stream_view import successor_rows

    with reported_errors():
        if len(segments) < 2:
            raise UsageError("two or more segments merge; `fencelog stream split` divides one")
        with connection(bootstrap, properties).open() as client:
            successors = client.merge_segments(name, segments)
            rows = successor_rows(client.describe_stream(name), successors)
        show_rows(rows, SEGMENT_COLUMNS, form)


@app.command()
def cut(
    name: NameArgument,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
) -> None:
    """Print where the stream ends now, as JSON: a position for each open segment.

    Records of open transactions come after it. `fencelog stream group reset --to FILE` lets a
    group go on there.
    """
    from fencelog.cli.stream_view import cut_json
    from fencelog.types import TopicPartition

    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            stream = client.describe_stream(name)
            places = [TopicPartition(name, each.index) for each in stream.stream.covering]
            ends = client.offsets(places, "latest", "transactional")
            # A segment that was sealed meanwhile ends at its seal.
            later = client.describe_stream(name)
        show_json(cut_json(later, {place.partition: end for place, end in ends.items()}))


@app.command()
def read(
    name: NameArgument,
    group: Annotated[
        str,
        typer.Option(
            "-g", "--group", metavar="GROUP", help="The reader group; created if it does not exist."
        ),
    ],
    reader: Annotated[
        str | None,
        typer.Option(
            "--reader",
            metavar="READER",
            help="This reader's name; another one of this name is fenced.",
            show_default="host and process",
        ),
    ] = None,
    count: CountOption = None,
    exit_at_end: Annotated[
        bool,
        typer.Option(
            "-e", "--exit", help="Stop when the group has read to the present end of the stream."
        ),
    ] = False,
    record_format: RecordFormatOption = "json",
    isolation: Annotated[
        str,
        typer.Option(help="transactional (read_committed) or replicated (read_uncommitted)."),
    ] = "transactional",
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
) -> None:
    """Write records to stdout as a reader of a group, until Ctrl-C, or the end of -c or -e.

    Readers of a group share the segments; each record goes to one of them, and a key's records
    come in order. What is written is committed within 5 seconds and at the end; after a kill the
    rest is read again.
    """
    from fencelog.cli.stream_read import ReadRequest, run

    with reported_errors():
        request = ReadRequest(
            stream=name,
            group=group,
            reader=reader,
            count=count,
            exit_at_end=exit_at_end,
            record_format=record_format,
            isolation=isolation,
        )
        run(request, bootstrap, properties or (), sys.stdout.buffer)


@app.command()
def delete(
    name: NameArgument,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Delete a stream with all its records. What its reader groups have stored stays."""
    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            client.describe_stream(name)  # Raises for a topic that is no stream.
            client.delete_topic(name)
        rows: list[Row] = [{"name": name, "deleted": True}]
        show_rows(rows, ("name", "deleted"), form)
