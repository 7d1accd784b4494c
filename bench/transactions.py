"""How many transactions a second does a stock client end, and how long does a commit take?"""

import time
from contextlib import ExitStack

from confluent_kafka import Producer

from bench._processes import cpu_s, percentile, scratch
from bench._report import Figure, Report, sized
from bench._rigs import TOPIC
from bench._stock import DEADLINE_S, create_topic
from tests.support.broker import BrokerProcess

RECORDS = 10
VALUE = b"0123456789" * 10
METHOD = (
    "One confluent-kafka transactional producer: begin, ten records of 100 bytes to one "
    "partition, commit, begin again. Alternating in `os` mode, in `fsync` mode, and with the mock "
    "broker inside librdkafka, which stores nothing and fences no producer: what the client allows."
)


class Writer:
    """A transactional producer; without an address it talks to librdkafka's own mock."""

    def __init__(self, address: str | None) -> None:
        """Connect and initialise."""
        place: dict[str, str | int] = (
            {"test.mock.num.brokers": 1} if address is None else {"bootstrap.servers": address}
        )
        self._producer = Producer(
            {**place, "log_level": 0, "transactional.id": "bench", "linger.ms": 0}
        )
        self._producer.init_transactions(DEADLINE_S)

    def transaction(self) -> tuple[float, float]:
        """Write and commit one; return seconds of all of it, and of the commit alone."""
        start = time.perf_counter()
        self._producer.begin_transaction()
        for _ in range(RECORDS):
            self._producer.produce(TOPIC, VALUE, partition=0)
        # What the commit waits for otherwise is the records, not the decision.
        assert self._producer.flush(DEADLINE_S) == 0
        ready = time.perf_counter()
        self._producer.commit_transaction(DEADLINE_S)
        end = time.perf_counter()
        return end - start, end - ready


def main() -> None:
    """Commit in alternating rounds."""
    report = Report("transactions", "transactions of a stock client", METHOD)
    rounds, count = sized(8, 2), sized(60, 5)
    wholes: dict[str, list[float]] = {}
    commits: dict[str, list[float]] = {}
    cpu = 0.0
    with scratch() as place, ExitStack() as stack:
        brokers = {
            "os": stack.enter_context(BrokerProcess(place / "os")),
            "fsync": stack.enter_context(BrokerProcess(place / "fsync", durability="fsync")),
        }
        for broker in brokers.values():
            create_topic(broker.address)
        writers = {name: Writer(broker.address) for name, broker in brokers.items()}
        writers["mock"] = Writer(None)
        for number in range(rounds + 1):  # the first one warms up
            for name, writer in writers.items():
                before = cpu_s(brokers["os"].pid)
                took = [writer.transaction() for _ in range(count)]
                if number:
                    wholes.setdefault(name, []).extend(whole for whole, _ in took)
                    commits.setdefault(name, []).extend(commit for _, commit in took)
                    cpu += cpu_s(brokers["os"].pid) - before if name == "os" else 0
    for mode in ("os", "fsync"):
        report.add(
            Figure(
                name=f"transactions a second, {mode} mode",
                value=len(wholes[mode]) / sum(wholes[mode]),
                unit="/s",
                ceiling=len(wholes["mock"]) / sum(wholes["mock"]),
                ceiling_name="librdkafka's mock",
            )
        )
        for share in (0.5, 0.99):
            report.add(
                Figure(
                    name=f"commit, {mode} mode, p{100 * share:.0f}",
                    value=1e3 * percentile(commits[mode], share),
                    unit="ms",
                    ceiling=1e3 * percentile(commits["mock"], share),
                    ceiling_name="librdkafka's mock",
                )
            )
    report.add(
        Figure(
            name="the broker's CPU a transaction, os mode",
            value=1e3 * cpu / len(wholes["os"]),
            unit="ms",
        )
    )
    report.finish()


if __name__ == "__main__":
    main()
