"""A client of Spark Connect, with a server of its own: copies a topic as a table and as streams."""

import os
import sys

from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

from fencelog.spark import each_batch


def main(servers: str, words: str, table: str, stream: str, each: str, folder: str) -> None:
    """Write the topic ``words`` to three others; a second call changes nothing."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = "python"
    spark = SparkSession.builder.remote("local[2,4]").getOrCreate()
    assert "connect" in type(spark).__module__

    def read(reader: DataFrameReader | DataStreamReader) -> DataFrame:
        named = reader.format("fencelog").option("kafka.bootstrap.servers", servers)
        rows = named.option("subscribe", words).option("startingOffsets", "earliest").load()
        return rows.select("key", "value")

    def finish(writer: DataStreamWriter, name: str) -> None:
        placed = writer.option("checkpointLocation", f"{folder}/{name}")
        query = placed.trigger(availableNow=True).start()
        query.awaitTermination()

    def to_each(batch: DataFrame, batch_id: int) -> DataFrameWriter:
        writer = batch.write.format("fencelog").option("kafka.bootstrap.servers", servers)
        return writer.option("topic", each)

    writer = read(spark.read).write.format("fencelog").option("kafka.bootstrap.servers", servers)
    writer = writer.option("topic", table).option("app", table).option("batch", 1)
    writer.mode("append").save()

    copy = read(spark.readStream).writeStream.format("fencelog")
    finish(copy.option("kafka.bootstrap.servers", servers).option("topic", stream), "stream")
    finish(read(spark.readStream).writeStream.foreachBatch(each_batch(each, to_each)), "each")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
