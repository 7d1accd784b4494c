"""Batch reads and writes: the log as a table, a table as one transaction."""

from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from fencelog.spark.schema import COLUMN_TYPES
from fencelog.types import TopicPartition
from tests.support.waiting import wait_until


def values(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def frame_of(spark: SparkSession, texts: list[str], partitions: int = 2) -> DataFrame:
    rows = [(text, text) for text in texts]
    return spark.createDataFrame(rows, "key STRING, value STRING").repartition(partitions)


def write(frame: DataFrame, servers: str, **options: str) -> None:
    named = {"kafka.bootstrap.servers": servers, **options}
    frame.write.format("fencelog").options(**named).mode("append").save()


def test_the_columns_are_those_of_sparks_kafka_connector(log, topic, read) -> None:  # S1
    log.topic(topic, 1)
    with log.client.producer() as producer:
        producer.send(
            topic,
            b"v",
            key=b"k",
            headers=(("h", b"1"), ("h", None)),
            timestamp_ms=1_700_000_000_123,
        )
        producer.send(topic, None, key=None)
    frame = read(topic, includeHeaders="true")
    assert [(name, kind) for name, kind in frame.dtypes] == list(COLUMN_TYPES.items())
    first, second = frame.orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value)) == (b"k", b"v")
    assert (first.topic, first.partition, first.offset, first.timestampType) == (topic, 0, 0, 0)
    assert first.timestamp.astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert [(each.key, each.value) for each in first.headers] == [("h", b"1"), ("h", None)]
    assert (second.key, second.value, second.offset) == (None, None, 1)


def test_columns_can_be_chosen_as_nothing_is_pushed_down(log, topic, read) -> None:
    log.topic(topic)
    log.produce(topic, ["a", "b"])
    frame = read(topic, columns="offset,value")
    assert frame.columns == ["offset", "value"]
    assert values(frame) == ["a", "b"]


def test_an_empty_topic_is_an_empty_table(log, topic, read) -> None:
    log.topic(topic)
    assert read(topic).count() == 0


def test_a_topic_that_does_not_exist_is_named(read) -> None:
    with pytest.raises(PySparkException, match="no-such-topic"):
        read("no-such-topic").collect()


def test_offsets_bound_a_read(log, topic, read) -> None:
    log.topic(topic, 1)
    log.produce(topic, list("abcdef"))
    frame = read(
        topic,
        startingOffsets=f'{{"{topic}": {{"0": 1}}}}',
        endingOffsets=f'{{"{topic}": {{"0": 4}}}}',
    )
    assert values(frame) == ["b", "c", "d"]


def test_timestamps_bound_a_read(log, topic, read) -> None:
    log.topic(topic, 1)
    with log.client.producer() as producer:
        for number in range(5):
            producer.send(topic, str(number).encode(), timestamp_ms=1_000 + number)
    assert values(read(topic, startingTimestamp="1001", endingTimestamp="1003")) == ["1", "2"]
    by_partition = read(
        topic,
        startingOffsetsByTimestamp=f'{{"{topic}": {{"0": 1003}}}}',
        endingOffsetsByTimestamp=f'{{"{topic}": {{"0": 9000}}}}',
    )
    assert values(by_partition) == ["3", "4"]
    with pytest.raises(PySparkException, match="no record at or after timestamp 9000"):
        read(topic, startingTimestamp="9000").collect()


def test_partitions_can_be_assigned_and_cut(log, topic, spark, read) -> None:
    log.topic(topic, 2)
    log.produce(topic, ["a", "b", "c", "d"], partition=0)
    log.produce(topic, ["x"], partition=1)
    assigned = (
        spark.read.format("fencelog")
        .option("kafka.bootstrap.servers", log.servers)
        .option("assign", f'{{"{topic}": [1]}}')
        .load()
    )
    assert values(assigned) == ["x"]
    cut = read(topic, minPartitions="4")
    assert cut.rdd.getNumPartitions() >= 4
    assert values(cut) == ["a", "b", "c", "d", "x"]


def test_aborted_records_are_not_read_and_open_ones_wait(log, topic, read) -> None:  # E10, F6
    log.topic(topic, 1)
    log.produce_in_transaction(topic, ["aborted"], commit=False)
    log.produce_in_transaction(topic, ["committed"], commit=True)
    with log.client.producer(transactional_id=f"{topic}-open") as producer:
        producer.begin()
        producer.send(topic, b"open")
        producer.flush()
        assert values(read(topic)) == ["committed"]
        assert values(read(topic, isolation="replicated")) == ["aborted", "committed", "open"]
        assert values(read(topic, isolation="tail")) == ["aborted", "committed", "open"]


