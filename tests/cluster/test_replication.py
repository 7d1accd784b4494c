"""Three brokers in one process: killed, paused and cut off under stock clients."""

import gc
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from fencelog.broker.metadata.catalog import GROUP_TOPIC, TRANSACTION_TOPIC
from fencelog.client.blocking import Client
from fencelog.coordination.shard import partition_for
from fencelog.testing.cluster import LocalCluster
from fencelog.types import TopicPartition
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
]
DEADLINE_S = 40.0
INTERNAL_PARTITIONS = 50
ALL = (1, 2, 3)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three brokers; at the end all replicas of ``t`` have the same bytes."""
    with LocalCluster(tmp_path) as running:
        running.create_topic("t")
        yield running
        running.heal()
        for each in ALL:
            running.resume(each)
        running.start()
        wait_until(lambda: running.isr("t") == ALL, deadline_s=DEADLINE_S, what="all in sync")
        wait_until(
            lambda: len({digest(running, each) for each in ALL}) == 1,
            deadline_s=DEADLINE_S,
            what="equal bytes of all replicas",
        )
    gc.collect()  # a leak shows in the test that made it


def digest(cluster: LocalCluster, broker: int, name: str = "t-0") -> str:
    """The stored batches of one replica: segments may begin at other offsets on each."""
    folder = cluster.data_dir / f"broker-{broker}" / name
    files = sorted(folder.glob("*.log"))
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()


class Sent:
    """An idempotent producer that knows what was acknowledged."""

    def __init__(self, cluster: LocalCluster, **settings: Any) -> None:
        self.acknowledged: dict[bytes, int] = {}
        self.failed: list[KafkaError] = []
        self._values = count()
        self.producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "socket.timeout.ms": 1000,
                "request.timeout.ms": 1000,
                "linger.ms": 0,
                "topic.metadata.refresh.interval.ms": 500,
                **settings,
            }
        )

    def send(self, records: int) -> None:
        for _ in range(records):
            self.producer.produce("t", b"%d" % next(self._values), on_delivery=self._delivered)
        self.producer.poll(0)

    def flush(self) -> None:
        assert self.producer.flush(DEADLINE_S) == 0

    def write(self, records: int) -> None:
        self.send(records)
        self.flush()
        assert not self.failed

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value, offset = message.value(), message.offset()
        if error is not None:
            self.failed.append(error)
            return
        assert value is not None
        assert offset is not None
        assert value not in self.acknowledged
        self.acknowledged[value] = offset


def stored(cluster: LocalCluster) -> dict[bytes, int]:
    """What a reader sees; each value and each offset once."""
    records = cluster.records("t")
    found = {each.value: each.offset for each in records if each.value is not None}
    assert len(found) == len({each.offset for each in records}) == len(records)
    return found


def test_no_acknowledged_record_is_lost_or_doubled_when_its_leader_is_killed(
    cluster: LocalCluster,
) -> None:
    # F1, F8, E4
    sent = Sent(cluster)
    killed = []
    for _ in range(2):
        sent.write(50)
        leader = cluster.leader("t")
        sent.send(200)
        cluster.kill(leader)
        killed.append(leader)
        sent.write(50)
        assert cluster.leader("t") not in (leader, -1)
        cluster.start(leader)
        wait_until(lambda: cluster.isr("t") == ALL, deadline_s=DEADLINE_S, what="back in sync")
    assert not sent.failed
    assert len(sent.acknowledged) == 600
    assert stored(cluster) == sent.acknowledged


def test_a_leader_whose_files_fail_leaves_to_another_and_copies_that_ones_log(
    cluster: LocalCluster,
) -> None:
    # F1, D2, D3
    small = ConfigEntry("segment.bytes", "1024", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[small])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(DEADLINE_S)
    sent = Sent(cluster)
    sent.write(50)
    leader = cluster.leader("t")
    shutil.rmtree(cluster.data_dir / f"broker-{leader}" / "t-0")  # the next segment cannot begin
    for _ in range(50):
        sent.write(10)
    assert cluster.leader("t") not in (leader, -1)
    assert len(sent.acknowledged) == 550
    assert stored(cluster) == sent.acknowledged


def test_a_transaction_is_committed_by_the_next_coordinator(cluster: LocalCluster) -> None:
    # E7, E9
    sent = Sent(cluster, **{"transactional.id": "shop"})
    sent.producer.init_transactions(DEADLINE_S)
    sent.producer.begin_transaction()
    sent.write(10)
    shard = partition_for("shop", INTERNAL_PARTITIONS)
    coordinator = cluster.leader(TRANSACTION_TOPIC, shard)
    cluster.kill(coordinator)
    sent.write(10)
    sent.producer.commit_transaction(DEADLINE_S)
    assert cluster.leader(TRANSACTION_TOPIC, shard) not in (coordinator, -1)
    assert stored(cluster) == sent.acknowledged
    assert len(sent.acknowledged) == 20


def test_topics_are_made_and_leaders_elected_after_the_controller_was_killed(
    cluster: LocalCluster,
) -> None:
    controller = cluster.controller
    cluster.kill(controller)
    wait_until(lambda: cluster.controller not in (controller, -1), what="another controller")
    wait_until(lambda: cluster.leader("t") not in (controller, -1), what="a leader of t")
    cluster.create_topic("u", replication=2)
    wait_until(lambda: cluster.leader("u") not in (controller, -1), what="a leader of u")
    sent = Sent(cluster)
    sent.write(10)
    assert stored(cluster) == sent.acknowledged


def test_a_leader_that_was_paused_beyond_its_lease_answers_nothing_and_joins_again(
    cluster: LocalCluster,
) -> None:
    # F7: neither a write nor a read that reached it meanwhile is carried out.
    sent = Sent(cluster)
    sent.write(10)
    paused = cluster.leader("t")
    address = cluster.bootstrap.split(",")[paused - 1]
    late = Producer({"bootstrap.servers": address, "acks": "1", "socket.timeout.ms": 60_000})
    assert late.list_topics("t", DEADLINE_S).topics["t"].partitions[0].leader == paused
    late.produce("t", b"first")
    assert late.flush(DEADLINE_S) == 0
    before = set(stored(cluster))
    cluster.pause(paused)
    late.produce("t", b"late")
    late.poll(0)
    wait_until(
        lambda: cluster.leader("t") not in (paused, -1), deadline_s=DEADLINE_S, what="election"
    )
    sent.write(10)
    cluster.resume(paused)
    # It was not carried out by the deposed leader; a retry may have reached the new one.
    assert late.flush(DEADLINE_S) == 0
    wait_until(lambda: cluster.isr("t") == ALL, deadline_s=DEADLINE_S, what="back in sync")
    found = stored(cluster)
    assert before < set(found)
    assert {value: found[value] for value in sent.acknowledged} == sent.acknowledged
    assert set(found) <= {*sent.acknowledged, b"first", b"late"}


def test_writes_go_on_without_a_follower_that_is_cut_off_and_it_comes_back(
    cluster: LocalCluster,
) -> None:
    # F2
    sent = Sent(cluster)
    sent.write(10)
    leader = cluster.leader("t")
    follower, other = (each for each in ALL if each != leader)
    cluster.cut(leader, follower)
    sent.send(10)
    sent.flush()
    assert cluster.isr("t") == tuple(sorted((leader, other)))
    assert cluster.leader("t") == leader
    assert digest(cluster, follower) != digest(cluster, leader)
    cluster.heal()
    wait_until(lambda: cluster.isr("t") == ALL, deadline_s=DEADLINE_S, what="back in sync")
    assert not sent.failed
    assert stored(cluster) == sent.acknowledged


@pytest.mark.parametrize("is_cut_off", [True, False])
def test_deleted_records_do_not_return_with_the_next_leader(
    cluster: LocalCluster, is_cut_off: bool
) -> None:
    # D4
    sent = Sent(cluster)
    sent.write(20)
    place = TopicPartition("t", 0)
    leader = cluster.leader("t")
    follower, other = (each for each in ALL if each != leader)
    if is_cut_off:
        cluster.cut(leader, follower)
    with Client(cluster.bootstrap) as client:
        assert client.delete_records({place: 5}) == {place: 5}
    in_sync = cluster.isr("t")  # the one that is cut off has left: it cannot lead
    cluster.kill(leader)
    assert in_sync == (tuple(sorted((leader, other))) if is_cut_off else ALL)
    cluster.heal()
    wait_until(
        lambda: cluster.leader("t") in {*in_sync} - {leader},
        deadline_s=DEADLINE_S,
        what="another leader",
    )
    assert min(stored(cluster).values()) == 5


def test_a_deleted_key_does_not_return_with_a_replica_that_was_away(cluster: LocalCluster) -> None:
    # D4, F7
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    settings |= {"delete.retention.ms": "0", "segment.bytes": "1024"}
    cluster.create_topic("k", configs=settings)
    write(cluster, ("a", "old"), *filling())
    leader = cluster.leader("k")
    away, other = (each for each in ALL if each != leader)
    cluster.kill(away)
    write(cluster, ("a", None), *filling())
    wait_until(lambda: away not in cluster.isr("k"), deadline_s=DEADLINE_S, what="it has left")
    for _ in range(3):  # the first round sees the tombstone, the next one may remove it
        write(cluster, *filling())
        for each in (leader, other):
            compact(cluster, each)
    assert "old" not in [value for _, value in pairs(cluster)]
    cluster.start(away)
    wait_until(lambda: cluster.isr("k") == ALL, deadline_s=DEADLINE_S, what="back in sync")
    cluster.kill(leader)
    cluster.kill(other)
    wait_until(lambda: cluster.leader("k") == away, deadline_s=DEADLINE_S, what="it leads")
    assert dict(pairs(cluster))["a"] is None


def filling() -> list[tuple[str, str]]:
    """What fills a segment, so that it is full and may be compacted."""
    return [("filling", "x" * 400)] * 4


def write(cluster: LocalCluster, *records: tuple[str, str | None]) -> None:
    """Write to topic ``k``, each record by itself, to all in-sync replicas."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for key, value in records:
        producer.produce("k", value, key)
        assert producer.flush(DEADLINE_S) == 0


