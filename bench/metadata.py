"""What do reads and writes of a cluster's metadata cost, through the adapter of etcd?"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from bench._processes import percentile
from bench._report import Figure, Report, sized
from fencelog.adapters.etcd import messages
from fencelog.adapters.etcd.member import Member
from fencelog.adapters.etcd_metadata import EtcdMetadata
from fencelog.ports import COMMIT_KEYS_MAX, MetadataWrite
from tests.support.etcd import Etcd, running_etcd

VALUE = b"0123456789" * 10
WRITERS = 64
TIMEOUT_S = 30.0
METHOD = (
    "A real etcd of one member on this machine, which syncs each write to its disk. Values of 100 "
    "bytes. One compare-and-set after the other, and 64 writers at once, each on a key of its own, "
    "in alternating rounds: through the adapter, and the same transactions by bare gRPC calls. "
    "From the call of a put to what a watch of the same store yields. A commit of as many keys as "
    "one may have, and a renewal of a lease."
)
Set = Callable[[str, int], Awaitable[int]]
"""Sets a key at a version; returns the new version."""


def through(store: EtcdMetadata) -> Set:
    """Compare and set as a broker does."""

    async def put(key: str, version: int) -> int:
        new = await store.put(key, VALUE, expected_version=version)
        assert new is not None
        return new

    return put


def bare(member: Member) -> Set:
    """The same transaction without what the adapter adds."""

    async def put(key: str, version: int) -> int:
        compare = messages.Compare(
            result=messages.Compare.EQUAL,
            target=messages.Compare.MOD,
            key=key.encode(),
            mod_revision=version,
        )
        write = messages.RequestOp(request_put=messages.PutRequest(key=key.encode(), value=VALUE))
        request = messages.TxnRequest(compare=[compare], success=[write])
        answer = await member.send(request, messages.TxnResponse, TIMEOUT_S, ())
        assert answer.succeeded
        return answer.header.revision

    return put


async def one_by_one(put: Set, key: str, count: int) -> list[float]:
    """The seconds of each of so many writes of one key."""
    times, version = [], 0
    for _ in range(count):
        start = time.perf_counter()
        version = await put(key, version)
        times.append(time.perf_counter() - start)
    return times


async def at_once(put: Set, key: str, count: int) -> tuple[float, float]:
    """Seconds and CPU seconds of so many writes by each of the writers."""
    start, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for writer in range(WRITERS):
            tasks.create_task(one_by_one(put, f"{key}.{writer}", count))
    return time.perf_counter() - start, time.process_time() - cpu


async def seen(store: EtcdMetadata, count: int) -> list[float]:
    """The seconds from each put to the watch that yields it."""
    watch = store.watch("seen", (await store.snapshot("seen")).revision)
    times = []
    for number in range(count):
        start = time.perf_counter()
        put = asyncio.ensure_future(store.put(f"seen{number}", VALUE, expected_version=0))
        await anext(watch)
        times.append(time.perf_counter() - start)
        await put
    return times


async def commits(store: EtcdMetadata, count: int) -> list[float]:
    """The seconds of each commit of as many keys as one may have."""
    times = []
    for _ in range(count):
        writes = [MetadataWrite(f"many/{key}", VALUE) for key in range(COMMIT_KEYS_MAX)]
        start = time.perf_counter()
        assert await store.commit(writes)
        times.append(time.perf_counter() - start)
    return times


async def renewals(store: EtcdMetadata, count: int) -> list[float]:
    """The seconds of each renewal."""
    lease, times = await store.grant(60.0), []
    for _ in range(count):
        start = time.perf_counter()
        assert await store.renew(lease)
        times.append(time.perf_counter() - start)
    return times


async def measure(etcd: Etcd, report: Report) -> None:
    """Write in alternating rounds."""
    rounds, count, each = sized(8, 2), sized(250, 10), sized(20, 2)
    store = await EtcdMetadata.open(etcd.url("bench"))
    member = Member(etcd.members[0].endpoint, None)
    puts = {"adapter": through(store), "bare": bare(member)}
    alone: dict[str, list[float]] = {name: [] for name in puts}
    together: dict[str, list[float]] = {name: [0.0, 0.0] for name in puts}
    for number in range(rounds + 1):  # the first one warms up
        for name, put in puts.items():
            times = await one_by_one(put, f"{name}.{number}", count)
            took = await at_once(put, f"{name}.{number}", each)
            if number:
                alone[name] += times
                together[name] = [a + b for a, b in zip(together[name], took, strict=True)]
    for share in (0.5, 0.99):
        mine, least = (1e3 * percentile(alone[name], share) for name in puts)
        add(report, f"compare-and-set, p{100 * share:.0f}", mine, "ms", least)
    writes = rounds * each * WRITERS
    rates = [writes / together[name][0] for name in puts]
    add(report, f"compare-and-sets of {WRITERS} writers", rates[0], "/s", rates[1])
    cpu = [1e6 * together[name][1] / writes for name in puts]
    add(report, "the broker's CPU time for each of them", cpu[0], "µs", cpu[1])
    for what, times in (
        ("put to watch", await seen(store, count)),
        (f"commit of {COMMIT_KEYS_MAX} keys", await commits(store, sized(100, 3))),
        ("renewal of a lease", await renewals(store, count)),
    ):
        for share in (0.5, 0.99):
            add(report, f"{what}, p{100 * share:.0f}", 1e3 * percentile(times, share), "ms")
    await store.close()
    await member.close()


def add(report: Report, name: str, value: float, unit: str, ceiling: float | None = None) -> None:
    """Take a figure."""
    report.add(Figure(name=name, value=value, unit=unit, ceiling=ceiling, ceiling_name="bare gRPC"))


def main() -> None:
    """Run an etcd and measure."""
    report = Report("metadata", "the metadata of a cluster, in etcd", METHOD)
    with running_etcd() as etcd:
        asyncio.run(measure(etcd, report))
    report.finish()


if __name__ == "__main__":
    main()
