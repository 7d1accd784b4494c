"""kafka-dump-log reads the replicas of brokers that followed, led, and were killed, as well."""

from contextlib import closing
from pathlib import Path

from fencelog.client.blocking import Client
from fencelog.client.model import Record
from fencelog.testing.cluster import LocalCluster
from fencelog.types import TopicPartition
from tests.jvm._directory import DEADLINE_S, SMALL, to_send
from tests.jvm._dump import DEEP, dump, records
from tests.support.jvm.host import ToolHost
from tests.support.stock import CODECS, Confluent
from tests.support.waiting import wait_until

READ = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
PLAIN, MIXED = "plain", "transactions"


def transact(cluster: LocalCluster, number: int) -> None:
    """Committed and aborted transactions, in turns."""
    with closing(Confluent().transactional(cluster.bootstrap, f"writer-{number}")) as writer:
        for each in range(10):
            writer.begin()
            for _ in range(3):
                writer.send(MIXED, b"%d-%d " % (number, each) + b"t" * 150)
            if each % 3:
                writer.commit()
            else:
                writer.abort()


def copied(cluster: LocalCluster, topic: str) -> list[Record]:
    """Wait until each replica has everything; return the records."""
    with Client(cluster.bootstrap) as client:

        def all_have_it() -> bool:
            ends = client.replica_ends(TopicPartition(topic, 0), cluster.brokers)
            return len({each.log_end_offset for each in ends}) == 1 and len(ends) == len(
                cluster.brokers
            )

        wait_until(all_have_it, deadline_s=DEADLINE_S, what=f"all replicas of {topic}")
    return cluster.records(topic, isolation="replicated")


def test_each_replica_holds_the_same_valid_records(
    tools: ToolHost, tmp_path: Path
) -> None:  # D3, F1
    with LocalCluster(tmp_path) as cluster:
        cluster.create_topic(PLAIN)
        cluster.create_topic(MIXED, configs=SMALL)
        for seed, codec in enumerate(CODECS):
            sent = [each for each in to_send(120, seed) if each.partition == 0]
            Confluent().write(cluster.bootstrap, PLAIN, sent, codec=codec, idempotent=True)
        transact(cluster, 0)
        first = cluster.leader(MIXED)
        cluster.kill(first)
        transact(cluster, 1)
        cluster.start(first)
        read = {topic: copied(cluster, topic) for topic in (PLAIN, MIXED)}
    for broker in cluster.brokers:
        for topic, expected in read.items():
            folder = tmp_path / f"broker-{broker}" / f"{topic}-0"
            files = [each for each in sorted(folder.iterdir()) if each.suffix in READ]
            said = dump(tools, files, *DEEP)
            logs = [said.files[each] for each in files if each.suffix == ".log"]
            assert all(text.count("isvalid: true") == text.count("baseOffset: ") for text in logs)
            shown = [
                (one.offset, one.timestamp_ms, one.key, one.value)
                for text in logs
                for one in records(text)
            ]
            assert shown == [(one.offset, one.timestamp_ms, one.key, one.value) for one in expected]
    assert len(logs) > 1, "segments were rolled"
