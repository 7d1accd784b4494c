"""How long until the next acknowledged write, when the leader is killed, paused or cut off?"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from bench._clusters import LEASE_S, Cluster, running_cluster
from bench._pipelined import Replies, connect, one_record_frames
from bench._processes import percentile, scratch
from bench._report import Figure, Report, sized
from bench._rigs import TOPIC
from bench.latency import VALUE, Stock
from fencelog.client.blocking import Client
from fencelog.client.blocking_writers import Producer
from tests.support.broker import BrokerProcess
from tests.support.network import apart, missing

Times = dict[str, list[float]]
"""Seconds, by client and what happened."""
CUT_OFF = "cut off"
OURS, STOCK, PROBER = "our client", "confluent-kafka", "asking the others"
KILLED_S = 2.0
STOCK_TIMEOUT = {"socket.timeout.ms": 1_000}
ASKED_EVERY_S = 0.01
METHOD = (
    "Three brokers in `os` mode and an etcd of one member, all on this machine; one partition with "
    "three replicas, acks=all, min.insync.replicas=2. Clients that have just written send the next "
    "record when the leader has got its signal; measured is until that record is acknowledged. "
    "SIGKILL: our client and confluent-kafka (idempotent, linger.ms=0), both at once. SIGSTOP, "
    f"which only the end of the lease tells ({LEASE_S:g} s, the default, counted from the leader's "
    "last renewal): a client that offers its record to the other brokers every 10 ms, and "
    "confluent-kafka that gives a request up after a second (by default it waits a minute for a "
    "silent broker). Cut off: the same two; brokers and etcd have network namespaces of their own, "
    "and nftables drops what the leader and any of the others send each other; clients reach all. "
    "Before each round all replicas are in sync again. The ceiling is the same record without a "
    "fault."
)


class Ours:
    """Our client, a record at a time."""

    def __init__(self, producer: Producer) -> None:
        """Write with this producer."""
        self._producer = producer

    def send(self) -> float:
        """Send one; return the seconds until it was acknowledged."""
        began = time.perf_counter()
        self._producer.send(TOPIC, VALUE)
        self._producer.flush()
        return time.perf_counter() - began


class Prober:
    """A client that asks all brokers but the leader whether they take a record now."""

    def __init__(self, cluster: Cluster, leader: BrokerProcess, producer_id: int) -> None:
        """Connect."""
        others = [each for each in cluster.brokers if each is not leader]
        self._brokers = [Replies(connect(each.address)) for each in others]
        self._frames = one_record_frames(VALUE, producer_id, 1)

    def send(self) -> float:
        """Offer a record until it is acknowledged; return the seconds."""
        began = time.perf_counter()
        while not any(self._is_taken(each) for each in self._brokers):
            time.sleep(ASKED_EVERY_S)
        return time.perf_counter() - began

    def _is_taken(self, replies: Replies) -> bool:
        replies.connection.sendall(self._frames[0])
        replies.take(1)
        try:
            replies.check_last()
        except AssertionError:
            return False
        return True


Clients = Mapping[str, Ours | Stock | Prober]


def strike(how: str, end: Callable[[], None], clients: Clients, times: Times) -> None:
    """Write, end the leader, write again with all clients at once."""
    for name, client in clients.items():
        if isinstance(client, Prober):
            continue
        client.send()
        times.setdefault(f"{name}, no fault", []).append(client.send())
    end()
    with ThreadPoolExecutor() as threads:
        took = {name: threads.submit(client.send) for name, client in clients.items()}
    for name, each in took.items():
        times.setdefault(f"{name}, {how}", []).append(each.result())


def signalled(leader: BrokerProcess, how: signal.Signals) -> Callable[[], None]:
    """Return what gives this broker a signal."""
    return lambda: os.kill(leader.pid, how)


def waiting(cluster: Cluster, leader: BrokerProcess, number: int) -> Clients:
    """Clients that do not wait for a silent broker until their request's time is over."""
    return {
        PROBER: Prober(cluster, leader, 1_000 + number),
        STOCK: Stock(cluster.address, STOCK_TIMEOUT),
    }


def main() -> None:
    """Strike the leader, again and again."""
    report = Report("failover", "from the leader's end to the next acknowledged write", METHOD)
    kills, pauses = sized(30, 2), sized(4, 1)
    times: Times = {}
    with scratch() as place, running_cluster(place) as cluster:
        cluster.create_topic(TOPIC)
        for _ in range(kills):
            leader = cluster.leader(TOPIC)
            with Client(cluster.address) as client, client.producer() as producer:
                both: Clients = {OURS: Ours(producer), STOCK: Stock(cluster.address)}
                strike("killed", signalled(leader, signal.SIGKILL), both, times)
            leader.restart()
            cluster.wait_in_sync(TOPIC)
        for number in range(pauses):
            leader = cluster.leader(TOPIC)
            impatient = waiting(cluster, leader, number)
            strike("paused", signalled(leader, signal.SIGSTOP), impatient, times)
            os.kill(leader.pid, signal.SIGCONT)
            cluster.wait_in_sync(TOPIC)
    figures = [
        (OURS, "killed", 0.5, "killed, p50", None),
        (OURS, "killed", 0.99, f"killed {kills} times, p99", KILLED_S),
        (STOCK, "killed", 0.5, "killed, p50", None),
        (STOCK, "killed", 0.99, f"killed {kills} times, p99", KILLED_S),
        (PROBER, "paused", 0.5, "paused, p50", None),
        (PROBER, "paused", 1.0, f"paused {pauses} times, the longest", LEASE_S + 1),
        (STOCK, "paused", 1.0, f"paused {pauses} times, the longest", None),
    ]
    lacks = missing()
    if lacks is None:
        command = apart("bench._cut_off", [f"{pauses}"])
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        times |= json.loads(done.stdout)
        figures += [
            (PROBER, CUT_OFF, 0.5, "cut off, p50", None),
            (PROBER, CUT_OFF, 1.0, f"cut off {pauses} times, the longest", LEASE_S + 1),
            (STOCK, CUT_OFF, 1.0, f"cut off {pauses} times, the longest", None),
        ]
    else:
        report.note(f"Nobody was cut off: {lacks}.")
    for client_name, how, share, title, limit_s in figures:
        value = percentile(times[f"{client_name}, {how}"], share)
        report.add(
            Figure(
                name=f"{title}, {client_name}",
                value=value,
                unit="s",
                ceiling=percentile(times[f"{OURS}, no fault"], 0.5),
                ceiling_name="no fault",
                goal="" if limit_s is None else f"<= {limit_s:g} s",
                met=None if limit_s is None else value <= limit_s,
            )
        )
    report.note(
        "Another broker leads some 10 ms after the kill. confluent-kafka looks for a leader that "
        "it has lost once a second."
    )
    report.finish()


if __name__ == "__main__":
    main()
