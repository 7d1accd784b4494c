"""A Spark driver in a process of its own: copies a topic to another, with planned faults.

A job that names queries runs those instead, all at the same time: each with a checkpoint, a sink
and faults of its own. With the job's ``connector`` Spark's own source and sink copy, and nothing is
planned. Then, if it is asked to, it copies the copy: as a table, in a numbered batch write,
twice.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fencelog.spark import each_batch
from fencelog.spark.session import build_session
from tests.support.spark.faults import FORMAT, FaultySource
from tests.support.spark.queries import COMPLETE, EACH_BATCH, PARTS, QUERIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery


def main() -> None:
    """Run what the JSON on the command line describes; exit status 1 where a query failed."""
    job = json.loads(sys.argv[1])
    spark = build_session(name="copy", master=job["master"], settings=job.get("settings"))
    Path(job["folder"], "version").write_text(spark.version)
    spark.dataSource.register(FaultySource)
    names = job.get("queries")
    queries = [start(spark, job)] if names is None else [start(spark, job, name) for name in names]
    try:
        # The first one that fails ends all of them: somebody starts the driver again.
        while spark.streams.active:
            spark.streams.awaitAnyTermination()
            spark.streams.resetTerminated()
        for query in queries:
            query.awaitTermination()
    except StreamingQueryException as error:
        sys.stderr.write(f"query failed: {error}\n")
        sys.exit(1)
    if "table" in job:
        copy_as_table(spark, job)


def start(spark: "SparkSession", job: dict[str, Any], name: str | None = None) -> "StreamingQuery":
    """Start the copy, or one of the queries."""
    connector = job.get("connector")
    rows = (
        spark.readStream.format(connector or "fencelog")
        .option("kafka.bootstrap.servers", job["servers"])
        .option("subscribe", job["source"])
        .option("startingOffsets", "earliest")
        .options(**job.get("reader", {}))
        .load()
    )
    suffix = "" if name is None else f"-{name}"
    sink = {
        "kafka.bootstrap.servers": job["servers"],
        "topic": job["sink"] + suffix,
        "faultFolder": job["folder"],
        "faults": job["faults"] if name is None else job["faults"].get(name, "[]"),
        **job.get("writer", {}),
    }
    result = rows.select("key", "value") if name is None else QUERIES[name](rows)
    return (
        _written(result, name, connector or FORMAT, sink)
        .option("checkpointLocation", job["checkpoint"] + suffix)
        .trigger(availableNow=True)
        .start()
    )


def _written(
    rows: "DataFrame", name: str | None, sink_format: str, sink: dict[str, str]
) -> "DataStreamWriter":
    """How a query's result goes out."""
    if name != EACH_BATCH:
        mode = "complete" if name == COMPLETE else "append"
        return rows.writeStream.format(sink_format).options(**sink).outputMode(mode)

    def parts(batch: "DataFrame", _: int) -> "dict[str, DataFrameWriter]":
        return {
            part: batch.where(f"value % {len(PARTS)} = {index}")
            .write.format(sink_format)
            .options(**sink)
            for index, part in enumerate(PARTS)
        }

    return rows.writeStream.foreachBatch(each_batch(EACH_BATCH, parts))


def copy_as_table(spark: SparkSession, job: Mapping[str, str]) -> None:
    """Write the sink's records, all columns of them, to the topic ``table``."""
    rows = (
        spark.read.format("fencelog")
        .option("kafka.bootstrap.servers", job["servers"])
        .option("subscribe", job["sink"])
        .option("includeHeaders", "true")
        .load()
    )
    for _ in range(2):
        (
            rows.write.format("fencelog")
            .option("kafka.bootstrap.servers", job["servers"])
            .option("topic", job["table"])
            .option("app", job["table"])
            .option("batch", 1)
            .mode("append")
            .save()
        )


if __name__ == "__main__":
    main()
