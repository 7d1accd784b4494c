"""A Spark driver in a process of its own: copies a topic to another, with planned faults.

A job that names queries runs those instead, all at the same time: each with a checkpoint, a sink
and faults of its own. With the job's ``connector`` Spark's own source and sink copy, and nothing is
planned.
"""

import json
import sys
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from fencelog.spark.session import build_session
from tests.support.spark.faults import FORMAT, FaultySource
from tests.support.spark.stateful import QUERIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


def main() -> None:
    """Run what the JSON on the command line describes; exit status 1 where a query failed."""
    job = json.loads(sys.argv[1])
    spark = build_session(name="copy", master=job["master"], settings=job.get("settings"))
    spark.dataSource.register(FaultySource)
    names = job.get("queries")
    queries = [start(spark, job)] if names is None else [start(spark, job, name) for name in names]
    try:
        for query in queries:
            query.awaitTermination()
    except StreamingQueryException as error:
        sys.stderr.write(f"query failed: {error}\n")
        sys.exit(1)


def start(spark: "SparkSession", job: dict[str, Any], name: str | None = None) -> "StreamingQuery":
    """Start the copy, or one of the queries with state."""
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
    return (
        (rows.select("key", "value") if name is None else QUERIES[name](rows))
        .writeStream.format(connector or FORMAT)
        .option("kafka.bootstrap.servers", job["servers"])
        .option("topic", job["sink"] + suffix)
        .option("checkpointLocation", job["checkpoint"] + suffix)
        .option("faultFolder", job["folder"])
        .option("faults", job["faults"] if name is None else job["faults"].get(name, "[]"))
        .options(**job.get("writer", {}))
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    main()
