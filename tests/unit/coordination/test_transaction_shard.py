"""The transaction shard: bounds, late reports, codes by API version; the rest is transcripts."""

import pytest

from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.shard import Decision, LogRecord
from fencelog.coordination.transaction.records import write_key
from fencelog.coordination.transaction.shard import (
    InitResult,
    TransactionLimits,
    TransactionShard,
    for_client,
)
from fencelog.coordination.transaction.state import ClientVersion, ProducerIdAndEpoch, TxnState
from fencelog.errors import CorruptionError, ErrorCode
from fencelog.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    CoordinatorEpoch,
    Instant,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from tests.support.runtime import Runtime

ORDERS = TopicPartition("orders", 0)
PAY = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))


def small(coordinator_epoch: CoordinatorEpoch) -> TransactionShard:
    return TransactionShard(
        coordinator_epoch, TransactionLimits(transactional_ids_max=1, partitions_max=2)
    )


@pytest.fixture
def runtime() -> Runtime[TransactionShard]:
    """A small shard that knows ``pay`` as producer 1, epoch 0."""
    runtime = Runtime(small)
    init(runtime, "pay")
    return runtime


def init(runtime: Runtime[TransactionShard], transactional_id: str) -> InitResult:
    decision = runtime.shard.init_producer_id(
        transactional_id,
        60_000,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        new_producer_id=runtime.fresh_producer_id,
        wall_ms=runtime.wall_ms,
    )
    runtime.used(decision.response.producer_id)
    return runtime.append(decision)


def add(runtime: Runtime[TransactionShard], *partitions: TopicPartition) -> ErrorCode:
    return runtime.append(
        runtime.shard.add_partitions("pay", *PAY, partitions, wall_ms=runtime.wall_ms)
    )


@pytest.mark.parametrize(
    ("error", "knows_fenced", "expected"),
    [
        (ErrorCode.PRODUCER_FENCED, True, ErrorCode.PRODUCER_FENCED),
        (ErrorCode.PRODUCER_FENCED, False, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.NONE, False, ErrorCode.NONE),
    ],
)
def test_an_old_client_learns_of_fencing_by_the_code_it_knows(
    error: ErrorCode, knows_fenced: bool, expected: ErrorCode
) -> None:  # E2
    assert for_client(error, knows_fenced=knows_fenced) is expected


def test_a_transactional_id_too_many_is_refused(runtime: Runtime[TransactionShard]) -> None:
    assert init(runtime, "other").error is ErrorCode.POLICY_VIOLATION
    assert init(runtime, "pay").error is ErrorCode.NONE


def test_an_empty_transactional_id_is_no_id(runtime: Runtime[TransactionShard]) -> None:
    assert init(runtime, "").error is ErrorCode.INVALID_REQUEST


def test_a_partition_too_many_is_refused_and_the_transaction_goes_on(
    runtime: Runtime[TransactionShard],
) -> None:
    one, two = TopicPartition("orders", 1), TopicPartition("orders", 2)
    assert add(runtime, ORDERS, one) is ErrorCode.NONE
    assert add(runtime, two) is ErrorCode.POLICY_VIOLATION
    assert add(runtime, one) is ErrorCode.NONE


def test_a_late_report_of_an_older_epochs_markers_completes_nothing(
    runtime: Runtime[TransactionShard],
) -> None:  # E17
    add(runtime, ORDERS)
    init(runtime, "pay")
    stale = runtime.shard.markers_written("pay", *PAY, [ORDERS], wall_ms=runtime.wall_ms)
    assert stale == Decision((), None)
    unknown = runtime.shard.markers_written("x", *PAY, [ORDERS], wall_ms=runtime.wall_ms)
    assert unknown == Decision((), None)


@pytest.mark.parametrize("version", list(ClientVersion))
def test_markers_of_version_2_have_the_epoch_above_that_of_their_data(  # E14
    runtime: Runtime[TransactionShard], version: ClientVersion
) -> None:
    shard, clock = runtime.shard, {"client_version": version, "wall_ms": runtime.wall_ms}
    runtime.append(shard.add_partitions("pay", *PAY, [ORDERS], **clock))
    runtime.append(shard.end_transaction("pay", *PAY, True, **clock))
    (task,) = runtime.shard.outstanding_markers(runtime.committed)
    assert task.commit
    assert task.is_bumped is (version is ClientVersion.V2)
    assert task.producer_epoch == PAY.producer_epoch + task.is_bumped


def test_a_forgotten_id_leaves_nothing_behind(runtime: Runtime[TransactionShard]) -> None:
    add(runtime, ORDERS)
    runtime.shard.replay(LogRecord(write_key("pay"), None), Offset(9), runtime.now)
    assert runtime.shard.describe("pay") is None
    assert runtime.shard.transactions() == ()
    assert runtime.shard.next_deadline() is None
    assert runtime.shard.highest_producer_id() == NO_PRODUCER_ID
    assert runtime.shard.outcome(PAY, ORDERS) is TransactionOutcome.UNKNOWN


def test_the_deadline_is_that_of_the_oldest_open_transaction(
    runtime: Runtime[TransactionShard],
) -> None:  # E12
    assert runtime.shard.next_deadline() is None
    add(runtime, ORDERS)
    assert runtime.shard.next_deadline() == Instant(runtime.now + 60)


def test_the_highest_producer_id_counts_previous_ones_too() -> None:  # E7
    runtime = Runtime(TransactionShard)
    decision = runtime.shard.init_producer_id(
        "lost",
        60_000,
        ProducerId(77),
        ProducerEpoch(5),
        new_producer_id=ProducerId(3),
        wall_ms=TimestampMs(0),
    )
    runtime.append(decision)
    assert runtime.shard.highest_producer_id() == 77


def test_a_foreign_record_is_damage() -> None:
    shard = TransactionShard(CoordinatorEpoch(1))
    with pytest.raises(CorruptionError):
        shard.replay(LogRecord(b"\x00\x07", b""), Offset(0), Instant(0))


@pytest.mark.parametrize(
    ("state", "name"),
    [(TxnState.PREPARE_COMMIT, "PrepareCommit"), (TxnState.EMPTY, "Empty")],
)
def test_states_have_kafkas_names(state: TxnState, name: str) -> None:  # E9
    assert state.kafka_name == name
