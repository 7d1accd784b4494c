"""What do resizes of a stream cost its writers, a condition an append, and streams all others?"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench._pipelined import connect, drive, one_record, produce_frame
from bench._processes import cpu_s, percentile, scratch
from bench._report import ROOT, Figure, Report, sized
from bench._rigs import TOPIC
from bench._stock import create_topic
from bench._trees import at_commit, broker_of, with_bytecode
from bench.alone import starting
from bench.before import Clients, compare
from bench.requests import VALUE
from fencelog.client.asynchronous import Client, Producer
from fencelog.client.cluster import ClusterOptions
from fencelog.coordination.streams.model import SegmentState
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.framing import frame
from fencelog.wire.headers import RequestHeader, request_header
from fencelog.wire.hot import FetchPartition, FetchRequest, FetchTopic, write_fetch_request
from fencelog.wire.hot.append_tags import AppendTags, Revision
from tests.support.broker import BrokerProcess

BASE = "85b6bae7"
STREAM, SEGMENTS = "events", 2
KEYS = 1_000
RATE = 10_000
TICK_S = 0.01
PAUSE_GOAL_S = 0.2
REST_S = 0.25
"""Between two resizes."""
FETCH_BYTES = 4_096
FETCH_VERSION = 12
METHOD = (
    "**Resizes.** A broker in `fsync` mode and one client that writes "
    f"{RATE:,} events/s of 50 bytes with {KEYS:,} keys: every {1e3 * TICK_S:g} ms all that is due, "
    "which it then waits for. Meanwhile a segment is split, and its two successors merged, again "
    f"and again, {REST_S:g} s apart. The pause of a resize is the longest such wait that overlaps "
    "it, as all wait for the slowest key; without resizes it is the same for intervals of that "
    "length. Throughput is that of the same client when it writes as much as it can, 500 events at "
    "a time, before, during and after resizes. "
    "**Conditions.** Single records, one at a time over a plain socket, of requests made "
    "beforehand, with and without a condition, alternately; medians. "
    f"**Ordinary topics.** Brokers of commit {BASE} and of this get the same requests alternately, "
    "as in `alone`."
)


@dataclass
class Waits:
    """How long each flush took, and when."""

    begun: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)

    def add(self, began: float) -> None:
        """Take a flush that has ended now."""
        self.begun.append(began)
        self.took.append(time.perf_counter() - began)

    def longest(self, start: float, end: float) -> float:
        """Return the longest that overlaps an interval, 0 if none does."""
        return max(
            (
                took
                for began, took in zip(self.begun, self.took, strict=True)
                if began <= end and began + took >= start
            ),
            default=0.0,
        )


async def send(producer: Producer, first: int, count: int) -> None:
    """Write so many events and wait until they are stored."""
    for number in range(first, first + count):
        await producer.send(STREAM, VALUE, key=b"key-%d" % (number % KEYS))
    await producer.flush()


async def write_at_rate(producer: Producer, waits: Waits, ends: asyncio.Event) -> int:
    """Write at the rate until the end; return how many events."""
    began, sent = time.perf_counter(), 0
    while not ends.is_set():
        due = int((time.perf_counter() - began) * RATE)
        if due > sent:
            at = time.perf_counter()
            await send(producer, sent, due - sent)
            waits.add(at)
            sent = due
        await asyncio.sleep(TICK_S)
    return sent


async def resizes(client: Client, count: int) -> list[tuple[float, float]]:
    """Split and merge alternately; return when each began and ended."""
    found = []
    for number in range(count):
        await asyncio.sleep(REST_S)
        stream = await client.describe_stream(STREAM)
        opened = sorted(
            (each for each in stream.segments if each.state is SegmentState.OPEN),
            key=lambda each: each.low,
        )
        began = time.perf_counter()
        if number % 2:
            await client.merge_segments(STREAM, [each.index for each in opened[:2]])
        else:
            await client.split_segment(STREAM, opened[0].index)
        found.append((began, time.perf_counter()))
    await asyncio.sleep(REST_S)
    return found


async def pauses(client: Client, producer: Producer) -> tuple[list[float], list[float], float]:
    """Return the pauses over resizes, those without any, and the events a second."""
    waits, ends = Waits(), asyncio.Event()
    began = time.perf_counter()
    writing = asyncio.create_task(write_at_rate(producer, waits, ends))
    quiet_s = REST_S * sized(40, 2)
    await asyncio.sleep(quiet_s)
    taken = await resizes(client, sized(200, 4))
    ends.set()
    rate = await writing / (time.perf_counter() - began)
    usual = median(end - start for start, end in taken)
    steps = int(quiet_s / REST_S)
    undisturbed = [
        waits.longest(began + at * REST_S, began + at * REST_S + usual) for at in range(1, steps)
    ]
    return [waits.longest(start, end) for start, end in taken], undisturbed, rate


async def throughput(client: Client, producer: Producer) -> tuple[float, float, float]:
    """Return events a second before, during and after resizes."""

    async def rate_while(work: Awaitable[object]) -> float:
        working = asyncio.ensure_future(work)
        began, sent = time.perf_counter(), 0
        while not working.done():
            await send(producer, sent, 500)
            sent += 500
        await working
        return sent / (time.perf_counter() - began)

    seconds = sized(10, 1)
    before = await rate_while(asyncio.sleep(seconds))
    during = await rate_while(resizes(client, int(seconds / REST_S)))
    return before, during, await rate_while(asyncio.sleep(seconds))


async def measure_resizes(report: Report, address: str) -> None:
    """Add the figures of writers over resizes."""
    async with Client(ClusterOptions(bootstrap_servers=address)) as client:
        await client.create_stream(STREAM, SEGMENTS)
        async with await client.producer() as producer:
            await send(producer, 0, KEYS)
            over, without, rate = await pauses(client, producer)
            before, during, after = await throughput(client, producer)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        value = percentile(over, share)
        report.add(
            Figure(
                name=f"pause of a key over a resize, {rate:,.0f} events/s, {name}",
                value=1e3 * value,
                unit="ms",
                ceiling=1e3 * percentile(without, share),
                ceiling_name="without a resize",
                goal=f"<= {1e3 * PAUSE_GOAL_S:g} ms",
                met=value <= PAUSE_GOAL_S,
            )
        )
    for name, value in (("during resizes", during), ("after them", after)):
        report.add(
            Figure(
                name=f"events a second {name}",
                value=value,
                unit="/s",
                ceiling=before,
                ceiling_name="before",
            )
        )


def measure_conditions(report: Report, place: Path) -> None:
    """Add the figure of conditional appends, beside the same appends without a condition."""
    rates: dict[str, list[float]] = {"plain": [], "conditional": []}
    count, record = sized(2_000, 100), one_record(VALUE)
    with broker_of(ROOT / "src", place / "data-conditions") as broker:
        for name in rates:
            create_topic(broker.address, name)
        connection, producer_id, end = connect(broker.address), 5_000, 0
        for number in range(sized(11, 1) + 1):
            for name in rates if number % 2 else reversed(rates):
                producer_id += 1
                conditions = [
                    AppendTags(condition=Revision(0 if at else -1, at))
                    for at in range(end, end + count)
                ]
                frames = [
                    produce_frame(
                        producer_id,
                        at,
                        1,
                        record,
                        name,
                        conditions[at] if name == "conditional" else None,
                    )
                    for at in range(count)
                ]
                seconds = drive(connection, frames, 1)
                end += count if name == "conditional" else 0
                if number:
                    rates[name].append(count / seconds)
    share = median(
        mine / plain for mine, plain in zip(rates["conditional"], rates["plain"], strict=True)
    )
    report.add(
        Figure(
            name="conditional appends of single records, one at a time",
            value=median(rates["conditional"]),
            unit="/s",
            ceiling=median(rates["plain"]),
            ceiling_name="without a condition",
            goal=f">= 0.80 of plain, is {share:.2f}",
            met=share >= 0.8,
        )
    )


class Ordinary(Clients):
    """What sends to one broker, and reads from it."""

    def __init__(self, broker: BrokerProcess, place: Path) -> None:
        """Connect."""
        super().__init__(broker, place)
        self._broker = broker
        self._reads = connect(broker.address)

    def fetch(self) -> float:
        """Fetch the beginning of the log, five open."""
        partition = FetchPartition(0, -1, 0, 0, FETCH_BYTES)
        topics = [FetchTopic(TOPIC, None, [partition])]
        request = FetchRequest(-1, 0, 1, FETCH_BYTES, 0, 0, -1, topics)
        head = request_header(RequestHeader(ApiKey.FETCH, FETCH_VERSION, 1, "bench"))
        whole = b"".join(frame([head, write_fetch_request(FETCH_VERSION, request)]))
        count, before = sized(2_000, 100), cpu_s(self._broker.pid)
        drive(self._reads, [whole] * count, 5, writes=False)
        return 1e6 * (cpu_s(self._broker.pid) - before) / count


def measure_ordinary(report: Report, place: Path) -> None:
    """Add the figures of topics that are no streams."""
    sources = {"before": at_commit(BASE, place / "before"), "now": ROOT / "src"}
    for source in sources.values():
        with_bytecode(source)
    with ExitStack() as stack:
        clients = {
            name: Ordinary(stack.enter_context(broker_of(source, place / f"data-{name}")), place)
            for name, source in sources.items()
        }
        kinds: dict[str, Callable[[Ordinary], float]] = {
            "one record, 5 open": lambda each: each.small(5),
            "one record, one at a time": lambda each: each.small(1),
            "fetch of 4 KiB, 5 open": Ordinary.fetch,
        }
        for title, cost in kinds.items():
            compare(report, title, sized(21, 1), clients, cost)
    starting(report, sources, place)


def main() -> None:
    """Measure one after the other."""
    report = Report(
        "streams", "streams that are resized, conditional appends, and all others", METHOD
    )
    with scratch() as place:
        with BrokerProcess(place / "data-streams", durability="fsync") as broker:
            asyncio.run(measure_resizes(report, broker.address))
        measure_conditions(report, place)
        measure_ordinary(report, place)
    report.finish()


if __name__ == "__main__":
    main()
