"""Spark with our source and sink beside Spark with its own Kafka connector on Apache Kafka."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench._processes import scratch
from bench._report import ROOT, Figure, Report, sized
from bench._spark_batches import FEW_ROWS, Phases, batches
from bench._stock import create_topic
from fencelog.spark.session import build_session, prepare_environment
from tests.support.apache_kafka import DEFAULT_HEAP, ApacheKafka
from tests.support.broker import BrokerProcess
from tests.support.jvm.jars import class_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

IN, FEW, OUT = "in", "few", "out"
CONNECTOR = "Spark's Kafka connector"
ROWS = 2_000_000
METHOD = (
    "One session, `local[2]`, with our source and sink on a broker in `os` mode, and with Spark's "
    "own Kafka connector 4.2.0 on Apache Kafka 4.3.1 (KRaft, one node, default settings; jars from "
    "Maven Central), both at the same time on the same two cores. Keys of 16 and values of 100 "
    "bytes, two partitions. The two alternate; the first round warms up, and each figure is the "
    "median of the others. Reads go to Spark's noop sink. A stream is timed from start() to its "
    "end, with the trigger AvailableNow, and its only batch alone (triggerExecution in the last "
    "round). The stream into the sink copies from the same side's source, ours exactly once, the "
    "connector's at least once. Micro-batches: median "
    "of Spark's durationMs behind the first ones. The settings are `build_session`'s. A fresh "
    "session is a process that builds a session and counts the rows of a small topic; cold: no "
    "compiled kernel is cached."
)


@dataclass(frozen=True)
class Side:
    """A connector and its broker."""

    name: str
    format: str
    servers: str

    def read(self, spark: "SparkSession", topic: str, columns: int) -> "DataFrame":
        """A batch read of two or seven columns."""
        reader = spark.read.format(self.format).option("subscribe", topic)
        if columns == 2 and self.format == "fencelog":
            reader = reader.option("columns", "key,value")
        frame = reader.option("kafka.bootstrap.servers", self.servers).load()
        return frame.select("key", "value") if columns == 2 else frame

    def stream(self, spark: "SparkSession", topic: str, limit: int | None = None) -> "DataFrame":
        """A streaming read from the beginning."""
        reader = spark.readStream.format(self.format).option("subscribe", topic)
        reader = reader.option("startingOffsets", "earliest")
        if limit is not None:
            reader = reader.option("maxOffsetsPerTrigger", str(limit))
        return reader.option("kafka.bootstrap.servers", self.servers).load()

    def sink(self, frame: "DataFrame") -> "DataStreamWriter":
        """A streaming write."""
        writer = frame.select("key", "value").writeStream.format(self.format).option("topic", OUT)
        return writer.option("kafka.bootstrap.servers", self.servers)

    def fill(self, spark: "SparkSession", topic: str, rows: int) -> None:
        """Store so many rows."""
        text = "CAST(lpad(CAST(id AS STRING), {}, '0') AS BINARY) AS {}"
        frame = spark.range(rows).selectExpr(text.format(16, "key"), text.format(100, "value"))
        writer = frame.write.format(self.format).option("topic", topic).mode("append")
        writer.option("kafka.bootstrap.servers", self.servers).save()


class Peers:
    """Both sides in one session."""

    def __init__(self, spark: "SparkSession", sides: tuple[Side, Side], place: Path) -> None:
        """``place`` gets checkpoints."""
        self._spark = spark
        self._sides = sides
        self._place = place
        self._queries = 0

    def fill(self, rows: int) -> None:
        """Store the rows that are read."""
        for side in self._sides:
            for topic in (IN, FEW, OUT):
                create_topic(side.servers, topic, partitions=2)
            side.fill(self._spark, IN, rows)
            side.fill(self._spark, FEW, 2000)

    def rows(self, report: Report, rows: int, rounds: int) -> None:
        """Compare what is counted in rows a second."""
        for columns in (2, 7):
            ours, theirs = self._alternating(
                lambda side, columns=columns: _to_noop(side.read(self._spark, IN, columns)), rounds
            )
            goal = (lambda a, _: a >= 2e6, ">= 2 M") if columns == 2 else None
            report.add(_rows(f"batch read, {columns} columns", rows / ours, rows / theirs, goal))
        self._streams(
            report,
            "stream read, 7 columns",
            lambda side: side.stream(self._spark, IN).writeStream.format("noop"),
            rows,
            rounds,
        )
        self._streams(
            report,
            "stream, source to sink",
            lambda side: side.sink(side.stream(self._spark, IN)),
            rows,
            rounds,
        )

    def batches(self, report: Report, count: int) -> None:
        """Compare micro-batches of a few rows, phase by phase."""
        found: list[Phases] = []
        for side in self._sides:
            writer = side.sink(side.stream(self._spark, FEW, FEW_ROWS))
            found.append(batches(writer, self._checkpoint(), count))
        ours, theirs = found
        for phase in ours:
            whole = phase == "triggerExecution"
            report.add(
                Figure(
                    name=f"micro-batch of {FEW_ROWS} rows" + ("" if whole else f": {phase}"),
                    value=ours[phase],
                    unit="ms",
                    ceiling=theirs[phase],
                    ceiling_name=CONNECTOR,
                    goal="<= 1.1x" if whole else "",
                    met=ours[phase] <= 1.1 * theirs[phase] if whole else None,
                )
            )

    def _streams(
        self,
        report: Report,
        name: str,
        writer: Callable[[Side], "DataStreamWriter"],
        rows: int,
        rounds: int,
    ) -> None:
        """Compare a stream, with the start of its query and without."""
        batch_s: dict[str, float] = {}

        def run(side: Side) -> None:
            batch_s[side.name] = self._to_end(writer(side))

        twice = (lambda a, b: a >= 2 * b, ">= 2x")
        ours, theirs = self._alternating(run, rounds)
        report.add(_rows(name, rows / ours, rows / theirs, twice))
        ours, theirs = (batch_s[side.name] for side in self._sides)
        report.add(_rows(f"{name}, the batch alone", rows / ours, rows / theirs, twice))

    def _alternating(self, run: Callable[[Side], None], rounds: int) -> tuple[float, float]:
        """Median seconds of ours and of theirs."""
        taken: dict[str, list[float]] = {side.name: [] for side in self._sides}
        for number in range(rounds + 1):
            for side in self._sides if number % 2 else self._sides[::-1]:
                start = time.perf_counter()
                run(side)
                if number:
                    taken[side.name].append(time.perf_counter() - start)
        ours, theirs = (median(taken[side.name]) for side in self._sides)
        return ours, theirs

    def _to_end(self, writer: "DataStreamWriter") -> float:
        """Run a stream over what there is; return the seconds of its batch."""
        writer = writer.option("checkpointLocation", self._checkpoint())
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        taken = [each.durationMs for each in query.recentProgress if each.numInputRows]
        assert len(taken) == 1, taken
        return taken[0]["triggerExecution"] / 1000

    def _checkpoint(self) -> str:
        self._queries += 1
        return str(self._place / f"checkpoint-{self._queries}")


def _to_noop(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()


def _rows(
    name: str,
    ours: float,
    theirs: float,
    goal: tuple[Callable[[float, float], bool], str] | None,
) -> Figure:
    return Figure(
        name=name,
        value=ours / 1e6,
        unit="M rows/s",
        ceiling=theirs / 1e6,
        ceiling_name=CONNECTOR,
        goal=goal[1] if goal else "",
        met=goal[0](ours, theirs) if goal else None,
    )


def first_read(side: Side, environment: dict[str, str]) -> float:
    """Seconds of a process that builds a session and reads a small topic."""
    command = [sys.executable, "-m", "bench._spark_peer", side.format, side.servers]
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=True)
    return time.perf_counter() - start


def measure_first_reads(report: Report, sides: tuple[Side, Side], place: Path) -> None:
    """Compare what a user waits for who starts a session."""
    taken: dict[str, list[float]] = {"cold": [], "warm": [], CONNECTOR: []}
    for number in range(sized(2, 1)):
        empty = {"NUMBA_CACHE_DIR": str(place / f"kernels-{number}")}
        taken["cold"].append(first_read(sides[0], empty))
        taken["warm"].append(first_read(sides[0], empty))
        taken[CONNECTOR].append(first_read(sides[1], {}))
    for name in ("cold", "warm"):
        report.add(
            Figure(
                name=f"first read of a fresh session, {name}",
                value=median(taken[name]),
                unit="s",
                ceiling=median(taken[CONNECTOR]),
                ceiling_name=CONNECTOR,
                goal="<= the connector's",
                met=median(taken[name]) <= median(taken[CONNECTOR]),
            )
        )


def session(log_file: Path | None = None) -> "SparkSession":
    """A session with the connector's jar."""
    jars = class_path("spark").replace(os.pathsep, ",")
    return build_session(
        name="peer", master="local[2]", settings={"spark.jars": jars}, log_file=log_file
    )


def measure() -> None:
    """Measure both at once."""
    report = Report(
        "spark_peer", f"Spark's reads and writes, beside {CONNECTOR}", METHOD, "spark --peer"
    )
    os.environ["PYTHONPATH"] = str(ROOT)
    prepare_environment(os.environ)
    with (
        scratch() as place,
        BrokerProcess(place / "data") as broker,
        ApacheKafka(place / "kafka", java=DEFAULT_HEAP, settings={}) as kafka,
    ):
        sides = (
            Side("fencelog", "fencelog", broker.address),
            Side("kafka", "kafka", kafka.address),
        )
        spark = session(place / "spark.log")
        try:
            peers = Peers(spark, sides, place)
            rows = sized(ROWS, 20_000)
            peers.fill(rows)
            peers.rows(report, rows, sized(2, 1))
            peers.batches(report, sized(40, 3))
        finally:
            spark.stop()
        measure_first_reads(report, sides, place)
    report.finish()


if __name__ == "__main__":
    format_, servers = sys.argv[1:]
    read = Side("", format_, servers).read(session(Path(os.devnull)), FEW, 7)
    assert read.count() == 2000
