"""Batch ``read`` and ``write``: a range of offsets as a table, a table as one transaction."""

import os
import platform
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from fencelog.spark import writing
from fencelog.spark.driver_commit.staged import Staged
from fencelog.spark.identity import NO_STREAM, BatchIdentity
from fencelog.spark.next_batch import unreadable
from fencelog.spark.offsets import ranges, split
from fencelog.spark.options import OptionError, SinkOptions, SourceOptions
from fencelog.spark.plain_errors import plain_errors
from fencelog.spark.planning import connect, data_loss, ends, lost, starts, stops, subscribed
from fencelog.spark.reading import RangePartition, read_range
from fencelog.spark.schema import check_read, check_write

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


@plain_errors
class BatchReader(DataSourceReader):
    """Reads from ``startingOffsets`` to ``endingOffsets`` as resolved when the query is planned."""

    def __init__(self, options: SourceOptions, schema: "StructType") -> None:
        """Check the schema that Spark requests."""
        check_read(schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """One task for each partition's range, or more with ``minPartitions``."""
        options = self._options
        client = connect(options.connection)
        found = subscribed(client, options.subscription)
        if options.subscription.partitions:
            # Segments that are named are read as partitions, whatever else the stream has.
            found = replace(found, streams={})
        partitions = found.partitions
        start = starts(client, options.starting, found, options.isolation)
        end = stops(client, options.ending, found, options.isolation)
        earliest = ends(client, partitions, "earliest", options.isolation, found.streams)
        latest = ends(client, partitions, "latest", options.isolation, found.streams)
        if options.fail_on_data_loss and (sentences := lost(start, earliest, latest)):
            raise data_loss(sentences)
        for each in partitions:
            if end[each] > latest[each] and options.fail_on_data_loss:
                raise OptionError(
                    f"option 'endingOffsets' has {end[each]} for {each}, but its latest offset is"
                    f" {latest[each]}"
                )
            start[each] = max(start[each], earliest[each])
            end[each] = min(end[each], latest[each])
        if options.ending.everywhere == "latest":
            end |= dict.fromkeys(unreadable(found, end), 0)
        wanted = split(
            ranges(start, end, found.topic_ids),
            options.partitions_min or 0,
            options.partition_offsets_max,
        )
        return [RangePartition(each) for each in wanted]

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        """Yield the partition's records as Arrow."""
        return read_range(partition, self._options, self._schema)


@plain_errors
class BatchWriter(DataSourceArrowWriter):
    """Writes a table in one transaction: all of its rows become visible at once, or none.

    With options ``app`` and ``batch`` it is recognised when it is repeated, and not written again
    (V3). Without them each write has an app of its own with a new name (V4).
    """

    def __init__(self, options: SinkOptions, schema: "StructType", *, overwrite: bool) -> None:
        """Check the rows' schema and name the transaction."""
        if overwrite:
            raise OptionError(
                "a topic can only be appended to, not overwritten: use mode('append')"
            )
        self._options = options
        self._roles = check_write(schema, topic_option=options.topic is not None)
        writing.check(options, self._roles, streaming=False)
        name = str(uuid.UUID(bytes=os.urandom(16), version=4))
        if options.app is None or options.batch is None:
            # There is no query: the broker deletes such an app after a week.
            app, query_id, version = name, "", 0
        else:
            app, query_id, version = options.app, NO_STREAM, options.batch
        self._identity = BatchIdentity(
            app=app,
            query_id=query_id,
            run_id=name,
            version=version,
            host=platform.node(),
            # A job that had nothing to write in one batch goes on with the next.
            allow_gaps=True,
        )

    def write(self, iterator: Iterator["pyarrow.RecordBatch"]) -> WriterCommitMessage:
        """Write one task's rows; returns when all of them are acknowledged."""
        return writing.write(self._options, self._of_task(), self._roles, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the rows of the successful attempts."""
        options = self._options
        fingerprint = b""
        if options.batch is not None:
            fingerprint = writing.batch_fingerprint(options.checkpoint_location, options.batch)
        writing.commit(options, messages, fingerprint=fingerprint)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the transaction.

        In a stream's batch function only tasks know query and run, and the function may write the
        batch again in that run. Without a message of one the broker refuses the abort: the next
        run's first task, or the timeout, does it.
        """
        told = (each.identity for each in messages if isinstance(each, writing.Written | Staged))
        identity = next(told, self._identity)
        writing.abort(self._options, identity, ends_run=identity == self._identity)

    def _of_task(self) -> BatchIdentity:
        """The identity, of the streaming query whose batch function makes this write, if any."""
        if self._options.batch is None:
            return self._identity
        _, query_id, run_id = writing.stream_of_task()
        if query_id is None or run_id is None:
            return self._identity
        return replace(self._identity, query_id=query_id, run_id=run_id)
