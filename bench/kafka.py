"""How fast is reading beside Apache Kafka, and what does it cost?"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from threading import Thread

from bench._kafka import KafkaProcess
from bench._processes import cpu_s, scratch
from bench._report import Figure, Report, sized
from bench._stock import Load, create_topic
from bench.consume import RECORD, SETTINGS, Reader
from tests.support.broker import BrokerProcess

FENCELOG, KAFKA = "fencelog", "Kafka"
METHOD = (
    "Apache Kafka 4.3.1 (KRaft, one node, default settings, jars from Maven Central) and fencelog "
    "in `os` mode on one machine at the same time. confluent-kafka reads 1 KiB records of one "
    "partition at read_committed: all that is stored, out of the page cache (catching up), or "
    "while another process writes them (tail). Rounds alternate; each figure is the median of the "
    "paired ratios. CPU is the broker process's, user and kernel, from /proc."
)
Round = tuple[float, float]
"""MB/s, and seconds of the broker's CPU for a GB."""


def catch_up(reader: Reader, pid: int, count: int) -> Round:
    """Read all that is stored."""
    before = cpu_s(pid)
    seconds = reader.read(count)
    gigabytes = count * len(RECORD) / 1e9
    return 1e3 * gigabytes / seconds, (cpu_s(pid) - before) / gigabytes


def follow(reader: Reader, load: Load, pid: int, count: int, stored: int) -> Round:
    """Read what is being written, from what is ``stored`` on; the CPU is that of both."""
    before = cpu_s(pid)
    writer = Thread(target=load.send, args=(RECORD, count))
    writer.start()
    seconds = reader.read(count, stored)
    writer.join()
    gigabytes = count * len(RECORD) / 1e9
    return 1e3 * gigabytes / seconds, (cpu_s(pid) - before) / gigabytes


def compare(report: Report, name: str, rounds: int, take: Callable[[str], Round]) -> None:
    """Add the figures of alternating rounds; the first pairs warm up."""
    pairs = []
    warm_up = sized(4, 1)  # Kafka's compiler needs some
    for number in range(warm_up + rounds):
        order = (FENCELOG, KAFKA) if number % 2 else (KAFKA, FENCELOG)
        taken = {who: take(who) for who in order}
        if number >= warm_up:
            pairs.append((taken[FENCELOG], taken[KAFKA]))
    goals: tuple[tuple[str, int, str, Callable[[float], bool]], ...] = (
        ("MB/s", 0, ">= 1.3", lambda share: share >= 1.3),
        ("s of CPU per GB", 1, "<= 0.5", lambda share: share <= 0.5),
    )
    for unit, column, goal, is_met in goals:
        share = median(ours[column] / theirs[column] for ours, theirs in pairs)
        report.add(
            Figure(
                name=f"{name}, {unit}",
                value=median(ours[column] for ours, _ in pairs),
                unit=unit,
                ceiling=median(theirs[column] for _, theirs in pairs),
                ceiling_name=KAFKA,
                goal=f"{goal} of Kafka, is {share:.2f}",
                met=is_met(share),
            )
        )


def main() -> None:
    """Measure both at once."""
    report = Report("kafka", "reading, beside Apache Kafka", METHOD)
    rounds, count = sized(5, 1), sized(400_000, 20_000)
    with scratch() as place, ExitStack() as stack:
        pids, readers, loads = start(place, stack)
        stored = dict.fromkeys(pids, count)
        for load in loads.values():
            load.send(RECORD, count)
        compare(
            report,
            "catching up",
            rounds,
            lambda who: catch_up(readers[who], pids[who], count),
        )

        def tail(who: str) -> Round:
            result = follow(readers[who], loads[who], pids[who], count, stored[who])
            stored[who] += count
            return result

        compare(report, "tail, with the writing", rounds, tail)
        for reader in readers.values():
            reader.close()
    report.finish()


def start(
    place: Path, stack: ExitStack
) -> tuple[dict[str, int], dict[str, Reader], dict[str, Load]]:
    """Start both; return their processes, and a reader and a writer of each."""
    ours = stack.enter_context(BrokerProcess(place / "data"))
    theirs = stack.enter_context(KafkaProcess(place / "kafka"))
    addresses = {FENCELOG: ours.address, KAFKA: theirs.address}
    for address in addresses.values():
        create_topic(address)
    return (
        {FENCELOG: ours.pid, KAFKA: theirs.pid},
        {who: Reader(address) for who, address in addresses.items()},
        {who: Load(address, SETTINGS) for who, address in addresses.items()},
    )


if __name__ == "__main__":
    main()
