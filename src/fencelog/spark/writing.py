"""Writes an attempt's rows into a versioned transaction, and commits it on the driver.

Three processes take part: a task writes, and a driver-side process that never saw the task commits.
Only the messages travel between them, so a message carries who wrote (V1 to V3).
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from pyspark.sql.datasource import WriterCommitMessage

from fencelog.client.model import AlreadyCommitted, Joined
from fencelog.errors import ErrorCode, FencedError, FencelogError, RequestError
from fencelog.spark.options import OptionError, SinkOptions
from fencelog.spark.planning import connect
from fencelog.spark.schema import to_write
from fencelog.spark.worker_heap import freeze_imports

if TYPE_CHECKING:
    import pyarrow

    from fencelog.client.blocking import Client
    from fencelog.client.blocking_writers import ArrowWriter

NO_PRODUCER = -1
NO_STREAM: Final = "batch"
"""The query id of a numbered write outside a streaming query. Each is a run of its own."""
BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"
RUN_ID: Final = "spark.jobGroup.id"
KAFKAS_TIMEOUT_MS_MAX: Final = 900_000
"""Kafka's default of ``transaction.max.timeout.ms``."""
STREAM_PROPERTIES: Final = (BATCH_ID, QUERY_ID, RUN_ID)
"""Spark's local properties of a task with its batch, query and run."""


class BatchConflictError(FencelogError):
    """The broker's state of the app does not match the query's checkpoint."""


@dataclass(frozen=True, kw_only=True)
class BatchIdentity:
    """The transaction of a write: the app's batch ``version``, written by this run."""

    app: str
    query_id: str
    run_id: str
    version: int
    host: str = ""
    """Where the driver is; empty where it is not known."""
    allow_gaps: bool = False


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
) -> Written:
    """Write one attempt's rows; returns when all are acknowledged (acks=all).

    If the batch is committed already, its rows are read and not written.
    """
    client = connect(options.connection)
    joined = _join(client, options, identity) if options.exactly_once else None
    if isinstance(joined, AlreadyCommitted):
        # Spark treats a task that does not read its input as failed.
        for _ in rows:
            pass
        return Written(identity, NO_PRODUCER, 0)
    with closing(_writer(client, options, joined)) as writer:
        for batch in rows:
            if batch.num_rows:
                writer.write(to_write(batch, roles))
        count = writer.flush()
    freeze_imports()
    return Written(identity, NO_PRODUCER if joined is None else joined.producer_id, count)


def commit(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], *, fingerprint: bytes
) -> None:
    """Commit the attempts that Spark names; all other attempts are aborted (S4).

    May be repeated. Raises FencedError if a newer run has taken over.
    """
    written = [each for each in messages if isinstance(each, Written)]
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
        raise _explained(client, error, identity) from error
    freeze_imports()


def abort(options: SinkOptions, identity: BatchIdentity) -> None:
    """Abort the transaction; no effect if it is committed or belongs to another run.

    If the abort fails, the timeout or the next run's first task aborts. So a failure here is
    printed, and does not hide the error that led here.
    """
    if not options.exactly_once:
        return
    try:
        connect(options.connection).abort_transaction(
            identity.app, identity.query_id, identity.run_id, identity.version
        )
    except (FencelogError, OSError) as error:
        print(f"fencelog: batch {identity.version} of '{identity.app}' not aborted: {error}")  # noqa: T201  (Spark logs what a driver-side worker prints)


def _join(
    client: "Client", options: SinkOptions, identity: BatchIdentity
) -> Joined | AlreadyCommitted:
    try:
        return client.join_transaction(
            identity.app,
            identity.query_id,
            identity.run_id,
            identity.version,
            options.transaction_timeout_ms,
            options.takeover,
            identity.host,
            identity.allow_gaps,
        )
    except RequestError as error:
        if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            check_timeout(options, _timeout_ms_max(client))
        raise _explained(client, error, identity) from error


def check_timeout(options: SinkOptions, timeout_ms_max: int | None = None) -> None:
    """Raise OptionError if the broker refuses the transaction timeout.

    Without ``timeout_ms_max`` the broker is asked, but only for more than every broker allows that
    has Kafka's default: this is called for each batch.
    """
    if not options.exactly_once:
        return
    asked = options.transaction_timeout_ms
    if timeout_ms_max is None:
        if asked <= KAFKAS_TIMEOUT_MS_MAX:
            return
        timeout_ms_max = _timeout_ms_max(connect(options.connection))
    if asked > timeout_ms_max:
        raise OptionError(
            f"option 'kafka.transaction.timeout.ms' is '{asked}': the broker allows at most"
            f" {timeout_ms_max} (its setting transaction.max.timeout.ms)"
        )


