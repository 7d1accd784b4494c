"""An operator elects a leader: with the command line, and with a stock client's request."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.ports import MetadataWrite
from fencelog.testing.cluster import LocalCluster
from tests.support.cli import Cli
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
]
DEADLINE_S = 40.0
ALL = (1, 2, 3)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three brokers, and a topic ``t`` with three records."""
    with LocalCluster(tmp_path) as running:
        running.create_topic("t")
        wait_until(lambda: running.isr("t") == ALL, deadline_s=DEADLINE_S, what="all in sync")
        with running._connected().producer() as producer:
            for value in (b"a", b"b", b"c"):
                producer.send("t", value, partition=0)
            producer.flush()
        yield running
    gc.collect()  # a leak shows in the test that made it


def stored(cluster: LocalCluster) -> tuple[str, PartitionState, int]:
    """The key of ``t-0``, its state and version."""
    store = cluster._store
    assert store is not None
    assert cluster._thread is not None
    ((key, value, version),) = [
        cell
        for cell in cluster._thread.run(store.snapshot("partition/")).cells
        if cell[0].endswith("/0")
    ]
    return key, PartitionState.decode(key, value), version


def leave_without_leader(cluster: LocalCluster) -> None:
    """As after a power cut of all brokers in ``os`` mode: nobody is known to have everything."""
    key, state, version = stored(cluster)
    waiting = state._replace(
        leader=NO_LEADER, leader_epoch=state.leader_epoch + 1, isr=(), eligible=(), leader_life=""
    )
    store = cluster._store
    assert store is not None
    assert cluster._thread is not None
    assert cluster._thread.run(store.commit([MetadataWrite(key, waiting.encode(), version)]))
    wait_until(lambda: cluster.leader("t") == -1, deadline_s=DEADLINE_S, what="no leader")


def test_a_partition_without_a_leader_is_led_by_the_replica_that_its_operator_names(
    cluster: LocalCluster,
) -> None:
    leave_without_leader(cluster)
    cli = Cli(cluster.bootstrap.split(",")[0])
    shown = cli.run("partition", "elect", "t/0", "--broker", "2")
    assert b"nothing is changed" in shown.stderr
    assert b"no replica that answers has more than broker 2" in shown.stderr
    rows = cli.json("partition", "elect", "t/0", "--broker", "2")
    assert [(row["broker"], row["log_end_offset"], row["problem"]) for row in rows] == [
        (each, 3, None) for each in stored(cluster)[1].replicas
    ]
    assert cluster.leader("t") == -1
    cluster.kill(3)
    assert b"what only broker 3 has is lost" in (
        cli.run("partition", "elect", "t/0", "--broker", "2").stderr
    )
    done = cli.run("partition", "elect", "t/0", "--broker", "2", "--yes")
    assert b"broker 2 leads t/0 in leader epoch" in done.stderr
    assert [each.value for each in cluster.records("t")] == [b"a", b"b", b"c"]
    refused = cli.run("partition", "elect", "t/0", "--broker", "1", "--yes")
    assert refused.returncode == 1
    assert b"ELECTION_NOT_NEEDED" in refused.stderr
    cluster.start(3)
    wait_until(lambda: cluster.isr("t") == ALL, deadline_s=DEADLINE_S, what="all in sync")


def test_who_leads_already_is_not_elected_and_an_election_that_would_be_refused_is_not_promised(
    cluster: LocalCluster,
) -> None:
    cli = Cli(cluster.bootstrap)
    first, other, _ = stored(cluster)[1].replicas
    elect = ("partition", "elect", "t/0")
    leads = f"broker {first} leads t/0 in leader epoch".encode()
    for flags in [(), ("--broker", str(first)), ("--broker", str(first), "--yes")]:
        done = cli.run(*elect, *flags)
        assert done.returncode == 0
        assert leads in done.stderr
        assert b"already" in done.stderr
    shown = cli.run(*elect, "--broker", str(other))
    assert leads in shown.stderr
    assert f"broker {other} would be refused".encode() in shown.stderr
    assert b"with --yes" not in shown.stderr
    assert b"lost" not in shown.stderr
    asked = cli.run(*elect, "--broker", str(other), "--yes")
    assert asked.returncode == 1
    assert cluster.leader("t") == first


def test_the_first_replicas_of_all_partitions_lead_again(cluster: LocalCluster) -> None:
    cluster.create_topic("many", partitions=3)
    wait_until(
        lambda: all(cluster.isr("many", each) == ALL for each in range(3)),
        deadline_s=DEADLINE_S,
        what="all in sync",
    )
    cli = Cli(cluster.bootstrap)
    elect = ("partition", "elect", "--all")
    done = cli.run(*elect)
    assert done.returncode == 0
    assert b"every partition is led by its first replica already" in done.stderr
    first = {each: cluster.leader("many", each) for each in range(3)}
    gone = first[0]
    cluster.kill(gone)
    wait_until(lambda: cluster.leader("many") not in {gone, -1}, deadline_s=DEADLINE_S, what="one")
    refused = cli.run(*elect, "--format", "json")
    assert refused.returncode == 1
    rows = [row for row in json.loads(refused.stdout) if row["topic"] == "many"]
    assert [(row["partition"], row["leader"]) for row in rows] == [(0, cluster.leader("many"))]
    assert f"broker {gone}" in rows[0]["problem"]
    assert b"first replicas do not lead" in refused.stderr
    cluster.start(gone)
    wait_until(lambda: cluster.isr("many") == ALL, deadline_s=DEADLINE_S, what="in sync again")
    rows = [row for row in cli.json(*elect) if row["topic"] == "many"]
    elected = {"topic": "many", "partition": 0, "leader": gone, "problem": None}
    assert rows in ([elected], [])  # the controller may have come first
    assert {each: cluster.leader("many", each) for each in range(3)} == first


@pytest.mark.parametrize("wrong", [("t/0", "--all"), ("--all", "--broker", "1"), ()])
def test_all_partitions_are_elected_only_where_that_is_what_is_said(
    cluster: LocalCluster, wrong: tuple[str, ...]
) -> None:
    refused = Cli(cluster.bootstrap).run("partition", "elect", *wrong)
    assert refused.returncode == 2
    assert b"--all" in refused.stderr


def test_a_stock_client_elects_leaders(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    place = TopicPartition("t", 0)
    _, state, _ = stored(cluster)

    def elected(kind: ElectionType) -> KafkaException | None:
        return admin.elect_leaders(kind, [place]).result(DEADLINE_S)[place]  # type: ignore[no-any-return]

    refused = elected(ElectionType.PREFERRED)
    assert refused is not None
    assert refused.name() == "ELECTION_NOT_NEEDED"
    leave_without_leader(cluster)
    assert elected(ElectionType.UNCLEAN) is None
    assert cluster.leader("t") == state.replicas[0]
