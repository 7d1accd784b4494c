"""Streams: exact ranges in, one transaction a batch out, and Spark's ways of calling both."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from fencelog.client.model import WriterInfo
from fencelog.spark.progress_listener import ProgressListener
from fencelog.types import TopicPartition
from tests.support.spark.faults import FORMAT, Fault, FaultySource, plan
from tests.support.waiting import wait_until


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"{number:04}" for number in range(start, start + count)]


def batches_of(checkpoint: Path) -> list[dict]:
    files = sorted((int(file.name), file) for file in (checkpoint / "offsets").glob("[0-9]*"))
    return [json.loads(file.read_text().splitlines()[-1]) for _, file in files]


def without_topic_ids(offsets: Path) -> None:
    *head, last = offsets.read_text().splitlines()
    stored = json.loads(last)
    del stored["@ids"]
    offsets.write_text("\n".join([*head, json.dumps(stored, separators=(",", ":"))]))
    # Hadoop's checksum of the file is wrong now.
    offsets.with_name(f".{offsets.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def topics(log, fresh_name) -> tuple[str, str]:
    return log.topic(fresh_name("in")), log.topic(fresh_name("out"))


def test_a_stream_copies_every_record_once(
    log, topics, read_stream, write_stream
) -> None:  # S1, S2
    source, sink = topics
    log.produce(source, numbered(500))
    query = write_stream(read_stream(source).select("key", "value"), sink)
    assert log.values(sink) == numbered(500)
    assert sum(each["numInputRows"] for each in query.recentProgress) == 500


def test_a_listener_exports_each_batch_with_topics_servers_and_offsets(
    spark, log, topics, read_stream, write_stream
) -> None:
    source, sink = topics
    log.produce(source, numbered(30), partition=1)
    values: list[Mapping] = []
    listener = ProgressListener(values.append)
    spark.streams.addListener(listener)
    try:
        copy = read_stream(source, maxOffsetsPerTrigger="20").select("value")
        write_stream(copy, sink)
        wait_until(lambda: values and values[-1]["event"] == "ended", what="the end is exported")
    finally:
        spark.streams.removeListener(listener)
    batches = [each for each in values if each["event"] == "batch" and each["rows_in"]]
    assert [each["rows_out"] for each in batches] == [20, 10]
    (read,) = batches[0]["sources"]
    assert read["source"] == f"topics {source} at {log.servers}"
    assert (read["behind_min"], read["behind_max"]) == (0, 10)
    assert read["partitions"][f"{source}-1"]["end"] == 20


def test_a_second_run_goes_on_where_the_first_ended(
    log, topics, read_stream, write_stream, tmp_path
) -> None:  # S9: also from offsets without topic ids, as earlier releases wrote them
    source, sink = topics
    copy = read_stream(source).select("key", "value")
    log.produce(source, numbered(5))
    write_stream(copy, sink)
    without_topic_ids(tmp_path / "checkpoint" / "offsets" / "0")
    write_stream(copy, sink)
    log.produce(source, numbered(5, start=5))
    write_stream(copy, sink)
    assert log.values(sink) == numbered(10)


def test_every_column_can_be_copied(log, topics, read_stream, write_stream) -> None:
    source, sink = topics
    with log.client.producer() as producer:
        producer.send(
            source, b"v", key=b"k", headers=(("h", b"x"),), timestamp_ms=5_000, partition=1
        )
    write_stream(read_stream(source, includeHeaders="true"), sink)
    (record,) = log.records(sink)
    assert (record.key, record.value, record.partition) == (b"k", b"v", 1)
    assert (record.timestamp_ms, record.headers) == (5_000, (("h", b"x"),))


def test_partitions_that_are_added_are_read_and_written(
    log, topics, read_stream, write_stream
) -> None:
    source, sink = topics
    copy = read_stream(source).select("value", "partition")
    log.produce(source, ["0", "1"])
    write_stream(copy, sink)
    # Workers stay, with the metadata of two partitions.
    for topic in topics:
        log.client.add_partitions(topic, 4)
    log.produce(source, ["3"], partition=3)
    write_stream(copy, sink)
    assert [each.value for each in log.records(sink) if each.partition == 3] == [b"3"]


def test_a_batch_admits_no_more_than_it_may(
    log, topics, read_stream, write_stream, tmp_path
) -> None:
    source, sink = topics
    log.produce(source, numbered(95))
    frame = read_stream(source, maxOffsetsPerTrigger="20").select("value")
    query = write_stream(frame, sink)
    sizes = [each["numInputRows"] for each in query.recentProgress]
    assert max(sizes) <= 20
    assert len(batches_of(tmp_path / "checkpoint")) == 5
    assert log.values(sink) == numbered(95)


def test_once_is_one_batch_of_all_there_is(
    log, topics, read_stream, write_stream, tmp_path
) -> None:
    source, sink = topics
    log.produce(source, numbered(95))
    frame = read_stream(source, maxOffsetsPerTrigger="20").select("value")
    write_stream(frame, sink, trigger={"once": True})
    assert log.values(sink) == numbered(95)
    assert len(batches_of(tmp_path / "checkpoint")) == 1


def test_a_running_stream_takes_what_comes_and_rests_between(
    log, topics, read_stream, write_stream, tmp_path
) -> None:
    source, sink = topics
    frame = read_stream(source).select("value")
    query = write_stream(frame, sink, trigger={"processingTime": "0 seconds"})
    try:
        for start in (0, 10):
            log.produce(source, numbered(10, start=start))
            wait_until(
                lambda wanted=start + 10: len(log.values(sink)) == wanted,
                deadline_s=40,
                what="the batch in the sink",
            )
        made = len(batches_of(tmp_path / "checkpoint"))
        seen = len(query.recentProgress)
        # An idle stream reports now and then; it makes no batch.
        wait_until(lambda: not query.status["isTriggerActive"], what="an idle stream")
        assert len(batches_of(tmp_path / "checkpoint")) == made >= 2, seen
    finally:
        query.stop()


def test_latest_pins_its_start_in_an_empty_first_batch(
    log, topics, read_stream, write_stream, tmp_path
) -> None:
    source, sink = topics
    log.produce(source, ["before"], partition=0)
    frame = read_stream(source, startingOffsets="latest").select("value")
    write_stream(frame, sink)
    assert batches_of(tmp_path / "checkpoint")[0][source] == {"0": 1, "1": 0}
    log.produce(source, ["after"])
    write_stream(frame, sink)
    assert log.values(sink) == ["after"]


def test_a_batch_without_rows_is_committed_like_any_other(
    log, topics, read_stream, write_stream
) -> None:
    source, sink = topics
    copy = read_stream(source).where("value IS NULL").select("value")
    log.produce(source, numbered(3))
    query = write_stream(copy, sink)
    log.produce(source, numbered(3))
    write_stream(copy, sink)
    assert log.values(sink) == []
    app = log.client.describe_app(str(query.id))
    assert (app.last_version, app.open_version) == (1, -1)


def test_aborted_and_open_input_is_never_read(log, topics, read_stream, write_stream) -> None:  # F6
    source, sink = topics
    log.produce_in_transaction(source, ["aborted"], commit=False)
    log.produce_in_transaction(source, ["committed"], commit=True)
    write_stream(read_stream(source).select("value"), sink)
    assert log.values(sink) == ["committed"]


def test_progress_shows_as_a_group_s_offsets(log, topics, read_stream, write_stream) -> None:  # S6
    source, sink = topics
    log.produce(source, numbered(20))
    frame = read_stream(source, groupId=f"{sink}-group").select("value")
    query = write_stream(frame, sink)
    committed = log.client.committed_offsets(f"{sink}-group")
    ends = log.client.offsets([TopicPartition(source, 0), TopicPartition(source, 1)], "latest")
    assert committed == ends
    assert query.lastProgress["sources"][0]["latestOffset"]


def test_complete_mode_resends_everything_and_the_newest_counts(
    log, topics, read_stream, write_stream
) -> None:
    source, sink = topics
    counts = read_stream(source).groupBy("key").count()
    totals = counts.selectExpr("key", "CAST(count AS STRING) AS value")
    for values in (["a", "b"], ["a"]):
        log.produce(source, values)
        write_stream(totals, sink, mode="complete")
    newest = {record.key: record.value for record in log.records(sink)}
    assert newest == {b"a": b"2", b"b": b"1"}


def test_update_mode_is_refused_by_spark(log, topics, read_stream, write_stream) -> None:
    source, sink = topics
    counts = read_stream(source).groupBy("key").count().selectExpr("key", "'x' AS value")
    with pytest.raises(PySparkException, match=r"(?i)update"):
        write_stream(counts, sink, mode="update")


@pytest.mark.parametrize("trigger", [{"continuous": "1 second"}, {"realTime": "5 minutes"}])
def test_continuous_and_real_time_modes_are_refused_by_spark(
    log, topics, read_stream, write_stream, trigger: dict[str, str]
) -> None:
    source, sink = topics
    with pytest.raises(PySparkException, match=r"(?i)continuous|real"):
        write_stream(read_stream(source).select("value"), sink, trigger=trigger)


def test_asynchronous_progress_is_refused(log, topics, read_stream, write_stream) -> None:
    source, sink = topics
    with pytest.raises(PySparkException, match=r"(?i)async"):
        write_stream(read_stream(source), sink, asyncProgressTrackingEnabled="true")


def test_a_topic_that_was_created_again_stops_the_stream_or_is_read_from_its_beginning(
    log, topics, read_stream, write_stream
) -> None:  # S6, S9
    source, sink = topics
    log.produce(source, numbered(10), partition=0)
    write_stream(read_stream(source).select("value"), sink)
    log.topic_again(source)
    # More than the first had: by its offsets the stream could go on, and would skip ten records.
    log.produce(source, numbered(30, start=10), partition=0)
    with pytest.raises(StreamingQueryException, match=f"'{source}' was deleted and created again"):
        write_stream(read_stream(source).select("value"), sink)
    write_stream(read_stream(source, failOnDataLoss="false").select("value"), sink)
    assert log.values(sink) == numbered(40)


def test_another_query_may_not_use_the_app_unless_it_takes_it_over(
    log, topics, read_stream, write_stream, tmp_path
) -> None:  # V4
    source, sink = topics
    log.produce(source, numbered(3))
    frame = read_stream(source).select("value")
    write_stream(frame, sink, checkpoint=tmp_path / "one", app=f"{sink}-app")
    with pytest.raises(StreamingQueryException, match="belongs to another query"):
        write_stream(frame, sink, checkpoint=tmp_path / "two", app=f"{sink}-app")
    assert log.values(sink) == numbered(3)
    write_stream(frame, sink, checkpoint=tmp_path / "two", app=f"{sink}-app", takeover="true")
    assert log.values(sink) == sorted(numbered(3) * 2)


def test_a_restored_checkpoint_with_other_offsets_does_not_pass_for_a_replay(
    log, topics, read_stream, write_stream, tmp_path
) -> None:  # V3
    source, sink = topics
    log.produce(source, numbered(3))
    frame = read_stream(source).select("value")
    write_stream(frame, sink)
    # As after a restore from a copy made before the batch: it is planned anew, with more rows.
    checkpoint = tmp_path / "checkpoint"
    for folder in ("offsets", "commits"):
        for file in (checkpoint / folder).iterdir():
            file.unlink()
    log.produce(source, numbered(3, start=3))
    with pytest.raises(StreamingQueryException, match="the checkpoint does not match"):
        write_stream(frame, sink)
    assert log.values(sink) == numbered(3)


def test_a_stale_driver_is_told_of_the_one_that_is_ahead(
    log, topics, read_stream, write_stream
) -> None:  # V2, V3
    source, sink = topics
    log.produce(source, numbered(3))
    frame = read_stream(source).select("value")
    query = str(write_stream(frame, sink).id)
    # As by a driver that was started meanwhile, and has written two batches since.
    for version in (1, 2):
        log.client.join_transaction(
            query, query, "the-other", version, writer=WriterInfo(host="elsewhere")
        )
        log.client.commit_transaction(query, query, "the-other", version, b"", [])
    log.produce(source, numbered(3, start=3))
    with pytest.raises(
        StreamingQueryException,
        match=r"ahead of this checkpoint: run the-other since 20.* on host elsewhere, last batch 2",
    ):
        write_stream(frame, sink)
    assert log.values(sink) == numbered(3)


def test_a_repeated_batch_writes_nothing(log, topics, read_stream, write_stream, tmp_path) -> None:
    source, sink = topics  # S3, V3
    log.produce(source, numbered(3))
    frame = read_stream(source).select("value")
    write_stream(frame, sink)
    # As after a crash between the sink's commit and Spark's note of it.
    for file in (tmp_path / "checkpoint" / "commits").iterdir():
        file.unlink()
    write_stream(frame, sink)
    assert log.values(sink) == numbered(3)


def test_a_long_batch_does_not_time_out(log, topics, read_stream, write_stream) -> None:
    source, sink = topics  # V7
    log.produce(source, ["a"], partition=0)

    def slowly(batches):
        for batch in batches:
            yield batch.slice(0, 0)
            threading.Event().wait(8)  # the length of the batch is what is tested
            yield batch

    frame = read_stream(source).select("value").mapInArrow(slowly, "value BINARY")
    write_stream(frame, sink, **{"kafka.transaction.timeout.ms": "5000"})
    assert log.values(sink) == ["a"]


@pytest.mark.parametrize(("delivery", "copies"), [("exactly-once", 1), ("at-least-once", 2)])
def test_what_a_failed_batch_wrote_counts_only_at_least_once(
    spark, log, topics, read_stream, write_stream, tmp_path, delivery: str, copies: int
) -> None:  # E11, S2
    source, sink = topics
    log.produce(source, numbered(3))
    spark.dataSource.register(FaultySource)
    fault = Fault(name="undecided", point="committing", batch=0, action="raise")
    options = {"form": FORMAT, "faultFolder": str(tmp_path), "delivery": delivery}
    frame = read_stream(source).select("value")
    with pytest.raises(StreamingQueryException, match="fault undecided"):
        write_stream(frame, sink, faults=plan(fault), **options)
    assert log.values(sink) == numbered(3) * (copies - 1)
    write_stream(frame, sink, **options)
    assert log.values(sink) == sorted(numbered(3) * copies)


def test_a_killed_broker_is_waited_for_and_nothing_is_lost_or_duplicated(
    spark, broker, own_log, tmp_path
) -> None:  # S2
    own_log.topic("in")
    own_log.topic("out")
    own_log.produce("in", numbered(300))

    def started(options: Mapping[str, str] = {}) -> StreamingQuery:
        return (
            spark.readStream.format("fencelog")
            .option("kafka.bootstrap.servers", broker.address)
            .option("subscribe", "in")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "30")
            .options(**options)
            .load()
            .select("value")
            .writeStream.format("fencelog")
            .option("kafka.bootstrap.servers", broker.address)
            .option("topic", "out")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    query = started()
    for batches in (2, 5):
        wait_until(
            lambda wanted=batches: len(batches_of(tmp_path / "checkpoint")) >= wanted,
            deadline_s=60,
            what="batches",
        )
        broker.restart()
    query.awaitTermination()
    assert own_log.values("out") == numbered(300)

    # An outage that is longer than the job waits ends the query, which goes on when restarted.
    broker.kill()
    with pytest.raises(StreamingQueryException, match=r"given up after 0\.5 s"):
        started({"kafka.default.api.timeout.ms": "500"}).awaitTermination()
    broker.start()
    own_log.produce("in", numbered(30, start=300))
    started().awaitTermination()
    assert own_log.values("out") == numbered(330)
