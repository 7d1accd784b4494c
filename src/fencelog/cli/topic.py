"""``fencelog topic``: create, list, describe, alter and delete topics; write and read records."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fencelog.cli.command import FileName
from fencelog.cli.options import (
    BROKERS_DEFAULT,
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    CountOption,
    FormatOption,
    PropertyOption,
    RecordFormatOption,
    connection,
    key_values,
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
from fencelog.cli.stream_settings import LEAST
from fencelog.settings.kinds import INT16_MAX, INT32_MAX

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.model import TopicDescription

app = typer.Typer(
    name="topic",
    help="Create, list, describe, alter and delete topics; produce and consume records.",
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic name.")]
NamesArgument = Annotated[
    list[str], typer.Argument(metavar="TOPIC…", help="One or more topic names.")
]
PartitionsOption = Annotated[
    list[int] | None,
    typer.Option(
        "-p", "--partition", min=0, max=INT32_MAX, help="A partition; repeatable. Default: all."
    ),
]
# Titles that fit on a terminal of 80 columns, with Kafka's abbreviations.
PARTITION_TITLES = {
    "partition": "partition",
    "leader": "leader",
    "epoch": "leader_epoch",
    "replicas": "replicas",
    "isr": "in_sync",
    "start": "log_start_offset",
    "LSO": "last_stable_offset",
    "HW": "high_watermark",
}


@app.command()
def create(
    names: NamesArgument,
    partitions: Annotated[
        int,
        typer.Option("-p", "--partitions", min=1, max=INT32_MAX, help="Partitions of each topic."),
    ] = 1,
    replicas: Annotated[
        int | None,
        typer.Option(
            "-r",
            "--replicas",
            min=1,
            max=INT16_MAX,
            help="Replicas of each partition. Default: default.replication.factor.",
        ),
    ] = None,
    configs: Annotated[
        list[str] | None,
        typer.Option(
            "-c",
            "--topic-config",
            metavar="KEY=VALUE",
            help="A topic config, as retention.ms=60000; repeatable.",
        ),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Create topics."""
    with reported_errors():
        settings = key_values(configs or (), "-c")
        rows: list[Row] = []
        with connection(bootstrap, properties).open() as client:
            for name in names:
                client.create_topic(name, partitions, settings, replicas or BROKERS_DEFAULT)
                rows.append({"topic": name, "partitions": partitions, "created": True})
        show_rows(rows, ("topic", "partitions", "created"), form)


