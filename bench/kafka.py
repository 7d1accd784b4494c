"""How fast is reading beside Apache Kafka, and what does it cost?"""

from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from threading import Thread
from typing import NamedTuple, Protocol

from bench._fetching import CONSUMERS, WAIT_MS, Discarding, Idle
from bench._processes import cpu_s, kernel_s, scratch
from bench._report import Figure, Report, is_quick, sized
from bench._stock import Load, create_topic
from bench.consume import RECORD, SETTINGS, Reader
from tests.support.apache_kafka import DEFAULT_HEAP, ApacheKafka
from tests.support.broker import BrokerProcess

FENCELOG, KAFKA = "fencelog", "Kafka"
READS = 6
"""How often the fast reader reads all that is stored in one round."""
METHOD = (
    "Apache Kafka 4.3.1 (KRaft, one node, default settings, jars from Maven Central) and fencelog "
    "in `os` mode on one machine at the same time. Records of 1 KiB of one partition, in batches "
    "of 1 MB, are read at read_committed: all that is stored, out of the page cache (catching up), "
    "or while another process writes them (tail). They are read by confluent-kafka (8 MiB of a "
    "partition at once), and by a reader that discards them, which costs less than the brokers: "
    "confluent-kafka itself needs 1.4 s of CPU for a GB, so on two cores it decides how many MB/s "
    "it gets. Brokers alternate; each figure is the median of the paired rounds, and so "
    "is the ratio. CPU is the broker process's, from /proc."
)


class Round(NamedTuple):
    """One broker in one round."""

    mb_per_s: float
    cpu_s: float
    """Seconds of the broker's CPU for a GB."""
    kernel_s: float


class Reads(Protocol):
    """A reader of the partition."""

    def read(self, count: int, offset: int = 0) -> float:
        """Read so many records from an offset on; return seconds."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


Readers = dict[str, Reads]
"""A reader of each broker, by its name."""


class Side:
    """One broker with its readers and its writer."""

    def __init__(self, name: str, broker: BrokerProcess | ApacheKafka) -> None:
        """``broker`` runs."""
        self.name = name
        self.pid = broker.pid
        self.address = broker.address
        create_topic(broker.address)
        self._load = Load(broker.address, SETTINGS)
        self.stored = 0

    def fill(self, count: int) -> None:
        """Write so many records."""
        self._load.send(RECORD, count)
        self.stored += count

    def catch_up(self, reader: Reads, count: int, times: int) -> Round:
        """Read the first records, again and again."""
        return self._measure(times * count, lambda: sum(reader.read(count) for _ in range(times)))

    def follow(self, reader: Reads, count: int) -> Round:
        """Read what is being written; the CPU is that of both."""

        def both() -> float:
            begin = self.stored
            writer = Thread(target=self.fill, args=(count,))
            writer.start()
            seconds = reader.read(count, begin)
            writer.join()
            return seconds

        return self._measure(count, both)

    def _measure(self, count: int, read: Callable[[], float]) -> Round:
        before, kernel_before = cpu_s(self.pid), kernel_s(self.pid)
        seconds = read()
        gigabytes = count * len(RECORD) / 1e9
        spent, kernel = cpu_s(self.pid) - before, kernel_s(self.pid) - kernel_before
        return Round(1e3 * gigabytes / seconds, spent / gigabytes, kernel / gigabytes)


def compare(
    report: Report, name: str, sides: list[Side], take: Callable[[Side], Round], *, is_fast: bool
) -> None:
    """Add the figures of alternating rounds; ``is_fast``: the reader does not limit the broker."""
    pairs = []
    warm_up, rounds = sized(2, 1), sized(4, 1)  # Kafka's compiler needs some
    for number in range(warm_up + rounds):
        taken = {side.name: take(side) for side in (sides if number % 2 else sides[::-1])}
        if number >= warm_up:
            pairs.append((taken[FENCELOG], taken[KAFKA]))
    rows: tuple[tuple[str, int, str, Callable[[float], bool] | None], ...] = (
        ("MB/s", 0, ">= 1.3", (lambda share: share >= 1.3) if is_fast else None),
        ("s of CPU per GB", 1, "<= 0.5", lambda share: share <= 0.5),
        ("s of it in the kernel", 2, "", None),
    )
    for unit, column, goal, is_met in rows:
        share = median(ours[column] / max(theirs[column], 1e-3) for ours, theirs in pairs)
        report.add(
            Figure(
                name=f"{name}, {unit}",
                value=median(ours[column] for ours, _ in pairs),
                unit=unit,
                ceiling=median(theirs[column] for _, theirs in pairs),
                ceiling_name=KAFKA,
                goal=f"{goal} of Kafka, is {share:.2f}" if is_met else f"is {share:.2f} of Kafka",
                met=is_met(share) if is_met else None,
            )
        )


def wait_idle(report: Report, sides: list[Side]) -> None:
    """Add what consumers cost that wait at the end of the log."""
    shares: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(sized(5, 1)):  # the first one warms up
        for side in sides:
            idle = Idle(side.address, side.stored)
            idle.wait(1.0)
            before, seconds = cpu_s(side.pid), sized(4, 1)
            answers = idle.wait(seconds)
            if number or is_quick():
                shares[side.name].append(100 * (cpu_s(side.pid) - before) / seconds)
            idle.close()
            assert answers >= seconds * CONSUMERS * 1000 / WAIT_MS / 2, answers
    ours = median(shares[FENCELOG])
    report.add(
        Figure(
            name=f"{CONSUMERS} idle consumers, waits of {WAIT_MS} ms",
            value=ours,
            unit="% of a core",
            ceiling=median(shares[KAFKA]),
            ceiling_name=KAFKA,
            goal="<= 2 %",
            met=ours <= 2,
        )
    )


def main() -> None:
    """Measure both at once."""
    report = Report("kafka", "reading, beside Apache Kafka", METHOD)
    count = sized(150_000, 20_000)
    with scratch() as place, ExitStack() as stack:
        ours = stack.enter_context(BrokerProcess(place / "data"))
        theirs = stack.enter_context(ApacheKafka(place / "kafka", java=DEFAULT_HEAP, settings={}))
        sides = [Side(FENCELOG, ours), Side(KAFKA, theirs)]
        for side in sides:
            side.fill(count)
        for who, connect, times in (
            ("a reader that discards, 8 MiB", lambda address: Discarding(address, 8 << 20), READS),
            ("a reader that discards, 1 MiB", lambda address: Discarding(address, 1 << 20), READS),
            ("confluent-kafka", Reader, 1),
        ):
            readers: Readers = {side.name: connect(side.address) for side in sides}

            def read(side: Side, readers: Readers = readers, times: int = times) -> Round:
                return side.catch_up(readers[side.name], count, times)

            compare(report, f"catching up, {who}", sides, read, is_fast=times > 1)
            for reader in readers.values():
                reader.close()
        wait_idle(report, sides)
        consumers = {side.name: Reader(side.address) for side in sides}
        compare(
            report,
            "tail with the writing, confluent-kafka",
            sides,
            lambda side: side.follow(consumers[side.name], count),
            is_fast=False,
        )
        for consumer in consumers.values():
            consumer.close()
    report.finish()


if __name__ == "__main__":
    main()
