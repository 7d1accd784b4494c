"""What do thousands of partitions cost, and how long do they delay somebody else?"""

import contextlib
import multiprocessing as mp
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from bench._processes import percentile, scratch
from bench._report import Figure, Report, is_quick, show, sized
from bench.growth import Asker
from fencelog.wire import hot
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from fencelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.broker import BrokerProcess

SIZES = (sized(1_000, 50), sized(3_000, 100), sized(9_000, 200))
TOPICS = 10
BYSTANDER = "bystander"
BYSTANDER_EVERY_S = 0.02
FILES_MAX = 65_536
DEADLINE_S = 600.0
BYSTANDER_GOAL_MS = 100
START_GOAL_S, STOP_GOAL_S = 5, 10
SETTINGS = "fencelog.max.partitions=20000\n"
METHOD = (
    "One broker process per size and durability. All partitions are created in ten topics, get "
    "their first record in one produce request of one transaction, which then commits; the broker "
    "is stopped (SIGTERM) and started, and stopped again with nothing written in between. Then as "
    "many topics of one partition are created and deleted, by one request each. A bystander in "
    f"another process writes one record every {1e3 * BYSTANDER_EVERY_S:.0f} ms to a topic of its "
    "own, acknowledged, and notes how long that takes: its p99 and its maximum stand beside each "
    "step. Broker, bystander and the client of the step share the machine's cores."
)


def watch(host: str, port: int, durability: str, pipe: Connection) -> None:
    """Write a record at each tick until told to stop; answer the latencies in milliseconds."""
    broker = BrokerProcess("none", durability=durability, host=host, port=port)
    asker = Asker(broker)
    latencies: list[float] = []
    pipe.send(True)
    while not pipe.poll():
        began = time.perf_counter()
        asker.produce(BYSTANDER, 0)
        took = time.perf_counter() - began
        latencies.append(1e3 * took)
        time.sleep(max(BYSTANDER_EVERY_S - took, 0))
    pipe.send(latencies)
    asker.close()


