"""What does a produce request cost now, compiled, and at the commit before the hardening?"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TypeVar

from bench._pipelined import connect, drive, one_record_frames, produce_frame
from bench._processes import cpu_s, scratch, touch_memory
from bench._report import ROOT, Figure, Report, sized
from bench._stock import Load, create_topic
from bench._trees import at_commit, broker_of, compiled
from bench.requests import STOCK, VALUE
from tests.support.broker import BrokerProcess

BASE = "3b643ba"
LARGE_BYTES, LARGE_RECORDS = 1_000_000, 1_000
METHOD = (
    f"Three brokers, of commit {BASE}, of this, and of this compiled (ADR 17), get the same "
    "requests alternately (`os` durability, one partition): batches of 1 MB and single idempotent "
    "records over a plain socket, and single records by confluent-kafka. CPU is the broker "
    "process's, from /proc; each round is a pair, and shares are medians of the pairs' ratios. "
    "Before each round of large batches a file is written and removed (see produce)."
)


class Clients:
    """What sends to one broker."""

    def __init__(self, broker: BrokerProcess, place: Path) -> None:
        """Connect."""
        create_topic(broker.address)
        self._pid, self._place = broker.pid, place
        self._connection = connect(broker.address)
        self._stock = Load(broker.address, STOCK)
        self._producer_id = 1_000

    def large(self) -> float:
        """Send batches of 1 MB, five open."""
        count, payload = sized(60, 10), bytes(LARGE_BYTES)
        touch_memory(self._place, 3 * count * LARGE_BYTES)
        self._producer_id += 1
        numbers = range(0, count * LARGE_RECORDS, LARGE_RECORDS)
        return self._drive(
            [produce_frame(self._producer_id, each, LARGE_RECORDS, payload) for each in numbers], 5
        )

    def small(self, depth: int) -> float:
        """Send single records."""
        count = sized(1_000 if depth == 1 else 4_000, 200)
        self._producer_id += 1
        return self._drive(one_record_frames(VALUE, self._producer_id, count), depth)

    def stock(self) -> float:
        """Let confluent-kafka send single records."""
        before = cpu_s(self._pid)
        sent = self._stock.send(VALUE, sized(3_000, 300))
        return 1e6 * (cpu_s(self._pid) - before) / sent.requests

    def _drive(self, frames: list[bytes], depth: int) -> float:
        before = cpu_s(self._pid)
        drive(self._connection, frames, depth)
        return 1e6 * (cpu_s(self._pid) - before) / len(frames)


C = TypeVar("C")
Cost = Callable[[Clients], float]
"""CPU µs of a request to one of the brokers, in a round."""
KINDS: dict[str, Cost] = {
    "batches of 1 MB, 5 open": Clients.large,
    "one record, 5 open": lambda each: each.small(5),
    "one record, one at a time": lambda each: each.small(1),
    "one record, by confluent-kafka": Clients.stock,
}


def main() -> None:
    """Measure in alternating rounds."""
    report = Report("before", f"produce requests beside commit {BASE}", METHOD)
    rounds = sized(12, 1)
    with scratch() as place, ExitStack() as stack:
        sources = {
            "before": at_commit(BASE, place / "before"),
            "now": ROOT / "src",
            "compiled": compiled(place / "compiled"),
        }
        clients = {
            name: Clients(stack.enter_context(broker_of(source, place / f"data-{name}")), place)
            for name, source in sources.items()
        }
        for title, cost in KINDS.items():
            compare(report, title, rounds, clients, cost)
    report.finish()


def compare(
    report: Report, title: str, rounds: int, clients: dict[str, C], cost: Callable[[C], float]
) -> None:
    """Add the figures of one kind of request; the first round warms up."""
    costs: dict[str, list[float]] = {name: [] for name in clients}
    for number in range(rounds + 1):
        for name in clients if number % 2 else reversed(clients):
            taken = cost(clients[name])
            if number:
                costs[name].append(taken)
    for name in [each for each in clients if each != "before"]:
        share = median(
            mine / before for mine, before in zip(costs[name], costs["before"], strict=True)
        )
        report.add(
            Figure(
                name=f"{title}, {name}",
                value=median(costs[name]),
                unit="µs",
                ceiling=median(costs["before"]),
                ceiling_name="before",
                goal=f"<= 1.02 of before, is {share:.2f}",
                met=share <= 1.02,
            )
        )


if __name__ == "__main__":
    main()
