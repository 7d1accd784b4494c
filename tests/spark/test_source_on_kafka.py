"""The source on Apache Kafka itself: what a consumer of committed records sees, with its traps."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from fencelog.cli import doctor
from fencelog.client.blocking import Client
from fencelog.client.model import Isolation
from fencelog.types import TopicPartition
from tests.spark.conftest import Log, apache_kafka
from tests.support.apache_kafka import ApacheKafka
from tests.support.stock import Confluent, Seen
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEADLINE_S = 120.0
FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """The oldest that starts without ZooKeeper. It fetches by name: topic ids came with 3.1."""
    with apache_kafka(tmp_path_factory.mktemp("old") / "data", "kafka-3.0") as running:
        yield running


@pytest.fixture
def stock(kafka: ApacheKafka) -> Iterator[Log]:
    with Client(kafka.address) as client:
        yield Log(client, kafka.address)


def transact(servers: str, topic: str, values: Sequence[str], *, commit: bool | None) -> object:
    """Write values to partition 0 in a transaction; None leaves it open, with the producer."""
    from confluent_kafka import Producer

    name = f"{topic}-{values[0]}"
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "log_level": 2})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for number, value in enumerate(values):
        headers = [("number", b"%d" % number), ("none", None)]
        time_ms = FIRST_MS + number
        producer.produce(topic, value, value, 0, timestamp=time_ms, headers=headers)
    assert producer.flush(DEADLINE_S) == 0
    if commit is not None:
        (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)
        # It is answered once it is decided; readers see it when the marker is written.
        wait_until(
            lambda: end(servers, topic) == end(servers, topic, "replicated"),
            deadline_s=DEADLINE_S,
            what="the marker",
        )
    return producer


def end(servers: str, topic: str, isolation: Isolation = "transactional") -> int:
    """Where partition 0 ends for a reader."""
    place = TopicPartition(topic, 0)
    with Client(servers) as client:
        return client.offsets([place], "latest", isolation)[place]


def frame(spark: "SparkSession", servers: str, **options: str) -> "DataFrame":
    reader = spark.read.format("fencelog").option("kafka.bootstrap.servers", servers)
    return reader.options(**{"includeHeaders": "true", **options}).load()


def seen(loaded: "DataFrame") -> list[Seen]:
    """The rows as a stock consumer's records."""
    rows = loaded.selectExpr("*", "unix_millis(timestamp) AS time_ms").collect()
    return sorted(
        (
            Seen(
                row.partition,
                row.offset,
                None if row.key is None else bytes(row.key),
                None if row.value is None else bytes(row.value),
                tuple((each.key, each.value and bytes(each.value)) for each in row.headers or ()),
                row.time_ms,
            )
            for row in rows
        ),
        key=lambda each: (each.partition, each.offset),
    )


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number:03}" for number in range(count)]


def values(records: Sequence[Seen]) -> list[str]:
    return [(each.value or b"").decode() for each in records]


@pytest.mark.parametrize("version", ["newest", "oldest"])
def test_a_topic_is_read_as_a_stock_consumer_reads_it(
    version: str,
    kafka: ApacheKafka,
    request: pytest.FixtureRequest,
    spark: "SparkSession",
    topic: str,
) -> None:  # S1, F6
    broker = kafka if version == "newest" else request.getfixturevalue(version)
    servers = broker.address
    with Client(servers) as client:
        # The records are old: retention would delete them at its first round.
        client.create_topic(topic, 2, {"retention.ms": "-1"})
    transact(servers, topic, numbered("a", 50), commit=True)
    transact(servers, topic, numbered("aborted", 20), commit=False)
    transact(servers, topic, numbered("b", 50), commit=True)
    still_open = transact(servers, topic, numbered("open", 5), commit=None)
    everything = Confluent().read(servers, topic)
    assert values(everything) == numbered("a", 50) + numbered("b", 50)
    assert everything[1].headers[0] == ("number", b"1")
    assert everything[1].timestamp_ms == FIRST_MS + 1
    assert seen(frame(spark, servers, subscribe=topic)) == everything

    first_of_b = everything[50].offset
    ends = {"startingOffsets": json.dumps({topic: {"0": first_of_b, "1": -2}})}
    split = {"maxRecordsPerPartition": "7"}
    assert seen(frame(spark, servers, subscribe=topic, **ends, **split)) == everything[50:]
    late = {"startingTimestamp": str(FIRST_MS + 40), "startingOffsetsByTimestampStrategy": "latest"}
    assert seen(frame(spark, servers, assign=f'{{"{topic}": [0]}}', **late)) == everything[40:]
    dirty = frame(spark, servers, subscribePattern=topic, isolation="replicated")
    assert sorted(values(seen(dirty))) == sorted(
        [*values(everything), *numbered("aborted", 20), *numbered("open", 5)]
    )
    with pytest.raises(
        PySparkException, match=r"isolation level tail .* it is too old, or not fen"
    ):
        frame(spark, servers, subscribe=topic, isolation="tail").count()
    assert still_open is not None  # a producer that is collected aborts its transaction


