"""A Spark driver in a process of its own: copies a topic to another, with planned faults.

With the job's ``connector`` Spark's own source and sink do it, and nothing is planned.
"""

import json
import sys

from pyspark.errors import StreamingQueryException

from fencelog.spark.session import build_session
from tests.support.spark.faults import FORMAT, FaultySource


def main() -> None:
    """Run what the JSON on the command line describes; exit status 1 where the query failed."""
    job = json.loads(sys.argv[1])
    spark = build_session(name="copy", master=job["master"], settings=job.get("settings"))
    spark.dataSource.register(FaultySource)
    connector = job.get("connector")
    rows = (
        spark.readStream.format(connector or "fencelog")
        .option("kafka.bootstrap.servers", job["servers"])
        .option("subscribe", job["source"])
        .option("startingOffsets", "earliest")
        .options(**job.get("reader", {}))
        .load()
    )
    query = (
        rows.select("key", "value")
        .writeStream.format(connector or FORMAT)
        .option("kafka.bootstrap.servers", job["servers"])
        .option("topic", job["sink"])
        .option("checkpointLocation", job["checkpoint"])
        .option("faultFolder", job["folder"])
        .option("faults", job["faults"])
        .options(**job.get("writer", {}))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        sys.stderr.write(f"query failed: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
