"""A Spark driver in a process of its own: copies a topic to another, with planned faults.

A job that names queries runs those instead, all at the same time: each with a checkpoint, a sink
and faults of its own. With the job's ``connector`` Spark's own source and sink copy, and nothing is
planned.
"""

import json
import sys
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from fencelog.spark import each_batch
from fencelog.spark.session import build_session
from tests.support.spark.faults import FORMAT, FaultySource
from tests.support.spark.queries import COMPLETE, EACH_BATCH, PARTS, QUERIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery


def main() -> None:
    """Run what the JSON on the command line describes; exit status 1 where a query failed."""
    job = json.loads(sys.argv[1])
    spark = build_session(name="copy", master=job["master"], settings=job.get("settings"))
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


if __name__ == "__main__":
    main()
