"""How fast is writing beside Apache Kafka, and what does it cost?"""

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench._processes import cpu_s, percentile, scratch
from bench._report import ROOT, Figure, Report, sized
from bench._stock import Load, create_topic
from bench._trees import broker_of, compiled
from bench.latency import Stock
from bench.produce import RECORD, SETTINGS
from bench.requests import STOCK, VALUE
from tests.support.apache_kafka import DEFAULT_HEAP, ApacheKafka

KAFKA = "Kafka"
METHOD = (
    "Apache Kafka 4.3.1 (KRaft, one node, default settings, jars from Maven Central) and fencelog "
    "in `os` mode, as it is and compiled (ADR 17), on one machine at the same time. "
    "confluent-kafka writes to one partition, idempotent, acks=all: requests of one record, five "
    "open or one at a time, and batches of 1 MB of 1 KiB records. Rounds alternate; each figure is "
    "the median of the paired ratios. CPU is the broker process's, user and kernel, from /proc."
)


class Round(NamedTuple):
    """One kind of load on one broker."""

    us: float
    """CPU µs of a request, or of a MB."""
    rate: float
    """Requests, or MB, a second."""
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class Clients:
    """What sends to one broker."""

    def __init__(self, address: str, pid: int) -> None:
        """Connect."""
        create_topic(address)
        self._pid = pid
        self._small, self._large = Load(address, STOCK), Load(address, SETTINGS)
        self._one = Stock(address)

    def warm_up(self) -> None:
        """Send as much as Kafka's compiler needs, slowly at first."""
        for count in (500, 5_000, sized(40_000, 500)):
            self._small.send(VALUE, min(count, sized(40_000, 500)))

    def open_five(self) -> Round:
        """Send requests of one record."""
        before = cpu_s(self._pid)
        sent = self._small.send(VALUE, sized(3_000, 500))
        spent = cpu_s(self._pid) - before
        return Round(1e6 * spent / sent.requests, sent.requests / sent.seconds)

    def one_at_a_time(self) -> Round:
        """Send a record and wait, again and again."""
        count = sized(2_000, 100)
        before, start = cpu_s(self._pid), time.perf_counter()
        times = [self._one.send() for _ in range(count)]
        seconds = time.perf_counter() - start
        return Round(
            1e6 * (cpu_s(self._pid) - before) / count,
            count / seconds,
            1e3 * percentile(times, 0.5),
            1e3 * percentile(times, 0.99),
        )

    def sustained(self) -> Round:
        """Send batches of 1 MB."""
        before = cpu_s(self._pid)
        sent = self._large.send(RECORD, sized(200_000, 20_000))
        megabytes = sent.messages * len(RECORD) / 1e6
        return Round((cpu_s(self._pid) - before) / megabytes * 1e6, megabytes / sent.seconds)


FIGURES = (
    ("one record, 5 open", Clients.open_five, 0, "µs of CPU", 0.6, True),
    ("one record, 5 open", Clients.open_five, 1, "requests/s", 1.0, False),
    ("one at a time", Clients.one_at_a_time, 0, "µs of CPU", 0.6, True),
    ("one at a time", Clients.one_at_a_time, 2, "ms, p50", 1.0, True),
    ("one at a time", Clients.one_at_a_time, 3, "ms, p99", 1.0, True),
    ("batches of 1 MB", Clients.sustained, 0, "µs of CPU per MB", 1.0, True),
    ("batches of 1 MB", Clients.sustained, 1, "MB/s", 1.5, False),
)
"""Name, load, which figure of a round, its unit, its goal of Kafka's, whether less is better."""


def main() -> None:
    """Measure all at once."""
    report = Report("kafka_produce", "writing, beside Apache Kafka", METHOD)
    taken: dict[tuple[object, str], list[Round]] = {}
    with scratch() as place, ExitStack() as stack:
        clients = start(stack, place)
        loads = dict.fromkeys(load for _, load, *_ in FIGURES)
        for each in clients.values():
            each.warm_up()
        warm_up, rounds = sized(3, 1), sized(8, 1)
        for number in range(warm_up + rounds):
            for load in loads:
                for name in clients if number % 2 else reversed(clients):
                    found = load(clients[name])
                    if number >= warm_up:
                        taken.setdefault((load, name), []).append(found)
    for title, load, column, unit, goal, is_less in FIGURES:
        theirs = [each[column] for each in taken[load, KAFKA]]
        for name in ("fencelog", "compiled"):
            mine = [each[column] for each in taken[load, name]]
            share = median(one / other for one, other in zip(mine, theirs, strict=True))
            report.add(
                Figure(
                    name=f"{title}, {unit}, {name}",
                    value=median(mine),
                    unit=unit,
                    ceiling=median(theirs),
                    ceiling_name=KAFKA,
                    goal=f"{'<=' if is_less else '>='} {goal} of Kafka, is {share:.2f}",
                    met=share <= goal if is_less else share >= goal,
                )
            )
    report.finish()


def start(stack: ExitStack, place: Path) -> dict[str, Clients]:
    """Start all three."""
    sources = {"fencelog": ROOT / "src", "compiled": compiled(place / "compiled")}
    brokers = {
        name: stack.enter_context(broker_of(source, place / f"data-{name}"))
        for name, source in sources.items()
    }
    kafka = stack.enter_context(ApacheKafka(place / "kafka", java=DEFAULT_HEAP, settings={}))
    return {
        **{name: Clients(broker.address, broker.pid) for name, broker in brokers.items()},
        KAFKA: Clients(kafka.address, kafka.pid),
    }


if __name__ == "__main__":
    main()
