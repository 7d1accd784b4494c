"""How many rows a second does Spark read from a stream and write to one, against a topic?"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bench._processes import scratch
from bench._report import ROOT, Figure, Report, sized
from bench._stock import create_topic
from bench.spark import alternating, to_noop
from fencelog.client.blocking import Client
from fencelog.spark.session import build_session
from tests.support.broker import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

PARTITIONS = 4
GOAL = 0.95
KINDS = ("stream", "topic")
METHOD = (
    f"`local[2]`, a stream of {PARTITIONS} segments and a topic of {PARTITIONS} partitions, "
    "alternating in one session, a broker in `os` mode on the same two cores; keys of 16 and "
    "values of 100 bytes. Batch reads of two columns to Spark's noop sink; streaming reads of them "
    "in one batch (AvailableNow) with a new checkpoint each; batch writes of one transaction. "
    "Medians, each with the job's own overhead in it. The ceiling is the topic's."
)


class Bench:
    """One Spark session, one broker, and a stream beside a topic: ``in-stream``, ``in-topic``."""

    def __init__(self, spark: "SparkSession", servers: str, place: Path, rows: int) -> None:
        """Write the rows that are read."""
        from bench._spark_sources import Generator

        spark.dataSource.register(Generator)
        self._spark, self._servers, self._place = spark, servers, place
        self._checkpoints = 0
        rows_of = spark.read.format("bench-generator").option("rows", str(rows))
        self._rows = rows_of.option("columns", "2").load()
        for kind in KINDS:
            self.write("in", kind)

    def write(self, name: str, kind: str) -> None:
        """Write all rows in one transaction."""
        writer = self._rows.write.format("fencelog").option("topic", f"{name}-{kind}")
        writer.option("kafka.bootstrap.servers", self._servers).mode("append").save()

    def read(self, kind: str) -> None:
        """Read all rows as a table."""
        to_noop(self._spark.read.format("fencelog").options(**self._source(kind)).load())

    def stream(self, kind: str) -> None:
        """Read all rows as a stream."""
        self._checkpoints += 1
        rows = self._spark.readStream.format("fencelog").options(**self._source(kind))
        query = (
            rows.option("startingOffsets", "earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._place / f"checkpoint-{self._checkpoints}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _source(self, kind: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._servers,
            "subscribe": f"in-{kind}",
            "columns": "key,value",
        }


def main() -> None:
    """Measure reading and writing."""
    report = Report("spark_streams", "Spark reads and writes a stream", METHOD)
    os.environ["PYTHONPATH"] = str(ROOT)  # workers import the generator by name
    rows, rounds = sized(2_000_000, 20_000), sized(9, 1)
    with scratch() as place, BrokerProcess(place / "data") as broker:
        with Client(broker.address) as client:
            for name in ("in", "out"):
                client.create_stream(f"{name}-stream", PARTITIONS)
                create_topic(broker.address, f"{name}-topic", partitions=PARTITIONS)
        spark = build_session(name="bench", master="local[2]", log_file=place / "spark.log")
        try:
            bench = Bench(spark, broker.address, place, rows)
            measured: dict[str, Callable[[str], None]] = {
                "source, as a table": bench.read,
                "source, as a stream": bench.stream,
                "sink": lambda kind: bench.write("out", kind),
            }
            for name, run in measured.items():
                runs = {kind: (lambda kind=kind, run=run: run(kind)) for kind in KINDS}
                speeds = alternating(runs, rows, rounds)
                report.add(
                    Figure(
                        name=name,
                        value=speeds["stream"] / 1e6,
                        unit="M rows/s",
                        ceiling=speeds["topic"] / 1e6,
                        ceiling_name="the topic",
                        goal=f"≥ {100 * GOAL:.0f} %",
                        met=speeds["stream"] >= GOAL * speeds["topic"],
                    )
                )
        finally:
            spark.stop()
    report.finish()


if __name__ == "__main__":
    main()
