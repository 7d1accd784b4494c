"""Writes an attempt's rows into a versioned transaction, and commits it on the driver.

Three processes take part: a task writes, and a driver-side process that never saw the task commits.
Only the messages travel between them, so a message carries who wrote (V1 to V3).
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from fencelog.client.model import AlreadyCommitted, Joined
from fencelog.errors import ErrorCode, FencedError, FencelogError, RequestError
from fencelog.spark.options import SinkOptions
from fencelog.spark.planning import connect
from fencelog.spark.schema import to_write

if TYPE_CHECKING:
    import pyarrow

    from fencelog.client.blocking import Client
    from fencelog.client.blocking_writers import ArrowWriter

NO_PRODUCER = -1


class BatchConflictError(FencelogError):
    """The broker's state of the app does not match the query's checkpoint."""


@dataclass(frozen=True, kw_only=True)
class BatchIdentity:
    """The transaction of a write: the app's batch ``version``, written by this run."""

    app: str
    query_id: str
    run_id: str
    version: int


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
    try:
        connect(options.connection).commit_transaction(
            identity.app,
            identity.query_id,
            identity.run_id,
            identity.version,
            fingerprint,
            producers,
            options.takeover,
        )
    except RequestError as error:
        raise _explained(error, identity) from error


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
        )
    except RequestError as error:
        raise _explained(error, identity) from error


def _writer(client: "Client", options: SinkOptions, joined: Joined | None) -> "ArrowWriter":
    if joined is None:
        return client.arrow_writer(topic=options.topic, compression=options.compression)
    return client.versioned_writer(joined, topic=options.topic, compression=options.compression)


def _explained(error: RequestError, identity: BatchIdentity) -> FencelogError:
    """The error in terms of the pipeline, with what to do."""
    batch = f"batch {identity.version} of app '{identity.app}'"
    match error.code:
        case ErrorCode.RUN_FENCED:
            return FencedError(
                f"{batch}: a newer run of this query has taken over (this run is"
                f" {identity.run_id}). Stop this driver: the newer one continues"
            )
        case ErrorCode.APP_IN_USE:
            return BatchConflictError(
                f"{batch}: the app belongs to another query than {identity.query_id}. Start this"
                " query with its own app or with the old query's checkpoint, or set option"
                " 'takeover' to true to begin at its first batch"
            )
        case ErrorCode.VERSION_CONFLICT | ErrorCode.STALE_VERSION | ErrorCode.VERSION_GAP:
            return BatchConflictError(
                f"{batch}: the checkpoint does not match what was written before ({error}). It was"
                " restored from a copy or edited. Use the newest checkpoint, or a new one with"
                " another app"
            )
        case ErrorCode.TRANSACTION_ABORTED:
            return BatchConflictError(
                f"{batch} was aborted, by its timeout or by another attempt, before it was"
                " committed. Nothing of it is visible; the restarted query writes it again"
            )
        case _:
            return error
