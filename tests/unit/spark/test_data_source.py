"""The data source as Spark calls it, without Spark: planned here, read and written from copies."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fencelog.client.blocking import Client
from fencelog.client.model import DataLossError
from fencelog.spark.batch import BatchReader
from fencelog.spark.conflicts import BatchConflictError
from fencelog.spark.driver_commit.ledger import LEDGER
from fencelog.spark.offsets import from_json
from fencelog.spark.options import OptionError
from fencelog.spark.reading import RangePartition
from fencelog.spark.schema import COLUMN_TYPES, HEADERS
from fencelog.spark.source import FencelogDataSource
from fencelog.spark.stream_reader import StreamReader
from fencelog.testing.broker import LocalBroker
from fencelog.types import TopicPartition

TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    COLUMN_TYPES[HEADERS]: ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


Source = Callable[..., FencelogDataSource]


def schema(*columns: str) -> StructType:
    return StructType([StructField(each, TYPES[COLUMN_TYPES[each]]) for each in columns])


def in_a_task(value: Any) -> Any:
    """What a task has of a value of the driver's."""
    return cloudpickle.loads(cloudpickle.dumps(value))


def rows(source: FencelogDataSource, *columns: str) -> list[dict]:
    """The table that a batch read returns; each batch has exactly the schema that Spark has."""
    wanted = schema(*columns)
    reader = source.reader(wanted)
    assert isinstance(reader, BatchReader)
    found = []
    for partition in reader.partitions():
        for batch in in_a_task(reader).read(in_a_task(partition)):
            assert batch.schema.equals(to_arrow_schema(wanted, timezone="UTC"))
            found += batch.to_pylist()
    return found


def values(source: FencelogDataSource) -> list[str]:
    return sorted(row["value"].decode() for row in rows(source, "value"))


def produce(client: Client, topic: str, *counts: int) -> str:
    """Create a topic whose partitions have so many records, at times of 1000 ms and more."""
    client.create_topic(topic, len(counts))
    with client.producer() as producer:
        for partition, count in enumerate(counts):
            for number in range(count):
                name = f"{partition}.{number}".encode()
                producer.send(topic, name, partition=partition, timestamp_ms=1000 + number)
    return topic


def ranges(partitions: Sequence[InputPartition]) -> list[tuple[str, int, int]]:
    found = []
    for each in partitions:
        assert isinstance(each, RangePartition)
        found.append((str(each.offsets.partition), each.offsets.start, each.offsets.end))
    return found


# --- reads


def test_a_read_has_the_columns_that_spark_asks_for(
    client: Client, source: Source, topic: str
) -> None:  # S1
    client.create_topic(topic, 1)
    with client.producer() as producer:
        headers = (("h", b"1"), ("h", None))
        producer.send(topic, b"v", key=b"k", headers=headers, timestamp_ms=1_700_000_000_123)
    (row,) = rows(source(subscribe=topic), *COLUMN_TYPES)
    assert row == {
        "key": b"k",
        "value": b"v",
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }
    assert rows(source(subscribe=topic), "offset", "key") == [{"offset": 0, "key": b"k"}]


def test_a_plan_is_one_task_for_each_partition_or_as_many_as_asked_for(
    client: Client, source: Source, topic: str
) -> None:
    produce(client, topic, 4, 0, 2)
    assert ranges(source(subscribe=topic).reader(schema("value")).partitions()) == [
        (f"{topic}-0", 0, 4),
        (f"{topic}-2", 0, 2),
    ]
    for options in ({"minPartitions": "3"}, {"maxRecordsPerPartition": "2"}):
        cut = source(subscribe=topic, **options)
        assert ranges(cut.reader(schema("value")).partitions()) == [
            (f"{topic}-0", 0, 2),
            (f"{topic}-0", 2, 4),
            (f"{topic}-2", 0, 2),
        ]
        assert len(values(cut)) == 6


def test_a_task_s_range_is_seen_in_what_spark_logs_of_it(
    client: Client, source: Source, topic: str
) -> None:
    produce(client, topic, 3)
    (planned,) = source(subscribe=topic).reader(schema("value")).partitions()
    assert repr(planned.value) in repr(planned)
    assert planned.value.end == 3


def test_what_spark_plans_for_an_empty_read_yields_nothing(source: Source) -> None:
    assert list(source(subscribe="t").reader(schema("value")).read(InputPartition(0))) == []


