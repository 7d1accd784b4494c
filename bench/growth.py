"""What happens as a broker grows: partitions, groups and idle connections at x1, x2 and x4?"""

import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from struct import Struct
from typing import Self, TypeVar

from bench._processes import cpu_s, percentile, resident_mib, scratch
from bench._report import Figure, Report, is_quick, show, sized
from fencelog.types import NO_TOPIC_ID
from fencelog.wire import hot
from fencelog.wire.headers import (
    RequestHeader,
    read_response_header,
    request_header,
    response_is_flexible,
)
from fencelog.wire.message import Message
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from fencelog.wire.messages.metadata import MetadataRequest
from fencelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from fencelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from fencelog.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.broker import BrokerProcess

M = TypeVar("M", bound=Message)
_SIZE = Struct(">i")
FACTORS = (1, 2, 4)
PARTITIONS, GROUPS, CONNECTIONS = sized(1_000, 100), sized(500, 20), sized(5_000, 50)
TOPICS = 10
OFFSETS_A_GROUP = 20
ASKED = sized(2_000, 100)
METADATA_ASKED = sized(200, 20)
IDLE_S = sized(10, 1)
FILES_MAX = 65_536
FILES_KEPT = 10
"""Of those that connections may take: for the ones that ask."""
A_SOURCE = 10_000
"""Connections from one loopback address, which has 28,000 ports to give."""
IDLE_SHARE, CHECKPOINT_S = 0.1, 12
"""CPU of a second that counts as idle; and how many of them are sure to have had a checkpoint."""
DEADLINE_S = 300.0
LINEAR = 1.25
BLOCKS = 10
"""What may come on top of growing with the load; for a latency, on top of staying what it was."""
SETTINGS = """\
max.connections=50000
fencelog.max.partitions=20000
group.initial.rebalance.delay.ms=0
"""
METHOD = (
    f"One broker process (`os` durability) with {PARTITIONS:,} partitions in {TOPICS} topics, a "
    f"record in each; {GROUPS:,} groups with a member and {OFFSETS_A_GROUP} offsets each; "
    f"{CONNECTIONS:,} connections that say nothing; then twice and four times as many of all. "
    f"Requests are single ones over one connection, {ASKED:,} of each kind, over all "
    "partitions and groups, while everything is open. Starts are from the exec to the line that "
    "says where the broker listens, after a clean stop and after `kill -9` with all partitions "
    "written to since. CPU of a request is the median of ten blocks of them. What is compared with "
    "a bound is CPU time of the broker (/proc) and memory, "
    "which other load on the machine does not change; wall times stand beside them. What grows "
    "with the load may at x4 be four times what it was at x1, a request what it was; a quarter "
    "more is allowed."
)