@app.command("list")
def list_topics(
    internal: Annotated[
        bool, typer.Option("-i", "--internal", help="Show internal topics too.")
    ] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """List topics."""
    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            topics = [topic for topic in client.topics() if internal or not topic.internal]
            streams = _streams(client)
        rows: list[Row] = [
            {
                "topic": topic.name,
                "partitions": len(topic.partitions),
                "replicas": max((len(p.replicas) for p in topic.partitions), default=0),
                "internal": topic.internal,
                "stream": topic.name in streams,
            }
            for topic in topics
        ]
        show_rows(rows, ("topic", "partitions", "replicas", "internal", "stream"), form)


def _streams(client: "Client") -> frozenset[str]:
    """The names of all streams; other brokers than fencelog's have none."""
    from fencelog.errors import ErrorCode, RequestError

    try:
        return frozenset(each.name for each in client.describe_streams())
    except RequestError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return frozenset()
        raise


@app.command()
def describe(
    names: NamesArgument,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Show partitions, their offsets and the topic configs."""
    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            described = [_describe(client, client.describe_topic(name)) for name in names]
        if (form or default_format()) is Format.JSON:
            show_json(described)
            return
        for topic in described:
            kind = "a stream: `fencelog stream describe` draws it" if topic["stream"] else ""
            say(f"{topic['topic']}  (id {topic['topic_id']})  {kind}".rstrip())
            partitions, configs = topic["partitions"], topic["configs"]
            assert isinstance(partitions, list)
            assert isinstance(configs, dict)
            short: list[Row] = [
                {title: each[name] for title, name in PARTITION_TITLES.items()}
                for each in partitions
            ]
            show_rows(short, list(PARTITION_TITLES), Format.TABLE)
            rows: list[Row] = [{"config": key, "value": value} for key, value in configs.items()]
            show_rows(rows, ("config", "value"), Format.TABLE)


def _describe(client: "Client", topic: "TopicDescription") -> Row:
    from fencelog.types import TopicPartition

    places = [TopicPartition(topic.name, p.partition) for p in topic.partitions]
    starts = client.offsets(places, "earliest", "replicated")
    stable = client.offsets(places, "latest", "transactional")
    ends = client.offsets(places, "latest", "replicated")
    partitions = [
        {
            "partition": p.partition,
            "leader": p.leader,
            "leader_epoch": p.leader_epoch,
            "replicas": list(p.replicas),
            "in_sync": list(p.in_sync),
            "log_start_offset": starts[place],
            "last_stable_offset": stable[place],
            "high_watermark": ends[place],
        }
        for p, place in zip(topic.partitions, places, strict=True)
    ]
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id.hex(),
        "internal": topic.internal,
        "stream": LEAST in topic.configs,
        "partitions": partitions,
        "configs": dict(sorted(topic.configs.items())),
    }


@app.command()
def alter(
    names: NamesArgument,
    configs: Annotated[
        list[str] | None,
        typer.Option(
            "-c",
            "--topic-config",
            metavar="KEY=VALUE",
            help="Set a topic config, as retention.ms=60000.",
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset", metavar="KEY", help="Reset a topic config to the broker's default."
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "-p",
            "--partitions",
            min=1,
            max=INT32_MAX,
            help="The new, higher number of partitions.",
        ),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Change topic configs, or raise the number of partitions."""
    from fencelog.cli import topic_change

    with reported_errors():
        settings = topic_change.changes(key_values(configs or (), "-c"), unset or ())
        if not settings and partitions is None:
            raise UsageError("nothing to change: give -c KEY=VALUE, --unset KEY or -p N")
        with connection(bootstrap, properties).open() as client:
            rows = [topic_change.alter(client, name, settings, partitions) for name in names]
        show_rows(rows, ("topic", "partitions", "configs"), form)


@app.command("delete-records")
def delete_records(
    name: NameArgument,
    before: Annotated[
        str,
        typer.Option(
            "-o", "--before", help="The first offset to keep: end, N, -N (from the end) or @TIME."
        ),
    ],
    partitions: PartitionsOption = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Delete the records of a topic before an offset."""
    from fencelog.cli import topic_change

    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            rows = topic_change.delete_records(client, name, partitions, before)
        show_rows(rows, ("topic", "partition", "log_start_offset"), form)


@app.command()
def delete(
    names: NamesArgument,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Delete topics with all their records."""
    with reported_errors():
        rows: list[Row] = []
        with connection(bootstrap, properties).open() as client:
            for name in names:
                client.delete_topic(name)
                rows.append({"topic": name, "deleted": True})
        show_rows(rows, ("topic", "deleted"), form)


@app.command()
def produce(
    name: NameArgument,
    files: Annotated[
        list[FileName] | None,
        typer.Argument(
            metavar="FILE…", parser=FileName, help="Files to send; - is stdin, the default."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "-p",
            "--partition",
            min=0,
            max=INT32_MAX,
            help="The partition. Default: chosen by the key.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("-k", "--key", help="The key of every record.")] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option("-K", "--key-delimiter", help="The delimiter between key and value."),
    ] = None,
    delimiter: Annotated[
        str, typer.Option("-D", "--delimiter", help="The delimiter between records.")
    ] = "\\n",
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "-H", "--header", metavar="KEY=VALUE", help="A header of every record; repeatable."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Each line is a JSON object, as consume writes it.")
    ] = False,
    compression: Annotated[
        str, typer.Option("-z", "--compression", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    isolation: Annotated[
        str,
        typer.Option(
            help="read_committed: wait until the records are durable (acks=all); "
            "read_uncommitted: acks=1."
        ),
    ] = "read_uncommitted",
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Send records from files or stdin.

    With -X transactional.id=NAME the whole input is one transaction.
    """
    from fencelog.cli.record_input import InputForm
    from fencelog.cli.topic_produce import ProduceRequest, run

    with reported_errors():
        pairs = tuple((k, v.encode()) for k, v in key_values(headers or (), "-H").items())
        input_form = InputForm(
            as_json=as_json,
            delimiter=_unescaped(delimiter, "-D"),
            key_delimiter=None if key_delimiter is None else _unescaped(key_delimiter, "-K"),
            key=None if key is None else key.encode(),
            partition=partition,
            headers=pairs,
        )
        request = ProduceRequest(
            topic=name, form=input_form, compression=compression, isolation=isolation
        )
        run(request, files or ["-"], bootstrap, properties or (), form)


@app.command()
def consume(
    names: NamesArgument,
    partitions: PartitionsOption = None,
    offset: Annotated[
        str,
        typer.Option(
            "-o", "--offset", help="Where to start: beginning, end, N, -N (from the end) or @TIME."
        ),
    ] = "beginning",
    count: CountOption = None,
    exit_at_end: Annotated[
        bool, typer.Option("-e", "--exit", help="Stop at the present end of the topic.")
    ] = False,
    record_format: RecordFormatOption = "json",
    isolation: Annotated[
        str,
        typer.Option(help="transactional (read_committed), replicated (read_uncommitted) or tail."),
    ] = "replicated",
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
) -> None:
    """Write records to stdout until Ctrl-C, or until the end that -c or -e sets."""
    from fencelog.cli.topic_consume import ConsumeRequest, run

    with reported_errors():
        request = ConsumeRequest(
            topics=tuple(names),
            partitions=None if partitions is None else frozenset(partitions),
            offset=offset,
            count=count,
            exit_at_end=exit_at_end,
            record_format=record_format,
            isolation=isolation,
        )
        run(request, bootstrap, properties or (), sys.stdout.buffer)


def _unescaped(text: str, flag: str) -> bytes:
    """The bytes of an option with the escapes ``\\n``, ``\\t``, ``\\0`` and ``\\xHH``."""
    from fencelog.cli.record_format import unescape

    data = unescape(text, flag)
    if not data:
        raise UsageError(f"{flag}: expected at least one character")
    return data
