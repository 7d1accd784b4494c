"""A broker of a cluster on a small file system that gets full: others lead, until it has room."""

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.proofs._chaos_disk import small_disk
from tests.support.broker import BrokerProcess
from tests.support.etcd import Etcd
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
]
DEADLINE_S = 60.0
MEBIBYTES = 64
PARTITIONS = 3
VALUE = b"v" * 1000
SETTINGS = "replica.lag.time.max.ms=2000\n"


def member(etcd: Etcd, data_dir: Path, number: int) -> BrokerProcess:
    """A broker of the cluster ``c``."""
    url = etcd.url("c")
    metadata = f"etcd://{','.join(url.endpoints)}/{url.name}"
    arguments = ["--metadata", metadata, "--node-id", str(number)]
    return BrokerProcess(data_dir, settings=SETTINGS, arguments=arguments)


class Sent:
    """A producer of all partitions, and what was acknowledged of each."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.acknowledged = dict.fromkeys(range(PARTITIONS), 0)
        settings = {"request.timeout.ms": 2000, "topic.metadata.refresh.interval.ms": 500}
        self.producer = Producer(
            {"bootstrap.servers": broker.address, "enable.idempotence": True, **settings}
        )

    def write(self, records: int) -> None:
        """Write this to each partition; all of it is acknowledged in the end."""
        for _ in range(records):
            for partition in range(PARTITIONS):
                self.producer.produce("t", VALUE, partition=partition, on_delivery=self._told)
        assert self.producer.flush(DEADLINE_S) == 0

    def _told(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        partition = message.partition()
        assert partition is not None
        self.acknowledged[partition] += 1


def test_others_lead_while_a_disk_is_full_and_it_is_in_sync_again_when_it_has_room(
    own_etcd: Etcd, tmp_path: Path
) -> None:  # D2, F1
    with (
        small_disk(tmp_path, MEBIBYTES) as disk,
        member(own_etcd, tmp_path / "b2", 2) as other,
        member(own_etcd, tmp_path / "b3", 3),
        member(own_etcd, disk.data_dir, 1) as first,
        Client(other.address) as client,
    ):
        client.create_topic("t", PARTITIONS, replication=3)

        def leaders() -> set[int]:
            return {each.leader for each in client.describe_topic("t").partitions}

        def in_sync() -> list[int]:
            return [len(each.in_sync) for each in client.describe_topic("t").partitions]

        sent = Sent(other)
        sent.write(10)
        wait_until(lambda: leaders() == {1, 2, 3}, deadline_s=DEADLINE_S, what="each leads one")
        disk.fill(first.pid)
        sent.write(100)
        wait_until(lambda: 1 not in leaders(), deadline_s=DEADLINE_S, what="others lead")
        sent.write(10)
        disk.free(first.pid)
        wait_until(lambda: in_sync() == [3] * 3, deadline_s=DEADLINE_S, what="all in sync")
        places = [TopicPartition("t", each) for each in range(PARTITIONS)]
        ends = client.offsets(places, "latest")
        assert {each.partition: ends[each] for each in places} == sent.acknowledged
        assert first.running
        assert first.terminate() == 0
