"""Stock clients go to a new leader as soon as the old one names it (KIP-951)."""

import logging
import re
from collections.abc import Iterator
from contextlib import closing
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from fencelog.testing.cluster import LocalCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
DEADLINE_S = 40.0
NAMED = r"METADATAUPDATE .*Partition t\(.*\)\[0\]: updated with leader {leader} and epoch"
"""What librdkafka logs when the response to a refused request names the leader."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three brokers with a topic of one partition."""
    with closing(LocalCluster(tmp_path)) as running:
        running.start().create_topic("t")
        yield running


class Log:
    """What a client of librdkafka logs about metadata."""

    def __init__(self, name: str) -> None:
        """Settings to be added to the client's."""
        self._queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
        self.logger = logging.Logger(name, logging.DEBUG)
        self.logger.addHandler(QueueHandler(self._queue))
        self.text = ""

    def has(self, pattern: str) -> bool:
        """Whether it has logged this until now."""
        while not self._queue.empty():
            self.text += self._queue.get().getMessage() + "\n"
        return re.search(pattern, self.text) is not None


def test_a_producer_and_a_consumer_learn_the_leader_from_the_refusal(
    cluster: LocalCluster,
) -> None:
    servers = {"bootstrap.servers": cluster.bootstrap, "debug": "metadata"}
    writes, reads = Log("producer"), Log("consumer")
    producer = Producer({**servers, "linger.ms": 0}, logger=writes.logger)
    consumer = Consumer(
        {**servers, "group.id": "g", "enable.auto.commit": False}, logger=reads.logger
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    read: list[bytes | None] = []

    def pass_on() -> None:
        value = f"{len(read)}".encode()

        def is_read() -> bool:
            producer.poll(0)
            message = consumer.poll(0)
            if message is not None and not message.error():
                read.append(message.value())
            return bool(read) and read[-1] == value

        producer.produce("t", value)
        wait_until(is_read, deadline_s=DEADLINE_S, what="the record")

    pass_on()
    first = cluster.leader("t")
    cluster.kill(first)
    pass_on()
    assert cluster.leader("t") != first
    cluster.start(first)
    wait_until(lambda: cluster.leader("t") == first, deadline_s=DEADLINE_S, what="its return")
    pass_on()
    named = NAMED.format(leader=first)
    assert writes.has(named), writes.text
    assert reads.has(named), reads.text
    assert read == [b"0", b"1", b"2"]
    consumer.close()
