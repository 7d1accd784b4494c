"""A pipeline: paid orders with their totals, exactly once. Run it with ``fencelog run``.

    fencelog topic create orders paid-orders
    fencelog topic produce orders < orders.jsonl
    fencelog run examples/orders.py

An order is JSON such as ``{"id": 7, "paid": true, "quantity": 3, "price": 2.5}``.
"""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamWriter


def pipeline(spark: SparkSession) -> DataStreamWriter:
    """Read ``orders``, keep what is paid, write ``paid-orders`` keyed by the order's id."""
    records = (
        spark.readStream.format("fencelog")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("groupId", "orders-pipeline")
        .load()
    )
    fields = "id LONG, paid BOOLEAN, quantity INT, price DOUBLE"
    orders = records.select(f.from_json(f.col("value").cast("string"), fields).alias("order"))
    paid = orders.where("order.paid").select(
        f.col("order.id").cast("string").alias("key"),
        f.to_json(
            f.struct("order.id", (f.col("order.quantity") * f.col("order.price")).alias("total"))
        ).alias("value"),
    )
    return paid.writeStream.format("fencelog").option("topic", "paid-orders")