def test_each_partition_starts_where_its_position_says(
    client: Client, source: Source, topic: str
) -> None:
    produce(client, topic, 3, 3, 3)
    client.delete_records({TopicPartition(topic, 0): 1})
    start = f'{{"{topic}": {{"0": -2, "1": -1, "2": 2}}}}'
    stream = source(subscribe=topic, startingOffsets=start).streamReader(schema("value"))
    assert isinstance(stream, StreamReader)
    assert list(from_json(stream.initialOffset()).values()) == [1, 3, 2]
    missing = source(subscribe=topic, startingOffsets=f'{{"{topic}": {{"1": 0}}}}')
    with pytest.raises(OptionError, match=f"missing for {topic}-0, {topic}-2: give one for every"):
        missing.reader(schema("value")).partitions()


def test_a_time_is_the_first_record_at_or_after_it(
    client: Client, source: Source, topic: str
) -> None:
    produce(client, topic, 3, 2)
    assert values(source(subscribe=topic, startingTimestamp="1001")) == ["0.1", "0.2", "1.1"]
    until = source(subscribe=topic, startingTimestamp="0", endingTimestamp="1002")
    assert values(until) == ["0.0", "0.1", "1.0", "1.1"]
    beyond = {"startingOffsetsByTimestamp": f'{{"{topic}": {{"0": 1000, "1": 5000}}}}'}
    with pytest.raises(OptionError, match=f"{topic}-1 has no record at or after timestamp 5000"):
        values(source(subscribe=topic, **beyond))
    beyond["startingOffsetsByTimestampStrategy"] = "latest"
    assert values(source(subscribe=topic, **beyond)) == ["0.0", "0.1", "0.2"]


def test_lost_records_are_named_by_partition(client: Client, source: Source, topic: str) -> None:
    produce(client, topic, 3, 3)
    client.delete_records({TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 1})
    asked = {"subscribe": topic, "startingOffsets": f'{{"{topic}": {{"0": 0, "1": 0}}}}'}
    lost = (
        f"records are lost: {topic}-0: offsets 0 to 1 were deleted;"
        f" {topic}-1: offsets 0 to 0 were deleted. To continue"
    )
    with pytest.raises(DataLossError, match=lost):
        values(source(**asked))
    assert values(source(**asked, failOnDataLoss="false")) == ["0.2", "1.1", "1.2"]


def test_records_lost_after_the_plan_are_a_loss_too(
    client: Client, source: Source, topic: str
) -> None:
    produce(client, topic, 4)
    strict = source(subscribe=topic).reader(schema("value"))
    lenient = source(subscribe=topic, failOnDataLoss="false").reader(schema("value"))
    (planned,) = strict.partitions()
    client.delete_records({TopicPartition(topic, 0): 3})
    with pytest.raises(DataLossError, match=f"records are lost: {topic}-0: "):
        list(strict.read(planned))
    assert [row for batch in lenient.read(planned) for row in batch.to_pylist()] == [
        {"value": b"0.3"}
    ]
    client.delete_records({TopicPartition(topic, 0): 4})
    assert list(lenient.read(planned)) == []


def test_an_end_beyond_the_log_is_refused(client: Client, source: Source, topic: str) -> None:
    produce(client, topic, 2)
    asked = {"subscribe": topic, "endingOffsets": f'{{"{topic}": {{"0": 3}}}}'}
    with pytest.raises(OptionError, match=f"has 3 for {topic}-0, but its latest offset is 2"):
        values(source(**asked))
    assert values(source(**asked, failOnDataLoss="false")) == ["0.0", "0.1"]
    asked["endingOffsets"] = f'{{"{topic}": {{"0": 1}}}}'
    assert values(source(**asked)) == ["0.0"]


def test_a_subscription_is_by_name_pattern_or_partition(
    client: Client, source: Source, topic: str
) -> None:
    produce(client, f"{topic}.b", 1, 1)
    produce(client, f"{topic}.a", 1)
    produce(client, f"not-{topic}.a", 1)

    def planned(**options: str) -> list[str]:
        plan = source(**options).reader(schema("value")).partitions()
        return [place for place, _, _ in ranges(plan)]

    everything = [f"{topic}.a-0", f"{topic}.b-0", f"{topic}.b-1"]
    assert planned(subscribe=f"{topic}.b,{topic}.a") == everything
    assert planned(subscribePattern=rf"{topic}\.[ab]") == everything
    assert planned(subscribePattern="no such topic") == []
    assert planned(subscribePattern=".*versioned") == []
    produce(client, LEDGER.topic, 1)
    assert planned(subscribePattern=".*_batches") == []
    assert planned(subscribe=LEDGER.topic) == [str(LEDGER)]
    assert planned(assign=f'{{"{topic}.b": [1, 0]}}') == everything[1:]
    with pytest.raises(OptionError, match=rf"names {topic}.b-2, but topic .* has 2 partitions"):
        planned(assign=f'{{"{topic}.b": [0, 2]}}')


