"""A pipeline for ``fencelog run``: whatever arrives on ``quiet`` leaves in capitals on ``loud``."""

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter


def pipeline(spark: SparkSession) -> DataStreamWriter:
    """One streaming query, exactly once from end to end."""
    quiet = (
        spark.readStream.format("fencelog")
        .option("subscribe", "quiet")
        .option("startingOffsets", "earliest")
        .load()
    )
    louder = quiet.selectExpr("key", "upper(string(value)) AS value")
    return louder.writeStream.format("fencelog").option("topic", "loud")
