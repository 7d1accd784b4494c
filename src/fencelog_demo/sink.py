"""The sink of the demo's pipeline: fencelog's sink, with points at which it waits for the killer.

It only adds announcements to the writer that it wraps, so fencelog needs no switch for faults.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from fencelog.errors import FencedError
from fencelog_demo.announce import announce
from fencelog_demo.events import write_event
from fencelog_demo.plan import EXACTLY_ONCE
from pyspark_fencelog import DefaultSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT = "fencelog-demo"

Messages = list[WriterCommitMessage | None]


@dataclass
class AnnouncedMessage(WriterCommitMessage):  # type: ignore[misc]
    """The wrapped writer's message, and how much this task wrote."""

    inner: WriterCommitMessage
    tally: int


@dataclass
class AnnouncedWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Wraps a writer; announces the points of each task and each commit, and waits at them.

    With a ``tally_field`` it announces the sum of that field over the written values and never
    waits: so the running totals say how many flights they cover.
    """

    inner: DataSourceStreamArrowWriter
    folder: str
    pipeline: str
    tally_field: str | None

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Write through; wait before the last acknowledgement and again when all is written."""
        context = TaskContext.get()
        assert context is not None, "a writer writes inside a task"
        where = {
            "batch": int(context.getLocalProperty("streaming.sql.batchId") or -1),
            "partition": context.partitionId(),
            "attempt": context.attemptNumber(),
        }
        counted = [0]
        with self._fencing_logged(where["batch"]):
            message = self.inner.write(self._counted(iterator, counted, where))
        self._say("task-written", tally=counted[0], **where)
        return AnnouncedMessage(message, counted[0])

    def _counted(
        self, iterator: "Iterator[pa.RecordBatch]", counted: list[int], where: dict[str, int]
    ) -> "Iterator[pa.RecordBatch]":
        for batch in iterator:
            counted[0] += self._tally(batch)
            yield batch
        # The writer has every row now, and acknowledgements for some of them at most.
        self._say("task-writing", tally=counted[0], **where)

    def _tally(self, batch: "pa.RecordBatch") -> int:
        if self.tally_field is None:
            return int(batch.num_rows)
        values = batch.column("value").to_pylist()
        return sum(json.loads(value)[self.tally_field] for value in values)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit through; wait before and after."""
        announced = [message for message in messages if isinstance(message, AnnouncedMessage)]
        assert len(announced) == len(messages), "Spark commits with a message of every task"
        tally = sum(message.tally for message in announced)
        self._say("before-commit", batch=batchId, tally=tally)
        with self._fencing_logged(batchId):
            self.inner.commit([message.inner for message in announced], batchId)
        self._say("after-commit", batch=batchId, tally=tally)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Abort through; a task without a known result stays None."""
        inner = [each.inner if isinstance(each, AnnouncedMessage) else None for each in messages]
        self.inner.abort(inner, batchId)

    @contextmanager
    def _fencing_logged(self, batch: int) -> Iterator[None]:
        """Log that the broker refused this run because of a newer one, and raise it again."""
        try:
            yield
        except FencedError as error:
            facts = {"batch": batch, "pid": os.getpid(), "reason": str(error)}
            write_event(Path(self.folder), "fenced", pipeline=self.pipeline, **facts)
            raise

    def _say(self, point: str, **facts: object) -> None:
        if self.tally_field is None:
            announce(Path(self.folder), point, pipeline=self.pipeline, **facts)
        elif point == "after-commit":
            write_event(Path(self.folder), "totals-committed", **facts)


class AnnouncedSource(DefaultSource):
    """``format("fencelog-demo")``: fencelog's sink, announced.

    Options beside fencelog's: ``announceTo`` (the stage's folder) and ``tallyField``.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """Remove our two options, because fencelog's sink refuses unknown ones."""
        given = {name.lower(): value for name, value in options.items()}
        self._folder = given.pop("announceto")
        self._tally_field = given.pop("tallyfield", None)
        self._pipeline = given.get("delivery", EXACTLY_ONCE)
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        """The name that a query's ``format`` takes."""
        return FORMAT

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: "StructType", overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Wrap fencelog's writer."""
        inner = super().streamWriter(schema, overwrite)
        return AnnouncedWriter(inner, self._folder, self._pipeline, self._tally_field)
