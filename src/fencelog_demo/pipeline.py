"""The pipeline: every flight once on ``delays``, running totals on ``delays-monthly``.

A plain Spark program for ``fencelog run``: nothing in its frames is about faults or exactly-once.
The query that it is compared with runs in the same driver, under the same faults.
"""

import os

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from fencelog_demo import sink
from fencelog_demo.data import airlines
from fencelog_demo.plan import AT_LEAST_ONCE, EXACTLY_ONCE
from fencelog_demo.settings import COMPARED, MAX_OFFSETS, STAGE_FOLDER

FLIGHT_FIELDS = (
    "year INT, month INT, day INT, carrier STRING, flight INT, origin STRING, dest STRING, "
    "sched_dep_time INT, dep_delay INT, arr_delay INT, outcome STRING"
)


def flights_of(records: DataFrame) -> DataFrame:
    """The flights in the values of Kafka records."""
    parsed = f.from_json(f.col("value").cast("string"), FLIGHT_FIELDS)
    return records.select(parsed.alias("it")).select("it.*")


def as_json(*columns: Column | str) -> Column:
    """A JSON object as a record's value; a null stays a null, so a missing delay is visible."""
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
        "outcome",
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


def source(spark: SparkSession) -> DataFrame:
    """The stream of flights, at transactional isolation."""
    records = (
        spark.readStream.format("fencelog")
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", os.environ[MAX_OFFSETS])
        .load()
    )
    return flights_of(records)


def sink_of(frame: DataFrame, topic: str, mode: str, delivery: str) -> DataStreamWriter:
    """A writer of keys and values to a topic, by fencelog's sink, announced."""
    return (
        frame.writeStream.format(sink.FORMAT)
        .outputMode(mode)
        .option("topic", topic)
        .option("delivery", delivery)
        .option("announceTo", os.environ[STAGE_FOLDER])
    )


def pipeline(spark: SparkSession) -> dict[str, DataStreamWriter]:
    """The queries, for ``fencelog run``; the third differs from the first in its delivery only.

    There is no second query of totals: the newest record counts, so none could be duplicated.
    """
    spark.dataSource.register(sink.AnnouncedSource)

    def events() -> DataFrame:
        # From Arrow it is a local relation, planned into each batch without a job of its own.
        return delays(source(spark), spark.createDataFrame(airlines()))

    # Each query has a plan of its own, because Spark tags the nodes of a plan while it runs.
    totals = sink_of(monthly(source(spark)), "delays-monthly", "complete", EXACTLY_ONCE)
    return {
        "delays": sink_of(events(), "delays", "append", EXACTLY_ONCE),
        "delays-monthly": totals.option("tallyField", "flights"),
        COMPARED: sink_of(events(), COMPARED, "append", AT_LEAST_ONCE),
    }
