"""``fencelog topic produce``: send records of files or stdin, and print their offsets."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast, get_args

from fencelog.cli.options import connection
from fencelog.cli.output import Format, Row, UsageError, default_format, show_json, show_rows
from fencelog.cli.record_input import InputForm, InputRecord, read_input
from fencelog.errors import ErrorCode, RequestError, error_text

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.blocking_writers import Producer
    from fencelog.client.model import Compression, Delivery, ProduceIsolation

PROPERTIES = ("compression.type", "enable.idempotence", "transactional.id", "acks")


@dataclass(frozen=True, kw_only=True)
class ProduceRequest:
    """The options of the command line."""

    topic: str
    form: InputForm
    compression: str
    isolation: str


def run(
    request: ProduceRequest,
    files: Sequence[str],
    bootstrap: str,
    properties: Iterable[str],
    form: Format | None,
) -> None:
    """Send every record of every file, wait for the acknowledgements and print the offsets.

    With a transactional id all records are one transaction, committed at the end; an error aborts
    it.
    """
    from fencelog.client.model import Compression, ProduceIsolation

    connected = connection(bootstrap, properties, also=PROPERTIES)
    chosen = connected.properties
    transactional_id = chosen.get("transactional.id")
    isolation = _isolation(request.isolation, chosen.get("acks"), transactional_id)
    compression = one_of("-z", chosen.get("compression.type", request.compression), Compression)
    sources = [name for name in files if name != "-"]
    for name in sources:
        _check_readable(name)
    with (
        connected.open() as client,
        client.producer(
            idempotent=chosen.get("enable.idempotence", "true") == "true",
            transactional_id=transactional_id,
            compression=cast("Compression", compression),
            isolation=cast("ProduceIsolation", one_of("--isolation", isolation, ProduceIsolation)),
        ) as producer,
    ):
        # Fail for an unknown topic before the input is read.
        client.partitions([request.topic])
        by_key = _is_by_key(client, request)
        if transactional_id is not None:
            producer.begin()
        for record in _records(files, request.form):
            _send(producer, request.topic, record, None if by_key else record.partition)
        deliveries = _finish(producer, transactional_id)
    _show(request.topic, deliveries, form)


def _is_by_key(client: "Client", request: ProduceRequest) -> bool:
    """Whether the topic is a stream, where a record's key alone chooses its segment (R1).

    The partition of a JSON line does not count then: it says where the record came from. Raises
    UsageError for ``-p``.
    """
    chosen = request.form.partition
    if chosen is None and not request.form.as_json:
        return False
    try:
        client.describe_stream(request.topic)
    except RequestError as error:
        if error.code in {ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNSUPPORTED_VERSION}:
            return False
        raise
    if chosen is not None:
        raise UsageError(
            f"-p {chosen}: {request.topic} is a stream, and a record's key chooses its segment"
        )
    return True


def _send(producer: "Producer", topic: str, record: InputRecord, partition: int | None) -> None:
    try:
        producer.send(
            topic,
            record.value,
            key=record.key,
            partition=partition,
            headers=record.headers,
            timestamp_ms=record.timestamp_ms,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def one_of(flag: str, value: str, literal: object) -> str:
    """The value, if the literal type has it. Raises UsageError with the allowed values."""
    allowed = get_args(literal)
    if value not in allowed:
        raise UsageError(f"{flag} {value}: expected one of {', '.join(allowed)}")
    return value


def _isolation(isolation: str, acks: str | None, transactional_id: str | None) -> str:
    if acks is not None and acks not in {"all", "-1", "1"}:
        raise UsageError(f"-X acks={acks}: expected all or 1")
    if transactional_id is not None or acks in {"all", "-1"}:
        return "read_committed"
    return isolation


def _check_readable(name: str) -> None:
    try:
        with open(name, "rb"):
            pass
    except OSError as error:
        raise UsageError(error_text(error)) from None


def _records(files: Sequence[str], form: InputForm) -> Iterator[InputRecord]:
    for name in files:
        with _opened(name) as source:
            yield from read_input(source, form)


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    """Open a file, with a progress bar if stderr is a terminal; ``-`` is stdin."""
    if name == "-":
        yield sys.stdin.buffer
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import open as open_with_bar

        console = Console(stderr=True)
        with open_with_bar(name, "rb", description=name, console=console, transient=True) as source:
            yield source
    else:
        with open(name, "rb") as source:
            yield source


def _finish(producer: "Producer", transactional_id: str | None) -> "list[Delivery]":
    return producer.flush() if transactional_id is None else producer.commit()


def _show(topic: str, deliveries: "list[Delivery]", form: Format | None) -> None:
    """Print records per partition and their offsets.

    -1 if none is known: no acknowledgement was awaited, or a sealed segment said only that it has
    them.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    counts: dict[int, int] = {}
    for delivery in deliveries:
        number = delivery.partition.partition
        end = delivery.base_offset + delivery.count - 1
        counts[number] = counts.get(number, 0) + delivery.count
        if delivery.base_offset < 0:
            continue
        first[number] = min(first.get(number, delivery.base_offset), delivery.base_offset)
        last[number] = max(last.get(number, end), end)
    rows: list[Row] = [
        {
            "partition": number,
            "records": counts[number],
            "first_offset": first.get(number, -1),
            "last_offset": last.get(number, -1),
        }
        for number in sorted(counts)
    ]
    if (form or default_format()) is Format.TABLE:
        show_rows(rows, ("partition", "records", "first_offset", "last_offset"), Format.TABLE)
        return
    show_json({"topic": topic, "records": sum(counts.values()), "partitions": rows})
