"""The driver's part: one Kafka transaction with all rows of a batch and the record of it.

Each attempt at it begins with InitProducerId. From then on no other driver can commit anything
under the app's transactional id, unless it takes the id itself, and then this one cannot. So what
the ledger says after that request stays true until this transaction has ended.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from fencelog.client.batches import EncodedBatch
from fencelog.client.cluster import Cluster
from fencelog.client.driver_transaction import LOST, DriverTransaction
from fencelog.client.model import AppDescription
from fencelog.client.retry import RETRIABLE
from fencelog.client.sender import WAITING_BYTES_MAX
from fencelog.errors import ErrorCode, FencedError, FencelogError, RequestError
from fencelog.rpc.failures import failure
from fencelog.spark.conflicts import explained, written_by_this_run
from fencelog.spark.driver_commit import ledger_topic, staged
from fencelog.spark.driver_commit.ledger import (
    LEDGER,
    AppState,
    Refuse,
    Register,
    Replay,
    Write,
    batch_record,
    driver_record,
    judge,
)
from fencelog.spark.driver_commit.prepare import access_explained
from fencelog.spark.driver_commit.staged import Staged
from fencelog.spark.driver_commit.staging import StagingError, staging_of
from fencelog.spark.identity import BatchIdentity
from fencelog.spark.limits import check_timeout, timeout_ms_max
from fencelog.spark.options import OptionError, SinkOptions
from fencelog.spark.planning import connect
from fencelog.wire.batch import Compression
from fencelog.wire.records import RecordToWrite, build_batch

if TYPE_CHECKING:
    from fencelog.client.blocking import Client

PREFIX: Final = "fencelog-spark-"
"""Of all transactional ids, for an ACL of pattern type prefixed."""
ATTEMPTS_MAX: Final = 10
"""Each time another driver took the id. One of an older run stops when it reads the ledger."""
LATE_MAX: Final = 2
"""Attempts that take too long. The first may have met an outage, or this process was stopped."""
GROUP_BYTES: Final = 4 << 20


def commit(options: SinkOptions, messages: Sequence[Staged], *, fingerprint: bytes) -> None:
    """Make the batch visible, once; returns when that is decided. May be repeated (V3).

    Raises FencedError if a newer run has taken over, BatchConflictError, StagingError, OptionError,
    RequestError.
    """
    _Commit(connect(options.connection), options, messages, fingerprint).run()


def abort(options: SinkOptions, identity: BatchIdentity) -> None:
    """Remove what was staged. On the broker there is nothing, or what a commit will settle."""
    with suppress(FencelogError):
        staging = staging_of(options)
        if staging is not None:
            staging.remove_run(identity)


class _LateError(FencelogError):
    """An attempt has not ended within the transaction timeout, or will not."""


class _Commit:
    """One batch's way into the topics."""

    def __init__(
        self, client: "Client", options: SinkOptions, messages: Sequence[Staged], fingerprint: bytes
    ) -> None:
        self._client = client
        self._options = options
        self._messages = messages
        self._identity = messages[0].identity
        self._fingerprint = fingerprint
        self._timeout_s = options.transaction_timeout_ms / 1000
        self._late_attempts = 0

    def run(self) -> None:
        lost: FencelogError | None = None
        for _ in range(ATTEMPTS_MAX):
            try:
                if self._attempt(is_first=lost is None):
                    self._remove_staged()
                    return
            except RequestError as error:
                if error.code not in LOST or not self._identity.query_id:
                    raise self._explained(error) from error
                lost = error
            except _LateError as error:
                if not self._identity.query_id:
                    raise self._too_slow() from error
                self._late_attempts += 1
                lost = error
            except StagingError as error:
                # A newer run may have removed the file: then the ledger says so.
                if isinstance(lost, StagingError):
                    raise
                lost = error
        raise FencedError(
            f"batch {self._identity.version} of app '{self._identity.app}': other drivers took its"
            f" transactional id {self._transactional_id} {ATTEMPTS_MAX} times ({lost}). See that"
            " one driver runs this query and nothing else uses this id, and start it again: it"
            " finds out whether the batch is there"
        )

    @property
    def _transactional_id(self) -> str:
        return PREFIX + self._identity.app

    def _attempt(self, *, is_first: bool) -> bool:
        """Take the transactional id, look, and write what is to be written; True if all is done."""
        transaction = self._client.run(
            lambda cluster: DriverTransaction.begin(
                cluster, self._transactional_id, self._options.transaction_timeout_ms
            )
        )
        if not self._identity.query_id:  # it has no app to be recognised by
            self._write(transaction, self._messages, None)
            if any(message.file is not None for message in self._messages):
                self._remove_left_behind()
            return True
        state = ledger_topic.read(
            self._client, self._options.connection.bootstrap_servers, self._identity.app
        )
        if state is None:
            return False  # another driver took the id since
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        verdict = judge(
            state,
            self._identity,
            self._fingerprint,
            takeover=self._options.takeover,
            now_ms=now_ms,
        )
        match verdict:
            case Replay(by):
                if is_first and self._options.batch is not None and by == self._identity.run_id:
                    raise written_by_this_run(self._identity)
                return True
            case Refuse(code):
                raise self._refused(code, state)
            case Register(driver):
                self._write(transaction, (), driver_record(self._identity.app, driver, now_ms))
                self._remove_left_behind()
                return False
            case Write():
                if self._late_attempts == LATE_MAX:
                    raise self._too_slow()
                record = batch_record(self._identity, self._fingerprint, now_ms)
                self._write(transaction, self._messages, record)
                return True
            case _:
                assert_never(verdict)

    def _write(
        self,
        transaction: DriverTransaction,
        messages: Sequence[Staged],
        record: RecordToWrite | None,
    ) -> None:
        """Write rows and record, and commit. Aborts where that fails, unless it is over anyway."""
        client = self._client
        try:
            written = staged.partitions(messages) | ({LEDGER} if record is not None else set())
            if not written:
                return
            client.run(lambda _: transaction.add(written))
            self._send(transaction, messages)
            if record is not None:
                client.run(lambda _: transaction.send([_of_ledger(record)]))
            client.run(lambda _: transaction.commit())
        except RequestError as error:
            if error.code in LOST and transaction.age_s >= self._timeout_s:
                raise _LateError(f"it timed out: {error}") from error
            if error.code not in LOST | RETRIABLE:
                self._abort()
            raise
        except FencelogError:
            self._abort()
            raise
        finally:
            client.run(lambda _: transaction.close())

    def _send(self, transaction: DriverTransaction, messages: Sequence[Staged]) -> None:
        """Send the batches to their leaders, all partitions at a time. Bounded memory."""
        total, sent = sum(each.size for each in messages), 0
        for group in _groups(self._batches(messages)):
            self._client.run(partial(_send, transaction, group))
            sent += sum(len(batch.buffer) for batch in group)
            acknowledged = sent - WAITING_BYTES_MAX
            if staged.is_too_slow(acknowledged, total, transaction.age_s, self._timeout_s):
                raise _LateError(f"it would not end within {self._timeout_s:g} s")

    def _batches(self, messages: Sequence[Staged]) -> Iterator[EncodedBatch]:
        for message in messages:
            if message.file is None:
                yield from staged.cut(message.pieces, message.data)
                continue
            staging = staging_of(self._options)
            assert staging is not None, "a task had one"
            with staging.open(message.file) as file:
                for piece in message.pieces:
                    yield staged.unsealed(piece, staging.read(file, piece.size))

    def _abort(self) -> None:
        """End the transaction with a new epoch, so that nothing in flight comes after the end.

        Without it readers would wait for its timeout, or for this query's next start.
        """
        with suppress(FencelogError, OSError):
            self._client.run(
                lambda cluster: DriverTransaction.begin(
                    cluster, self._transactional_id, self._options.transaction_timeout_ms
                )
            )

    # --- staged files

    def _remove_staged(self) -> None:
        if any(message.file is not None for message in self._messages):
            abort(self._options, self._identity)

    def _remove_left_behind(self) -> None:
        """Remove what killed drivers left, of a write without a number by its age."""
        with suppress(FencelogError):
            staging = staging_of(self._options)
            if staging is None:
                return
            if self._identity.query_id:
                staging.remove_other_runs(self._identity)
            else:
                staging.remove_old_writes(datetime.now(UTC))

    # --- errors

    def _refused(self, code: ErrorCode, state: AppState) -> FencelogError:
        identity = self._identity
        what = f"batch {identity.version} in {LEDGER.topic}"
        return explained(lambda: _described(identity.app, state), failure(code, what), identity)

    def _too_slow(self) -> OptionError:
        size = sum(each.size for each in self._messages)
        return OptionError(
            f"batch {self._identity.version} of app '{self._identity.app}' has {size >> 20} MiB,"
            f" too much to send within the transaction timeout of {self._timeout_s:g} s. Nothing of"
            " it is visible. Set option 'kafka.transaction.timeout.ms' higher (the broker's"
            " transaction.max.timeout.ms limits it), or make batches smaller"
            " (maxOffsetsPerTrigger), or compress them (kafka.compression.type)"
        )

    def _explained(self, error: RequestError) -> FencelogError:
        if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            check_timeout(self._options, timeout_ms_max(self._client))
        return access_explained(error, self._transactional_id)


