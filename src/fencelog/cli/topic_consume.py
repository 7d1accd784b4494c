"""``fencelog topic consume``: records to stdout, from any offset, at an isolation level."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from fencelog.cli.options import connection
from fencelog.cli.output import UsageError
from fencelog.cli.record_format import formatter, to_json
from fencelog.cli.start_offsets import At, Beginning, End, Exactly, Start, parse_start
from fencelog.types import TopicPartition

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.model import Isolation, Record

# Kafka's names are accepted too; rule F6 has the three levels.
ISOLATIONS: Mapping[str, "Isolation"] = {
    "transactional": "transactional",
    "replicated": "replicated",
    "tail": "tail",
    "read_committed": "transactional",
    "read_uncommitted": "replicated",
}
POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class ConsumeRequest:
    """The options of the command line."""

    topics: tuple[str, ...]
    partitions: frozenset[int] | None
    offset: str
    count: int | None
    exit_at_end: bool
    record_format: str
    isolation: str


def run(request: ConsumeRequest, bootstrap: str, properties: Iterable[str], out: BinaryIO) -> None:
    """Write records to ``out`` until the count, the end (with ``-e``) or an interrupt."""
    from fencelog.adapters.system_clock import SystemClock

    connected = connection(bootstrap, properties, also=("isolation.level",))
    level = connected.properties.get("isolation.level", request.isolation)
    if level not in ISOLATIONS:
        raise UsageError(f"--isolation {level}: expected one of {', '.join(ISOLATIONS)}")
    isolation = ISOLATIONS[level]
    start = parse_start(request.offset, now_ms=SystemClock().now_ms())
    shown = to_json if request.record_format == "json" else formatter(request.record_format)
    with connected.open() as client:
        places = _places(client, request)
        positions = start_positions(client, places, start, isolation)
        if request.exit_at_end:
            records = _to_the_end(client, positions, isolation)
        else:
            records = _for_ever(client, positions, isolation)
        _write(records, request.count, shown, out, flush_each=not request.exit_at_end)


def _places(client: "Client", request: ConsumeRequest) -> list[TopicPartition]:
    places = []
    for topic, numbers in client.partitions(request.topics).items():
        missing = (request.partitions or frozenset()) - set(numbers)
        if missing:
            raise UsageError(
                f"-p {min(missing)}: {topic} has partitions {numbers[0]} to {numbers[-1]}"
            )
        places += [
            TopicPartition(topic, number)
            for number in numbers
            if request.partitions is None or number in request.partitions
        ]
    return places


def start_positions(
    client: "Client", places: list[TopicPartition], start: Start, isolation: "Isolation"
) -> dict[TopicPartition, int]:
    """The offset at which each partition begins for this ``-o``."""
    match start:
        case Beginning():
            return client.offsets(places, "earliest", isolation)
        case Exactly(offset):
            return dict.fromkeys(places, offset)
        case End(back):
            earliest = client.offsets(places, "earliest", isolation)
            latest = client.offsets(places, "latest", isolation)
            return {place: max(earliest[place], latest[place] - back) for place in places}
        case At(timestamp_ms):
            found = client.offsets(places, timestamp_ms, isolation)
            latest = client.offsets(places, "latest", isolation)
            return {p: found[p] if found[p] >= 0 else latest[p] for p in places}


def _to_the_end(
    client: "Client", positions: Mapping[TopicPartition, int], isolation: "Isolation"
) -> "Iterator[Record]":
    ends = client.offsets(list(positions), "latest", isolation)
    for place, position in positions.items():
        if position < ends[place]:
            yield from client.fetch(place, position, ends[place], isolation=isolation)


def _for_ever(
    client: "Client", positions: Mapping[TopicPartition, int], isolation: "Isolation"
) -> "Iterator[Record]":
    if len(positions) == 1:
        ((place, position),) = positions.items()
        yield from client.fetch(place, position, isolation=isolation)
        return
    pause = threading.Event()
    at = dict(positions)
    while True:
        ends = client.offsets(list(at), "latest", isolation)
        behind = [place for place in at if at[place] < ends[place]]
        for place in behind:
            yield from client.fetch(place, at[place], ends[place], isolation=isolation)
            at[place] = ends[place]
        if not behind:
            pause.wait(POLL_S)


def _write(
    records: "Iterator[Record]",
    count: int | None,
    shown: "Callable[[Record], bytes]",
    out: BinaryIO,
    *,
    flush_each: bool,
) -> None:
    for number, record in enumerate(records, start=1):
        out.write(shown(record))
        if flush_each:
            out.flush()
        if number == count:
            break
    out.flush()
