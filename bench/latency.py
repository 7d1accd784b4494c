"""How long does a single record wait for its acknowledgement?"""

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench._pipelined import Replies, connect, one_record_frames
from bench._processes import Rig, percentile, scratch
from bench._report import Figure, Report, sized
from bench._rigs import TOPIC
from bench._stock import DEADLINE_S, create_topic
from tests.support.broker import BrokerProcess

VALUE = b"0123456789" * 5
BATCH_BYTES = 130
"""About what a batch of one such record has in the log."""
METHOD = (
    "One record at a time: send (50 bytes, idempotent, acks=all), wait, send the next. By "
    "confluent-kafka (linger.ms=0) and over a plain socket, alternating in `os` mode, in `fsync` "
    "mode, and against a receiver that answers without storing. A bare write and fdatasync of "
    "such a batch beside the broker's files is the floor of `fsync` mode."
)


class Stock:
    """confluent-kafka, a record at a time."""

    def __init__(self, address: str, settings: Mapping[str, Any] | None = None) -> None:
        """Connect."""
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "log_level": 0,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                **(settings or {}),
            }
        )

    def send(self) -> float:
        """Send one; return the seconds until it was acknowledged."""
        failed: list[object] = []
        start = time.perf_counter()
        self._producer.produce(
            TOPIC, VALUE, partition=0, on_delivery=lambda error, _: failed.append(error)
        )
        while not failed:
            self._producer.poll(DEADLINE_S)
        seconds = time.perf_counter() - start
        assert failed == [None], failed
        return seconds


class Plain:
    """Requests made beforehand on a plain socket."""

    def __init__(self, address: str, count: int) -> None:
        """Connect."""
        self._connection = connect(address)
        self._replies = Replies(self._connection)
        self._frames = iter(one_record_frames(VALUE, 7, count))

    def send(self) -> float:
        """Send one; return the seconds until it was acknowledged."""
        frame = next(self._frames)
        start = time.perf_counter()
        self._connection.sendall(frame)
        self._replies.take(1)
        seconds = time.perf_counter() - start
        self._replies.check_last()
        return seconds


def sync_one(descriptor: int) -> float:
    """Append and sync what a record takes; return the seconds."""
    start = time.perf_counter()
    os.write(descriptor, bytes(BATCH_BYTES))
    os.fdatasync(descriptor)
    return time.perf_counter() - start


def open_new(path: Path) -> int:
    """Open an empty file."""
    return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)


def main() -> None:
    """Send in alternating rounds."""
    report = Report("latency", "a single record's acknowledgement", METHOD)
    rounds, count = sized(10, 2), sized(150, 20)
    times: dict[tuple[str, str], list[float]] = {}
    floor: list[float] = []
    with scratch() as place, ExitStack() as stack:
        brokers = {
            "os": stack.enter_context(BrokerProcess(place / "os")),
            "fsync": stack.enter_context(BrokerProcess(place / "fsync", durability="fsync")),
            "receiver": stack.enter_context(Rig("receiver", place / "receiver")),
        }
        descriptor = open_new(place / "floor")
        stack.callback(os.close, descriptor)
        clients: dict[tuple[str, str], Stock | Plain] = {}
        for name, broker in brokers.items():
            if name != "receiver":
                create_topic(broker.address)
            clients[name, "stock"] = Stock(broker.address)
            clients[name, "plain"] = Plain(broker.address, count * (rounds + 1))
        for number in range(rounds + 1):  # the first one warms up
            for what, client in clients.items():
                took = [client.send() for _ in range(count)]
                if number:
                    times.setdefault(what, []).extend(took)
            floor += [sync_one(descriptor) for _ in range(count)]
    titles = {"stock": "confluent-kafka", "plain": "plain socket"}
    for client_kind, title in titles.items():
        for mode in ("os", "fsync"):
            for share in (0.5, 0.99):
                mine = 1e3 * percentile(times[mode, client_kind], share)
                least = 1e3 * percentile(times["receiver", client_kind], share)
                name = "receiver"
                if mode == "fsync":
                    least += 1e3 * percentile(floor, share)
                    name = "receiver + fdatasync"
                report.add(
                    Figure(
                        name=f"{title}, {mode} mode, p{100 * share:.0f}",
                        value=mine,
                        unit="ms",
                        ceiling=least,
                        ceiling_name=name,
                    )
                )
    report.finish()


if __name__ == "__main__":
    main()
