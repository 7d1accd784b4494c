"""The streaming sink: one server-side transaction per (app, batch), committed once (S2-S5).

Spark makes a new writer for each call and repeats whole batches after a crash, so the writer has no
state; producers and runs are in the messages and on the broker.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from fencelog.errors import FencelogError
from fencelog.spark import writing
from fencelog.spark.options import SinkOptions
from fencelog.spark.plain_errors import plain_errors
from fencelog.spark.schema import check_write

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

BATCH_ID, QUERY_ID, RUN_ID = (
    "streaming.sql.batchId",
    "sql.streaming.queryId",
    "spark.jobGroup.id",
)
"""Spark's local properties of a task with its batch, query and run."""


@plain_errors
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches so that each becomes visible exactly once, as a whole.

    ``overwrite`` (Complete mode) appends as well: the newest record of a key counts.
    """

    def __init__(self, options: SinkOptions, schema: "StructType") -> None:
        """Check the rows' schema; Spark also creates writers without writing."""
        self._options = options
        self._roles = check_write(schema, topic_option=options.topic is not None)

    def write(self, iterator: Iterator["pyarrow.RecordBatch"]) -> WriterCommitMessage:
        """Write one attempt's rows; returns when all of them are acknowledged. Runs in a task."""
        return writing.write(self._options, self._identity(), self._roles, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the rows of the successful attempts; runs on the driver, perhaps repeatedly."""
        fingerprint = batch_fingerprint(self._options.checkpoint_location, batchId)
        writing.commit(self._options, messages, fingerprint=fingerprint)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort the batch, if a message has its run.

        Spark may call this after a commit that succeeded (the broker then does nothing), and with
        no message at all after a stop: without the run's id nothing is aborted, for it might be a
        newer run's batch. That run's first task, or the timeout, does it.
        """
        del batchId
        for message in messages:
            if isinstance(message, writing.Written):
                writing.abort(self._options, message.identity)
                return

    def _identity(self) -> writing.BatchIdentity:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "Spark writes in tasks"
        batch, query_id, run_id = (
            context.getLocalProperty(name) for name in (BATCH_ID, QUERY_ID, RUN_ID)
        )
        if batch is None or query_id is None or run_id is None:
            raise FencelogError(
                "this version of Spark does not tell its tasks which batch they write"
                f" (local properties {BATCH_ID}, {QUERY_ID}, {RUN_ID})"
            )
        return writing.BatchIdentity(
            app=self._options.app or query_id,
            query_id=query_id,
            run_id=run_id,
            version=int(batch),
        )


def batch_fingerprint(checkpoint_location: str | None, batch_id: int) -> bytes:
    """Digest of the checkpoint's ``offsets/<batch>`` file, empty if it cannot be read (V3).

    The file is written once, before the batch runs. A restored or second checkpoint has another
    one, so its batches are not taken for repetitions. Only local checkpoints are read: what another
    file system answers may differ from one attempt to the next.
    """
    if checkpoint_location is None:
        return b""
    parts = urlsplit(checkpoint_location)
    if parts.scheme not in ("", "file"):
        return b""
    path = unquote(parts.path) if parts.scheme else checkpoint_location
    try:
        content = (Path(path) / "offsets" / str(batch_id)).read_bytes()
    except OSError:
        return b""
    return hashlib.sha256(content).digest()
