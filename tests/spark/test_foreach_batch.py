"""``foreachBatch``: each write of a batch once, whatever is repeated, in every output mode."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, DataFrameWriter

from fencelog.spark import each_batch
from tests.spark.conftest import Log

Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a frame through a batch function until what is there is done."""

    def run(
        frame: DataFrame, function: Callable[[DataFrame, int], None], mode: str = "append"
    ) -> None:
        (
            frame.writeStream.foreachBatch(function)
            .outputMode(mode)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    return run


@pytest.fixture
def to(log: Log) -> Callable[[DataFrame, str], DataFrameWriter]:
    """A write that is not saved."""

    def to(frame: DataFrame, topic: str) -> DataFrameWriter:
        named = {"kafka.bootstrap.servers": log.servers, "topic": topic}
        return frame.write.format("fencelog").options(**named)

    return to


def test_each_write_of_a_batch_is_written_once_whatever_is_repeated(
    log, fresh_name, read_stream, run, to, tmp_path
) -> None:  # S2, V3
    source, low, high = (log.topic(fresh_name(kind)) for kind in ("in", "low", "high"))
    app = fresh_name("app")
    digits = [str(number) for number in range(10)]
    log.produce(source, digits)
    frame = read_stream(source).select("value")

    def parted(batch: DataFrame, batch_id: int) -> Mapping[str, DataFrameWriter]:
        assert batch_id == 0
        text = "CAST(value AS STRING)"
        return {
            "low": to(batch.where(f"{text} < '5'"), low),
            "high": to(batch.where(f"{text} >= '5'"), high),
        }

    def failing(batch: DataFrame, batch_id: int) -> Mapping[str, DataFrameWriter]:
        wrong = batch.selectExpr("CAST(raise_error('not this one') AS STRING) AS value")
        return {**parted(batch, batch_id), "high": to(wrong, high)}

    with pytest.raises(StreamingQueryException, match="not this one"):
        run(frame, each_batch(app, failing))
    assert (log.values(low), log.values(high)) == (digits[:5], [])
    run(frame, each_batch(app, parted))
    # As after a crash between the last write and Spark's note of the batch.
    commits = tmp_path / "checkpoint" / "commits"
    for file in commits.iterdir():
        file.unlink()
    run(frame, each_batch(app, parted))
    assert (log.values(low), log.values(high)) == (digits[:5], digits[5:])

    # As after a restore from a copy made before the batch: it is planned anew, with more rows.
    for folder in (commits, commits.with_name("offsets")):
        for file in folder.iterdir():
            file.unlink()
    log.produce(source, ["3"])
    with pytest.raises(StreamingQueryException, match="the checkpoint does not match"):
        run(frame, each_batch(app, parted))
    assert log.values(low) == digits[:5]


def test_update_mode_writes_what_changed(log, fresh_name, read_stream, run, to) -> None:
    source, sink = log.topic(fresh_name("in")), log.topic(fresh_name("out"))
    counts = read_stream(source).groupBy("key").count()
    totals = counts.selectExpr("key", "CAST(count AS STRING) AS value")
    function = each_batch(fresh_name("app"), lambda batch, _: to(batch, sink))
    for values in (["a", "b"], ["a"]):
        log.produce(source, values)
        run(totals, function, mode="update")
    written = sorted((record.key, record.value) for record in log.records(sink))
    assert written == [(b"a", b"1"), (b"a", b"2"), (b"b", b"1")]


def test_two_writes_of_a_batch_need_two_apps(log, fresh_name, read_stream, run, to) -> None:
    source, sink = log.topic(fresh_name("in")), log.topic(fresh_name("out"))
    app = fresh_name("app")
    log.produce(source, ["a"])

    def twice(batch: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            writer = to(batch, sink).option("app", app).option("batch", batch_id)
            writer.mode("append").save()

    with pytest.raises(StreamingQueryException, match="is written already, by this run"):
        run(read_stream(source).select("value"), twice)
    assert log.values(sink) == ["a"]


def test_what_is_not_a_write_is_refused(log, fresh_name, read_stream, run) -> None:
    source = log.topic(fresh_name("in"))
    log.produce(source, ["a"])
    with pytest.raises(StreamingQueryException, match=r"'orders', .* returned DataFrame: return"):
        run(read_stream(source), each_batch("orders", lambda batch, _: batch))
    run(read_stream(source), each_batch("orders", lambda _batch, _id: None))
