"""A cluster whose first broker was used alone: the internal topics get their other replicas."""

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from fencelog.broker.metadata.catalog import GROUP_TOPIC
from fencelog.testing.cluster import LocalCluster
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
]
DEADLINE_S = 40.0
ALL = [1, 2, 3]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three brokers, of which the first one runs."""
    with closing(LocalCluster(tmp_path)) as first:
        yield first.start(1)


def member(cluster: LocalCluster) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "socket.timeout.ms": 1000,
            "session.timeout.ms": 6000,
        }
    )


def done(consumer: Consumer, commits: list[TopicPartition]) -> bool:
    """Whether the commit is stored, now."""
    with suppress(KafkaException):
        consumer.commit(offsets=commits, asynchronous=False)
        return True
    consumer.poll(0.1)
    return False


def test_a_group_of_the_first_broker_outlives_it_once_others_have_come(
    cluster: LocalCluster,
) -> None:
    # F2, F8
    cluster.create_topic("early", replication=1)
    alone = member(cluster)
    alone.assign([TopicPartition("early", 0)])
    early = [TopicPartition("early", 0, 7)]
    wait_until(lambda: done(alone, early), deadline_s=DEADLINE_S, what="a commit at one broker")
    alone.close()
    cluster.start()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def all_are_in_sync() -> bool:
        found = admin.list_topics(GROUP_TOPIC, DEADLINE_S).topics[GROUP_TOPIC].partitions
        return bool(found) and all(sorted(each.isrs) == ALL for each in found.values())

    wait_until(all_are_in_sync, deadline_s=DEADLINE_S, what="three replicas in sync")
    cluster.create_topic("t")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce("t", b"x")
    assert producer.flush(DEADLINE_S) == 0
    cluster.kill(1)
    with closing(member(cluster)) as later:
        later.subscribe(["t"])

        def consumed() -> bool:
            message = later.poll(0.1)
            return message is not None and message.error() is None and message.value() == b"x"

        wait_until(consumed, deadline_s=DEADLINE_S, what="a member at the next coordinator")
        commits = [TopicPartition("t", 0, 1)]
        wait_until(lambda: done(later, commits), deadline_s=DEADLINE_S, what="its commit")
        (kept,) = later.committed(early, DEADLINE_S)
        assert kept.offset == 7
