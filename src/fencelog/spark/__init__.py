"""The PySpark source and sink, and the runner of pipelines.

Only ``each_batch`` is imported here: Spark's planner imports ``pyspark_fencelog`` for every lookup
of a format, so heavy packages (pyarrow, the client) are imported when they are used.
"""

from fencelog.spark.foreach_batch import each_batch

__all__ = ["each_batch"]
