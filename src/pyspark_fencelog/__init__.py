"""Spark finds ``format("fencelog")`` here: it looks for ``DefaultSource`` in ``pyspark_*``."""

from fencelog.spark.source import FencelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
