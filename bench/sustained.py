"""Does writing more than the page cache takes delay somebody else, beside Apache Kafka?"""

import contextlib
import multiprocessing as mp
import os
import random
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from bench._pipelined import VERSION, Replies, connect
from bench._processes import cpu_s, percentile, scratch
from bench._report import Figure, Report, is_quick, sized
from bench.growth import Asker
from bench.partitions import create
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.framing import frame
from fencelog.wire.headers import RequestHeader, request_header
from fencelog.wire.hot import write_produce_request
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.apache_kafka import DEFAULT_HEAP, ApacheKafka
from tests.support.broker import BrokerProcess

TOPIC, BYSTANDER = "sustained", "bystander"
FENCELOG, KAFKA = "fencelog", "Kafka"
BATCH_BYTES = 1_000_000
TOTAL_BYTES = sized(20_000_000_000, 50_000_000)
WARM_UP_BATCHES = sized(300, 10)
OPEN_REQUESTS = 8
PARTITION_COUNTS = (1, 6)
EVERY_S = 0.02
DEADLINE_S = 300.0
BYSTANDER_GOAL_MS = 100
METHOD = (
    f"A broker in `os` mode gets {TOTAL_BYTES / 1e9:g} GB in batches of one incompressible record "
    f"of 1 MB over one connection, {OPEN_REQUESTS} of them unanswered, round robin over the "
    f"partitions. Beside it another process does two things every {1e3 * EVERY_S:.0f} ms, each "
    "with its own latency: it writes one record to a topic of its own, acknowledged, and it asks "
    "for the versions of the protocol, which needs no disk: that shows whether the broker serves "
    "at all. It also notes how much of the page cache is dirty or being written (/proc/meminfo). "
    "File systems are synced before each run. Then the same with Apache Kafka 4.3.1 (KRaft, one "
    "node, default settings). Broker, load and bystander share the machine's cores."
)


class Seen(NamedTuple):
    """What the bystander noted."""

    writes_ms: list[float]
    asks_ms: list[float]
    dirty_mb_max: float


class Run(NamedTuple):
    """One broker, and what was written to it."""

    seconds: float
    latencies_ms: list[float]
    """Of each batch, from the first byte sent to the answer."""
    broker_cpu_s: float
    seen: Seen


def dirty_mb() -> float:
    """How much of the page cache is not on disk."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields[name].split()[0]) for name in ("Dirty", "Writeback")) * 1024 / 1e6


def asker_at(address: str) -> Asker:
    """Connect."""
    host, port = address.rsplit(":", 1)
    return Asker(BrokerProcess("none", host=host, port=int(port)))


def watch(address: str, pipe: Connection) -> None:
    """Write a record and ask for the versions at each tick until told to stop."""
    asker = asker_at(address)
    seen = Seen([], [], 0.0)
    pipe.send(True)
    while not pipe.poll():
        began = time.perf_counter()
        asker.produce(BYSTANDER, 0)
        between = time.perf_counter()
        asker.raw(ApiKey.API_VERSIONS, 0, b"")
        ended = time.perf_counter()
        seen.writes_ms.append(1e3 * (between - began))
        seen.asks_ms.append(1e3 * (ended - between))
        seen = seen._replace(dirty_mb_max=max(seen.dirty_mb_max, dirty_mb()))
        time.sleep(max(EVERY_S - (ended - began), 0))
    pipe.send(seen)
    asker.close()


@contextlib.contextmanager
def bystander(address: str) -> Iterator[list[Seen]]:
    """Let somebody watch; the list has what was seen, afterwards."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=watch, args=(address, theirs))
    process.start()
    ours.recv()
    found: list[Seen] = []
    try:
        yield found
    finally:
        ours.send(False)
        found.append(ours.recv())
        process.join()


