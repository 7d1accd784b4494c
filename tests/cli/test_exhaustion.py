"""A real broker without disk space or without free files: it refuses, and goes on after."""

import resource
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fencelog.client.blocking import Client
from tests.proofs._chaos_disk import small_disk
from tests.support.broker import BrokerProcess
from tests.support.waiting import wait_until

MEBIBYTES = 64
DEADLINE_S = 20.0
VALUE = b"v" * 20_000


def acknowledged(broker: BrokerProcess, topic: str, *, timeout_ms: int = 20_000) -> int | None:
    """The offset of one more record; None if it was not acknowledged in time."""
    told: list[int | None] = []

    def done(error: object, message: Message) -> None:
        told.append(message.offset() if error is None else None)

    settings = {"message.timeout.ms": timeout_ms, "enable.idempotence": True, "log_level": 0}
    producer = Producer({"bootstrap.servers": broker.address, **settings})
    producer.produce(topic, VALUE, partition=0, on_delivery=done)
    assert producer.flush(30) == 0
    return told[0]


def stored(broker: BrokerProcess, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    while len(found) < count:
        for message in consumer.consume(count - len(found), timeout=10):
            assert message.error() is None, message.error()
            assert message.value() == VALUE
            found.append(message.offset() or 0)
    consumer.close()
    return found


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_full_disk_comes_back_without_a_restart(tmp_path: Path, durability: str) -> None:  # D2
    with (
        small_disk(tmp_path, MEBIBYTES) as disk,
        BrokerProcess(disk.data_dir, durability=durability) as broker,
    ):
        with Client(broker.address) as client:
            client.create_topic("t", 1, {})
            client.commit_offsets("g", {})
        assert acknowledged(broker, "t") == 0
        disk.fill(broker.pid)
        assert acknowledged(broker, "t", timeout_ms=3000) is None
        assert stored(broker, "t", 1) == [0]
        assert "t-0 refuses writes until there is room: write failed" in broker.stderr
        disk.free(broker.pid)
        last = wait_until(lambda: acknowledged(broker, "t"), deadline_s=30)
        assert "t-0 accepts writes again" in broker.stderr
        kept = stored(broker, "t", last + 1)
        assert kept == list(range(last + 1)), "no gap, nothing twice"
        broker.restart()
        assert stored(broker, "t", last + 1) == kept
        assert acknowledged(broker, "t") == last + 1
        assert "truncated" not in broker.stderr


def test_a_broker_out_of_files_refuses_new_topics_and_keeps_its_partitions(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Client(broker.address) as client:
            client.create_topic("t", 1, {"segment.bytes": "30000"})
            assert acknowledged(broker, "t") == 0
            count = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
            limits = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (count + 5, limits[1]))
            admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
            (refused,) = admin.create_topics([NewTopic("many", 50, 1)]).values()
            with pytest.raises(KafkaException, match="Too many open files"):
                refused.result(DEADLINE_S)
            wait_until(lambda: "many" not in [each.name for each in client.topics()])
            # Every record begins a segment, which needs a file.
            for offset in range(1, 4):
                assert wait_until(lambda: acknowledged(broker, "t"), deadline_s=30) == offset
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, limits)
            client.create_topic("many", 50, {})
        assert acknowledged(broker, "many") == 0
        assert "accepts no more writes" not in broker.stderr
