"""How fast do Spark's source and sink move rows, and what does a micro-batch cost?"""

# ruff: noqa: N802, N803  (Spark names methods and parameters)

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from bench._processes import scratch
from bench._report import Figure, Report, sized
from fencelog.client.blocking import Client
from fencelog.spark.session import build_session
from fencelog.types import TopicPartition
from tests.support.broker import BrokerProcess

ROWS = sized(4_000_000, 40_000)
ROUNDS = sized(5, 1)
BATCHES = sized(40, 4)
BATCH_ROWS = 20
PARTITIONS = 2
KEY_BYTES, VALUE_BYTES = 16, 100
ARROW_ROWS = 10_000
METHOD = (
    f"{ROWS:,} rows of {KEY_BYTES} B key and {VALUE_BYTES} B value in {PARTITIONS} partitions, on "
    "`local[2]`; the broker is a process of its own on the same cores, in `os` mode. Ceilings are "
    "Python data sources without a broker, in the same session and in turns: one yields the same "
    "Arrow batches ready made, one drops what it is given. Medians of "
    f"{ROUNDS}. Micro-batches: {BATCHES} of {BATCH_ROWS} rows, AvailableNow, the median of Spark's "
    "own batch durations without the first three."
)


def rows(count: int) -> pa.RecordBatch:
    """Rows with random bytes: nothing in them can be shared or compressed."""
    random = np.random.default_rng(7)

    def column(size: int) -> pa.Array:
        offsets = np.arange(count + 1, dtype=np.int32) * size
        data = random.integers(0, 256, count * size, dtype=np.uint8)
        return pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )

    return pa.RecordBatch.from_arrays([column(KEY_BYTES), column(VALUE_BYTES)], ["key", "value"])


