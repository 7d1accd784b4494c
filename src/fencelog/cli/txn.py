"""``fencelog txn``: transactions of the coordinators, and hanging transactions."""

from typing import TYPE_CHECKING, Annotated

import typer

from fencelog.adapters.system_clock import SystemClock
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
from fencelog.errors import ErrorCode, RequestError
from fencelog.settings.kinds import INT32_MAX, INT64_MAX
from fencelog.types import TopicPartition
from fencelog.wire.own import app_of, transactional_id

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.model import OpenBatch, ProducerDescription

app = typer.Typer(
    name="txn",
    help="List, describe and abort transactions; find hanging ones.",
    no_args_is_help=True,
)

MINUTE_MS = 60_000
MAX_TIMEOUT_MIN = 15
"""Kafka's default, and the default of ``transaction.max.timeout.ms``."""
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
LIST_COLUMNS = ("transactional_id", "producer_id", "state")
BATCH_COLUMNS = ("batch", "age_s", "rows", "run", "host", "query")
HANGING_COLUMNS = (
    "topic",
    "partition",
    "start_offset",
    "producer_id",
    "producer_epoch",
    "coordinator_epoch",
    "last_timestamp_ms",
    "minutes",
)

TopicOption = Annotated[str | None, typer.Option("-t", "--topic", help="Search this topic only.")]
PartitionOption = Annotated[
    int | None,
    typer.Option(
        "-p", "--partition", min=0, max=INT32_MAX, help="Search this partition only; needs -t."
    ),
]


@app.command("list")
def list_transactions(
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state", help="Only this state, such as Ongoing or PrepareCommit; repeatable."
        ),
    ] = None,
    longer_than_ms: Annotated[
        int | None,
        typer.Option(
            "--duration-filter",
            min=0,
            max=INT64_MAX,
            metavar="MS",
            help="Only transactions that began longer ago than this.",
        ),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """List transactional ids with their states.

    A versioned transaction, such as a Spark batch, has many producers: it is listed
    once, with its batch, age, rows written so far, run, host and query.
    """
    with reported_errors():
        for state in states or ():
            if state not in STATES:
                raise UsageError(f"--state {state}: expected one of {', '.join(STATES)}")
        with connection(bootstrap, properties).open() as client:
            listed = client.list_transactions(states=states or (), longer_than_ms=longer_than_ms)
            apps = {app_of(each.transactional_id): None for each in listed}
            batches = [_open_batch(client, app) for app in apps if app is not None]
        rows: list[Row] = [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "state": each.state,
            }
            for each in listed
            if app_of(each.transactional_id) is None
        ]
        now_ms = SystemClock().now_ms()
        rows += [_batch_row(each, now_ms) for each in batches if each is not None]
        has_batches = len(apps) > (None in apps)
        show_rows(rows, LIST_COLUMNS + (BATCH_COLUMNS if has_batches else ()), form)


def _open_batch(client: "Client", app: str) -> "OpenBatch | None":
    """The app's transaction; None if it ended, and perhaps its app with it, since it was listed."""
    try:
        return client.open_batch(app)
    except RequestError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return None


def _batch_row(batch: "OpenBatch", now_ms: int) -> Row:
    age_s = (now_ms - batch.since_ms) / 1000
    return {
        "transactional_id": transactional_id(batch.app),
        "producer_id": None,
        "state": batch.state,
        "batch": _known(batch.version),
        "age_s": None if batch.since_ms < 0 else round(max(age_s, 0.0), 1),
        "rows": _known(batch.rows),
        "producer_ids": list(batch.producer_ids),
        "run": batch.run_id,
        "host": batch.run_host,
        "query": batch.query_id,
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number


@app.command()
def describe(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="TRANSACTIONAL_ID…", help="One or more transactional ids."),
    ],
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Show a transaction's producer, state, timeout and partitions."""
    with reported_errors():
        rows: list[Row] = []
        with connection(bootstrap, properties).open() as client:
            for each in ids:
                described = client.describe_transaction(each)
                open_since = described.start_time_ms
                rows.append(
                    {
                        "transactional_id": described.transactional_id,
                        "producer_id": described.producer_id,
                        "producer_epoch": described.producer_epoch,
                        "state": described.state,
                        "timeout_ms": described.timeout_ms,
                        "start_time_ms": None if open_since < 0 else open_since,
                        "partitions": [str(place) for place in described.partitions],
                    }
                )
        if (form or default_format()) is Format.JSON:
            show_json(rows)
            return
        for row in rows:
            fields: list[Row] = [{"field": key, "value": value} for key, value in row.items()]
            show_rows(fields, ("field", "value"), Format.TABLE)


