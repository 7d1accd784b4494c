"""The sinks of the demo's pipeline: the product's own, with a place to stand still beside it.

``AnnouncedSource`` adds nothing but announcements to the writer that it wraps, so the product needs
no switch for its own death. Under ``delivery=at-least-once`` the wrapped writer is a plain one: the
same rows in the same places, acknowledged by all replicas, but with nothing that a commit decides.
"""

import json
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fencelog.client.blocking import Client
from fencelog.demo.announce import announce
from fencelog.demo.events import write_event
from pyspark_fencelog import DefaultSource

FORMAT = "fencelog-demo"

Messages = list[WriterCommitMessage | None]


@dataclass
class AnnouncedMessage(WriterCommitMessage):  # type: ignore[misc]
    """The wrapped writer's message, and how much this task wrote."""

    inner: WriterCommitMessage
    tally: int


class AtLeastOnceWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes when a task says so. A commit has nothing to decide, a repeat cannot be told."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        """Remember where to write; nothing is connected yet."""
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write all batches; they are acknowledged, and visible, when this returns."""
        client = Client.shared(self._bootstrap_servers)
        with client.arrow_writer(topic=self._topic) as writer:
            for batch in iterator:
                writer.write(batch)
            writer.flush()
        return WriterCommitMessage()

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: every row is visible already."""

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: what is written stays."""


@dataclass
class AnnouncedWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Wraps a writer; says where each task and each commit stands, and waits there to be shot.

    With a ``tally_field`` it tells the sum of that field over the written values and never waits:
    that is how the running totals say which flights they cover.
    """

    inner: DataSourceStreamArrowWriter
    folder: str
    tally_field: str | None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write through, and stop once in the middle and once when all is acknowledged."""
        context = TaskContext.get()
        assert context is not None, "a writer writes inside a task"
        where = {
            "batch": int(context.getLocalProperty("streaming.sql.batchId") or -1),
            "partition": context.partitionId(),
            "attempt": context.attemptNumber(),
        }
        counted = [0]
        message = self.inner.write(self._counted(iterator, counted, where))
        self._say("task-written", tally=counted[0], **where)
        return AnnouncedMessage(message, counted[0])

    def _counted(
        self, iterator: Iterator[pa.RecordBatch], counted: list[int], where: dict[str, int]
    ) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            counted[0] += self._tally(batch)
            yield batch
        # The writer holds every row now, and has acknowledgements for some of them at most.
        self._say("task-writing", tally=counted[0], **where)

    def _tally(self, batch: pa.RecordBatch) -> int:
        if self.tally_field is None:
            return int(batch.num_rows)
        values = batch.column("value").to_pylist()
        return sum(json.loads(value)[self.tally_field] for value in values)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit through, and stop before and after."""
        told = [message for message in messages if isinstance(message, AnnouncedMessage)]
        tally = sum(message.tally for message in told)
        self._say("before-commit", batch=batchId, tally=tally)
        self.inner.commit([message.inner for message in told], batchId)
        self._say("after-commit", batch=batchId, tally=tally)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Abort through; tasks that Spark knows nothing of stay None."""
        inner = [each.inner if isinstance(each, AnnouncedMessage) else None for each in messages]
        self.inner.abort(inner, batchId)

    def _say(self, point: str, **facts: object) -> None:
        if self.tally_field is None:
            announce(Path(self.folder), point, **facts)
        elif point == "after-commit":
            write_event(Path(self.folder), "totals-committed", **facts)


class AnnouncedSource(DefaultSource):  # type: ignore[misc, unused-ignore]
    """``format("fencelog-demo")``: the product's sink, announced.

    Options beside the product's: ``announceTo`` (the stage's folder), ``delivery``
    (``exactly-once`` or ``at-least-once``), ``tallyField``.
    """

    @classmethod
    def name(cls) -> str:
        """The name that a query's ``format`` takes."""
        return FORMAT

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Wrap the product's writer, or the plain one."""
        options: MutableMapping[str, str] = self.options
        inner: DataSourceStreamArrowWriter
        if options["delivery"] == "at-least-once":
            inner = AtLeastOnceWriter(options["kafka.bootstrap.servers"], options["topic"])
        else:
            inner = super().streamWriter(schema, overwrite)
        return AnnouncedWriter(inner, options["announceTo"], options.get("tallyField"))
