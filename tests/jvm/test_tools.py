"""Kafka's command-line tools, their own main classes from the jars, against a broker process."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from tests.support.broker import BrokerProcess
from tests.support.jvm.host import Outcome, ToolHost
from tests.support.stock import Confluent

PACKAGE = "org.apache.kafka.tools."
CONSUMER = "consumer.ConsoleConsumer"
GROUPS = "consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"

Run = Callable[..., Outcome]


@pytest.fixture
def run(tools: ToolHost, java_broker: BrokerProcess) -> Run:
    """Runs a tool on the broker; it must succeed."""

    def on_the_broker(tool: str, *arguments: object, stdin: str = "") -> Outcome:
        main = tool if tool.startswith("kafka.") else PACKAGE + tool
        words = ["--bootstrap-server", java_broker.address, *map(str, arguments)]
        return tools.done(main, *words, stdin=stdin)

    return on_the_broker


@pytest.fixture
def client(java_broker: BrokerProcess) -> Iterator[Client]:
    with Client(java_broker.address) as client:
        yield client


def rows(outcome: Outcome) -> list[dict[str, str]]:
    """A table with a heading, as the tools print it."""
    heading, *lines = [line.split() for line in outcome.lines]
    return [dict(zip(heading, line, strict=False)) for line in lines if len(line) > 1]


def consumed(run: Run, topic: str, count: int, *arguments: object) -> list[str]:
    how = ("--from-beginning", "--max-messages", count, "--timeout-ms", 20_000)
    return run(CONSUMER, "--topic", topic, *how, *arguments).lines


def test_kafka_topics(run: Run, topic: str) -> None:
    named = ("--topic", topic)
    run("TopicCommand", "--create", *named, "--partitions", 2, "--config", "retention.ms=77")
    assert topic in run("TopicCommand", "--list").lines
    run("TopicCommand", "--alter", *named, "--partitions", 3)
    described = run("TopicCommand", "--describe", *named).out
    assert "PartitionCount: 3" in described
    assert "retention.ms=77" in described
    assert re.findall(r"Partition: (\d)\s+Leader: 1\s+Replicas: 1\s+Isr: 1", described) == [*"012"]
    for option in ("--unavailable-partitions", "--under-replicated-partitions"):
        assert not run("TopicCommand", "--describe", option).lines
    run("TopicCommand", "--delete", *named)
    assert topic not in run("TopicCommand", "--list").lines


def test_kafka_console_producer_and_consumer(run: Run, topic: str) -> None:
    lines = ["h1:x,h2:y\tk1\tone", "h1:z\tk2\ttwo"]
    shape = [f"--reader-property=parse.{part}=true" for part in ("key", "headers")]
    run("ConsoleProducer", "--topic", topic, *shape, stdin="\n".join(lines))
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        run("ConsoleProducer", "--topic", topic, "--compression-codec", codec, stdin=codec)
    printed = [f"--formatter-property=print.{part}=true" for part in ("key", "headers")]
    seen = consumed(run, topic, 6, *printed, "--group", f"{topic}-readers")
    nothing = "NO_HEADERS\tnull\t"
    assert seen == [*lines, *(nothing + codec for codec in ("gzip", "snappy", "lz4", "zstd"))]


def test_kafka_console_consumer_reads_committed_records_only(
    run: Run, java_broker: BrokerProcess, topic: str
) -> None:  # E10
    with closing(Confluent().transactional(java_broker.address, topic)) as writer:
        for number, end in enumerate((writer.abort, writer.commit)):
            writer.begin()
            writer.send(topic, b"%d" % number)
            end()
    assert consumed(run, topic, 2) == ["0", "1"]
    assert consumed(run, topic, 1, "--isolation-level", "read_committed") == ["1"]


def test_kafka_consumer_groups(run: Run, client: Client, topic: str) -> None:
    group = f"{topic}-group"
    named = ("--group", group)
    run("ConsoleProducer", "--topic", topic, stdin="\n".join("abcde"))
    consumed(run, topic, 3, "--group", group)
    (described,) = rows(run(GROUPS, "--describe", *named))
    assert [described[column] for column in ("TOPIC", "CURRENT-OFFSET", "LAG")] == [topic, "3", "2"]
    assert {"GROUP": group, "STATE": "Empty"} in rows(run(GROUPS, "--list", "--state"))
    assert "has no active members" in run(GROUPS, "--describe", *named, "--members").err
    assert re.search(rf"{group}\s.*Empty\s+0", run(GROUPS, "--describe", *named, "--state").out)
    move = ("--reset-offsets", "--topic", topic, "--execute")
    for how, offset in {"--to-latest": "5", "--to-offset=1": "1", "--shift-by=2": "3"}.items():
        (moved,) = rows(run(GROUPS, *named, *move, *how.split("=")))
        assert moved["NEW-OFFSET"] == offset
    assert list(client.committed_offsets(group).values()) == [3]
    assert "Successful" in run(GROUPS, *named, "--delete-offsets", "--topic", topic).out
    assert not client.committed_offsets(group)
    run(GROUPS, *named, "--reset-offsets", "--to-earliest", "--topic", topic, "--execute")
    assert "was successful" in run(GROUPS, *named, "--delete").out
    assert group not in run("GroupsCommand", "--list").out


def test_kafka_configs(run: Run, client: Client, topic: str) -> None:
    client.create_topic(topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    changes = "retention.ms=1234,cleanup.policy=[compact,delete]"
    run(CONFIGS, "--alter", *entity, "--add-config", changes)
    described = run(CONFIGS, "--describe", *entity).out
    assert "retention.ms=1234 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:" in described
    assert "cleanup.policy=compact,delete" in described
    run(CONFIGS, "--alter", *entity, "--delete-config", "retention.ms,cleanup.policy")
    assert "DYNAMIC_TOPIC_CONFIG" not in run(CONFIGS, "--describe", *entity, "--all").out
    broker = ("--entity-type", "brokers", "--entity-name", 1, "--all")
    described = run(CONFIGS, "--describe", *broker).out
    assert "node.id=1" in described
    assert "default.replication.factor=1 sensitive=false synonyms={DEFAULT_CONFIG:" in described


def test_kafka_transactions(run: Run, java_broker: BrokerProcess, topic: str) -> None:  # E7, E10
    tool = "TransactionsCommand"
    with closing(Confluent().transactional(java_broker.address, topic)) as writer:
        writer.begin()
        writer.send(topic, b"left open")
        listed = {row["TransactionalId"]: row for row in rows(run(tool, "list"))}
        assert listed[topic]["TransactionState"] == "Ongoing"
        (described,) = rows(run(tool, "describe", "--transactional-id", topic))
        assert described["TopicPartitions"] == f"{topic}-0"
        place = ("--topic", topic, "--partition", 0)
        (producer,) = rows(run(tool, "describe-producers", *place))
        assert producer["ProducerId"] == described["ProducerId"]
        assert producer["CurrentTransactionStartOffset"] == "0"
        assert not rows(run(tool, "find-hanging", "--broker-id", 1))
        run(tool, "forceTerminateTransaction", "--transactionalId", topic)
    run("ConsoleProducer", "--topic", topic, stdin="after it")
    assert consumed(run, topic, 1, "--isolation-level", "read_committed") == ["after it"]


def test_kafka_get_offsets_and_delete_records(run: Run, topic: str, tmp_path: Path) -> None:  # D4
    run("ConsoleProducer", "--topic", topic, stdin="\n".join("abcde"))
    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 2}], "version": 1}
    (tmp_path / "offsets.json").write_text(json.dumps(wanted))
    deleted = run("DeleteRecordsCommand", "--offset-json-file", tmp_path / "offsets.json").out
    assert f"partition: {topic}-0\tlow_watermark: 2" in deleted
    for time, offset in {"earliest": 2, "latest": 5, "max-timestamp": 4}.items():
        found = run("GetOffsetShell", "--topic", topic, "--time", time).lines
        if time == "max-timestamp":
            assert found[0].startswith(f"{topic}:0:"), found
        else:
            assert found == [f"{topic}:0:{offset}"]
    assert consumed(run, topic, 3) == ["c", "d", "e"]


def test_kafka_s_own_load_and_verification_tools(run: Run, topic: str) -> None:
    run("VerifiableProducer", "--topic", topic, "--max-messages", 50)
    named = ("--topic", topic, "--group-id", topic)
    read = run("VerifiableConsumer", *named, "--max-messages", 50).lines
    events = [json.loads(line) for line in read]
    assert sum(each["count"] for each in events if each["name"] == "records_consumed") == 50
    load = ("--topic", topic, "--num-records", 2000, "--record-size", 100, "--throughput", -1)
    assert "2000 records sent" in run("ProducerPerformance", *load).out
    transactional = ("--transaction-duration-ms", 50, "--transactional-id", topic)
    assert "2000 records sent" in run("ProducerPerformance", *load, *transactional).out
    read = run("ConsumerPerformance", "--topic", topic, "--num-records", 4000).lines
    assert int(read[-1].split(",")[4]) >= 4000
    timed = ("--topic", topic, "--num-records", 20, "--producer-acks", "all", "--record-size", 99)
    assert "99th = " in run("EndToEndLatency", *timed).out


def test_kafka_s_tools_learn_what_the_broker_speaks(
    run: Run, tools: ToolHost, java_broker: BrokerProcess
) -> None:
    versions = run("BrokerApiVersionsCommand").out
    assert re.search(r"Produce\(0\): 0 to \d+ \[usable: \d+\]", versions)
    features = run("FeatureCommand", "describe").out
    assert re.search(r"transaction\.version\s.*FinalizedVersionLevel: 2\s", features)
    where = ("--bootstrap-server", java_broker.address)
    assert "Cluster ID: " in tools.done(f"{PACKAGE}ClusterTool", "cluster-id", *where).out


def test_kafka_log_dirs(run: Run, topic: str) -> None:
    run("TopicCommand", "--create", "--topic", topic)
    described = run("LogDirsCommand", "--describe", "--topic-list", topic).lines
    (found,) = [json.loads(line) for line in described if line.startswith("{")]
    (directory,) = found["brokers"][0]["logDirs"]
    assert (directory["error"], directory["partitions"][0]["partition"]) == (None, f"{topic}-0")


def test_kafka_acls_says_that_security_is_disabled(
    tools: ToolHost, java_broker: BrokerProcess
) -> None:
    outcome = tools.run(PACKAGE + "AclCommand", "--bootstrap-server", java_broker.address, "--list")
    assert "SecurityDisabledException" in outcome.out + outcome.err
