"""What do three replicas cost beside one broker: CPU, latency, catching up, idle partitions?"""

import operator
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from bench._clusters import Cluster, member, running_cluster
from bench._pipelined import connect, drive, one_record_frames, produce_frame
from bench._processes import cpu_s, percentile, resident_mib, scratch, touch_memory
from bench._report import ROOT, Figure, Report, sized
from bench._rigs import TOPIC
from bench._stock import Load, create_topic
from bench._trees import with_bytecode
from bench.latency import Plain, Stock
from bench.requests import STOCK, VALUE
from bench.startup import BARE, end, start
from tests.support.broker import BrokerProcess
from tests.support.etcd import running_etcd

LARGE_BYTES, LARGE_RECORDS = 1_000_000, 1_000
IDLE_TOPIC, AWAY_TOPIC = "idle", "away"
PARTITIONS = sized(1_000, 60)
COPY_BYTES = 1 << 20
SETTLE_S = 15.0
METHOD = (
    "Three brokers in `os` mode and an etcd of one member, all on this machine; replicas on each "
    "broker, acks=all, min.insync.replicas=2. Beside them one broker alone gets the same requests "
    "alternately; each round is a pair, ratios are medians of the pairs'. CPU is that of the "
    "broker processes, from /proc, summed over the three. Catching up: a follower is killed, its "
    "leader gets batches of 1 MB, the follower starts again while its leader is stopped, so that "
    "memory is touched right before it fetches; the rate is from its first new bytes to its last, "
    "by the size of its files, and its share of the ceiling a median of pairs. The ceiling is a "
    "copy of the same file by `sendfile` over a socket of loopback to a process that writes it, "
    "alternating. Idle partitions: CPU over some seconds in which nobody asks for anything, after "
    "the cluster has come to rest."
)


class Clients:
    """What sends to one broker, or to the leader in a cluster."""

    def __init__(self, address: str, cpu: Callable[[], float], place: Path, copies: int) -> None:
        """Connect. ``cpu``: seconds of all who take part; ``copies`` of each record are kept."""
        self._cpu, self._place, self._copies = cpu, place, copies
        self._connection = connect(address)
        self._stock = Load(address, STOCK)
        self._producer_id = 1_000
        self.plain = Plain(address, sized(150, 20) * (sized(10, 1) + 1))
        self.client = Stock(address)

    def large(self) -> float:
        """Send batches of 1 MB, five open; return CPU µs of each."""
        count, payload = sized(40, 5), bytes(LARGE_BYTES)
        touch_memory(self._place, (self._copies + 2) * count * LARGE_BYTES)
        self._producer_id += 1
        numbers = range(0, count * LARGE_RECORDS, LARGE_RECORDS)
        return self._drive(
            [produce_frame(self._producer_id, each, LARGE_RECORDS, payload) for each in numbers], 5
        )

    def small(self, depth: int) -> float:
        """Send single records; return CPU µs of each."""
        count = sized(1_000 if depth == 1 else 4_000, 200)
        self._producer_id += 1
        return self._drive(one_record_frames(VALUE, self._producer_id, count), depth)

    def stock(self) -> float:
        """Let confluent-kafka send single records; return CPU µs of each."""
        before = self._cpu()
        sent = self._stock.send(VALUE, sized(3_000, 300))
        return 1e6 * (self._cpu() - before) / sent.requests

    def _drive(self, frames: list[bytes], depth: int) -> float:
        before = self._cpu()
        drive(self._connection, frames, depth)
        return 1e6 * (self._cpu() - before) / len(frames)


KINDS: dict[str, Callable[[Clients], float]] = {
    "batches of 1 MB, 5 open": Clients.large,
    "one record, 5 open": lambda each: each.small(5),
    "one record, one at a time": lambda each: each.small(1),
    "one record, by confluent-kafka": Clients.stock,
}


def records(report: Report, place: Path) -> None:
    """CPU time and latency of records; the first round of each warms up."""
    with ExitStack() as stack:
        alone = stack.enter_context(BrokerProcess(place / "alone"))
        cluster = stack.enter_context(running_cluster(place))
        create_topic(alone.address)
        cluster.create_topic(TOPIC)
        clients = {
            "alone": Clients(alone.address, lambda: cpu_s(alone.pid), place, 1),
            "cluster": Clients(cluster.leader(TOPIC).address, cluster.cpu_s, place, 3),
        }
        for title, cost in KINDS.items():
            costs: dict[str, list[float]] = {name: [] for name in clients}
            for number in range(sized(9, 1) + 1):
                for name in clients if number % 2 else reversed(clients):
                    taken = cost(clients[name])
                    if number:
                        costs[name].append(taken)
            pairs = zip(costs["cluster"], costs["alone"], strict=True)
            share = median(mine / other for mine, other in pairs)
            report.add(
                Figure(
                    name=f"CPU of all brokers, {title}",
                    value=median(costs["cluster"]),
                    unit="µs",
                    ceiling=median(costs["alone"]),
                    ceiling_name="one broker",
                    goal=f"<= 4 of one broker, is {share:.2f}",
                    met=share <= 4,
                )
            )
        latency(report, clients)