def frame_of(index: int) -> bytes:
    """A produce request for a partition."""
    value = random.Random(index).randbytes(BATCH_BYTES)
    batch = build_batch([RecordToWrite(None, value, time.time_ns() // 1_000_000)])
    head = request_header(RequestHeader(ApiKey.PRODUCE, VERSION, 1, "bench"))
    topics = [(TOPIC, [(index, batch)])]
    body = write_produce_request(
        VERSION, transactional_id=None, acks=-1, timeout_ms=60_000, topics=topics
    )
    return b"".join(frame([head, *body]))


def flood(address: str, partitions: int, count: int) -> list[float]:
    """Write so many batches; return each one's latency."""
    frames = [frame_of(index) for index in range(partitions)]
    latencies: list[float] = []
    begun: deque[float] = deque()
    with connect(address) as connection:
        connection.settimeout(DEADLINE_S)
        replies = Replies(connection)
        sent = 0
        while len(latencies) < count:
            while sent < count and len(begun) < OPEN_REQUESTS:
                begun.append(time.perf_counter())
                connection.sendall(frames[sent % partitions])
                sent += 1
            answered = replies.take(1)
            now = time.perf_counter()
            latencies += [1e3 * (now - begun.popleft()) for _ in range(answered)]
        replies.check_last()
    return latencies


def wait_until_writable(asker: Asker) -> None:
    """Return once the bystander's topic has a leader."""
    for _ in range(100):
        with contextlib.suppress(AssertionError):
            asker.produce(BYSTANDER, 0)
            return
        time.sleep(0.1)
    raise AssertionError("no leader")


def measure(name: str, place: Path, partitions: int) -> Run:
    """Start a broker and write to it."""
    os.sync()
    broker: BrokerProcess | ApacheKafka
    if name == KAFKA:
        broker = ApacheKafka(place / "kafka", java=DEFAULT_HEAP, settings={})
    else:
        broker = BrokerProcess(place / "data", durability="os")
        broker.stop_deadline_s = DEADLINE_S  # a process that is killed ends after its syncs
    with broker:
        asker = asker_at(broker.address)
        create(asker, [BYSTANDER], 1)
        create(asker, [TOPIC], partitions)
        wait_until_writable(asker)
        asker.close()
        flood(broker.address, partitions, WARM_UP_BATCHES)
        with bystander(broker.address) as found:
            before, began = cpu_s(broker.pid), time.perf_counter()
            latencies = flood(broker.address, partitions, TOTAL_BYTES // BATCH_BYTES)
            seconds = time.perf_counter() - began
            spent = cpu_s(broker.pid) - before
    return Run(seconds, latencies, spent, found[0])


def add(report: Report, name: str, partitions: int, run: Run) -> None:
    """Take the figures of one run."""
    where = f"{name}, {partitions} partition{'s' if partitions > 1 else ''}"
    gigabytes = TOTAL_BYTES / 1e9
    report.add(Figure(name=f"{where}: rate", value=1e3 * gigabytes / run.seconds, unit="MB/s"))
    report.add(Figure(name=f"{where}: CPU", value=run.broker_cpu_s / gigabytes, unit="s per GB"))
    report.add(Figure(name=f"{where}: most dirty", value=run.seen.dirty_mb_max, unit="MB"))
    kinds = (
        ("a batch of 1 MB", run.latencies_ms, False),
        ("bystander writes", run.seen.writes_ms, name == FENCELOG),
        ("bystander asks", run.seen.asks_ms, name == FENCELOG),
    )
    for what, values, has_goal in kinds:
        report.add(Figure(name=f"{where}: {what}, p99", value=percentile(values, 0.99), unit="ms"))
        most = max(values)
        is_goal = has_goal and not is_quick()
        report.add(
            Figure(
                name=f"{where}: {what}, maximum",
                value=most,
                unit="ms",
                goal=f"<= {BYSTANDER_GOAL_MS} ms" if is_goal else "",
                met=most <= BYSTANDER_GOAL_MS if is_goal else None,
            )
        )


def main() -> None:
    """Measure both brokers."""
    report = Report("sustained", "20 GB at once, and a bystander", METHOD)
    for partitions in PARTITION_COUNTS:
        for name in (FENCELOG, KAFKA):
            with scratch() as place:
                add(report, name, partitions, measure(name, place, partitions))
    report.finish()


if __name__ == "__main__":
    main()
