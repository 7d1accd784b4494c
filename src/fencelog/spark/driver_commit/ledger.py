"""What is known of an app on a broker without versioned transactions, and what follows from it.

The ledger is the content of one compacted topic. Of each app it keeps two records: who drives it
(``run``), and the last batch that was committed (``batch``). The second is written in the same
Kafka transaction as the batch's rows.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from fencelog.errors import ErrorCode
from fencelog.spark.identity import BatchIdentity
from fencelog.types import TopicPartition
from fencelog.wire.batch import iterate
from fencelog.wire.control import read_marker
from fencelog.wire.records import RecordToWrite, read_records

LEDGER: Final = TopicPartition("__fencelog_batches", 0)
"""One partition, so that no app's records are lost sight of when somebody adds partitions."""
LEDGER_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    # A driver that starts reads all of it, and only closed segments are compacted.
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
RUNS_MAX: Final = 100
"""Runs that are kept of one app. An older one would be taken for a new one; the version and its
fingerprint still keep it from committing anything twice."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One start of the query: when its first batch was written (ms since 1970), and where."""

    run_id: str
    since_ms: int
    host: str


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The query that an app belongs to, and its runs, the newest last."""

    query_id: str
    runs: tuple[Run, ...]

    @property
    def newest(self) -> Run:
        """The run that drives the app."""
        return self.runs[-1]


@dataclass(frozen=True, kw_only=True)
class Committed:
    """The last batch that was committed."""

    query_id: str
    run_id: str
    version: int
    fingerprint: bytes
    at_ms: int


@dataclass(frozen=True, kw_only=True)
class AppState:
    """All that the ledger has of one app."""

    driver: Driver | None = None
    committed: Committed | None = None


@dataclass(frozen=True)
class Replay:
    """The batch is committed already, by the run ``by``: nothing is to be written."""

    by: str


@dataclass(frozen=True)
class Register:
    """This run is new: it has to become the app's driver before it writes anything."""

    driver: Driver


@dataclass(frozen=True)
class Write:
    """The batch is the next one, and this run drives the app."""


@dataclass(frozen=True)
class Refuse:
    """The run may not write this batch."""

    code: ErrorCode


Judgement: TypeAlias = Replay | Register | Write | Refuse


def judge(
    state: AppState,
    identity: BatchIdentity,
    fingerprint: bytes,
    *,
    takeover: bool,
    now_ms: int,
) -> Judgement:
    """What becomes of a batch, by the rules of our own broker (V2 to V4).

    It holds for a transaction that began before the ledger was read: until another producer takes
    the transactional id, nobody else can have changed the ledger.
    """
    driver = state.driver
    runs = () if driver is None else driver.runs
    if driver is not None and driver.query_id != identity.query_id and not takeover:
        return Refuse(ErrorCode.APP_IN_USE)
    is_owner = driver is not None and driver.query_id == identity.query_id
    is_newest = is_owner and runs[-1].run_id == identity.run_id
    if not is_newest and any(run.run_id == identity.run_id for run in runs):
        return Refuse(ErrorCode.RUN_FENCED)
    last = state.committed
    if last is not None and last.query_id == identity.query_id and is_owner:
        refused = _validate_version(last, identity, fingerprint)
        if refused is not None:
            return refused
    if is_newest:
        return Write()
    new = Run(run_id=identity.run_id, since_ms=now_ms, host=identity.host)
    return Register(Driver(query_id=identity.query_id, runs=(*runs, new)[-RUNS_MAX:]))


def _validate_version(
    last: Committed, identity: BatchIdentity, fingerprint: bytes
) -> Judgement | None:
    """V3: the batch again, another batch of that number, an earlier one, or one too far ahead."""
    if identity.version == last.version:
        if fingerprint == last.fingerprint:
            return Replay(last.run_id)
        return Refuse(ErrorCode.VERSION_CONFLICT)
    if identity.version < last.version:
        return Refuse(ErrorCode.STALE_VERSION)
    if identity.version > last.version + 1 and not identity.allow_gaps:
        return Refuse(ErrorCode.VERSION_GAP)
    return None


def driver_record(app: str, driver: Driver, now_ms: int) -> RecordToWrite:
    """The record that makes a run the app's driver."""
    runs = [[run.run_id, run.since_ms, run.host] for run in driver.runs]
    return _record("run", app, {"query": driver.query_id, "runs": runs}, now_ms)


def batch_record(identity: BatchIdentity, fingerprint: bytes, now_ms: int) -> RecordToWrite:
    """The record that says that a batch is committed."""
    content = {
        "query": identity.query_id,
        "run": identity.run_id,
        "version": identity.version,
        "fingerprint": fingerprint.hex(),
        "at_ms": now_ms,
    }
    return _record("batch", identity.app, content, now_ms)


def _record(kind: str, app: str, content: Mapping[str, object], now_ms: int) -> RecordToWrite:
    return RecordToWrite(json.dumps([kind, app]).encode(), json.dumps(content).encode(), now_ms)


@dataclass
class LedgerScan:
    """One app's state from the ledger's batches, read at any isolation, in their order.

    What a transaction wrote counts when its commit marker is met. So the answer does not wait for
    the transactions of other apps, as a reader at ``read_committed`` would.
    """

    app: str
    state: AppState = AppState()
    _open: dict[int, AppState] = field(default_factory=dict)
    """The state after each open transaction that changes it, by producer id."""

    @property
    def is_settled(self) -> bool:
        """Whether no transaction that changes this app was open at the end."""
        return not self._open

    def feed(self, records: memoryview) -> None:
        """Go on with the next batches. Raises WireError, or ValueError for what nobody of us wrote.

        A partial batch at the end is left out.
        """
        for header, batch in iterate(records):
            if header.is_control:
                after = self._open.pop(header.producer_id, None)
                if after is not None and read_marker(batch).commit:
                    self.state = after
            elif header.is_transactional and header.record_count:
                for record in read_records(batch):
                    self._record(header.producer_id, record.key, record.value)

    def _record(self, producer_id: int, key: bytes | None, value: bytes | None) -> None:
        before = self._open.get(producer_id, self.state)
        if value is None:
            return
        if key == json.dumps(["run", self.app]).encode():
            self._open[producer_id] = replace(before, driver=_read_driver(json.loads(value)))
        elif key == json.dumps(["batch", self.app]).encode():
            self._open[producer_id] = replace(before, committed=_read_committed(json.loads(value)))


def _read_driver(content: Any) -> Driver:  # noqa: ANN401  (of JSON)
    runs = tuple(Run(run_id=name, since_ms=ms, host=host) for name, ms, host in content["runs"])
    return Driver(query_id=content["query"], runs=runs)


def _read_committed(content: Any) -> Committed:  # noqa: ANN401
    return Committed(
        query_id=content["query"],
        run_id=content["run"],
        version=content["version"],
        fingerprint=bytes.fromhex(content["fingerprint"]),
        at_ms=content["at_ms"],
    )
