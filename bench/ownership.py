"""How soon does the next owner write, what do claims cost, and what do many resources take?"""

import asyncio
import os
import time
from itertools import count
from pathlib import Path
from statistics import median

from bench._claims import claim, dial, is_waiting, own, release
from bench._processes import cpu_s, percentile, resident_mib, scratch
from bench._report import Figure, Report, sized
from fencelog.client.blocking import Client
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tests.support.broker import BrokerProcess

TOPIC = "owned"
VALUE = b"0123456789" * 5
BATCH_BYTES = 130
WAIT_MS = 30_000
CONNECTIONS = 64
RESOURCES = 10_000
OFFSET_COMMIT_VERSION = 8
PER_CLAIM = 1_000
IDLE_S = 10.0
SYNCS = 4
"""One after the other: the grant, its fence, its end, and the write."""
METHOD = (
    "A broker in `fsync` mode; claimants over plain requests in one Python process. Killed: both "
    "connections of the owner are closed, as the kernel does for a killed process, while another "
    "claim of its partition waits; until that one's first write is acknowledged. Preempted: from "
    "the request that severs the owner until the claimant's first write is acknowledged; beside "
    f"{SYNCS} bare writes with fdatasync, one after the other, as many as it needs. Claims: "
    f"{CONNECTIONS} connections that each claim a resource, release it, and go on with another, "
    "against the same connections committing one offset after the other: one small record "
    "and one shared sync, too; in turns. Many resources: claims of a thousand each, held; the "
    "start is after `kill -9` of their broker, beside one of an empty broker; idle is CPU time "
    "over ten seconds."
)


def bare_syncs(descriptor: int) -> float:
    """Append and sync a small batch several times; the seconds."""
    began = time.perf_counter()
    for _ in range(SYNCS):
        os.write(descriptor, bytes(BATCH_BYTES))
        os.fdatasync(descriptor)
    return time.perf_counter() - began


async def killed(address: str, times: int) -> list[float]:
    """Let the owner die, while the next one waits."""
    resources = [f"{TOPIC}/0"]
    owner = await claim(address, resources)
    took = []
    for _ in range(times):
        waiting = asyncio.create_task(claim(address, resources, wait_ms=WAIT_MS))
        await is_waiting(address, resources[0], 1)
        began = time.perf_counter()
        owner.die()
        owner = await waiting
        await owner.write(TOPIC, VALUE)
        took.append(time.perf_counter() - began)
    owner.die()
    return took


async def preempted(address: str, times: int, descriptor: int) -> tuple[list[float], list[float]]:
    """Sever the owner, who is well; and as many bare syncs beside it."""
    resources = [f"{TOPIC}/0"]
    owner = await claim(address, resources)
    took, floor = [], []
    for _ in range(times):
        await owner.write(TOPIC, VALUE)
        began = time.perf_counter()
        following = await claim(address, resources)
        await following.write(TOPIC, VALUE)
        took.append(time.perf_counter() - began)
        floor.append(bare_syncs(descriptor))
        owner.die()
        owner = following
    owner.die()
    return took, floor


async def rate(address: str, seconds: float, numbers: "count[int]", *, commits: bool) -> float:
    """Claims and releases, or commits, a second, over all connections."""
    connections = [await dial(address) for _ in range(CONNECTIONS)]
    ends_at = time.perf_counter() + seconds
    done = 0

    async def work(connection: Connection) -> None:
        nonlocal done
        while time.perf_counter() < ends_at:
            number = next(numbers)
            if commits:
                await commit(connection, number)
            else:
                answer = await own(connection, [f"resource-{number % RESOURCES}"])
                assert not answer.error_code, answer.error_message
                await release(connection, answer)
                done += 1  # the claim, and below its release
            done += 1

    await asyncio.gather(*map(work, connections))
    for each in connections:
        each.close()
    return done / seconds