# --- writes

VALUE = StructType([StructField("value", StringType())])


def batch_of(*texts: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": texts})


def test_a_batch_write_is_committed_as_a_whole_with_the_attempts_that_spark_names(
    client: Client, local: LocalBroker, source: Source, topic: str
) -> None:  # S3, S4
    client.create_topic(topic, 1)
    writer = source(topic=topic).writer(VALUE, overwrite=False)
    first, second, failed = (
        in_a_task(writer).write(iter([batch_of(*texts)])) for texts in (["a", "b"], ["c"], ["d"])
    )
    assert [each.rows for each in (first, second, failed)] == [2, 1, 1]
    assert local.records(topic) == []
    writer.commit([first, second])
    writer.commit([first, second])  # Spark may say it twice
    assert sorted(each.value or b"" for each in local.records(topic)) == [b"a", b"b", b"c"]


def test_each_batch_write_is_the_first_version_of_an_app_of_its_own_without_a_query(
    client: Client, source: Source, topic: str
) -> None:  # V4
    client.create_topic(topic, 1)
    apps = []
    for _ in range(2):
        writer = source(topic=topic).writer(VALUE, overwrite=False)
        message = writer.write(iter([batch_of("a")]))
        apps.append(client.describe_app(message.identity.app))
        assert (apps[-1].query_id, apps[-1].last_version, apps[-1].open_version) == ("", -1, 0)
        writer.abort([message])
        assert client.describe_app(message.identity.app).open_version == -1
    assert apps[0].app != apps[1].app


def test_an_aborted_write_leaves_nothing(
    client: Client, local: LocalBroker, source: Source, topic: str
) -> None:  # S3
    client.create_topic(topic, 1)
    writer = source(topic=topic).writer(VALUE, overwrite=False)
    writer.write(iter([batch_of("a")]))
    writer.abort([None])
    assert local.records(topic) == []
    assert len(local.records(topic, isolation="replicated")) == 1
    with pytest.raises(BatchConflictError, match="was aborted"):  # a task that is late
        writer.write(iter([batch_of("b")]))


def test_at_least_once_needs_no_commit(
    client: Client, local: LocalBroker, source: Source, topic: str
) -> None:
    client.create_topic(topic, 1)
    lax = source(topic=topic, delivery="at-least-once", **{"kafka.compression.type": "zstd"})
    writer = lax.writer(VALUE, overwrite=False)
    message = writer.write(iter([batch_of("a", "b")]))
    assert [each.value for each in local.records(topic)] == [b"a", b"b"]
    writer.commit([message])
    writer.abort([message])
    assert len(local.records(topic)) == 2


def test_rows_say_where_and_when_whatever_arrow_types_they_come_in(
    client: Client, local: LocalBroker, source: Source, topic: str
) -> None:
    client.create_topic(topic, 3)
    columns = schema("key", "value", "topic", "partition", "timestamp", "headers")
    moment = datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    header = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
    given = {
        "key": pa.array([None], pa.large_string()),
        "value": pa.array([b"v"], pa.large_binary()),
        "topic": pa.array([topic], pa.large_string()),
        "partition": pa.array([2], pa.int64()),
        "timestamp": pa.array([moment], pa.timestamp("ns", tz="America/New_York")),
        "headers": pa.array([[{"key": "h", "value": b"x"}]], pa.list_(header)),
    }
    writer = source().writer(columns, overwrite=False)
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict(given)]))])
    (record,) = local.records(topic)
    assert (record.partition, record.key, record.value) == (2, None, b"v")
    assert record.timestamp_ms == 1_700_000_000_123
    assert record.headers == (("h", b"x"),)


def test_a_log_is_not_overwritten_and_a_write_needs_its_columns(source: Source) -> None:
    with pytest.raises(OptionError, match="appended to, not overwritten"):
        source(topic="t").writer(VALUE, overwrite=True)
    with pytest.raises(ValueError, match="the topic is missing"):
        source().writer(VALUE, overwrite=False)