def latency(report: Report, clients: dict[str, Clients]) -> None:
    """How long single records wait, one after the other."""
    times: dict[tuple[str, str], list[float]] = {}
    for number in range(sized(10, 1) + 1):
        for name, each in clients.items():
            for kind, sender in (("plain socket", each.plain), ("confluent-kafka", each.client)):
                took = [sender.send() for _ in range(sized(150, 20))]
                if number:
                    times.setdefault((name, kind), []).extend(took)
    for kind in ("plain socket", "confluent-kafka"):
        for share in (0.5, 0.99):
            mine = 1e3 * percentile(times["cluster", kind], share)
            least = 1e3 * percentile(times["alone", kind], share)
            is_goal = share == 0.5
            report.add(
                Figure(
                    name=f"latency of one record, {kind}, p{100 * share:.0f}",
                    value=mine,
                    unit="ms",
                    ceiling=least,
                    ceiling_name="one broker",
                    goal=f"<= 3 of one broker, is {mine / least:.2f}" if is_goal else "",
                    met=mine <= 3 * least if is_goal else None,
                )
            )


def catching_up(report: Report, place: Path) -> None:
    """How fast a follower that was away takes what it lacks."""
    count, rounds = sized(500, 10), sized(7, 1)
    rates: dict[str, list[float]] = {"follower": [], "copy": []}
    synced: list[float] = []
    with running_cluster(place) as cluster:
        cluster.create_topic(AWAY_TOPIC)
        leader = cluster.leader(AWAY_TOPIC)
        follower = next(each for each in cluster.brokers if each is not leader)
        connection = connect(leader.address)
        for number in range(rounds):
            follower.kill()
            had = size_of(follower)
            frames = (
                produce_frame(
                    number, each * LARGE_RECORDS, LARGE_RECORDS, bytes(LARGE_BYTES), AWAY_TOPIC
                )
                for each in range(count)
            )
            for frame in frames:
                drive(connection, [frame], 1)
            size = size_of(leader) - had
            with paused(leader):
                follower.start()
                touch_memory(place, 2 * size)
            began = time.perf_counter()
            rates["follower"].append(arrive(follower, had, size))
            cluster.wait_in_sync(AWAY_TOPIC)
            synced.append(time.perf_counter() - began)
            touch_memory(place, 2 * size)
            rates["copy"].append(copy(max(logs_of(leader)), place / "copied", size))
    mine, other = median(rates["follower"]), median(rates["copy"])
    share = median(map(operator.truediv, rates["follower"], rates["copy"]))
    report.add(
        Figure(
            name="catching up",
            value=mine,
            unit="MB/s",
            ceiling=other,
            ceiling_name="sendfile to a process that writes",
            goal=f">= 60 %, is {100 * share:.0f} %",
            met=share >= 0.6,
        )
    )
    report.note(
        f"Catching up with {count} MB: in sync again {median(synced):.2f} s after the leader went "
        "on."
    )


def logs_of(broker: BrokerProcess) -> list[tuple[int, Path]]:
    """The segments of the topic's partition, with their sizes."""
    folder = broker.data_dir / f"{AWAY_TOPIC}-0"
    return [(each.stat().st_size, each) for each in folder.glob("*.log")]


def size_of(broker: BrokerProcess) -> int:
    """Bytes that a broker has of the partition."""
    return sum(size for size, _ in logs_of(broker))


def arrive(follower: BrokerProcess, had: int, size: int) -> float:
    """Wait until a follower has so many bytes more; return MB/s from its first to its last."""
    began = first = 0.0
    have = had
    while have < had + size:
        time.sleep(0.001)
        have = size_of(follower)
        if not began and have > had:
            began, first = time.perf_counter(), have
    return (had + size - first) / (time.perf_counter() - began) / 1e6


@contextmanager
def paused(broker: BrokerProcess) -> Iterator[None]:
    """Stop a broker's process for the block, which has to be shorter than its lease."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


RECEIVER = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
connection, _ = listening.accept()
space = memoryview(bytearray(int(sys.argv[2])))
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        filled = 0
        while filled < len(space) and (count := connection.recv_into(space[filled:])):
            filled += count
        file.write(space[:filled])
        if filled < len(space):
            break
connection.sendall(b"1")
"""


