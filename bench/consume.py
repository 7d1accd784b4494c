"""How fast does a stock client read what is stored?"""

import socket
import time
from contextlib import ExitStack
from multiprocessing import Process, Queue
from pathlib import Path
from statistics import median

from confluent_kafka import Consumer, TopicPartition

from bench._processes import cpu_s, scratch
from bench._report import Figure, Report, sized
from bench._rigs import TOPIC
from bench._stock import DEADLINE_S, Load, create_topic
from tests.support.broker import BrokerProcess

RECORD = bytes(range(256)) * 4
SETTINGS = {"batch.size": 1_000_000, "batch.num.messages": 1_000_000, "linger.ms": 500}
CHUNK_BYTES = 1 << 20
METHOD = (
    "confluent-kafka reads 1 KiB records of one partition at read_committed, in 1 MB batches out "
    "of the page cache; alternating with a client that reads the same segment file's bytes over a "
    "plain socket from a process that does nothing but pread and send them. Medians. CPU is the "
    "broker process's, from /proc."
)


class Reader:
    """A stock consumer that can read the partition again and again."""

    def __init__(self, address: str) -> None:
        """Connect."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "log_level": 0,
                "group.id": "bench",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.message.max.bytes": 8 << 20,
                "queued.max.messages.kbytes": 128 << 10,
            }
        )

    def read(self, count: int, offset: int = 0) -> float:
        """Read so many records from an offset on; return seconds from the first one."""
        self._consumer.assign([TopicPartition(TOPIC, 0, offset)])
        deadline = time.perf_counter() + DEADLINE_S
        got, start = 0, 0.0
        first = 0
        while got < count:
            messages = self._consumer.consume(10_000, 1.0)
            assert time.perf_counter() < deadline, f"{got} of {count} records in {DEADLINE_S} s"
            if messages and not got:
                # Connecting is not reading: the clock starts with the first records.
                start, first = time.perf_counter(), len(messages)
            got += len(messages)
            assert all(message.error() is None for message in messages[:1])
        seconds = time.perf_counter() - start
        self._consumer.unassign()
        return seconds * count / (count - first)

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()


def send_file(path: Path, ports: "Queue[int]", rounds: int) -> None:
    """Send a file's bytes to each of so many connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports.put(server.getsockname()[1])
        for _ in range(rounds):
            connection, _ = server.accept()
            with connection, path.open("rb", buffering=0) as file:
                while chunk := file.read(CHUNK_BYTES):
                    connection.sendall(chunk)


def receive(port: int) -> tuple[float, int]:
    """Read until the end; return seconds and bytes."""
    buffer = bytearray(CHUNK_BYTES)
    total = 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        start = time.perf_counter()
        while received := connection.recv_into(buffer):
            total += received
    return time.perf_counter() - start, total


def main() -> None:
    """Read in alternating rounds."""
    report = Report("consume", "a stock client reads", METHOD)
    rounds, count = sized(5, 1), sized(400_000, 20_000)
    speeds: list[float] = []
    plain: list[float] = []
    costs: list[float] = []
    with scratch() as place, ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(place / "data"))
        create_topic(broker.address)
        Load(broker.address, SETTINGS).send(RECORD, count)
        segment = min((place / "data").rglob(f"{TOPIC}-0/*.log"))
        ports: Queue[int] = Queue()
        sender = Process(target=send_file, args=(segment, ports, rounds), daemon=True)
        sender.start()
        port = ports.get(timeout=DEADLINE_S)
        reader = Reader(broker.address)
        for number in range(rounds + 1):  # the first one warms up
            before = cpu_s(broker.pid)
            seconds = reader.read(count)
            if number:
                costs.append(cpu_s(broker.pid) - before)
                speeds.append(count / seconds)
                took, size = receive(port)
                plain.append(size / took / 1e6)
        reader.close()
    megabytes = count * len(RECORD) / 1e6
    report.add(
        Figure(
            name="read",
            value=median(speeds) * len(RECORD) / 1e6,
            unit="MB/s",
            ceiling=median(plain),
            ceiling_name="the bytes over a socket",
        )
    )
    report.add(Figure(name="records of 1 KiB", value=median(speeds), unit="/s"))
    report.add(
        Figure(
            name="read per second of the broker's CPU", value=megabytes / median(costs), unit="MB"
        )
    )
    report.finish()


if __name__ == "__main__":
    main()
