"""Why a batch is refused, in terms of the pipeline, and what to do."""

from collections.abc import Callable
from datetime import UTC, datetime

from fencelog.client.model import AppDescription
from fencelog.errors import ErrorCode, FencedError, FencelogError, RequestError
from fencelog.spark.identity import NO_STREAM, BatchIdentity

Describe = Callable[[], AppDescription]
"""Asks for the app's state; may raise FencelogError or OSError."""


class BatchConflictError(FencelogError):
    """The broker's state of the app does not match the query's checkpoint."""


def explained(describe: Describe, error: RequestError, identity: BatchIdentity) -> FencelogError:
    """The error in terms of the pipeline, with what to do."""
    batch = f"batch {identity.version} of app '{identity.app}'"
    match error.code:
        case ErrorCode.RUN_FENCED:
            newest = _newest_run(describe, identity)
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
                f" {_newest_run(describe, identity)}"
            )
        case ErrorCode.VERSION_CONFLICT | ErrorCode.STALE_VERSION | ErrorCode.VERSION_GAP:
            return BatchConflictError(_mismatch(batch, error, _newest_run(describe, identity)))
        case ErrorCode.TRANSACTION_ABORTED:
            return BatchConflictError(
                f"{batch} was aborted, by its timeout, by another attempt or because its write"
                " failed, before it was committed. Nothing of it is visible: start the query or the"
                " write again"
            )
        case _:
            return error


def written_by_this_run(identity: BatchIdentity) -> BatchConflictError:
    """The error of a second write of one batch by one run."""
    return BatchConflictError(
        f"batch {identity.version} of app '{identity.app}' is written already, by this run:"
        " give each write of a batch an app of its own, or use fencelog.spark.each_batch"
    )


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


def _newest_run(describe: Describe, identity: BatchIdentity) -> str:
    """The app's newest run: since when, where, and its last batch; empty if that is this run."""
    try:
        app = describe()
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