def test_offsets_without_records_are_no_loss(log, topic, read) -> None:
    log.topic(topic, 1)
    log.produce_in_transaction(topic, ["a"], commit=False)
    log.produce_in_transaction(topic, ["b"], commit=False)
    assert values(read(topic)) == []
    log.produce_in_transaction(topic, ["c"], commit=True)
    assert values(read(topic)) == ["c"]
    last = log.client.offsets([TopicPartition(topic, 0)], "latest")[TopicPartition(topic, 0)] - 1
    only_the_marker = read(topic, startingOffsets=f'{{"{topic}": {{"0": {last}}}}}')
    assert values(only_the_marker) == []


def test_a_start_beyond_the_log_is_a_loss_by_default(log, topic, read) -> None:  # S6
    log.topic(topic, 1)
    log.produce(topic, ["a"])
    start = f'{{"{topic}": {{"0": 50}}}}'
    with pytest.raises(
        PySparkException, match=r"the log ends at offset 1, below the start.*failOnDataLoss"
    ):
        read(topic, startingOffsets=start).collect()
    assert values(read(topic, startingOffsets=start, failOnDataLoss="false")) == []


def test_a_table_is_written_to_the_log(log, topic, spark) -> None:
    log.topic(topic)
    texts = [f"row {number:03}" for number in range(100)]
    write(frame_of(spark, texts), log.servers, topic=topic)
    assert log.values(topic) == texts


def test_columns_say_where_and_when_a_row_is_written(log, topic, spark) -> None:
    log.topic(topic, 3)
    frame = spark.sql(
        f"""SELECT CAST(NULL AS STRING) AS key, 'v' AS value, '{topic}' AS topic, 2 AS partition,
            timestamp_millis(1700000000123) AS timestamp,
            array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers"""
    )
    write(frame, log.servers)
    (record,) = log.records(topic)
    assert (record.partition, record.key, record.value) == (2, None, b"v")
    assert record.timestamp_ms == 1_700_000_000_123
    assert record.headers == (("h", b"x"),)


def test_a_key_finds_the_partition_that_kafka_clients_choose(log, topic, spark, fresh_name) -> None:
    log.topic(topic, 5)
    other = log.topic(fresh_name("other"), 5)
    texts = [f"key {number}" for number in range(40)]
    log.produce(topic, texts)
    write(frame_of(spark, texts), log.servers, topic=other)
    expected = {record.key: record.partition for record in log.records(topic)}
    assert {record.key: record.partition for record in log.records(other)} == expected


def test_a_write_that_fails_leaves_nothing_to_read(log, topic, spark) -> None:  # S3, V2
    log.topic(topic)
    failing = spark.range(100).selectExpr(
        "CAST(id AS STRING) AS key",
        "IF(id = 99, raise_error('the last row'), CAST(id AS STRING)) AS value",
    )
    with pytest.raises(PySparkException, match="the last row"):
        write(failing, log.servers, topic=topic)
    assert log.values(topic) == []
    log.produce(topic, ["after"])
    # The failed write is aborted; its markers may still be on their way, and its last tasks.
    wait_until(lambda: log.values(topic) == ["after"], what="what comes after it is read")


def test_a_numbered_write_is_written_once_however_often_it_is_repeated(
    log, topic, spark, fresh_name
) -> None:  # V3
    log.topic(topic)
    app = fresh_name("app")
    for number in ("5", "5", "7"):  # there was nothing to write for number 6
        write(frame_of(spark, [number]), log.servers, topic=topic, app=app, batch=number)
    assert log.values(topic) == ["5", "7"]
    with pytest.raises(PySparkException, match="the numbers of an app only rise"):
        write(frame_of(spark, ["6"]), log.servers, topic=topic, app=app, batch="6")
    assert log.values(topic) == ["5", "7"]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_both_deliveries_write_every_row(log, topic, spark, delivery: str) -> None:
    log.topic(topic)
    write(frame_of(spark, ["a", "b"]), log.servers, topic=topic, delivery=delivery)
    assert log.values(topic) == ["a", "b"]


def test_a_transaction_timeout_that_the_broker_refuses_is_named_with_its_limit(
    log, topic, spark
) -> None:
    options = {"topic": log.topic(topic), "kafka.transaction.timeout.ms": "900001"}
    with pytest.raises(
        PySparkException, match=r"'kafka.transaction.timeout.ms' is '900001': .* at most 900000"
    ):
        write(frame_of(spark, ["a"]), log.servers, **options)


def test_a_log_is_appended_to_and_not_overwritten(log, topic, spark) -> None:
    log.topic(topic)
    writer = frame_of(spark, ["a"]).write.format("fencelog")
    writer = writer.option("kafka.bootstrap.servers", log.servers).option("topic", topic)
    with pytest.raises(PySparkException, match="appended to, not overwritten"):
        writer.mode("overwrite").save()


def test_a_row_that_would_lose_a_column_is_refused(log, topic, spark) -> None:
    frame = spark.sql("SELECT 'a' AS value, 'UA' AS carrier")
    with pytest.raises(PySparkException, match="column 'carrier' cannot be written"):
        write(frame, log.servers, topic=topic)