class Steps:
    """Measures the steps of one broker."""

    def __init__(self, broker: BrokerProcess, durability: str, count: int) -> None:
        """``count``: partitions, for the figures' names."""
        self._broker = broker
        self._durability = durability
        self.count = count
        self.rows: dict[str, tuple[float, float | None, float | None]] = {}
        """Seconds of each step, and the bystander's p99 and maximum in milliseconds."""

    def alone(self, name: str, step: Callable[[], object]) -> None:
        """Measure a step that no bystander can see."""
        began = time.perf_counter()
        step()
        self._note(name, time.perf_counter() - began, None)

    def beside(self, name: str, step: Callable[[], object]) -> None:
        """Measure a step, with a bystander."""
        with self._bystander() as latencies:
            began = time.perf_counter()
            step()
            seconds = time.perf_counter() - began
        self._note(name, seconds, latencies)

    def _note(self, name: str, seconds: float, latencies: list[float] | None) -> None:
        p99 = None if latencies is None else percentile(latencies, 0.99)
        most = None if latencies is None else max(latencies)
        self.rows[name] = (seconds, p99, most)
        beside = "" if p99 is None or most is None else f", bystander {p99:.1f} / {most:.1f} ms"
        where = f"{self._durability}, {self.count:,}"
        print(f"  {where}: {name}: {seconds:.2f} s{beside}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def _bystander(self) -> Iterator[list[float]]:
        ours, theirs = mp.get_context("spawn").Pipe()
        broker = self._broker
        process: BaseProcess = mp.get_context("spawn").Process(
            target=watch, args=(broker.host, broker.port, self._durability, theirs)
        )
        process.start()
        latencies: list[float] = []
        ours.recv()
        time.sleep(0.2)
        try:
            yield latencies
        finally:
            time.sleep(0.2)
            ours.send(False)
            latencies += ours.recv()
            process.join()


def create(asker: Asker, names: list[str], partitions: int) -> None:
    """Create topics by one request."""
    topics = [
        CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names
    ]
    answer = asker.ask(
        CreateTopicsRequest(topics=topics, timeout_ms=600_000), 7, CreateTopicsResponse
    )
    assert not any(each.error_code for each in answer.topics), answer.topics[0]


def delete(asker: Asker, names: list[str]) -> None:
    """Delete topics by one request."""
    topics = [DeleteTopicState(name=name) for name in names]
    answer = asker.ask(
        DeleteTopicsRequest(topics=topics, timeout_ms=600_000), 6, DeleteTopicsResponse
    )
    assert not any(each.error_code for each in answer.responses), answer.responses[0]


def write_all(asker: Asker, names: list[str], partitions: int) -> None:
    """Write a record to each partition, by one request of one transaction, and commit it."""
    transactional_id = f"all-{time.time_ns()}"
    producer = asker.ask(
        InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=600_000),
        4,
        InitProducerIdResponse,
    )
    assert producer.error_code == 0, producer
    batch = build_batch(
        [RecordToWrite(b"k", b"v" * 100, time.time_ns() // 1_000_000)],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    topics = [(name, [(index, batch) for index in range(partitions)]) for name in names]
    body = b"".join(hot.write_produce_request(12, transactional_id, -1, 600_000, topics))
    results = hot.read_produce_response(asker.raw(0, 12, body), 12).topics
    assert not any(part.error for _, parts in results for part in parts), results[0]
    ended = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )
    answer = asker.ask(ended, 5, EndTxnResponse)
    assert answer.error_code == 0, answer


def wait_for_markers(asker: Asker, names: list[str], partitions: int) -> None:
    """Return when a reader of committed records sees the last partition's."""
    while True:
        asked = hot.FetchPartition(partitions - 1, -1, 0, -1, 1 << 20)
        topic = hot.FetchTopic(names[-1], None, [asked])
        body = hot.write_fetch_request(11, hot.FetchRequest(-1, 0, 1, 1 << 20, 1, 0, -1, [topic]))
        answer = hot.read_fetch_response(asker.raw(1, 11, body), 11)
        if answer.topics[0].partitions[0].records:
            return
        time.sleep(0.01)


def measure(place: Path, durability: str, count: int) -> Steps:
    """Take all steps with one broker."""
    data = place / f"data-{durability}-{count}"
    with BrokerProcess(data, durability=durability, settings=SETTINGS) as broker:
        broker.start_deadline_s = broker.stop_deadline_s = DEADLINE_S
        steps = Steps(broker, durability, count)
        asker = Asker(broker)
        create(asker, [BYSTANDER], 1)
        names = [f"topic-{number}" for number in range(TOPICS)]
        partitions = count // TOPICS

        def write() -> None:
            write_all(asker, names, partitions)
            wait_for_markers(asker, names, partitions)

        steps.beside("create the partitions", lambda: create(asker, names, partitions))
        steps.beside("first write to all, one transaction", write)
        steps.beside("second write to all, one transaction", write)
        asker.close()
        steps.alone("stop", broker.terminate)
        steps.alone("start", broker.start)
        steps.alone("stop, nothing written", broker.terminate)
        steps.alone("start again", broker.start)
        asker = Asker(broker)
        singles = [f"single-{number}" for number in range(count)]
        steps.beside("create as many topics", lambda: create(asker, singles, 1))
        steps.beside("delete them", lambda: delete(asker, singles))
        steps.beside("delete the ten topics", lambda: delete(asker, names))
        asker.close()
    return steps


def main() -> None:
    """Measure each size."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    socket.setdefaulttimeout(DEADLINE_S)
    report = Report("partitions", "what thousands of partitions cost, and a bystander", METHOD)
    for durability in ("os", "fsync"):
        with scratch() as place:
            measured = [measure(place, durability, count) for count in SIZES]
        heads = " | ".join(f"{each.count:,}: s | bystander p99 / max, ms" for each in measured)
        rows = [f"| `{durability}` mode | {heads} |", "|---|" + "---:|---:|" * len(measured)]
        for name in measured[0].rows:
            cells = [_cells(*each.rows[name]) for each in measured]
            rows.append(f"| {name} | {' | '.join(cells)} |")
        report.note("\n".join(rows))
        _check(report, durability, measured[-1])
    report.finish()


def _cells(seconds: float, p99: float | None, most: float | None) -> str:
    beside = "" if p99 is None or most is None else f"{show(p99)} / {show(most)}"
    return f"{show(seconds)} | {beside}"


def _check(report: Report, durability: str, steps: Steps) -> None:
    for name, (seconds, _, most) in steps.rows.items():
        where = f"{name}, {steps.count:,} partitions, `{durability}`"
        if name.startswith(("start", "stop")):
            goal_s = START_GOAL_S if name.startswith("start") else STOP_GOAL_S
            met = None if is_quick() else seconds <= goal_s
            goal = f"<= {goal_s} s"
            report.add(Figure(name=where, value=seconds, unit="s", goal=goal, met=met))
        if most is not None:
            met = None if is_quick() else most <= BYSTANDER_GOAL_MS
            goal = f"<= {BYSTANDER_GOAL_MS} ms"
            title = f"bystander's maximum: {where}"
            report.add(Figure(name=title, value=most, unit="ms", goal=goal, met=met))


if __name__ == "__main__":
    main()