async def commit(connection: Connection, number: int) -> None:
    """Commit one offset of a group of its own."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=number)
    request = OffsetCommitRequest(
        group_id=f"group-{number % CONNECTIONS}",
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )
    body = await connection.call(
        ApiKey.OFFSET_COMMIT,
        OFFSET_COMMIT_VERSION,
        [request.write(OFFSET_COMMIT_VERSION)],
        Deadline(30.0),
    )
    answer = OffsetCommitResponse.read(body, OFFSET_COMMIT_VERSION)
    assert not answer.topics[0].partitions[0].error_code


def takeovers(report: Report, address: str, place: Path) -> None:
    """Measure both kinds of takeover."""
    times = sized(200, 5)
    dead = asyncio.run(killed(address, times))
    descriptor = os.open(place / "floor", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    severed, floor = asyncio.run(preempted(address, times, descriptor))
    os.close(descriptor)
    for share in (0.5, 0.99):
        value = 1e3 * percentile(dead, share)
        report.add(
            Figure(
                name=f"owner killed, p{100 * share:.0f}",
                value=value,
                unit="ms",
                goal="<= 200 ms",
                met=value <= 200,
            )
        )
    for share in (0.5, 0.99):
        value, least = 1e3 * percentile(severed, share), 1e3 * percentile(floor, share)
        report.add(
            Figure(
                name=f"preempted, p{100 * share:.0f}",
                value=value,
                unit="ms",
                ceiling=least,
                ceiling_name=f"{SYNCS} x write + fdatasync",
                goal="<= 50 ms more",
                met=value <= least + 50,
            )
        )


def claims(report: Report, address: str) -> None:
    """Measure claims in turns with commits."""
    numbers = count()
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(sized(5, 1)):
        for commits, found in rates.items():
            found.append(asyncio.run(rate(address, sized(4, 1), numbers, commits=commits)))
    value, most = median(rates[False]), median(rates[True])
    report.add(
        Figure(
            name="claims and releases, both counted",
            value=value,
            unit="/s",
            ceiling=most,
            ceiling_name="offset commits",
            goal=">= 80 %",
            met=value >= 0.8 * most,
        )
    )


async def hold(address: str, resources: int) -> list[Connection]:
    """Claim so many resources, a thousand at a time, and keep the connections."""
    held = []
    for first in range(0, resources, PER_CLAIM):
        names = [f"resource-{number:06d}" for number in range(first, first + PER_CLAIM)]
        control = await dial(address)
        answer = await own(control, names)
        assert not answer.error_code, answer.error_message
        held.append(control)
    return held


async def idle(broker: BrokerProcess, resources: int) -> tuple[float, float]:
    """Hold so many resources; memory, and the share of a core that is used meanwhile.

    The broker is killed while they are held.
    """
    held = await hold(broker.address, resources)
    memory = resident_mib(broker.pid)
    before = cpu_s(broker.pid)
    await asyncio.sleep(sized(int(IDLE_S), 1))
    share = (cpu_s(broker.pid) - before) / sized(int(IDLE_S), 1)
    broker.kill()
    for each in held:
        each.close()
    return memory, share


def started(broker: BrokerProcess) -> float:
    """Kill and start; the seconds until it serves."""
    broker.kill()
    began = time.perf_counter()
    broker.start()
    return time.perf_counter() - began


def many(report: Report, place: Path) -> None:
    """Measure what many resources take."""
    resources = sized(100_000, 2_000)
    with BrokerProcess(place / "empty", durability="fsync") as broker:
        nothing, _ = asyncio.run(idle(broker, 0))
        least = min(started(broker) for _ in range(3))
    with BrokerProcess(place / "many", durability="fsync") as broker:
        memory, share = asyncio.run(idle(broker, resources))
        start = min(started(broker) for _ in range(3))
    more = (memory - nothing) * 1.048576
    report.add(
        Figure(
            name=f"memory of {resources:,} owned resources",
            value=more,
            unit="MB",
            goal="<= 100 MB",
            met=more <= 100,
        )
    )
    report.add(
        Figure(
            name="start with them",
            value=start,
            unit="s",
            ceiling=least,
            ceiling_name="empty",
            goal="<= 2 s more",
            met=start <= least + 2,
        )
    )
    report.add(
        Figure(
            name="idle with them, of a core",
            value=100 * share,
            unit="%",
            goal="<= 3 %",
            met=share <= 0.03,
        )
    )


def main() -> None:
    """Measure one after the other."""
    report = Report("ownership", "takeovers, claims, and many resources", METHOD)
    with scratch() as place:
        with BrokerProcess(place / "data", durability="fsync") as broker:
            with Client(broker.address) as client:
                client.create_topic(TOPIC, 1)
                client.offsets([TopicPartition(TOPIC, 0)], "latest")
            takeovers(report, broker.address, place)
            claims(report, broker.address)
        many(report, place)
    report.finish()


if __name__ == "__main__":
    main()