async def _send(transaction: DriverTransaction, group: list[EncodedBatch], _: Cluster) -> None:
    await transaction.send(group)


def _of_ledger(record: RecordToWrite) -> EncodedBatch:
    encoded = build_batch([record])
    return EncodedBatch(
        partition=LEDGER,
        buffer=memoryview(encoded),
        count=1,
        compression=Compression.NONE,
        base_timestamp=record.timestamp_ms,
        max_timestamp=record.timestamp_ms,
    )


def _groups(batches: Iterator[EncodedBatch]) -> Iterator[list[EncodedBatch]]:
    """Batches in groups of some megabytes: one wait in the loop's thread for each."""
    group: list[EncodedBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += len(batch.buffer)
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _described(app: str, state: AppState) -> AppDescription:
    driver, last = state.driver, state.committed
    newest = None if driver is None else driver.newest
    return AppDescription(
        app=app,
        last_version=-1 if last is None else last.version,
        query_id=None if driver is None else driver.query_id,
        run_id=None if newest is None else newest.run_id,
        run_since_ms=-1 if newest is None else newest.since_ms,
        run_host=None if newest is None else newest.host or None,
        updated_ms=-1 if last is None else last.at_ms,
        open_version=-1,
        incarnation=-1,
        open_producers=(),
    )
