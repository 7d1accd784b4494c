"""The sink on a stream that is resized while a batch is written, without Spark."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from fencelog.client.blocking import Client
from fencelog.client.streams.known import ExplicitPartitionError
from fencelog.spark import writing
from fencelog.spark.schema import SchemaError
from fencelog.spark.source import FencelogDataSource
from fencelog.spark.stream_writer import StreamWriter
from fencelog.testing.broker import LocalBroker

TEXT = StructType([StructField("key", StringType()), StructField("value", StringType())])
PLACED = StructType([StructField("value", StringType()), StructField("partition", IntegerType())])
KEYS = [f"key {each}" for each in range(20)]
Source = Callable[..., FencelogDataSource]


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    """This process is that of a task of the first batch."""
    names = dict(zip(writing.STREAM_PROPERTIES, ("0", topic, "1"), strict=True))
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(getLocalProperty=names.get))


def sink(source: FencelogDataSource, schema: StructType = TEXT) -> StreamWriter:
    writer = source.streamWriter(schema, overwrite=False)
    assert isinstance(writer, StreamWriter)
    return writer


def rows(numbers: range) -> pa.RecordBatch:
    """Each number once for each key."""
    found = [(key, f"{key}.{number:03}") for number in numbers for key in KEYS]
    return pa.RecordBatch.from_pydict(
        {"key": [key for key, _ in found], "value": [value for _, value in found]}
    )


def test_a_batch_over_resizes_is_one_commit_with_each_row_once_and_each_key_in_order(
    client: Client, local: LocalBroker, source: Source, topic: str, task: None
) -> None:  # R2, S2, S3
    client.create_stream(topic, 1)
    writer = sink(source(topic=topic))

    def resized_meanwhile() -> Iterator[pa.RecordBatch]:
        # What is encoded at once is several batches: those before are acknowledged or in flight.
        padding = pa.RecordBatch.from_pydict({"key": ["p"] * 9, "value": ["x" * (1 << 19)] * 9})
        yield rows(range(10))
        yield padding
        client.split_segment(topic, 0)
        yield rows(range(10, 20))
        yield padding
        client.split_segment(topic, 1)
        client.merge_segments(topic, [4, 2])
        yield rows(range(20, 30))

    written = [writer.write(resized_meanwhile()), writer.write(iter([rows(range(30, 31))]))]
    assert local.records(topic) == []
    writer.commit(written, 0)
    by_key: dict[bytes, list[bytes]] = defaultdict(list)
    for record in local.records(topic):
        if record.key != b"p":
            by_key[record.key or b""].append(record.value or b"")
    assert by_key == {
        key.encode(): [f"{key}.{number:03}".encode() for number in range(31)] for key in KEYS
    }
    assert {each.partition for each in local.records(topic)} > {0, 3}


def test_an_attempt_that_is_not_named_leaves_nothing_in_any_segment(
    client: Client, local: LocalBroker, source: Source, topic: str, task: None
) -> None:  # S4
    client.create_stream(topic, 1)
    writer = sink(source(topic=topic))
    lost = writer.write(iter([rows(range(1))]))
    client.split_segment(topic, 0)
    kept = writer.write(iter([rows(range(1))]))
    assert lost != kept
    writer.commit([kept], 0)
    assert len(local.records(topic)) == len(KEYS)


def test_a_column_with_partitions_is_refused_by_name(
    client: Client, source: Source, topic: str, task: None
) -> None:
    client.create_stream(topic, 1)
    with pytest.raises(SchemaError, match=f"^column 'partition' cannot be written to '{topic}'"):
        sink(source(topic=topic), PLACED)
    with_topic = StructType([*PLACED.fields, StructField("topic", StringType())])
    writer = sink(source(), with_topic)
    batch = pa.RecordBatch.from_pydict({"value": ["a"], "partition": [0], "topic": [topic]})
    with pytest.raises(ExplicitPartitionError, match=f"topic {topic} is a stream"):
        writer.write(iter([batch]))


def test_a_topic_that_is_no_stream_or_does_not_exist_is_not_refused(
    client: Client, source: Source, topic: str
) -> None:
    sink(source(topic=topic), PLACED)
    client.create_topic(topic, 1)
    sink(source(topic=topic), PLACED)