@app.command()
def abort(
    transactional_id: Annotated[
        str | None,
        typer.Argument(metavar="TRANSACTIONAL_ID", help="The id whose transaction is aborted."),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("-t", "--topic", help="The topic of a hanging transaction.")
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "-p",
            "--partition",
            min=0,
            max=INT32_MAX,
            help="The partition of a hanging transaction.",
        ),
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option(
            "--start-offset", min=0, max=INT64_MAX, help="Its first offset on that partition."
        ),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
) -> None:
    """Abort an open or a hanging transaction.

    With a TRANSACTIONAL_ID the coordinator aborts its open transaction on all
    partitions and fences its producer, which gets an error at its next request.
    A transaction that is already decided completes.

    With -t, -p and --start-offset, as find-hanging shows them, a hanging
    transaction is aborted. This is refused if a coordinator lists the transaction.
    """
    with reported_errors():
        place = (topic, partition, start_offset)
        with connection(bootstrap, properties).open() as client:
            match (transactional_id, *place):
                case (str(name), None, None, None):
                    row = _abort_id(client, name)
                case (None, str(name), int(number), int(offset)):
                    found = client.abort_hanging_transaction(TopicPartition(name, number), offset)
                    row = {**_hanging_row(found, SystemClock().now_ms()), "aborted": True}
                case _:
                    raise UsageError(
                        "give either a TRANSACTIONAL_ID or all of -t, -p and --start-offset"
                    )
        show_json([row])


def _abort_id(client: "Client", name: str) -> Row:
    aborted = client.abort_open_transaction(name)
    return {
        "transactional_id": aborted.transactional_id,
        "producer_id": aborted.producer_id,
        "producer_epoch": aborted.producer_epoch,
        "partitions": [str(place) for place in aborted.partitions],
        "aborted": True,
    }


@app.command("find-hanging")
def find_hanging(
    topic: TopicOption = None,
    partition: PartitionOption = None,
    broker: Annotated[
        int | None,
        typer.Option(
            "--broker",
            metavar="ID",
            min=0,
            max=INT32_MAX,
            help="Search partitions with this leader only.",
        ),
    ] = None,
    max_timeout_min: Annotated[
        int,
        typer.Option(
            "--max-transaction-timeout",
            min=0,
            max=INT32_MAX,
            metavar="MINUTES",
            help="Only transactions whose last write is older.",
        ),
    ] = MAX_TIMEOUT_MIN,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Find hanging transactions: open ones that no coordinator will end.

    They block read_committed readers. The open transactions of every partition, or
    of those named, are compared with the lists of the coordinators. `fencelog txn
    abort` ends one. If none is found the list is empty and the exit status is 0.
    """
    with reported_errors():
        if partition is not None and topic is None:
            raise UsageError("-p: name the topic with -t")
        now_ms = SystemClock().now_ms()
        with connection(bootstrap, properties).open() as client:
            places = _places(client, topic, partition, broker)
            found = client.find_hanging_transactions(
                places, before_ms=now_ms - max_timeout_min * MINUTE_MS
            )
        show_rows([_hanging_row(each, now_ms) for each in found], HANGING_COLUMNS, form)
        say(f"{len(found)} hanging, {len(places)} partitions searched")
        if found:
            at = found[0]
            say(
                "`fencelog txn abort "
                f"-t {at.partition.topic} -p {at.partition.partition} "
                f"--start-offset {at.start_offset}` ends the first"
            )


def _places(
    client: "Client", topic: str | None, partition: int | None, broker: int | None
) -> list[TopicPartition]:
    known = client.topics()
    if topic is not None:
        known = [each for each in known if each.name == topic]
    if topic is not None and not known:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist")
    if broker is not None and broker not in {one.node_id for one in client.cluster().brokers}:
        fail(
            ExitStatus.NOT_FOUND,
            f"--broker {broker}: no such broker",
            "`fencelog cluster info` shows the brokers",
        )
    if partition is not None and partition >= len(known[0].partitions):
        raise UsageError(
            f"-p {partition}: {topic} has partitions 0 to {len(known[0].partitions) - 1}"
        )
    return [
        TopicPartition(each.name, one.partition)
        for each in known
        for one in each.partitions
        if partition in (None, one.partition) and broker in (None, one.leader)
    ]


def _hanging_row(found: "ProducerDescription", now_ms: int) -> Row:
    return {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "start_offset": found.start_offset,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator_epoch": found.coordinator_epoch,
        "last_timestamp_ms": found.last_timestamp_ms,
        "minutes": max(now_ms - found.last_timestamp_ms, 0) // MINUTE_MS,
    }
