"""The source on a stream that splits and merges, without Spark: batches, restarts, and losses."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from fencelog.client.blocking import Client
from fencelog.client.model import DataLossError
from fencelog.errors import FencelogError
from fencelog.spark.batch import BatchReader
from fencelog.spark.offsets import from_json
from fencelog.spark.options import OptionError
from fencelog.spark.source import FencelogDataSource
from fencelog.spark.stream_reader import StreamReader
from fencelog.spark.unlimited_reader import UnlimitedStreamReader
from fencelog.types import TopicPartition
from tests.support.stream_records import write

VALUE = StructType([StructField("value", BinaryType())])
ALL = ReadAllAvailable()
Source = Callable[..., FencelogDataSource]


@pytest.fixture
def stream(source: Source, topic: str) -> Callable[..., StreamReader]:
    """Another run of the query: a reader that knows nothing but its options."""

    def run(**options: str) -> StreamReader:
        asked = {"subscribe": topic, "startingOffsets": "earliest"} | options
        if "assign" in options:
            del asked["subscribe"]
        reader = source(**asked).streamReader(VALUE)
        assert isinstance(reader, StreamReader)
        return reader

    return run


def batch(reader: StreamReader, start: Any, limit: ReadLimit = ALL) -> tuple[Any, list[str]]:
    """The end of the batch that begins here, and its values, each with its segment."""
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    return end, values(reader, start, end)


def values(reader: StreamReader | BatchReader, *offsets: Any) -> list[str]:
    """What a batch between these offsets reads."""
    tables = [table for each in reader.partitions(*offsets) for table in reader.read(each)]
    return sorted(row["value"].decode() for each in tables for row in each.to_pylist())


def places(offsets: Any) -> dict[int, int]:
    return {each.partition: offset for each, offset in from_json(offsets).items()}


def test_a_successor_is_read_in_the_batch_after_its_predecessors_last(
    client: Client, stream: Any, topic: str
) -> None:  # R8, S2
    client.create_stream(topic, 1)
    write(client, topic, 0, "0a", "0b")
    client.split_segment(topic, 0)
    write(client, topic, 1, "1a")
    write(client, topic, 2, "2a")
    reader = stream()
    start, read = batch(reader, reader.initialOffset())
    assert (read, places(start)) == (["0a", "0b"], {0: 3})  # with the seal
    end, read = batch(stream(), start)
    assert (read, places(end)) == (["1a", "2a"], {1: 1, 2: 1})
    # The same batch once more, after a crash, whatever became of the stream.
    client.merge_segments(topic, [1, 2])
    assert values(stream(), start, end) == ["1a", "2a"]


def test_a_merge_waits_for_its_last_predecessor(
    client: Client, stream: Any, topic: str
) -> None:  # R8
    client.create_stream(topic, 2)
    write(client, topic, 0, "0a")
    write(client, topic, 1, "1a", "1b", "1c")
    client.merge_segments(topic, [0, 1])
    write(client, topic, 2, "2a")
    first = f'{{"{topic}": {{"0": 0, "1": 0}}}}'
    end, read = batch(stream(), stream(startingOffsets=first).initialOffset(), ReadMaxRows(3))
    seen = [*read]
    while len(seen) < 4:
        assert "2a" not in seen
        end, read = batch(stream(), end, ReadMaxRows(1))
        seen += read
    assert sorted(seen) == ["0a", "1a", "1b", "1c"]
    while "2a" not in seen:  # what is left of both is their seals
        end, read = batch(stream(), end)
        seen += read
    assert sorted(seen) == ["0a", "1a", "1b", "1c", "2a"]
    assert places(end) == {2: 1}


def test_a_stream_that_only_splits_makes_no_batch(client: Client, stream: Any, topic: str) -> None:
    client.create_stream(topic, 1)
    write(client, topic, 0, "0a")
    client.split_segment(topic, 0)
    reader = stream()
    end, _ = batch(reader, reader.initialOffset())
    client.split_segment(topic, 1)
    client.split_segment(topic, 2)
    assert batch(stream(), end) == (end, [])
    write(client, topic, 4, "4a")
    assert batch(stream(), end)[1] == ["4a"]


def test_an_open_transaction_before_the_seal_holds_the_successors_back(
    client: Client, stream: Any, topic: str
) -> None:  # R2, E10
    client.create_stream(topic, 1)
    write(client, topic, 0, "0a")
    with client.producer(transactional_id=topic) as producer:
        producer.begin()
        producer.send(topic, b"0b", key=b"k")
        producer.flush()
        client.split_segment(topic, 0)
        write(client, topic, 1, "1a")
        reader = stream()
        end, read = batch(reader, reader.initialOffset())
        assert (read, places(end)) == (["0a"], {0: 1})
        assert batch(reader, end) == (end, [])
        producer.commit()
    while read != ["0b"]:
        end, read = batch(stream(), end)
    assert batch(stream(), end)[1] == ["1a"]


def test_a_run_that_reads_what_is_there_leaves_out_what_comes_later(
    client: Client, stream: Any, topic: str
) -> None:
    client.create_stream(topic, 1)
    write(client, topic, 0, "0a")
    client.split_segment(topic, 0)
    write(client, topic, 1, "1a")
    reader = stream()
    reader.prepareForTriggerAvailableNow()
    client.split_segment(topic, 1)
    write(client, topic, 2, "2a")
    write(client, topic, 3, "3a")
    end, read = batch(reader, reader.initialOffset())
    assert read == ["0a"]
    end, read = batch(reader, end)
    assert read == ["1a"]
    assert batch(reader, end) == (end, [])
    seen: list[str] = []
    while len(seen) < 2:
        end, read = batch(stream(), end)
        seen += read
    assert sorted(seen) == ["2a", "3a"]


def test_records_that_were_deleted_unread_are_a_loss_and_those_that_were_read_are_not(
    client: Client, stream: Any, topic: str
) -> None:  # S6
    client.create_stream(topic, 1)
    write(client, topic, 0, "0a", "0b")
    reader = stream()
    early = reader.initialOffset()
    client.split_segment(topic, 0)
    write(client, topic, 1, "1a", "1b")
    end, read = batch(reader, early)
    assert read == ["0a", "0b"]
    client.delete_records({TopicPartition(topic, 0): 2})
    start, read = batch(stream(), end)
    assert read == ["1a", "1b"]
    client.delete_records({TopicPartition(topic, 1): 1})
    assert batch(stream(), start) == (start, [])
    with pytest.raises(DataLossError, match=f"{topic}-1: offsets 0 to 0 were deleted"):
        stream().latestOffset(end, ALL)
    with pytest.raises(DataLossError, match=f"{topic}-0: offsets 0 to 1 were deleted"):
        stream().latestOffset(early, ALL)
    assert batch(stream(failOnDataLoss="false"), early)[1] == ["1b"]


def test_a_start_at_the_end_is_a_cut_through_what_is_open(
    client: Client, stream: Any, topic: str
) -> None:
    client.create_stream(topic, 1)
    write(client, topic, 0, "0a")
    client.split_segment(topic, 0)
    write(client, topic, 1, "1a")
    reader = stream(startingOffsets="latest")
    end, read = batch(reader, reader.initialOffset())
    assert (read, places(end)) == ([], {1: 1, 2: 0})
    write(client, topic, 2, "2a")
    assert batch(stream(), end)[1] == ["2a"]


def test_a_cut_is_a_start_and_an_end(
    client: Client, stream: Any, source: Source, topic: str
) -> None:
    client.create_stream(topic, 1)
    write(client, topic, 0, "0a", "0b")
    client.split_segment(topic, 0)
    write(client, topic, 1, "1a")
    client.split_segment(topic, 1)
    write(client, topic, 3, "3a")
    at_zero, at_two = f'{{"{topic}": {{"0": 1}}}}', f'{{"{topic}": {{"1": 0, "2": -1}}}}'
    assert places(stream(startingOffsets=at_two).initialOffset()) == {1: 0, 2: 0}
    table = source(subscribe=topic, startingOffsets=at_zero, endingOffsets=at_two).reader(VALUE)
    assert values(table) == ["0b"]
    with pytest.raises(OptionError, match=f"stream '{topic}': .* segments 2 do not cover all"):
        stream(startingOffsets=f'{{"{topic}": {{"2": 0}}}}').initialOffset()


def test_a_batch_read_has_all_segments_in_the_order_of_the_plan(
    client: Client, source: Source, topic: str
) -> None:
    client.create_stream(topic, 1)
    write(client, topic, 0, "0a")
    client.split_segment(topic, 0)
    write(client, topic, 1, "1a")
    table = source(subscribe=topic).reader(VALUE)
    assert isinstance(table, BatchReader)
    assert [each.offsets.partition.partition for each in table.partitions()] == [0, 1]
    assert values(table) == ["0a", "1a"]
    assert values(source(assign=f'{{"{topic}": [1]}}').reader(VALUE)) == ["1a"]


def test_times_choose_a_place_in_each_segment(client: Client, stream: Any, topic: str) -> None:
    client.create_stream(topic, 1)
    write(client, topic, 0, "0a")
    client.split_segment(topic, 0)
    write(client, topic, 1, "1a")
    reader = stream(startingTimestamp="0", startingOffsetsByTimestampStrategy="latest")
    assert places(reader.initialOffset()) == {0: 0}
    reader = stream(startingTimestamp="1", startingOffsetsByTimestampStrategy="latest")
    assert places(reader.initialOffset()) == {1: 1, 2: 0}


def test_the_lag_has_what_is_not_begun_yet_and_the_group_what_is_read(
    client: Client, stream: Any, topic: str
) -> None:  # S6
    client.create_stream(topic, 1)
    write(client, topic, 0, "0a")
    client.split_segment(topic, 0)
    write(client, topic, 1, "1a", "1b")
    reader = stream(groupId=topic)
    end, _ = batch(reader, reader.initialOffset())
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert places({topic: latest[topic]}) == {0: 2, 1: 2, 2: 0}
    batch(reader, end)
    assert client.committed_offsets(topic) == {TopicPartition(topic, 0): 2}


def test_what_cannot_be_followed_is_refused(
    client: Client, stream: Any, source: Source, topic: str
) -> None:
    client.create_stream(topic, 1)
    with pytest.raises(OptionError, match=f"'assign' names segments of '{topic}'"):
        stream(assign=f'{{"{topic}": [0]}}').initialOffset()
    options = source(subscribe=topic).streamReader(VALUE)._options
    with pytest.raises(OptionError, match=f"'{topic}' is a stream: .* PySpark 4.2 or newer"):
        UnlimitedStreamReader(options, VALUE).latestOffset()
    start = stream().initialOffset()
    client.split_segment(topic, 0)
    start[topic] = {"1": 0}
    with pytest.raises(FencelogError, match="the checkpoint has offsets that do not fit it"):
        stream().latestOffset(start, ALL)


def test_a_stream_that_was_created_again_is_a_loss(
    client: Client, stream: Any, topic: str
) -> None:  # S9
    client.create_stream(topic, 1)
    client.split_segment(topic, 0)
    write(client, topic, 1, "old")
    reader = stream()
    start, _ = batch(reader, reader.initialOffset())
    client.delete_topic(topic)
    client.create_stream(topic, 1)
    write(client, topic, 0, "new")
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted and created again"):
        stream().latestOffset(start, ALL)
    assert batch(stream(failOnDataLoss="false"), start)[1] == ["new"]
