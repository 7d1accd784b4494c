"""The calls of PySpark 4.0 and 4.1: an end without a start, and no limit."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from fencelog.client.blocking import Client
from fencelog.client.model import DataLossError
from fencelog.spark.offsets import from_json, is_unpinned
from fencelog.spark.options import OptionError
from fencelog.spark.source import FencelogDataSource
from fencelog.spark.unlimited_reader import UnlimitedStreamReader
from fencelog.types import TopicPartition

VALUE = StructType([StructField("value", BinaryType())])
FUTURE_MS = "4102444800000"
Source = Callable[..., FencelogDataSource]


def produce(client: Client, topic: str, *values: str) -> None:
    with client.producer() as producer:
        for value in values:
            producer.send(topic, value.encode(), partition=0)


@pytest.fixture
def stream(
    source: Source, topic: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., UnlimitedStreamReader]:
    """A new run's reader, as the data source makes it on PySpark 4.0."""
    monkeypatch.setattr("fencelog.spark.pyspark_api.ADMISSION_CONTROL", False)
    return lambda **options: source(subscribe=topic, **options).streamReader(VALUE)


def stored(offset: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(offset))


def read(reader: UnlimitedStreamReader, start: Any, end: Any) -> list[str]:
    tables = [table for each in reader.partitions(start, end) for table in reader.read(each)]
    return [row["value"].decode() for each in tables for row in each.to_pylist()]


def test_batches_go_from_end_to_end(client: Client, stream: Any, topic: str) -> None:  # S2
    client.create_topic(topic, 1)
    produce(client, topic, "a", "b")
    reader = stream(startingOffsets="earliest", groupId=topic)
    end = stored(reader.latestOffset())
    assert read(reader, stored(reader.initialOffset()), end) == ["a", "b"]
    produce(client, topic, "c")
    assert read(reader, end, newer := stored(reader.latestOffset())) == ["c"]
    assert stored(reader.latestOffset()) == newer  # text that Spark compares
    assert list(client.committed_offsets(topic).values()) == [3]


@pytest.mark.parametrize(
    "starting",
    [
        {"startingOffsets": "latest"},
        {"startingTimestamp": FUTURE_MS, "startingOffsetsByTimestampStrategy": "latest"},
    ],
)
def test_a_start_that_moves_is_stored_with_the_first_end(
    client: Client, stream: Any, topic: str, starting: dict[str, str]
) -> None:  # S2
    client.create_topic(topic, 1)
    produce(client, topic, "before")
    end = stored(stream(**starting).latestOffset())
    # The driver dies in the first batch, and only its end is stored.
    produce(client, topic, "a")
    reader = stream(**starting)
    assert reader.partitions(end, end) == []
    start = stored(reader.initialOffset())
    assert is_unpinned(start)
    assert read(reader, start, end) == []
    assert read(reader, end, stored(reader.latestOffset())) == ["a"]


def test_records_between_start_and_first_end_are_read(
    client: Client, stream: Any, topic: str
) -> None:  # S2
    client.create_topic(topic, 1)
    produce(client, topic, "a", "b")
    starting = {"startingTimestamp": "0", "startingOffsetsByTimestampStrategy": "latest"}
    end = stored(stream(**starting).latestOffset())
    reader = stream(**starting)
    assert read(reader, stored(reader.initialOffset()), end) == ["a", "b"]


def test_a_run_whose_place_spark_does_not_tell_goes_on_from_its_checkpoint(
    client: Client, stream: Any, topic: str
) -> None:  # S2: the trigger AvailableNow
    client.create_topic(topic, 1)
    produce(client, topic, "before")
    start = stored(stream().latestOffset())
    produce(client, topic, "a")
    reader = stream()
    assert read(reader, start, stored(reader.latestOffset())) == ["a"]


def test_a_topic_that_was_created_again_is_a_loss(
    client: Client, stream: Any, topic: str
) -> None:  # S9
    client.create_topic(topic, 1)
    produce(client, topic, "old")
    start = stored(stream(startingOffsets="earliest").latestOffset())
    client.delete_topic(topic)
    client.create_topic(topic, 1)
    produce(client, topic, "new")
    reader = stream(startingOffsets="earliest")
    end = stored(reader.latestOffset())
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted and created again"):
        reader.partitions(start, end)
    lenient = stream(startingOffsets="earliest", failOnDataLoss="false")
    assert read(lenient, start, end) == ["new"]


def test_deleted_records_are_a_loss(client: Client, stream: Any, topic: str) -> None:
    client.create_topic(topic, 1)
    reader = stream(startingOffsets="earliest")
    start = stored(reader.initialOffset())
    produce(client, topic, "a", "b", "c")
    client.delete_records({TopicPartition(topic, 0): 2})
    end = stored(reader.latestOffset())
    assert from_json(end) == {TopicPartition(topic, 0): 3}
    with pytest.raises(DataLossError, match=f"{topic}-0: offsets 0 to 1 were deleted"):
        reader.partitions(start, end)


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_a_limit_that_would_not_hold_is_refused(stream: Any, option: str) -> None:
    reader = stream(**{option: "5"})
    with pytest.raises(OptionError, match=f"^option '{option}' needs PySpark 4.2 or newer, and"):
        reader.latestOffset()
