"""Writes an attempt's rows into a versioned transaction, and commits it on the driver.

Three processes take part: a task writes, and a driver-side process that never saw the task commits.
Only the messages travel between them, so a message carries who wrote (V1 to V3). Where the broker
has no versioned transactions, ``driver_commit`` does both parts.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from pyspark.sql.datasource import WriterCommitMessage

from fencelog.client.model import AlreadyCommitted, Joined, WriterInfo
from fencelog.client.retry import RETRIABLE
from fencelog.errors import ErrorCode, FencelogError, RequestError
from fencelog.spark.conflicts import explained, written_by_this_run
from fencelog.spark.driver_commit import commit as by_driver
from fencelog.spark.driver_commit.prepare import prepare, through_driver
from fencelog.spark.driver_commit.staged import Staged
from fencelog.spark.identity import BatchIdentity
from fencelog.spark.limits import check_timeout, timeout_ms_max
from fencelog.spark.options import SinkOptions
from fencelog.spark.planning import connect
from fencelog.spark.schema import SchemaError, to_write
from fencelog.spark.worker_heap import freeze_imports

if TYPE_CHECKING:
    import pyarrow

    from fencelog.client.blocking import Client
    from fencelog.client.blocking_writers import ArrowWriter
    from fencelog.client.cluster import Cluster
    from fencelog.client.sender import Sender

NO_PRODUCER = -1
BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"
RUN_ID: Final = "spark.jobGroup.id"
SESSION_MS: Final = 10_000
"""How long a batch stays open after the last of its writers' processes is gone.

Longer than Spark needs to start Python workers and repeat tasks where all workers were killed.
"""
WORKER_REUSE: Final = "SPARK_REUSE_WORKER"
"""Spark sets it for workers that it keeps after a task."""
STREAM_PROPERTIES: Final = (BATCH_ID, QUERY_ID, RUN_ID)
"""Spark's local properties of a task with its batch, query and run."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """One attempt's rows are acknowledged. Without a producer the batch was committed already."""

    identity: BatchIdentity
    producer_id: int
    rows: int


def write(
    options: SinkOptions,
    identity: BatchIdentity,
    roles: tuple[tuple[str, str], ...],
    rows: Iterator["pyarrow.RecordBatch"],
) -> Written | Staged:
    """Write one attempt's rows; returns when all are acknowledged (acks=all), or staged.

    If the batch is committed already, its rows are read and not written.
    """
    if through_driver(options):
        from fencelog.spark.driver_commit.encode import stage

        staged = stage(options, identity, roles, rows)
        freeze_imports()
        return staged
    client = connect(options.connection)
    if not options.exactly_once:
        plain = client.arrow_writer(topic=options.topic, compression=options.compression)
        with closing(plain) as writer:
            count = _write_all(writer, rows, roles)
        freeze_imports()
        return Written(identity, NO_PRODUCER, count)
    with closing(_Attempt(client, options, identity)) as attempt:
        # The broker is asked while the first rows are waited for: they come from another process.
        first = list(islice(rows, 1))
        joined = attempt.joined()
        if isinstance(joined, AlreadyCommitted):
            # Spark treats a task that does not read its input as failed.
            for _ in rows:
                pass
            return Written(identity, NO_PRODUCER, 0)
        count = _write_all(attempt.writer(), chain(first, rows), roles)
    freeze_imports()
    return Written(identity, joined.producer_id, count)


def _write_all(
    writer: "ArrowWriter",
    rows: Iterator["pyarrow.RecordBatch"],
    roles: tuple[tuple[str, str], ...],
) -> int:
    """Write rows; return how many, once all are acknowledged."""
    for batch in rows:
        if batch.num_rows:
            writer.write(to_write(batch, roles))
    return writer.flush()


def commit(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], *, fingerprint: bytes
) -> None:
    """Commit the attempts that Spark names; all other attempts are aborted (S4).

    May be repeated. Raises FencedError if a newer run has taken over.
    """
    staged = [each for each in messages if isinstance(each, Staged)]
    written = [each for each in messages if isinstance(each, Written)]
    if staged:
        assert len(staged) == len(messages), "all tasks met the same broker"
        by_driver.commit(options, staged, fingerprint=fingerprint)
        freeze_imports()
        return
    assert len(written) == len(messages), "Spark commits with a message of every task"
    assert len({each.identity for each in written}) == 1, "one batch is one transaction"
    if not options.exactly_once:
        return
    identity = written[0].identity
    producers = [each.producer_id for each in written if each.producer_id != NO_PRODUCER]
    client = connect(options.connection)
    if options.batch is not None and not producers:
        _check_not_written_by_this_run(client, identity)
    try:
        client.commit_transaction(
            identity.app,
            identity.query_id,
            identity.run_id,
            identity.version,
            fingerprint,
            producers,
            options.takeover,
            identity.allow_gaps,
        )
    except RequestError as error:
        raise explained(lambda: client.describe_app(identity.app), error, identity) from error
    freeze_imports()


def abort(options: SinkOptions, identity: BatchIdentity, *, ends_run: bool) -> None:
    """Abort the transaction; no effect if it is committed or belongs to another run.

    ``ends_run``: this run writes no more, so a task that Spark starts late is refused.

    If the abort fails, the timeout or the next run's first task aborts. So a failure here is
    printed, and does not hide the error that led here.
    """
    if not options.exactly_once:
        return
    try:
        if through_driver(options):
            by_driver.abort(options, identity)
            return
        connect(options.connection).abort_transaction(
            identity.app, identity.query_id, identity.run_id, identity.version, ends_run=ends_run
        )
    except (FencelogError, OSError) as error:
        print(f"fencelog: batch {identity.version} of '{identity.app}' not aborted: {error}")  # noqa: T201  (Spark logs what a driver-side worker prints)


def check(options: SinkOptions, roles: tuple[tuple[str, str], ...], *, streaming: bool) -> None:
    """Check on the driver what would fail later. Raises OptionError, SchemaError, FencelogError.

    Spark also makes writers without writing: where the broker does not answer, the first task says
    it.
    """
    check_timeout(options)
    try:
        prepare(options, streaming=streaming)
        _check_no_stream_by_partition(options, dict(roles))
    except RequestError as error:
        if error.code not in RETRIABLE:
            raise


def _check_no_stream_by_partition(options: SinkOptions, roles: Mapping[str, str]) -> None:
    """Raise SchemaError if the rows name partitions of a stream; by a column's topic tasks do."""
    column = next((name for name, role in roles.items() if role == "partition"), None)
    if column is None or options.topic is None:
        return
    try:
        streams = connect(options.connection).streams_among([options.topic])
    except RequestError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return
    if streams:
        raise SchemaError(
            f"column '{column}' cannot be written to '{options.topic}', which is a stream: a row's"
            " key chooses its segment. Drop the column, and give rows that belong together the"
            " same key"
        )


