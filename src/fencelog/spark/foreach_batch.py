"""``each_batch``: exactly-once writes from ``foreachBatch``, in every output mode.

Imported by the package itself, which Spark's planner imports for every lookup of a format: nothing
heavy is imported here.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

Writes: TypeAlias = "DataFrameWriter | Mapping[str, DataFrameWriter] | None"
"""One write, several by name, or none for this batch; none of them saved."""


def each_batch(
    app: str, function: "Callable[[DataFrame, int], Writes]"
) -> "Callable[[DataFrame, int], None]":
    """Return a function for ``foreachBatch`` that writes what ``function`` returns exactly once.

    ``function(batch, batch_id)`` returns a writer that is not saved, a dict of such writers by
    name, or None. Each write is one transaction, identified by its app and the batch's number:
    ``app``, or ``app/name`` for those of a dict. So a batch that Spark repeats writes only what is
    not committed yet (V3). The function has to return the same names when a batch is repeated.
    """

    def write(batch: "DataFrame", batch_id: int) -> None:
        checkpoint = _checkpoint(batch.sparkSession)
        for name, writer in _by_app(app, function(batch, batch_id)).items():
            if checkpoint is not None:
                writer = writer.option("checkpointLocation", checkpoint)  # noqa: PLW2901
            writer.option("app", name).option("batch", batch_id).mode("append").save()

    return write


def _by_app(app: str, writes: Writes) -> "Mapping[str, DataFrameWriter]":
    if writes is None:
        return {}
    if isinstance(writes, Mapping):
        return {f"{app}/{name}": writer for name, writer in writes.items()}
    if not hasattr(writes, "save"):
        raise TypeError(
            f"the function of each_batch('{app}', …) returned {type(writes).__name__}: return"
            " batch.write.format('fencelog')…, not saved, or a dict of such writers by name"
        )
    return {app: writes}


def _checkpoint(session: "SparkSession") -> str | None:
    """The checkpoint of the query that runs this batch, for its digest (V3); None if not known.

    Spark tells a batch function only the number. Its own table of running queries has the rest,
    except with Spark Connect.
    """
    java = getattr(session, "_jsparkSession", None)
    if java is None:
        return None
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    from fencelog.spark.writing import QUERY_ID

    query_id = session.sparkContext.getLocalProperty(QUERY_ID)
    if query_id is None:
        return None
    try:
        queries = java.sharedState().activeStreamingQueries()
        key = session.sparkContext._jvm.java.util.UUID.fromString(query_id)  # noqa: SLF001
        query = queries.get(key)
        return None if query is None else str(query.resolvedCheckpointRoot())
    except Py4JError:  # an internal interface of another Spark
        return None