def _timeout_ms_max(client: "Client") -> int:
    broker = client.cluster().brokers[0]
    limit = client.broker_configs(broker.node_id).get("transaction.max.timeout.ms")
    return int(limit or KAFKAS_TIMEOUT_MS_MAX)


def _check_not_written_by_this_run(client: "Client", identity: BatchIdentity) -> None:
    """Raise BatchConflictError if this run has committed the batch: this is another write of it.

    Spark repeats a batch in a new run only. What a run finds committed was committed before it came
    first, and that was the app's last change.
    """
    app = client.describe_app(identity.app)
    if app.run_id == identity.run_id and app.updated_ms > app.run_since_ms:
        raise BatchConflictError(
            f"batch {identity.version} of app '{identity.app}' is written already, by this run:"
            " give each write of a batch an app of its own, or use fencelog.spark.each_batch"
        )


def stream_of_task() -> tuple[str | None, str | None, str | None]:
    """Batch, query and run of the streaming query that this task belongs to; None without one."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "Spark writes in tasks"
    batch, query_id, run_id = (context.getLocalProperty(name) for name in STREAM_PROPERTIES)
    return batch, query_id, run_id


def _writer(client: "Client", options: SinkOptions, joined: Joined | None) -> "ArrowWriter":
    if joined is None:
        return client.arrow_writer(topic=options.topic, compression=options.compression)
    return client.versioned_writer(joined, topic=options.topic, compression=options.compression)


def _explained(client: "Client", error: RequestError, identity: BatchIdentity) -> FencelogError:
    """The error in terms of the pipeline, with what to do."""
    batch = f"batch {identity.version} of app '{identity.app}'"
    match error.code:
        case ErrorCode.RUN_FENCED:
            newest = _newest_run(client, identity)
            return FencedError(
                f"{batch}: a newer run of this query has taken over{newest and f', {newest}'}. This"
                f" run is {identity.run_id}. Stop this driver: the newer one continues"
            )
        case ErrorCode.APP_IN_USE:
            return BatchConflictError(
                f"{batch}: the app belongs to another query than {identity.query_id}. Start this"
                " query with its own app or with the old query's checkpoint, or set option"
                " 'takeover' to true to begin at its first batch"
            )
        case ErrorCode.STALE_VERSION if identity.query_id == NO_STREAM:
            return BatchConflictError(
                f"{batch}: a later batch is written already, and the numbers of an app only rise:"
                f" {_newest_run(client, identity)}"
            )
        case ErrorCode.VERSION_CONFLICT | ErrorCode.STALE_VERSION | ErrorCode.VERSION_GAP:
            return BatchConflictError(_mismatch(batch, error, _newest_run(client, identity)))
        case ErrorCode.TRANSACTION_ABORTED:
            return BatchConflictError(
                f"{batch} was aborted, by its timeout or by another attempt, before it was"
                " committed. Nothing of it is visible; the restarted query writes it again"
            )
        case _:
            return error


def _mismatch(batch: str, error: RequestError, newest: str) -> str:
    """Why a checkpoint's batch is not the app's next one; ``newest`` is another run, if known."""
    restored = (
        "this checkpoint was restored from a copy or edited: use the newest checkpoint, or a new"
        " one with another app, which writes its input from the start"
    )
    if not newest:
        return (
            f"{batch}: the checkpoint does not match what was written before ({error}). Perhaps"
            f" {restored}"
        )
    return (
        f"{batch}: another run of this query is ahead of this checkpoint: {newest} ({error}). If"
        " that driver still runs, end this one; nothing is lost, and the query can be started"
        " again with this checkpoint once the other has ended. To be sure, look for it on its"
        " host, or start this one once more: a later batch in this message says that it runs. If"
        f" it does not, {restored}"
    )


def _newest_run(client: "Client", identity: BatchIdentity) -> str:
    """The app's newest run: since when, where, and its last batch; empty if that is this run."""
    try:
        app = client.describe_app(identity.app)
    except (FencelogError, OSError):
        # The error that led here is what matters.
        return ""
    if app.run_id in (None, identity.run_id) or app.query_id != identity.query_id:
        return ""
    since = f" since {_utc(app.run_since_ms)}" if app.run_since_ms >= 0 else ""
    host = f" on host {app.run_host}" if app.run_host else ""
    last = f", last batch {app.last_version}" if app.last_version >= 0 else ""
    return f"run {app.run_id}{since}{host}{last}"


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


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
