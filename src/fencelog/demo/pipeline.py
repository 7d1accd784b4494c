"""The pipeline: every flight once on ``delays``, running totals on ``delays-monthly``.

A plain Spark program: the frames below know nothing of fencelog, of kills or of exactly-once.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from fencelog.demo import sink
from fencelog.demo.data import airlines

FLIGHT_FIELDS = (
    "year INT, month INT, day INT, carrier STRING, flight INT, origin STRING, dest STRING, "
    "sched_dep_time INT, dep_delay INT, arr_delay INT, fate STRING"
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where the pipeline reads and writes, and how."""

    bootstrap_servers: str
    checkpoint: str
    announce_to: str
    delivery: str
    max_offsets: int


def flights_of(records: DataFrame) -> DataFrame:
    """The flights in the values of Kafka records."""
    parsed = f.from_json(f.col("value").cast("string"), FLIGHT_FIELDS)
    return records.select(parsed.alias("it")).select("it.*")


def as_json(*columns: Column | str) -> Column:
    """A JSON object as a record's value; a null stays a null, so that a missing delay is told."""
    return f.to_json(f.struct(*columns), {"ignoreNullFields": "false"}).cast("binary")


def delays(flights: DataFrame, names: DataFrame) -> DataFrame:
    """One event per flight, with the airline's name."""
    named = flights.join(f.broadcast(names), "carrier", "left")
    event = as_json(
        "year",
        "month",
        "day",
        "carrier",
        "airline",
        "flight",
        "origin",
        "dest",
        "sched_dep_time",
        "dep_delay",
        "arr_delay",
        f.col("dep_delay").isNull().alias("cancelled"),
        "fate",
    )
    return named.select(f.col("carrier").cast("binary").alias("key"), event.alias("value"))


def monthly(flights: DataFrame) -> DataFrame:
    """Totals for each carrier and month: flights, cancellations, minutes of delay."""

    def minutes(name: str) -> Column:
        return f.coalesce(f.sum(name), f.lit(0)).alias(f"{name}_min")

    totals = flights.groupBy("carrier", "year", "month").agg(
        f.count("*").alias("flights"),
        f.count_if(f.col("dep_delay").isNull()).alias("cancelled"),
        minutes("dep_delay"),
        minutes("arr_delay"),
    )
    name = f.format_string("%s/%d-%02d", "carrier", "year", "month")
    value = as_json("flights", "cancelled", "dep_delay_min", "arr_delay_min")
    return totals.select(name.cast("binary").alias("key"), value.alias("value"))


def source(spark: SparkSession, settings: Settings) -> DataFrame:
    """The stream of flights, at transactional isolation."""
    records = (
        spark.readStream.format("fencelog")
        .option("kafka.bootstrap.servers", settings.bootstrap_servers)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(settings.max_offsets))
        .load()
    )
    return flights_of(records)


def start(frame: DataFrame, topic: str, settings: Settings, **options: str) -> StreamingQuery:
    """Start one query that writes a frame of keys and values to a topic."""
    writer = (
        frame.writeStream.format(sink.FORMAT)
        .queryName(topic)
        .option("kafka.bootstrap.servers", settings.bootstrap_servers)
        .option("topic", topic)
        .option("checkpointLocation", os.path.join(settings.checkpoint, topic))
        .option("announceTo", settings.announce_to)
        .option("delivery", settings.delivery)
    )
    mode = "complete" if topic == "delays-monthly" else "append"
    return writer.outputMode(mode).options(**options).start()


def queries(spark: SparkSession, settings: Settings) -> Sequence[StreamingQuery]:
    """Start both queries."""
    spark.dataSource.register(sink.AnnouncedSource)
    names = spark.createDataFrame(airlines(), "carrier STRING, airline STRING")
    return [
        start(delays(source(spark, settings), names), "delays", settings),
        start(monthly(source(spark, settings)), "delays-monthly", settings, tallyField="flights"),
    ]