class Asker:
    """One connection that asks one thing after the other."""

    def __init__(self, broker: BrokerProcess) -> None:
        """Connect."""
        self._socket = socket.create_connection((broker.host, broker.port), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def raw(self, key: int, version: int, body: bytes) -> memoryview:
        """Send a body and return the answer's."""
        head = request_header(RequestHeader(key, version, 1, "growth"))
        self._socket.sendall(_SIZE.pack(len(head) + len(body)) + head + body)
        (size,) = _SIZE.unpack(self._exactly(_SIZE.size))
        answer = self._exactly(size)
        return read_response_header(answer, response_is_flexible(key, version))[1]

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the broker closed the connection"
            data += more
        return bytes(data)

    def ask(self, message: Message, version: int, answer: type[M]) -> M:
        """Send a message and return its answer."""
        return answer.read(self.raw(message.API_KEY, version, message.write(version)), version)

    def produce(self, topic: str, index: int) -> None:
        """Write one record, acknowledged."""
        batch = build_batch([RecordToWrite(b"k", b"v" * 100, time.time_ns() // 1_000_000)])
        body = b"".join(hot.write_produce_request(9, None, -1, 30_000, [(topic, [(index, batch)])]))
        topics = hot.read_produce_response(self.raw(0, 9, body), 9).topics
        assert topics[0][1][0].error == 0, topics

    def fetch(self, topic: str, index: int) -> None:
        """Read a partition from its begin."""
        asked = hot.FetchTopic(topic, None, [hot.FetchPartition(index, -1, 0, -1, 1 << 20)])
        body = hot.write_fetch_request(11, hot.FetchRequest(-1, 0, 1, 1 << 20, 0, 0, -1, [asked]))
        answer = hot.read_fetch_response(self.raw(1, 11, body), 11)
        assert answer.topics[0].partitions[0].records, answer

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


@dataclass(frozen=True)
class Kind:
    """What is expected of a figure as the load grows."""

    unit: str
    grows: bool
    """Whether it may grow in proportion; else it may not grow at all."""
    checked: bool = True


@dataclass
class Grown:
    """What was measured at one size."""

    connections: int = 0
    """Not always what was wanted: a process may open only so many files."""
    figures: dict[str, tuple[float, Kind]] = field(default_factory=dict)

    def note(
        self, name: str, value: float, unit: str = "ms", *, grows: bool = True, checked: bool = True
    ) -> None:
        """Keep a figure."""
        self.figures[name] = (value, Kind(unit, grows, checked))


class Spent:
    """Wall and CPU milliseconds of a broker over a ``with`` block."""

    def __init__(self, broker: BrokerProcess) -> None:
        """Nothing is measured before it is entered."""
        self._broker = broker
        self.wall_ms = self.cpu_ms = 0.0

    def __enter__(self) -> Self:
        """Begin."""
        self._cpu, self._wall = cpu_s(self._broker.pid), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self.wall_ms = 1e3 * (time.perf_counter() - self._wall)
        self.cpu_ms = 1e3 * (cpu_s(self._broker.pid) - self._cpu)


def topic_of(number: int, factor: int) -> tuple[str, int]:
    """Topic and index of one of all partitions."""
    del factor
    return f"topic-{number % TOPICS}", number // TOPICS


def wait_until_idle(broker: BrokerProcess) -> None:
    """Return when nothing is left of what was asked: the checkpoint after it, above all."""
    quiet_s = 0
    for _ in range(sized(120, 2)):
        before = cpu_s(broker.pid)
        time.sleep(1)
        quiet_s = quiet_s + 1 if cpu_s(broker.pid) - before < IDLE_SHARE else 0
        if quiet_s >= CHECKPOINT_S:
            return


def make_topics(asker: Asker, factor: int) -> None:
    """All partitions, and a record in each."""
    count = PARTITIONS * factor // TOPICS
    topics = [
        CreatableTopic(name=f"topic-{n}", num_partitions=count, replication_factor=1)
        for n in range(TOPICS)
    ]
    for topic in topics:
        answer = asker.ask(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)
        assert answer.topics[0].error_code == 0, answer
        assert answer.topics[0].topic_id != NO_TOPIC_ID
    touch_all(asker, factor)


def touch_all(asker: Asker, factor: int) -> None:
    """Write a record to every partition."""
    for number in range(PARTITIONS * factor):
        asker.produce(*topic_of(number, factor))


def make_groups(asker: Asker, factor: int) -> None:
    """Groups with a member that lives on, and its offsets."""
    for number in range(GROUPS * factor):
        group = f"group-{number}"
        joined = asker.ask(
            JoinGroupRequest(
                group_id=group,
                session_timeout_ms=1_800_000,
                rebalance_timeout_ms=60_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(20))],
            ),
            3,
            JoinGroupResponse,
        )
        assert joined.error_code == 0, joined
        member = joined.member_id
        share = SyncGroupRequestAssignment(member_id=member, assignment=bytes(100))
        synced = asker.ask(
            SyncGroupRequest(
                group_id=group,
                generation_id=joined.generation_id,
                member_id=member,
                assignments=[share],
            ),
            2,
            SyncGroupResponse,
        )
        assert synced.error_code == 0, synced
        commit(asker, factor, number, member, joined.generation_id)


def commit(asker: Asker, factor: int, number: int, member: str, generation: int) -> None:
    """Commit a group's offsets."""
    first = number * OFFSETS_A_GROUP
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for each in range(first, first + OFFSETS_A_GROUP):
        topic, index = topic_of(each % (PARTITIONS * factor), factor)
        part = OffsetCommitRequestPartition(partition_index=index, committed_offset=1)
        topics.setdefault(topic, []).append(part)
    answer = asker.ask(
        OffsetCommitRequest(
            group_id=f"group-{number}",
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=[OffsetCommitRequestTopic(name=n, partitions=p) for n, p in topics.items()],
        ),
        7,
        OffsetCommitResponse,
    )
    assert not any(p.error_code for t in answer.topics for p in t.partitions), answer


def idle(broker: BrokerProcess, count: int) -> Iterator[socket.socket]:
    """Connections that say nothing, from as many loopback addresses as it takes."""
    for number in range(count):
        source = (f"127.0.0.{2 + number // A_SOURCE}", 0)
        yield socket.create_connection((broker.host, broker.port), 60, source)


def timed(broker: BrokerProcess, asker: Asker, factor: int, grown: Grown) -> None:
    """Ask for many things, one kind after the other."""
    every = [topic_of(n * 7919 % (PARTITIONS * factor), factor) for n in range(ASKED)]

    def offsets_of(number: int) -> None:
        topic, index = every[number]
        wanted = [OffsetFetchRequestTopic(name=topic, partition_indexes=[index])]
        group = f"group-{number % (GROUPS * factor)}"
        asker.ask(OffsetFetchRequest(group_id=group, topics=wanted), 7, OffsetFetchResponse)

    def metadata(_: int) -> None:
        # Not read: that would cost this process more than the broker, and time.
        asker.raw(MetadataRequest.API_KEY, 9, MetadataRequest(topics=None).write(9))

    _time(grown, broker, "metadata of all topics", METADATA_ASKED, metadata, grows=True)
    # Writing comes last: it leaves every partition to be synced at the next checkpoint.
    kinds: dict[str, Callable[[int], object]] = {
        "offsets of a group": offsets_of,
        "fetch": lambda number: asker.fetch(*every[number]),
        "produce": lambda number: asker.produce(*every[number]),
    }
    for name, ask in kinds.items():
        _time(grown, broker, name, ASKED, ask)


def cpu_ms_of_one(broker: BrokerProcess, count: int, do: Callable[[int], object]) -> float:
    """CPU of the broker for one of many things: the median of some blocks of them.

    What it does at intervals, whatever is asked, falls into few of the blocks.
    """
    spent_ms = []
    size = count // BLOCKS
    for block in range(BLOCKS):
        with Spent(broker) as spent:
            for number in range(block * size, (block + 1) * size):
                do(number)
        spent_ms.append(spent.cpu_ms / size)
    return median(spent_ms)


def _time(
    grown: Grown,
    broker: BrokerProcess,
    name: str,
    count: int,
    ask: Callable[[int], object],
    *,
    grows: bool = False,
) -> None:
    latencies = []

    def timed_ask(number: int) -> None:
        began = time.perf_counter()
        ask(number)
        latencies.append(1e3 * (time.perf_counter() - began))

    grown.note(f"{name}: CPU of a request", cpu_ms_of_one(broker, count, timed_ask), grows=grows)
    for what, share in (("median", 0.5), ("99 %", 0.99)):
        grown.note(f"{name}: {what}", percentile(latencies, share), grows=grows, checked=False)


def start(broker: BrokerProcess, name: str, grown: Grown) -> None:
    """Start a broker, and measure it."""
    began = time.perf_counter()
    broker.start()
    grown.note(f"{name}: CPU", 1e3 * cpu_s(broker.pid))
    grown.note(name, 1e3 * (time.perf_counter() - began), checked=False)


def grow(place: Path, factor: int, files: int) -> Grown:
    """Measure a broker of one size."""
    grown = Grown()
    with BrokerProcess(place / f"data-{factor}", settings=SETTINGS) as broker:
        broker.start_deadline_s = broker.stop_deadline_s = DEADLINE_S
        # A broker keeps a quarter of its files for partitions.
        grown.connections = min(CONNECTIONS * factor, 3 * files // 4 - FILES_KEPT)
        fill(broker, factor, grown)
        began = time.perf_counter()
        assert broker.terminate() == 0, broker.stderr
        grown.note("clean stop", 1e3 * (time.perf_counter() - began), checked=False)
        start(broker, "start after a clean stop", grown)
        asker = Asker(broker)
        touch_all(asker, factor)
        asker.close()
        broker.kill()
        start(broker, "start after kill -9", grown)
    return grown


def fill(broker: BrokerProcess, factor: int, grown: Grown) -> None:
    """Make everything, and measure it as it stands."""
    asker = Asker(broker)
    parts: dict[str, Callable[[], object]] = {
        "partitions": lambda: make_topics(asker, factor),
        "groups": lambda: make_groups(asker, factor),
    }
    for name, make in parts.items():
        before = resident_mib(broker.pid)
        with Spent(broker) as spent:
            make()
        grown.note(f"making {name}: CPU", spent.cpu_ms)
        grown.note(f"making {name}", spent.wall_ms, checked=False)
        grown.note(f"memory of {name}", resident_mib(broker.pid) - before, "MiB")
    wait_until_idle(broker)
    before = resident_mib(broker.pid)
    with ExitStack() as stack:
        sockets = idle(broker, grown.connections)

        def connect(_: int) -> None:
            stack.enter_context(next(sockets))
            asker.raw(18, 0, b"")  # it is accepted by then, or as good as

        cpu_ms = cpu_ms_of_one(broker, grown.connections, connect)
        grown.note("opening a connection, and a request: CPU", cpu_ms, grows=False)
        grown.note("memory of connections", resident_mib(broker.pid) - before, "MiB")
        with Spent(broker) as spent:
            time.sleep(IDLE_S)
        grown.note("CPU of a second in which nothing is asked", spent.cpu_ms / IDLE_S)
        timed(broker, asker, factor, grown)
        grown.note("memory in all", resident_mib(broker.pid), "MiB")
    asker.close()


def main() -> None:
    """Measure each size."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    report = Report("growth", "what grows with partitions, groups and idle connections", METHOD)
    sizes: dict[int, Grown] = {}
    with scratch() as place:
        for factor in FACTORS:
            print(f"  x{factor}", file=sys.stderr, flush=True)
            sizes[factor] = grow(place, factor, files)
    least, most = sizes[FACTORS[0]], sizes[FACTORS[-1]]
    rows = ["| figure | x1 | x2 | x4 | x4 / x1 |", "|---|---:|---:|---:|---:|"]
    for name, (first, kind) in least.figures.items():
        values = [sizes[factor].figures[name][0] for factor in FACTORS]
        cells = [f"{show(value)} {kind.unit}" for value in values]
        rows.append(f"| {name} | {' | '.join(cells)} | {values[-1] / max(first, 1e-9):.2f} |")
        if kind.checked:
            share = most.connections / least.connections if "connections" in name else FACTORS[-1]
            _check(report, name, values[-1], first * (share if kind.grows else 1), kind)
    report.note("\n".join(rows))
    if most.connections < CONNECTIONS * FACTORS[-1]:
        report.note(
            f"A process may open {files:,} files here, and the broker gives three quarters of them "
            f"to connections: at x{FACTORS[-1]} there were {most.connections:,}, not "
            f"{CONNECTIONS * FACTORS[-1]:,}, and their figures are compared with that."
        )
    report.finish()


def _check(report: Report, name: str, value: float, bound: float, kind: Kind) -> None:
    report.add(
        Figure(
            name=f"{name}, x{FACTORS[-1]}",
            value=value,
            unit=kind.unit,
            ceiling=bound,
            ceiling_name="in proportion" if kind.grows else "as at x1",
            goal=f"<= {100 * LINEAR:.0f} %",
            met=None if is_quick() else value <= LINEAR * bound,
        )
    )


if __name__ == "__main__":
    main()
