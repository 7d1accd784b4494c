"""Two queries in one pipeline: cleaned page views, and running totals for each page.

    fencelog topic create views views-clean views-per-page
    fencelog run examples/page_views.py

A view is JSON such as ``{"page": "/home", "user": "ann"}``. The totals are sent again whenever they
change; the newest record of a page counts.
"""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamWriter


def pipeline(spark: SparkSession) -> dict[str, DataStreamWriter]:
    """A dict names the queries: each has its own checkpoint and its own line of progress."""
    records = (
        spark.readStream.format("fencelog")
        .option("subscribe", "views")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "100000")
        .load()
    )
    view = f.from_json(f.col("value").cast("string"), "page STRING, user STRING")
    views = records.select(view.alias("view")).where("view.page IS NOT NULL").select("view.*")
    clean = views.select(
        f.col("user").alias("key"), f.to_json(f.struct("page", "user")).alias("value")
    )
    totals = views.groupBy("page").count()
    return {
        "clean": clean.writeStream.format("fencelog").option("topic", "views-clean"),
        "per-page": totals.selectExpr("page AS key", "CAST(count AS STRING) AS value")
        .writeStream.format("fencelog")
        .outputMode("complete")
        .option("topic", "views-per-page"),
    }
