"""The versioned shard's bounds, late reports and numbering; the rest is transcripts."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.shard import Decision, LogRecord
from fencelog.coordination.versioned.answers import JoinResult, VersionedLimits
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.coordination.versioned.state import NO_VERSION, Caller
from fencelog.coordination.versioned.table import VersionedTable
from fencelog.errors import CorruptionError, ErrorCode
from fencelog.types import (
    NO_PRODUCER_ID,
    CoordinatorEpoch,
    Instant,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from tests.support.runtime import Runtime

OUT = TopicPartition("out", 0)
MORE = TopicPartition("out", 1)
FIRST_EPOCH = ProducerEpoch(0)


def caller(run_id: str = "r1", version: int = 0, *, app: str = "etl", query: str = "q") -> Caller:
    return Caller(app=app, query_id=query, run_id=run_id, version=version)


def small(coordinator_epoch: CoordinatorEpoch) -> VersionedShard:
    limits = VersionedLimits(
        apps_max=1,
        producers_max=2,
        partitions_max=2,
        runs_max=2,
        name_bytes_max=4,
        fingerprint_bytes_max=4,
    )
    return VersionedShard(coordinator_epoch, limits)


@pytest.fixture
def runtime() -> Runtime[VersionedShard]:
    """A small shard."""
    return Runtime(small)


def join(runtime: Runtime[VersionedShard], who: Caller) -> JoinResult:
    decision = runtime.shard.join(
        who,
        timeout_ms=60_000,
        new_producer_id=runtime.fresh_producer_id,
        wall_ms=runtime.wall_ms,
    )
    runtime.used(decision.response.producer_id)
    return runtime.append(decision)


def commit(
    runtime: Runtime[VersionedShard], who: Caller, *named: int, fingerprint: bytes = b"a"
) -> ErrorCode:
    producer_ids = [ProducerId(each) for each in named]
    return runtime.append(
        runtime.shard.commit(who, fingerprint, producer_ids, wall_ms=runtime.wall_ms)
    )


def add_partitions(
    runtime: Runtime[VersionedShard], producer_id: int, *at: TopicPartition
) -> ErrorCode:
    return runtime.append(runtime.shard.add_partitions(ProducerId(producer_id), FIRST_EPOCH, *at))


def written(runtime: Runtime[VersionedShard], incarnation: int, *at: TopicPartition) -> int:
    decision = runtime.shard.markers_written("etl", incarnation, at)
    runtime.append(decision)
    return len(decision.records)


BOUNDS: dict[str, tuple[ErrorCode, Callable[[Runtime[VersionedShard]], ErrorCode]]] = {
    "apps": (
        ErrorCode.POLICY_VIOLATION,
        lambda it: join(it, caller(app="more")).error,
    ),
    "apps, by an empty commit": (
        ErrorCode.POLICY_VIOLATION,
        lambda it: commit(it, caller(app="more")),
    ),
    "producers": (
        ErrorCode.POLICY_VIOLATION,
        lambda it: [join(it, caller()).error for _ in range(2)][-1],
    ),
    "partitions": (
        ErrorCode.POLICY_VIOLATION,
        lambda it: add_partitions(it, 1, OUT, MORE, TopicPartition("out", 2)),
    ),
    "app's name": (ErrorCode.INVALID_REQUEST, lambda it: join(it, caller(app="etlxx")).error),
    "query's name": (ErrorCode.INVALID_REQUEST, lambda it: join(it, caller(query="x" * 5)).error),
    "run's name": (ErrorCode.INVALID_REQUEST, lambda it: join(it, caller("\u00e9" * 3)).error),
    "no name": (ErrorCode.INVALID_REQUEST, lambda it: join(it, caller(app="")).error),
    "fingerprint": (
        ErrorCode.INVALID_REQUEST,
        lambda it: commit(it, caller(), 1, fingerprint=b"12345"),
    ),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_beyond_a_bound_the_answer_is_a_refusal_and_nothing_happens(
    runtime: Runtime[VersionedShard], bound: str
) -> None:
    expected, exceed = BOUNDS[bound]
    join(runtime, caller())
    assert exceed(runtime) is expected
    assert add_partitions(runtime, 1, OUT) is ErrorCode.NONE
    assert commit(runtime, caller(), 1) is ErrorCode.NONE


def test_a_producer_of_another_epoch_is_not_enlisted(runtime: Runtime[VersionedShard]) -> None:
    join(runtime, caller())
    decision = runtime.shard.add_partitions(ProducerId(1), ProducerEpoch(1), OUT)
    assert decision == Decision((), ErrorCode.INVALID_PRODUCER_EPOCH)


def test_the_oldest_run_beyond_the_bound_is_forgotten_and_commits_nothing_twice(
    runtime: Runtime[VersionedShard],
) -> None:  # V2, V3
    for run_id in ("r1", "r2", "r3"):
        assert join(runtime, caller(run_id)).error is ErrorCode.NONE
    assert commit(runtime, caller("r3"), 3) is ErrorCode.NONE
    assert join(runtime, caller("r2", 1)).error is ErrorCode.RUN_FENCED
    # The zombie of the forgotten run becomes the driver, and finds its version committed.
    assert join(runtime, caller("r1")).error is ErrorCode.ALREADY_COMMITTED
    assert commit(runtime, caller("r1"), 1, fingerprint=b"z") is ErrorCode.VERSION_CONFLICT


@pytest.mark.parametrize(
    ("version", "expected"),
    [(4, ErrorCode.STALE_VERSION), (5, ErrorCode.NONE), (6, ErrorCode.VERSION_GAP)],
)
def test_a_run_goes_on_with_the_first_version_that_it_opened(
    runtime: Runtime[VersionedShard], version: int, expected: ErrorCode
) -> None:  # V3
    join(runtime, caller(version=5))
    assert join(runtime, caller(version=version)).error is expected
    assert commit(runtime, caller(version=version)) is expected


def test_another_run_may_begin_at_another_first_version(
    runtime: Runtime[VersionedShard],
) -> None:  # V3
    join(runtime, caller("r1", 5))
    assert join(runtime, caller("r2", 3)).error is ErrorCode.NONE


def test_a_late_report_of_an_older_incarnations_markers_ends_nothing(
    runtime: Runtime[VersionedShard],
) -> None:  # V1, E17
    join(runtime, caller())
    add_partitions(runtime, 1, OUT)
    runtime.append(runtime.shard.abort(caller(), wall_ms=runtime.wall_ms))
    written(runtime, 1, OUT)
    join(runtime, caller())
    add_partitions(runtime, 2, OUT)
    commit(runtime, caller(), 2)
    assert written(runtime, 1, OUT) == 0
    assert [group.incarnation for group in runtime.shard.outstanding_markers(Offset(99))] == [2]
    assert written(runtime, 2, OUT) > 0
    assert written(runtime, 2, OUT) == 0


def test_progress_does_not_hide_markers_until_it_is_committed(
    runtime: Runtime[VersionedShard],
) -> None:  # E16
    join(runtime, caller())
    add_partitions(runtime, 1, OUT, MORE)
    commit(runtime, caller(), 1)
    decided = runtime.committed
    written(runtime, 1, OUT)
    owed = [group.partition for group in runtime.shard.outstanding_markers(decided)]
    assert owed == [MORE]


def test_who_takes_over_begins_with_nothing_of_the_query_before(  # V4
    runtime: Runtime[VersionedShard],
) -> None:
    join(runtime, caller())
    assert commit(runtime, caller()) is ErrorCode.NONE
    join(runtime, replace(caller("r2", query="q2"), takeover=True))
    app = runtime.shard._table.apps["etl"]
    assert (app.query_id, app.last_version, app.fingerprint) == ("q2", NO_VERSION, b"")


def test_the_runs_of_an_app_are_numbered_from_1() -> None:
    table = VersionedTable()
    assert table.next_ordinal("etl") == 1


def test_a_renewal_by_a_run_that_never_came_does_not_prolong_anothers_transaction(
    runtime: Runtime[VersionedShard],
) -> None:  # V2, V7
    join(runtime, caller())
    decision = runtime.shard.renew(caller("r2"), runtime.now)
    assert decision == Decision((), ErrorCode.TRANSACTION_ABORTED)


def test_an_abort_takes_nothing_over(runtime: Runtime[VersionedShard]) -> None:  # V4
    join(runtime, caller())
    thief = Caller(app="etl", query_id="q2", run_id="r2", version=0, takeover=True)
    decision = runtime.shard.abort(thief, wall_ms=runtime.wall_ms)
    assert decision == Decision((), ErrorCode.APP_IN_USE)


def test_recovery_learns_what_becomes_of_an_open_transaction(
    runtime: Runtime[VersionedShard],
) -> None:  # E17
    join(runtime, caller())
    add_partitions(runtime, 1, OUT)
    outcome = runtime.shard.outcome
    assert outcome(ProducerId(1), OUT) is TransactionOutcome.LISTED
    assert outcome(ProducerId(1), MORE) is TransactionOutcome.ABORT
    assert outcome(ProducerId(2), OUT) is TransactionOutcome.UNKNOWN


def test_the_highest_producer_id_is_known_while_its_transaction_is(
    runtime: Runtime[VersionedShard],
) -> None:  # E7
    assert runtime.shard.highest_producer_id() == NO_PRODUCER_ID
    join(runtime, caller())
    join(runtime, caller())
    assert runtime.shard.highest_producer_id() == 2


def test_the_deadline_is_that_of_the_oldest_open_incarnation(
    runtime: Runtime[VersionedShard],
) -> None:  # V7
    assert runtime.shard.next_deadline() is None
    join(runtime, caller())
    assert runtime.shard.next_deadline() == Instant(runtime.now + 60)


def test_an_idle_batch_write_has_a_deadline_too(runtime: Runtime[VersionedShard]) -> None:  # V4
    commit(runtime, caller(query=""))
    assert runtime.shard.next_deadline() == Instant(runtime.now + 7 * 24 * 3600)


@pytest.mark.parametrize(
    "record",
    [
        LogRecord(b"\x00\x07", b""),
        LogRecord(b"\x00\x00\x00\x03etl", b"\x00\x09"),
        LogRecord(b"\x00\x02" + bytes(7), None),
    ],
)
def test_a_foreign_record_is_damage(record: LogRecord) -> None:
    shard = VersionedShard(CoordinatorEpoch(1))
    with pytest.raises(CorruptionError):
        shard.replay(record, Offset(0), Instant(0))
