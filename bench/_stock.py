"""Load by the stock client that most people have: confluent-kafka (librdkafka, in C)."""

import ctypes
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench._rigs import TOPIC

# A client that gives memory back after each batch pays for every page's first touch again and
# again, on a virtual machine more than for all else. These are M_TRIM_THRESHOLD, M_MMAP_THRESHOLD.
ctypes.CDLL(None).mallopt(-1, 1 << 30)
ctypes.CDLL(None).mallopt(-3, 32 << 20)

DEADLINE_S = 60.0
QUEUED_MESSAGES = 50_000


@dataclass(frozen=True)
class Sent:
    """What one round of producing took."""

    seconds: float
    messages: int
    requests: int

    def mb_per_s(self, record_bytes: int) -> float:
        """Payload, in millions of bytes a second."""
        return self.messages * record_bytes / self.seconds / 1e6


def create_topic(address: str, name: str = TOPIC, partitions: int = 1) -> None:
    """Create a topic, where there is none."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    with suppress(KafkaException):  # it exists
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(DEADLINE_S)


class Load:
    """One producer that can be driven round after round."""

    def __init__(self, address: str, settings: Mapping[str, Any] | None = None) -> None:
        """Connect."""
        self._produce_requests = 0
        self._failed = 0
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "log_level": 0,
                "enable.idempotence": True,
                "acks": "all",
                "queue.buffering.max.messages": 2 * QUEUED_MESSAGES,
                "queue.buffering.max.kbytes": 1_000_000,
                "statistics.interval.ms": 100,
                "stats_cb": self._count,
                **(settings or {}),
            }
        )

    def _count(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        self._produce_requests = sum(broker["req"].get("Produce", 0) for broker in brokers)

    def _delivered(self, error: object, _message: object) -> None:
        self._failed += error is not None

    def requests(self) -> int:
        """How many produce requests were sent until now."""
        time.sleep(0.15)  # the next statistics come at their own pace
        self._producer.poll(0.2)
        return self._produce_requests

    def send(self, value: bytes, count: int, partition: int = 0) -> Sent:
        """Send so many copies of a value and wait until all are acknowledged."""
        before = self.requests()
        producer, left = self._producer, count
        chunk = min(10_000, count)
        start = time.perf_counter()
        while left > 0:
            batch = [{"value": value} for _ in range(min(chunk, left))]
            while len(producer) > QUEUED_MESSAGES:
                producer.poll(0.005)
            left -= producer.produce_batch(TOPIC, batch, partition)
            producer.poll(0)
        waiting = producer.flush(DEADLINE_S)
        seconds = time.perf_counter() - start
        assert waiting == 0, f"{waiting} records were not acknowledged in {DEADLINE_S} s"
        return Sent(seconds, count, self.requests() - before)
