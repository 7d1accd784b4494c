"""The streaming sink: one server-side transaction per (app, batch), committed once (S2-S5).

Spark makes a new writer for each call and repeats whole batches after a crash, so the writer has no
state; producers and runs are in the messages and on the broker.
"""

import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from fencelog.errors import FencelogError
from fencelog.spark import writing
from fencelog.spark.driver_commit.staged import Staged
from fencelog.spark.identity import BatchIdentity
from fencelog.spark.options import SinkOptions
from fencelog.spark.plain_errors import plain_errors
from fencelog.spark.pyspark_api import DataSourceStreamArrowWriter
from fencelog.spark.schema import check_write

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


@plain_errors
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches so that each becomes visible exactly once, as a whole.

    ``overwrite`` (Complete mode) appends as well: the newest record of a key counts.
    """

    def __init__(self, options: SinkOptions, schema: "StructType") -> None:
        """Check the rows' schema; Spark also creates writers without writing."""
        self._options = options
        self._roles = check_write(schema, topic_option=options.topic is not None)
        writing.check(options, self._roles, streaming=True)
        # Spark makes writers on the driver.
        self._host = platform.node()

    def write(self, iterator: Iterator["pyarrow.RecordBatch"]) -> WriterCommitMessage:
        """Write one attempt's rows; returns when all of them are acknowledged. Runs in a task."""
        return writing.write(self._options, self._identity(), self._roles, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the rows of the successful attempts; runs on the driver, perhaps repeatedly."""
        fingerprint = writing.batch_fingerprint(self._options.checkpoint_location, batchId)
        writing.commit(self._options, messages, fingerprint=fingerprint)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort the batch, if a message has its run.

        The query ends then. Spark may call this after a commit that succeeded (the broker then does
        nothing), and with no message at all after a stop: without the run's id nothing is aborted,
        for it might be a newer run's batch. That run's first task, or the timeout, does it.
        """
        del batchId
        for message in messages:
            if isinstance(message, writing.Written | Staged):
                writing.abort(self._options, message.identity, ends_run=True)
                return

    def _identity(self) -> BatchIdentity:
        batch, query_id, run_id = writing.stream_of_task()
        if batch is None or query_id is None or run_id is None:
            raise FencelogError(
                "this version of Spark does not tell its tasks which batch they write"
                f" (local properties {', '.join(writing.STREAM_PROPERTIES)})"
            )
        return BatchIdentity(
            app=self._options.app or query_id,
            query_id=query_id,
            run_id=run_id,
            version=int(batch),
            host=self._host,
        )
