"""How many rows a second does Spark read and write, and what does a micro-batch cost by itself?

``./dev bench spark --peer`` measures beside Spark's own Kafka connector.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench._processes import scratch
from bench._report import ROOT, Figure, Report, sized
from bench._rigs import TOPIC
from bench._spark_batches import FEW_ROWS, PHASES, batches
from bench._stock import create_topic
from fencelog.spark.session import build_session
from tests.support.broker import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

OUT = "bench-out"
METHOD = (
    "`local[2]`, keys of 16 and values of 100 bytes, two partitions, a broker in `os` mode on the "
    "same two cores; batch reads to Spark's noop sink and batch writes of one transaction, "
    "alternating with a Python data source that yields the same Arrow batch again and again and a "
    "Python sink that discards: the most that Spark lets a Python data source do. Medians, each "
    "with the job's own overhead in it. Micro-batches: 20 rows each, medians of Spark's durationMs "
    "behind the first eight, with `build_session`'s settings; the ceiling is the JVM's own rate "
    "source to noop."
)


class Bench:
    """One Spark session and one broker."""

    def __init__(self, spark: "SparkSession", servers: str) -> None:
        """Register the ceilings."""
        from bench._spark_sources import Discard, Generator

        spark.dataSource.register(Generator)
        spark.dataSource.register(Discard)
        self._spark = spark
        self._servers = servers

    def generated(self, rows: int, columns: int) -> "DataFrame":
        """Rows out of nothing."""
        reader = self._spark.read.format("bench-generator").option("rows", str(rows))
        return reader.option("columns", str(columns)).load()

    def stored(self, columns: int) -> "DataFrame":
        """The topic's rows."""
        reader = self._spark.read.format("fencelog").option("subscribe", TOPIC)
        if columns == 2:
            reader = reader.option("columns", "key,value")
        return reader.option("kafka.bootstrap.servers", self._servers).load()

    def write(self, frame: "DataFrame", topic: str) -> None:
        """Write rows to a topic, in one transaction."""
        writer = frame.write.format("fencelog").option("topic", topic).mode("append")
        writer.option("kafka.bootstrap.servers", self._servers).save()

    def rate_stream(self) -> "DataFrame":
        """The JVM's own source, a few rows a batch."""
        reader = self._spark.readStream.format("rate-micro-batch")
        return reader.option("rowsPerBatch", FEW_ROWS).load()

    def own_stream(self) -> "DataFrame":
        """Our source, a few rows a batch."""
        reader = self._spark.readStream.format("fencelog").option("subscribe", TOPIC)
        return (
            reader.option("kafka.bootstrap.servers", self._servers)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(FEW_ROWS))
            .load()
            .select("key", "value")
        )

    def own_sink(self, frame: "DataFrame") -> "DataStreamWriter":
        """Our sink."""
        writer = frame.writeStream.format("fencelog").option("topic", OUT)
        return writer.option("kafka.bootstrap.servers", self._servers)


def to_noop(frame: "DataFrame") -> None:
    """Read all rows."""
    frame.write.format("noop").mode("overwrite").save()


def alternating(runs: dict[str, Callable[[], None]], rows: int, rounds: int) -> dict[str, float]:
    """Return the median rows a second of each."""
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):  # the first one warms up
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if number:
                speeds[name].append(rows / (time.perf_counter() - start))
    return {name: median(values) for name, values in speeds.items()}


def measure_rows(bench: Bench, report: Report) -> None:
    """Measure reading, then writing, in two and in seven columns."""
    rows, rounds = sized(3_000_000, 40_000), sized(3, 1)
    bench.write(bench.generated(rows, 2), TOPIC)
    for columns in (2, 7):
        speeds = alternating(
            {
                "ours": lambda columns=columns: to_noop(bench.stored(columns)),
                "generator": lambda columns=columns: to_noop(bench.generated(rows, columns)),
            },
            rows,
            rounds,
        )
        report.add(_rows_figure(f"source, {columns} columns", speeds, "generator"))
    frame = bench.generated(rows, 2)
    discard = frame.write.format("bench-discard").mode("append")
    speeds = alternating(
        {"ours": lambda: bench.write(frame, OUT), "discard": discard.save}, rows, rounds
    )
    report.add(_rows_figure("sink, 2 columns", speeds, "discard"))


def _rows_figure(name: str, speeds: dict[str, float], ceiling: str) -> Figure:
    return Figure(
        name=name,
        value=speeds["ours"] / 1e6,
        unit="M rows/s",
        ceiling=speeds[ceiling] / 1e6,
        ceiling_name=f"Arrow {ceiling}",
    )


def measure_batches(bench: Bench, report: Report, place: Path) -> None:
    """Measure micro-batches of a few rows."""
    count = sized(40, 3)
    writers = {
        "JVM rate source to noop": bench.rate_stream().writeStream.format("noop"),
        "our source to noop": bench.own_stream().writeStream.format("noop"),
        "our source to our sink": bench.own_sink(bench.own_stream()),
    }
    taken = {
        name: batches(writer, str(place / f"checkpoint-{number}"), count)
        for number, (name, writer) in enumerate(writers.items())
    }
    ceiling, *ours = taken
    for name in ours:
        for phase in PHASES:
            report.add(
                Figure(
                    name=f"a micro-batch of {FEW_ROWS} rows, {name}, {phase}",
                    value=taken[name][phase],
                    unit="ms",
                    ceiling=taken[ceiling][phase],
                    ceiling_name=ceiling,
                )
            )


def main() -> None:
    """Measure both."""
    report = Report("spark", "Spark reads and writes", METHOD)
    os.environ["PYTHONPATH"] = str(ROOT)  # workers import the ceilings by name
    with scratch() as place, BrokerProcess(place / "data") as broker:
        for topic in (TOPIC, OUT):
            create_topic(broker.address, topic, partitions=2)
        spark = build_session(name="bench", master="local[2]", log_file=place / "spark.log")
        try:
            bench = Bench(spark, broker.address)
            measure_rows(bench, report)
            measure_batches(bench, report, place)
        finally:
            spark.stop()
    report.finish()


if __name__ == "__main__":
    if "--peer" in sys.argv:
        from bench._spark_peer import measure

        measure()
    else:
        main()