class Ready(DataSourceReader):
    """Yields one Arrow batch again and again."""

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        batch = rows(ARROW_ROWS)
        for _ in range(ROWS // PARTITIONS // ARROW_ROWS):
            yield batch


class ReadyStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of small batches that costs nothing but Spark."""

    def initialOffset(self) -> dict:
        return {"at": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        return

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(BATCH_ROWS)

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        del limit
        return {"at": min(start["at"] + BATCH_ROWS, BATCHES * BATCH_ROWS)}

    def partitions(self, start: dict, end: dict) -> list[InputPartition]:
        del end
        return [InputPartition((start["at"], number)) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        yield rows(BATCH_ROWS // PARTITIONS)


class Drop(DataSourceArrowWriter):
    """Takes Arrow batches and does nothing with them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            continue
        return WriterCommitMessage()


class DropStream(DataSourceStreamArrowWriter):
    """The same for streams."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Drop().write(iterator)

    def commit(self, messages: list, batchId: int) -> None:
        return

    def abort(self, messages: list, batchId: int) -> None:
        return


class Ceiling(DataSource):
    """``format("ceiling")``: what a Python data source can do at most."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return "key binary, value binary"

    def reader(self, schema: object) -> DataSourceReader:
        del schema
        return Ready()

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        del schema
        return ReadyStream()

    def writer(self, schema: object, overwrite: bool) -> DataSourceArrowWriter:
        del schema, overwrite
        return Drop()

    def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamArrowWriter:
        del schema, overwrite
        return DropStream()


def fill(client: Client, topic: str, count: int) -> None:
    """Create a topic and write rows evenly to its partitions."""
    client.create_topic(topic, PARTITIONS)
    with client.arrow_writer(topic=topic) as writer:
        size = min(count // PARTITIONS, 100_000)
        batch = rows(size)
        for partition in range(PARTITIONS):
            here = batch.append_column("partition", pa.array([partition] * size, pa.int32()))
            for _ in range(count // PARTITIONS // size):
                writer.write(here)
    places = [TopicPartition(topic, each) for each in range(PARTITIONS)]
    assert sum(client.offsets(places, "latest").values()) == count


def rates(*jobs: Callable[[], None]) -> list[float]:
    """Rows per second of each job: the median over rounds in which each has its turn."""
    seconds: list[list[float]] = [[] for _ in jobs]
    for number in range(ROUNDS + 1):
        for job, taken in zip(jobs, seconds, strict=True):
            start = time.perf_counter()
            job()
            if number:  # the first turn starts workers and compiles the codec
                taken.append(time.perf_counter() - start)
    return [ROWS / median(taken) for taken in seconds]


def measure_rows(report: Report, spark: SparkSession, servers: str) -> None:
    """Source and sink, each beside its ceiling."""

    def noop(frame: DataFrame) -> Callable[[], None]:
        return lambda: frame.write.format("noop").mode("overwrite").save()

    def source(columns: str | None) -> DataFrame:
        reader = spark.read.format("fencelog").option("kafka.bootstrap.servers", servers)
        if columns is not None:
            reader = reader.option("columns", columns)
        return reader.option("subscribe", "rows").load()

    made = spark.read.format("ceiling").load()
    ready, two, seven = rates(noop(made), noop(source("key,value")), noop(source(None)))
    name = "Python source of ready Arrow"
    for title, rate in (("source, key and value", two), ("source, 7 columns", seven)):
        report.add(Figure(name=title, value=rate, unit="rows/s", ceiling=ready, ceiling_name=name))

    def write(form: str, **options: str) -> Callable[[], None]:
        return lambda: made.write.format(form).options(**options).mode("append").save()

    to_log = {"kafka.bootstrap.servers": servers, "topic": "written"}
    drop, exactly, at_least = rates(
        write("ceiling"),
        write("fencelog", **to_log),
        write("fencelog", **to_log, delivery="at-least-once"),
    )
    name = "Python sink that drops Arrow"
    for title, rate in (("sink, exactly once", exactly), ("sink, at least once", at_least)):
        report.add(Figure(name=title, value=rate, unit="rows/s", ceiling=drop, ceiling_name=name))


def batch_ms(query_of: DataFrame, form: str, checkpoint: Path, **options: str) -> float:
    """Median duration of the stream's micro-batches."""
    query = (
        query_of.writeStream.format(form)
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    durations = [each["batchDuration"] for each in query.recentProgress if each["numInputRows"]]
    return median(durations[3:] or durations)


def measure_batches(report: Report, spark: SparkSession, servers: str, folder: Path) -> None:
    """What a small batch costs, with and without the broker."""
    ceiling = batch_ms(
        spark.readStream.format("ceiling").load(), "ceiling", folder / "checkpoint-ceiling"
    )
    stream = (
        spark.readStream.format("fencelog")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "small")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(BATCH_ROWS))
        .load()
        .select("key", "value")
    )
    to_log = {"kafka.bootstrap.servers": servers, "topic": "written"}
    ours = batch_ms(stream, "fencelog", folder / "checkpoint-ours", **to_log)
    report.add(
        Figure(
            name="micro-batch, log to log, exactly once",
            value=ours,
            unit="ms",
            ceiling=ceiling,
            ceiling_name="Python source and sink without a log",
        )
    )


def main() -> None:
    """Measure, and store the result."""
    report = Report(
        name="spark",
        question="How fast do Spark's source and sink move rows, and what does a batch cost?",
        method=METHOD,
    )
    with scratch() as folder, BrokerProcess(folder / "data") as broker:
        with Client(broker.address) as client:
            fill(client, "rows", ROWS)
            fill(client, "small", BATCHES * BATCH_ROWS)
            client.create_topic("written", PARTITIONS)
        spark = build_session(name="bench", master="local[2]")
        spark.dataSource.register(Ceiling)
        try:
            measure_rows(report, spark, broker.address)
            measure_batches(report, spark, broker.address, folder)
        finally:
            spark.stop()
    report.finish()


if __name__ == "__main__":
    main()