def copy(source: tuple[int, Path], target: Path, size: int) -> float:
    """Send up to ``size`` bytes of a file over a socket to a process that writes them; MB/s."""
    total, path = source
    size = min(size, total)
    command = [sys.executable, "-c", RECEIVER, str(target), str(COPY_BYTES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as connection, path.open("rb") as file:
            began = time.perf_counter()
            sent = 0
            while sent < size:
                sent += os.sendfile(connection.fileno(), file.fileno(), sent, size - sent)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b"1"
            seconds = time.perf_counter() - began
    target.unlink()
    return size / seconds / 1e6


@contextmanager
def idle_pair(place: Path) -> Iterator[tuple[BrokerProcess, Cluster]]:
    """One broker, and three."""
    with BrokerProcess(place / "idle") as alone, running_cluster(place) as cluster:
        yield alone, cluster


def idle(report: Report, place: Path) -> None:
    """What partitions cost where nothing happens."""
    with idle_pair(place) as (alone, cluster):
        time.sleep(2)
        everyone = [alone, *cluster.brokers]
        empty = [resident_mib(each.pid) for each in everyone]
        create_topic(alone.address, IDLE_TOPIC, PARTITIONS)
        began = time.perf_counter()
        cluster.create_topic(IDLE_TOPIC, PARTITIONS)
        created_s = time.perf_counter() - began
        time.sleep(sized(int(SETTLE_S), 1))
        before = [cpu_s(each.pid) for each in everyone]
        began = time.perf_counter()
        time.sleep(sized(30, 1))
        seconds = time.perf_counter() - began
        shares = [
            100 * (cpu_s(each.pid) - spent) / seconds
            for each, spent in zip(everyone, before, strict=True)
        ]
        grown = [resident_mib(each.pid) - was for each, was in zip(everyone, empty, strict=True)]
    report.add(
        Figure(
            name=f"{PARTITIONS} idle partitions, CPU of the busiest broker",
            value=max(shares[1:]),
            unit="% of a core",
            ceiling=shares[0],
            ceiling_name="one broker",
            goal="<= 3 %",
            met=max(shares[1:]) <= 3,
        )
    )
    report.add(
        Figure(
            name=f"{PARTITIONS} idle partitions, memory on the broker with the most",
            value=max(grown[1:]),
            unit="MiB",
            ceiling=grown[0],
            ceiling_name="one broker",
        )
    )
    report.note(
        f"{PARTITIONS} partitions with three replicas: {created_s:.1f} s from the request until "
        "all of them were in sync."
    )


def starting(report: Report, place: Path) -> None:
    """How long a broker of a cluster takes to start, and what it holds when nothing happens."""
    walls: dict[str, list[float]] = {}
    cpus: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    with_bytecode(ROOT / "src")
    with running_etcd() as etcd, member(etcd, place, 1):
        for number in range(sized(11, 2)):
            joining = member(etcd, place, number + 2)
            alone = BrokerProcess(place / f"start-{number}")
            commands = {
                "bare": [sys.executable, "-c", BARE],
                "alone": alone.command(),
                "member": joining.command(),
            }
            for kind, command in commands.items():
                wall, cpu, process = start(command)
                if number == 0:
                    time.sleep(2)
                    memory[kind] = resident_mib(process.pid)
                end(process)
                walls.setdefault(kind, []).append(1e3 * wall)
                cpus.setdefault(kind, []).append(1e3 * cpu)
    value = median(walls["member"])
    report.add(
        Figure(
            name="start of a broker of a cluster",
            value=value,
            unit="ms",
            ceiling=median(walls["bare"]),
            ceiling_name="bare python",
            goal="<= 600 ms",
            met=value <= 600,
        )
    )
    report.add(
        Figure(
            name="CPU time until ready",
            value=median(cpus["member"]),
            unit="ms",
            ceiling=median(cpus["alone"]),
            ceiling_name="one broker",
        )
    )
    report.add(
        Figure(
            name="idle memory of a broker of a cluster",
            value=memory["member"],
            unit="MiB",
            ceiling=memory["alone"],
            ceiling_name="one broker",
            goal="<= 75 MB",
            met=memory["member"] * 1.048576 <= 75,
        )
    )


def main() -> None:
    """Measure one part after the other, each with brokers of its own."""
    report = Report("cluster", "three replicas beside one broker", METHOD)
    for part in (starting, records, catching_up, idle):
        with scratch() as place:
            part(report, place)
    report.finish()


if __name__ == "__main__":
    main()
