"""A topic copied by Spark's own Kafka connector, into a topic and into files.

``python spark_copy.py ADDRESS SOURCE TARGET FOLDER JARS``; with ``--count`` it prints how many rows
a batch query finds in the source and how often each value is in the files.
"""

import json
import sys
from collections import Counter

from pyspark.sql import SparkSession

address, source, target, folder, jars = sys.argv[1:6]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
read = {
    "kafka.bootstrap.servers": address,
    "kafka.isolation.level": "read_committed",
    "subscribe": source,
    "startingOffsets": "earliest",
}
if "--count" in sys.argv:
    rows = spark.read.format("kafka").options(**read).load().count()
    files = Counter(row.value for row in spark.read.text(f"{folder}/files").collect())
    print(json.dumps({"rows": rows, "files": files}))
else:
    records = spark.readStream.format("kafka").options(**read).load()
    values = records.selectExpr("string(value) AS value")
    output = {"kafka.bootstrap.servers": address, "topic": target}
    values.writeStream.format("kafka").options(**output).option(
        "checkpointLocation", f"{folder}/topic-checkpoint"
    ).start()
    values.writeStream.format("text").option(
        "checkpointLocation", f"{folder}/files-checkpoint"
    ).start(f"{folder}/files")
    spark.streams.awaitAnyTermination()
