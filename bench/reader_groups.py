"""How fast does a reader group share its segments, and take over those of a dead reader?"""

import asyncio
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from bench._processes import scratch
from bench._report import Figure, Report, sized
from fencelog.client.asynchronous import Client, Producer
from fencelog.client.cluster import ClusterOptions
from fencelog.client.streams.group_model import state_topic
from fencelog.client.streams.group_reader import GroupReader
from fencelog.client.streams.reader_group import ReaderGroup
from fencelog.coordination.reader_group.rules import is_balanced
from fencelog.coordination.reader_group.state import GroupState, dump, load
from fencelog.coordination.synchronizer.replica import Schema
from fencelog.types import TopicPartition
from tests.support.broker import BrokerProcess
from tests.support.reader_groups import crash

STREAM, GROUP = "events", "readers"
REST_S = 10.0
POLL_S = 0.01
LEASE_S = 10.0
TAKEOVER_GOAL_S = 0.3
METHOD = (
    "A broker process in `fsync` mode; all readers are in one other process, each with connections "
    "of its own, as separate programs have. Balanced: from the first join until the state of the "
    "last reader has every segment at its fair share, and every segment is claimed. At rest: "
    f"updates of the state in {REST_S:g} s after that. Memory: of one copy of the state, by "
    "`tracemalloc`. Takeover: from the end of a reader whose connections break, or from "
    "`reader_offline`, until another one has an event of its segment, which was written before. "
    "Updates: one after the other, by one program with no other beside it; the ceiling is a "
    "producer that waits for each record."
)


async def until(condition: Callable[[], bool]) -> float:
    """Wait for a condition; return when it held."""
    while not condition():  # noqa: ASYNC110 - several readers change what it is about
        await asyncio.sleep(POLL_S)
    return time.perf_counter()


async def read(reader: GroupReader) -> None:
    """Read for ever."""
    while await reader.next_batch() is not None:
        pass


def has_all(readers: Sequence[GroupReader], segments: int) -> bool:
    """Whether the group is balanced, and each segment is claimed."""
    state = readers[-1].state
    is_shared = len(state.readers) == len(readers) and not state.unassigned
    return is_shared and is_balanced(state) and sum(len(each.owned) for each in readers) == segments


async def measure_balance(report: Report, log: Client) -> None:
    """Add what sharing many segments takes."""
    readers, segments = sized(100, 4), sized(1_000, 8)
    await log.create_stream(STREAM, segments)
    group = log.reader_group(GROUP, STREAM)
    await group.create()
    found = [group.reader(f"r{number:03}", lease_s=LEASE_S) for number in range(readers)]
    async with AsyncExitStack() as stack:
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for each in found:
                tasks.create_task(stack.enter_async_context(each))
        reading = [asyncio.create_task(read(each)) for each in found]
        took_s = await until(lambda: has_all(found, segments)) - begun
        what = f"{readers} readers, {segments:,} segments"
        report.add(Figure(name=f"{what}: balanced", value=took_s, unit="s"))
        place = TopicPartition(state_topic(GROUP), 0)
        before = (await log.offsets([place], "latest", "replicated"))[place]
        await asyncio.sleep(REST_S)
        after = (await log.offsets([place], "latest", "replicated"))[place]
        report.add(
            Figure(
                name="updates at rest",
                value=after - before,
                unit="",
                goal="0",
                met=after == before,
            )
        )
        size_kib = memory(found[0].state)
        report.add(Figure(name="memory of the state", value=size_kib, unit="KiB"))
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)


def memory(state: GroupState) -> float:
    """Return how many KiB a copy of a state takes."""
    value = dump(state)
    tracemalloc.start()
    try:
        kept = load(value)
        assert kept == state
        return tracemalloc.get_traced_memory()[0] / 1024
    finally:
        tracemalloc.stop()


async def measure_takeover(report: Report, log: Client) -> None:
    """Add how long the segment of a dead reader is without one."""
    for how in ("connections break", "reader_offline"):
        name = f"takeover-{how.replace(' ', '-').replace('_', '-')}"
        await log.create_stream(name, 1)
        async with await log.producer() as producer:
            await producer.send(name, b"event", key=b"key")
        group = log.reader_group(name, name)
        first, second = group.reader("r1"), group.reader("r2")
        await first.__aenter__()
        assert await first.next_batch() is not None
        async with second:
            begun = time.perf_counter()
            await end(group, first, how)
            assert await second.next_batch() is not None
            took_s = time.perf_counter() - begun
        goal = TAKEOVER_GOAL_S if how == "connections break" else None
        report.add(
            Figure(
                name=f"takeover after: {how}",
                value=took_s,
                unit="s",
                goal="" if goal is None else f"<= {goal:g} s",
                met=None if goal is None else took_s <= goal,
            )
        )
        await first.close(processed=False)


async def end(group: ReaderGroup, reader: GroupReader, how: str) -> None:
    """End a reader without its doing."""
    if how == "reader_offline":
        await group.reader_offline(reader.name)
    else:
        await crash(reader)


async def measure_updates(report: Report, log: Client) -> None:
    """Add how many updates of a state follow each other in a second."""

    def add(total: int, value: object, _: int) -> int:
        assert isinstance(value, int)
        return total + value

    def number(value: object) -> int:
        assert isinstance(value, int)
        return value

    schema = Schema(initial=0, apply=add, dump=lambda total: total, load=number)
    await log.create_topic("state")
    await log.create_topic("plain")
    copy, count = log.synchronizer("state", schema), sized(2_000, 100)
    await copy.fetch()
    begun = time.perf_counter()
    for _ in range(count):
        await copy.update(lambda _: [1])
    updates = count / (time.perf_counter() - begun)
    async with await log.producer() as producer:
        plain = await one_at_a_time(producer, count)
    report.add(
        Figure(
            name="updates of a state",
            value=updates,
            unit="/s",
            ceiling=plain,
            ceiling_name="single records",
            goal=">= 80 %",
            met=updates >= 0.8 * plain,
        )
    )


async def one_at_a_time(producer: Producer, count: int) -> float:
    """Return how many records a second are written, each awaited."""
    begun = time.perf_counter()
    for _ in range(count):
        await producer.send("plain", b"1")
        await producer.flush()
    return count / (time.perf_counter() - begun)


async def measure(report: Report, address: str) -> None:
    """Measure one after the other."""
    options = ClusterOptions(bootstrap_servers=address, api_timeout_s=120.0)
    async with Client(options) as log:
        await measure_updates(report, log)
        await measure_takeover(report, log)
        await measure_balance(report, log)


def main() -> None:
    """Start a broker, and measure."""
    report = Report("reader_groups", "readers that share the segments of a stream", METHOD)
    with scratch() as place, BrokerProcess(place / "data", durability="fsync") as broker:
        asyncio.run(measure(report, broker.address))
    report.finish()


if __name__ == "__main__":
    main()
