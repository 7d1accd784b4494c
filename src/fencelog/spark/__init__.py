"""The PySpark source and sink, and the runner of pipelines.

Nothing is imported here: Spark's planner imports ``pyspark_fencelog`` for every lookup of a format,
so heavy packages (pyarrow, the client) are imported when they are used.
"""
