"""The examples of Spark's Kafka integration guide, with ``fencelog`` as the format's name."""

import runpy
import threading
from collections.abc import Mapping
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Log
from tests.support.waiting import wait_until

WORD_COUNT = "examples/src/main/python/sql/streaming/structured_kafka_wordcount.py"


@pytest.fixture
def topics(log: Log, fresh_name) -> tuple[str, str]:
    """Two topics with a common beginning; the first has 60 records in partition 0, one in 1."""
    first = log.topic(fresh_name("example"), 2)
    second = log.topic(f"{first}-second", 1)
    log.produce(first, [f"a{number:02}" for number in range(60)], partition=0)
    log.produce(first, ["b"], partition=1)
    log.produce(second, ["c"])
    return first, second


def subscriptions(topics: tuple[str, str]) -> list[dict[str, str]]:
    """One topic, one with headers, several topics, a pattern."""
    first, second = topics
    return [
        {"subscribe": first},
        {"subscribe": first, "includeHeaders": "true"},
        {"subscribe": f"{first},{second}"},
        {"subscribePattern": f"{first}.*"},
    ]


def frame(reader, log: Log, options: Mapping[str, str]) -> DataFrame:
    loaded = reader.format("fencelog").option("kafka.bootstrap.servers", log.servers)
    return loaded.options(**options).load()


def texts(loaded: DataFrame) -> list[str]:
    rows = loaded.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").collect()
    return sorted(row.value for row in rows)


def test_batch_reads(log: Log, topics, spark: SparkSession) -> None:  # S1
    first, second = topics
    everything = sorted([*(f"a{number:02}" for number in range(60)), "b", "c"])
    assert texts(frame(spark.read, log, {"subscribe": first})) == everything[:-1]
    offsets = {
        "startingOffsets": f'{{"{first}":{{"0":23,"1":-2}},"{second}":{{"0":-2}}}}',
        "endingOffsets": f'{{"{first}":{{"0":50,"1":-1}},"{second}":{{"0":-1}}}}',
    }
    part = [*(f"a{number:02}" for number in range(23, 50)), "b", "c"]
    assert texts(frame(spark.read, log, {"subscribe": f"{first},{second}"} | offsets)) == part
    ends = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    pattern = {"subscribePattern": f"{first}.*"}
    assert texts(frame(spark.read, log, pattern | ends)) == everything


def test_streams_are_read_and_written(
    log: Log, topics, spark: SparkSession, fresh_name, tmp_path: Path
) -> None:  # S1
    loaded = [frame(spark.readStream, log, each) for each in subscriptions(topics)]
    assert "headers" in loaded[1].columns
    read = [each.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)") for each in loaded]
    together = read[0].unionAll(read[1]).unionAll(read[2]).unionAll(read[3])
    target = log.topic(fresh_name("target"), 1)
    query = (
        together.writeStream.format("fencelog")
        .option("kafka.bootstrap.servers", log.servers)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        wait_until((tmp_path / "commits" / "0").exists, deadline_s=60, what="the start")
        log.produce(topics[0], ["new"], partition=0)
        log.produce(topics[1], ["newer"])
        query.processAllAvailable()
    finally:
        query.stop()
    assert log.values(target) == ["new"] * 4 + ["newer"] * 2


def test_batch_writes_need_their_mode_named(
    log: Log, topics, spark: SparkSession, fresh_name
) -> None:
    rows = frame(spark.read, log, {"subscribe": topics[1]})
    target = log.topic(fresh_name("target"), 1)
    chosen = rows.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").write
    to_option = chosen.format("fencelog").option("kafka.bootstrap.servers", log.servers)
    to_option = to_option.option("topic", target)
    with pytest.raises(PySparkException, match='Please use either the "Append"'):
        to_option.save()
    to_option.mode("append").save()
    named = rows.selectExpr(f"'{target}' AS topic", "CAST(key AS STRING)", "CAST(value AS STRING)")
    to_column = named.write.format("fencelog").option("kafka.bootstrap.servers", log.servers)
    to_column.mode("append").save()
    assert log.values(target) == ["c", "c"]


def test_spark_s_own_word_count_runs(
    log: Log, topics, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(pyspark.__path__[0]) / WORD_COUNT).read_text("utf-8")
    script = tmp_path / "word_count.py"
    script.write_text(text.replace('.format("kafka")', '.format("fencelog")'), "utf-8")
    monkeypatch.setattr("sys.argv", [str(script), log.servers, "subscribe", topics[1]])
    running = threading.Thread(
        target=lambda: runpy.run_path(str(script), run_name="__main__"), daemon=True
    )
    running.start()
    (query,) = wait_until(lambda: spark.streams.active, deadline_s=60, what="the word count")
    try:
        wait_until(lambda: query.lastProgress is not None, deadline_s=60, what="the first batch")
        log.produce(topics[1], ["one two", "two"])
        query.processAllAvailable()
        counted = [each["stateOperators"][0]["numRowsTotal"] for each in query.recentProgress]
        assert counted[-1] == 2
    finally:
        query.stop()
        running.join(30)


def test_a_stream_waits_for_a_minimum_of_offsets(log: Log, fresh_name, read_stream) -> None:
    topic = log.topic(fresh_name("slow"), 1)
    log.produce(topic, ["first"])
    options = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h", "maxRecordsPerPartition": "4"}
    query = read_stream(topic, **options).writeStream.format("noop").start()
    try:
        for count in (3, 7):
            query.processAllAvailable()
            log.produce(topic, ["more"] * count)
        query.processAllAvailable()
        batches = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        assert batches == [1, 10]
    finally:
        query.stop()