def compact(cluster: LocalCluster, broker: int) -> None:
    """Run each round of compaction that is due on a broker."""
    thread = cluster._started(broker)

    async def run() -> None:
        node = thread._node
        assert node is not None
        await node.broker.logs.checkpoint()
        await node.cleaner.clean_all()

    thread.run(run())


def pairs(cluster: LocalCluster) -> list[tuple[str, str | None]]:
    """Key and value of all records of topic ``k``."""
    return [
        ((each.key or b"").decode(), None if each.value is None else bytes(each.value).decode())
        for each in cluster.records("k")
    ]


def test_too_few_in_sync_replicas_refuse_writes_until_one_is_back(cluster: LocalCluster) -> None:
    # D3
    cluster.create_topic("two", configs={"min.insync.replicas": "2"})
    leader = cluster.leader("two")
    followers = [each for each in ALL if each != leader]
    address = cluster.bootstrap.split(",")[leader - 1]
    with Client(address, request_timeout_s=DEADLINE_S) as client:
        with client.producer() as producer:
            producer.send("two", b"kept")
        for each in followers:
            cluster.kill(each)
        wait_until(lambda: cluster.isr("two") == (leader,), deadline_s=DEADLINE_S, what="shrunk")
    refused = Producer(
        {"bootstrap.servers": cluster.bootstrap, "retries": 0, "enable.idempotence": False}
    )
    codes: list[int] = []
    refused.produce("two", b"x", on_delivery=lambda error, _: codes.append(error.code()))
    assert refused.flush(DEADLINE_S) == 0
    assert codes == [KafkaError.NOT_ENOUGH_REPLICAS]
    cluster.start(followers[0])
    wait_until(lambda: len(cluster.isr("two")) == 2, deadline_s=DEADLINE_S, what="grown")
    again = Producer({"bootstrap.servers": cluster.bootstrap})
    again.produce("two", b"kept too")
    assert again.flush(DEADLINE_S) == 0
    assert [each.value for each in cluster.records("two")] == [b"kept", b"kept too"]


def test_a_group_goes_on_after_its_coordinator_was_killed(cluster: LocalCluster) -> None:
    sent = Sent(cluster)
    sent.write(10)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "socket.timeout.ms": 1000,
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe(["t"])
    seen: list[bytes | None] = []

    def consumed(total: int) -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            seen.append(message.value())
        return len(seen) >= total

    def committed() -> bool:
        with suppress(KafkaException):
            consumer.commit(asynchronous=False)
            return True
        consumer.poll(0)
        return False

    wait_until(lambda: consumed(10), deadline_s=DEADLINE_S, what="the first ten")
    wait_until(committed, deadline_s=DEADLINE_S, what="a commit")
    shard = partition_for("g", INTERNAL_PARTITIONS)
    coordinator = cluster.leader(GROUP_TOPIC, shard)
    cluster.kill(coordinator)
    sent.write(10)
    wait_until(lambda: consumed(20), deadline_s=DEADLINE_S, what="the next ten")
    wait_until(committed, deadline_s=DEADLINE_S, what="a commit at the next coordinator")
    assert cluster.leader(GROUP_TOPIC, shard) not in (coordinator, -1)
    assert len(seen) == len(set(seen)) == 20
    assert set(seen) == set(sent.acknowledged)
    consumer.close()