def test_a_compacted_topic_is_read_with_its_gaps(
    stock: Log, spark: "SparkSession", topic: str
) -> None:  # S6
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    stock.client.create_topic(topic, 1, {**compacted, "segment.ms": "100"})
    for prefix in ("a", "b"):
        stock.produce(topic, [f"{number:03}" for number in range(100)] + [prefix])

    def rolled_and_compacted() -> bool:
        # A segment is closed by a write, and only closed ones are compacted.
        stock.produce(topic, ["last"])
        return len(Confluent().read(stock.servers, topic)) < 150

    wait_until(rolled_and_compacted, deadline_s=DEADLINE_S, what="compaction", every_s=0.2)
    # Compaction goes on, so the two are compared by what it never removes.
    found = seen(frame(spark, stock.servers, subscribe=topic, minPartitions="4"))
    newest = {each.key: each.offset for each in Confluent().read(stock.servers, topic)}
    assert {each.key: each.offset for each in found} == newest
    assert len(newest) == 103


def test_a_stream_goes_on_when_its_broker_is_killed_and_fails_when_its_topic_is_another(
    stock: Log,
    kafka: ApacheKafka,
    spark: "SparkSession",
    fresh_name: Callable[[str], str],
    tmp_path: Path,
) -> None:  # S2, S9
    source = stock.topic(fresh_name("in"), retention_ms="-1")
    target = stock.topic(fresh_name("out"))
    transact(stock.servers, source, numbered("a", 30), commit=True)
    transact(stock.servers, source, numbered("aborted", 10), commit=False)
    rows = spark.readStream.format("fencelog").option("kafka.bootstrap.servers", stock.servers)
    rows = rows.option("subscribe", source).option("startingOffsets", "earliest")
    writer = rows.option("groupId", source).load().writeStream.format("fencelog")
    writer = writer.option("kafka.bootstrap.servers", stock.servers).option("topic", target)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    finished = [end(stock.servers, source)]
    query = writer.start()
    try:
        query.processAllAvailable()
        kafka.restart()
        transact(stock.servers, source, numbered("b", 30), commit=True)
        finished.append(end(stock.servers, source))
        query.processAllAvailable()
    finally:
        query.stop()
    wanted = numbered("a", 30) + numbered("b", 30)
    assert sorted(values(Confluent().read(stock.servers, target))) == wanted
    # The last batch is committed when the next one is planned.
    assert stock.client.committed_offsets(source)[TopicPartition(source, 0)] in finished

    stock.topic_again(source)
    stock.produce(source, numbered("c", 200), partition=0)
    query = writer.start()
    with pytest.raises(PySparkException, match="was deleted and created again"):
        query.processAllAvailable()
    assert sorted(values(Confluent().read(stock.servers, target))) == wanted


def test_the_doctor_has_nothing_to_complain_of(kafka: ApacheKafka) -> None:
    findings = list(doctor._broker(kafka.address, None))
    assert {each.status for each in findings} == {"ok"}, findings
    assert findings[-1].found == "the broker has no versioned transactions: the driver commits"