class _Attempt:
    """The transaction of one task attempt: joined, and renewed from then on until it is closed.

    Both begin when this is made: the first row may come later than the transaction's timeout (V7).
    """

    def __init__(self, client: "Client", options: SinkOptions, identity: BatchIdentity) -> None:
        self._client, self._options, self._identity = client, options, identity
        self._opening = client.submit(self._open)
        self._writer: ArrowWriter | None = None

    async def _open(self, cluster: "Cluster") -> "tuple[Joined | AlreadyCommitted, Sender | None]":
        from fencelog.client.sender import ProducerOptions, open_sender
        from fencelog.client.versioned_transactions import Transactions

        options, identity = self._options, self._identity
        joined = await Transactions(cluster).join(
            identity.app,
            identity.query_id,
            identity.run_id,
            identity.version,
            options.transaction_timeout_ms,
            options.takeover,
            WriterInfo(host=identity.host, session_ms=_session_ms()),
            identity.allow_gaps,
        )
        if isinstance(joined, AlreadyCommitted):
            return joined, None
        producer = ProducerOptions(joined=joined, compression=options.compression)
        return joined, await open_sender(cluster, producer)

    def joined(self) -> Joined | AlreadyCommitted:
        """The producer to write with, once the broker has answered."""
        try:
            joined, _ = self._opening.result()
        except RequestError as error:
            if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                check_timeout(self._options, timeout_ms_max(self._client))
            client, app = self._client, self._identity.app
            raise explained(lambda: client.describe_app(app), error, self._identity) from error
        return joined

    def writer(self) -> "ArrowWriter":
        """Its writer; not after AlreadyCommitted."""
        _, sender = self._opening.result()
        assert sender is not None, "the batch is to be written"
        self._writer = self._client.writer_of(sender, topic=self._options.topic)
        return self._writer

    def close(self) -> None:
        """Renew no more, whether or not something was written."""
        if self._writer is not None:
            self._writer.close()
        elif self._opening.exception() is None:
            _, sender = self._opening.result()
            if sender is not None:
                self._client.run(lambda cluster: sender.close())


def _session_ms() -> int:
    """The session of a task's writer; -1 where Spark ends the worker, and so its connection."""
    return SESSION_MS if os.environ.get(WORKER_REUSE) else -1


def _check_not_written_by_this_run(client: "Client", identity: BatchIdentity) -> None:
    """Raise BatchConflictError if this run has committed the batch: this is another write of it.

    Spark repeats a batch in a new run only. What a run finds committed was committed before it came
    first, and that was the app's last change.
    """
    app = client.describe_app(identity.app)
    if app.run_id == identity.run_id and app.updated_ms > app.run_since_ms:
        raise written_by_this_run(identity)


def stream_of_task() -> tuple[str | None, str | None, str | None]:
    """Batch, query and run of the streaming query that this task belongs to; None without one."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "Spark writes in tasks"
    batch, query_id, run_id = (context.getLocalProperty(name) for name in STREAM_PROPERTIES)
    return batch, query_id, run_id


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
