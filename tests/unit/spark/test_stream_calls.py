"""A streaming query's calls of the data source, without Spark: offsets, batches, and runs."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from fencelog.client.blocking import Client
from fencelog.client.model import DataLossError
from fencelog.errors import ErrorCode, FencedError, FencelogError, RequestError
from fencelog.spark import writing
from fencelog.spark.conflicts import BatchConflictError, explained
from fencelog.spark.identity import BatchIdentity
from fencelog.spark.offsets import from_json
from fencelog.spark.options import OptionError
from fencelog.spark.source import FencelogDataSource
from fencelog.spark.stream_reader import StreamReader
from fencelog.spark.stream_writer import StreamWriter
from fencelog.testing.broker import LocalBroker
from fencelog.types import TopicPartition

VALUE = StructType([StructField("value", BinaryType())])
TEXT = StructType([StructField("value", StringType())])
ALL = ReadAllAvailable()
Source = Callable[..., FencelogDataSource]


def produce(client: Client, topic: str, *counts: int) -> None:
    with client.producer() as producer:
        for partition, count in enumerate(counts):
            for number in range(count):
                producer.send(topic, f"{partition}.{number}".encode(), partition=partition)


def stream(source: FencelogDataSource) -> StreamReader:
    reader = source.streamReader(VALUE)
    assert isinstance(reader, StreamReader)
    return reader


def batch(reader: StreamReader, start: Any, limit: ReadLimit = ALL) -> tuple[Any, list[str]]:
    """The end of the batch that begins here, and its values."""
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    tables = [table for each in reader.partitions(start, end) for table in reader.read(each)]
    return end, sorted(row["value"].decode() for each in tables for row in each.to_pylist())


def ends(offsets: Any) -> list[int]:
    return list(from_json(offsets).values())


def test_a_stream_reads_what_is_new_and_a_new_partition_from_its_first_record(
    client: Client, source: Source, topic: str
) -> None:  # S2
    client.create_topic(topic, 1)
    produce(client, topic, 2)
    reader = stream(source(subscribe=topic, startingOffsets="earliest", groupId=topic))
    end, values = batch(reader, reader.initialOffset())
    assert values == ["0.0", "0.1"]
    assert batch(reader, end) == (end, [])
    client.add_partitions(topic, 2)
    produce(client, topic, 1, 2)
    end, values = batch(reader, end)
    assert (ends(end), values) == ([3, 2], ["0.0", "1.0", "1.1"])
    assert reader.reportLatestOffset() is not None
    reader.commit(end)
    assert list(client.committed_offsets(topic).values()) == [3, 2]


def test_a_limit_counts_from_where_each_partition_is(
    client: Client, source: Source, topic: str
) -> None:
    client.create_topic(topic, 2)
    produce(client, topic, 6, 6)
    start = f'{{"{topic}": {{"0": 4, "1": 0}}}}'
    reader = stream(
        source(subscribe=topic, startingOffsets=start, maxOffsetsPerTrigger="4", minPartitions="4")
    )
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    end, values = batch(reader, reader.initialOffset(), limit)
    assert (ends(end), values) == ([5, 3], ["0.4", "1.0", "1.1", "1.2"])
    assert len(reader.partitions(reader.initialOffset(), end)) == 4


def test_available_now_ends_with_what_was_committed_then(
    client: Client, source: Source, topic: str
) -> None:
    client.create_topic(topic, 1)
    produce(client, topic, 2)
    reader = stream(source(subscribe=topic, startingOffsets="earliest"))
    reader.prepareForTriggerAvailableNow()
    produce(client, topic, 2)
    end, values = batch(reader, reader.initialOffset())
    assert (ends(end), len(values)) == ([2], 2)


def test_a_topic_that_was_created_again_is_a_loss(
    client: Client, source: Source, topic: str
) -> None:  # S9
    client.create_topic(topic, 1)
    asked = {"subscribe": topic, "startingOffsets": "earliest"}
    start = stream(source(**asked)).initialOffset()
    client.delete_topic(topic)
    client.create_topic(topic, 1)
    produce(client, topic, 1)
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted and created again"):
        stream(source(**asked)).latestOffset(start, ALL)
    _, values = batch(stream(source(**asked, failOnDataLoss="false")), start)
    assert values == ["0.0"]


def test_deleted_records_are_a_loss(client: Client, source: Source, topic: str) -> None:
    client.create_topic(topic, 1)
    produce(client, topic, 3)
    reader = stream(source(subscribe=topic, startingOffsets="earliest"))
    start = reader.initialOffset()
    client.delete_records({TopicPartition(topic, 0): 2})
    with pytest.raises(DataLossError, match=f"{topic}-0: offsets 0 to 1 were deleted"):
        reader.latestOffset(start, ALL)


def test_what_is_wrong_in_a_stream_only_is_told_by_the_first_call(source: Source) -> None:
    # What streamReader raises, PySpark hides behind an error of its own.
    reader = source(subscribe="t", isolation="tail").streamReader(VALUE)
    calls = (
        reader.initialOffset,
        lambda: reader.latestOffset({}, ALL),
        lambda: reader.partitions({}, {}),
    )
    for call in calls:
        with pytest.raises(OptionError, match=r"^option 'isolation' is 'tail'"):
            call()


# --- writes


def run_of(monkeypatch: pytest.MonkeyPatch, query: str, run: str | None, number: int) -> None:
    """Make this the process of a task of that batch."""
    names = dict(zip(writing.STREAM_PROPERTIES, (str(number), query, run), strict=True))
    context = SimpleNamespace(getLocalProperty=names.get)
    monkeypatch.setattr(TaskContext, "get", lambda: context)


def write(writer: StreamWriter | DataSourceArrowWriter, *texts: str) -> Any:
    return writer.write(iter([pa.RecordBatch.from_pydict({"value": texts})]))


def sink(source: FencelogDataSource) -> StreamWriter:
    writer = source.streamWriter(TEXT, overwrite=False)
    assert isinstance(writer, StreamWriter)
    return writer


def test_a_batch_is_committed_once_however_often_spark_repeats_it(
    client: Client,
    local: LocalBroker,
    source: Source,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # S2, S5
    client.create_topic(topic, 1)
    (tmp_path / "offsets").mkdir()
    writer = sink(source(topic=topic, checkpointLocation=str(tmp_path)))
    for number, run in ((0, "1"), (0, "1"), (0, "2"), (1, "2")):
        (tmp_path / "offsets" / str(number)).write_text(f"batch {number}")
        run_of(monkeypatch, topic, run, number)
        messages = [write(writer, f"{number}.0"), write(writer, f"{number}.1")]
        writer.commit(messages, number)
        writer.abort(messages, number)  # what Spark may say after a commit
    values = sorted(each.value or b"" for each in local.records(topic))
    assert values == [b"0.0", b"0.1", b"1.0", b"1.1"]
    app = client.describe_app(topic)
    assert (app.last_version, app.query_id, app.run_id) == (1, topic, "2")


def test_an_older_run_is_told_of_the_newer_one(
    client: Client, source: Source, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # S5, V2
    client.create_topic(topic, 1)
    writer = sink(source(topic=topic, app=f"app of {topic}"))
    for run in ("1", "2"):
        run_of(monkeypatch, topic, run, 0)
        written = write(writer, "a")
    run_of(monkeypatch, topic, "1", 0)
    newer = r"taken over, run 2 since \d{4}-\d\d-\d\d .* UTC on host \S+\. This run is 1\."
    with pytest.raises(FencedError, match=f"^batch 0 of app 'app of {topic}': .*{newer}"):
        write(writer, "a")
    writer.commit([written], 0)


def test_a_run_that_spark_has_given_up_takes_no_late_task_in(
    client: Client,
    local: LocalBroker,
    source: Source,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V2
    client.create_topic(topic, 1)
    writer = sink(source(topic=topic))
    run_of(monkeypatch, topic, "1", 0)
    writer.abort([write(writer, "a"), None], 0)
    with pytest.raises(BatchConflictError, match="was aborted"):
        write(writer, "late")
    run_of(monkeypatch, topic, "2", 0)
    writer.commit([write(writer, "again")], 0)
    assert [each.value for each in local.records(topic)] == [b"again"]


def test_a_batch_function_may_write_its_batch_again_in_the_same_run(
    client: Client,
    local: LocalBroker,
    source: Source,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V2, V4
    client.create_topic(topic, 1)
    run_of(monkeypatch, topic, "1", 0)

    def batch_write() -> DataSourceArrowWriter:
        return source(topic=topic, app=topic, batch="0").writer(TEXT, overwrite=False)

    batch_write().abort([None])  # its tasks have failed before they asked: whose app is it?
    writer = batch_write()
    writer.abort([write(writer, "a"), None])
    writer = batch_write()
    writer.commit([write(writer, "again")])
    assert [each.value for each in local.records(topic)] == [b"again"]
    assert client.describe_app(topic).query_id == topic


def test_a_numbered_write_that_spark_has_given_up_takes_no_late_task_in(
    client: Client,
    local: LocalBroker,
    source: Source,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V2
    client.create_topic(topic, 1)
    context = SimpleNamespace(getLocalProperty=lambda _: None)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    writers = [
        source(topic=topic, app=topic, batch="0").writer(TEXT, overwrite=False) for _ in range(2)
    ]
    write(writers[0], "a")
    writers[0].abort([None])
    with pytest.raises(BatchConflictError, match="was aborted"):
        write(writers[0], "late")
    writers[1].commit([write(writers[1], "again")])
    assert [each.value for each in local.records(topic)] == [b"again"]


def test_a_checkpoint_that_is_not_the_newest_is_told_what_is_ahead(
    client: Client, source: Source, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # V3
    client.create_topic(topic, 1)
    writer = sink(source(topic=topic))
    for number in (0, 1):
        run_of(monkeypatch, topic, "1", number)
        writer.commit([write(writer, "a")], number)
    run_of(monkeypatch, topic, "1", 5)
    with pytest.raises(BatchConflictError, match="checkpoint does not match what was written"):
        write(writer, "a")
    run_of(monkeypatch, "another query", "9", 0)
    taken = sink(source(topic=topic, app=topic))
    with pytest.raises(BatchConflictError, match="belongs to another query than another query"):
        write(taken, "a")


def test_a_task_without_a_batch_is_refused(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    run_of(monkeypatch, "q", None, 0)
    with pytest.raises(FencelogError, match="does not tell its tasks which batch they write"):
        write(sink(source(topic="t")), "a")


def test_an_error_that_says_all_is_left_as_it_is(client: Client) -> None:
    identity = BatchIdentity(app="a", query_id="q", run_id="r", version=0)
    error = RequestError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no")
    assert explained(lambda: client.describe_app("a"), error, identity) is error
