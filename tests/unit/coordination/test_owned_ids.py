"""Transactional ids of claims in the transaction shard (O8): fenced for ever, aborted at once."""

import pytest

from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.shard import Decision
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.transaction.state import ClientVersion, ProducerIdAndEpoch, TxnState
from fencelog.errors import ErrorCode
from fencelog.log.ownership import Owner
from fencelog.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from fencelog.wire.own import OWNED_PREFIX, coordinated_by, owned_id, producers_key
from tests.support.runtime import Runtime

KEY = producers_key("etl", "orders")
ORDERS = TopicPartition("orders", 0)
NONE, FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
UNKNOWN = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def owner(epoch: int, *, live: bool = True) -> Owner:
    return Owner("etl", epoch, f"s{epoch}", owned_id(KEY, epoch), "me", live)


@pytest.fixture
def runtime() -> Runtime[TransactionShard]:
    """A shard in which the claim of epoch 5 has producer 1 of epoch 0."""
    runtime = Runtime(TransactionShard)
    assert set_owner(runtime, owner(5)) is NONE
    assert init(runtime, owned_id(KEY, 5)) is NONE
    return runtime


def set_owner(runtime: Runtime[TransactionShard], new: Owner) -> ErrorCode:
    return runtime.append(runtime.shard.set_owner(KEY, new, wall_ms=runtime.wall_ms))


def init(runtime: Runtime[TransactionShard], transactional_id: str) -> ErrorCode:
    decision = runtime.shard.init_producer_id(
        transactional_id,
        60_000,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        new_producer_id=runtime.fresh_producer_id,
        wall_ms=runtime.wall_ms,
    )
    runtime.used(decision.response.producer_id)
    return runtime.append(decision).error


FIRST = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))


def add(
    runtime: Runtime[TransactionShard], epoch: int, producer: ProducerIdAndEpoch = FIRST
) -> ErrorCode:
    return runtime.append(
        runtime.shard.add_partitions(
            owned_id(KEY, epoch), *producer, [ORDERS], wall_ms=runtime.wall_ms
        )
    )


def end(
    runtime: Runtime[TransactionShard], epoch: int, version: ClientVersion = ClientVersion.V1
) -> ErrorCode:
    return runtime.append(
        runtime.shard.end_transaction(
            owned_id(KEY, epoch), *FIRST, True, client_version=version, wall_ms=runtime.wall_ms
        )
    ).error


def write_markers(runtime: Runtime[TransactionShard]) -> list[tuple[str, int, bool]]:
    """Report every outstanding marker as written; returns whose, of which epoch, and commit."""
    tasks = runtime.shard.outstanding_markers(runtime.committed)
    for task in tasks:
        runtime.append(
            runtime.shard.markers_written(
                task.transactional_id,
                task.producer_id,
                task.producer_epoch,
                task.partitions,
                wall_ms=runtime.wall_ms,
            )
        )
    return [(each.transactional_id, each.producer_epoch, each.commit) for each in tasks]


def test_all_epochs_of_a_name_meet_in_one_shard_and_other_ids_are_hashed_whole() -> None:
    assert {coordinated_by(owned_id(KEY, epoch)) for epoch in range(12)} == {KEY}
    assert coordinated_by("orders~17") == "orders~17"


@pytest.mark.parametrize(
    "transactional_id",
    [
        owned_id(KEY, 6),
        owned_id(producers_key("etl", "other"), 5),
        owned_id(producers_key(None, "orders"), 5),
        KEY,
        OWNED_PREFIX,
        KEY + "~",
        KEY + "~05",
        KEY + "~-1",
        KEY + "~5 ",
        KEY + "~\u0665",
        KEY + "~" + "9" * 5000,
    ],
)
def test_an_id_that_no_claim_was_given_is_refused(  # O8
    runtime: Runtime[TransactionShard], transactional_id: str
) -> None:
    assert init(runtime, transactional_id) is UNKNOWN
    assert runtime.shard.describe(transactional_id) is None


def test_an_older_id_is_fenced_for_ever(runtime: Runtime[TransactionShard]) -> None:  # O8
    set_owner(runtime, owner(6))
    runtime.advance(30 * 86_400)
    for _ in range(2):
        runtime.expire()
        runtime.crash()
    assert runtime.shard.describe(owned_id(KEY, 5)) is None
    assert init(runtime, owned_id(KEY, 5)) is FENCED
    assert init(runtime, owned_id(KEY, 4)) is FENCED
    assert add(runtime, 5) is FENCED
    assert end(runtime, 5) is FENCED
    assert end(runtime, 5, ClientVersion.V2) is FENCED
    assert runtime.shard.verify(owned_id(KEY, 5), *FIRST, ORDERS) is FENCED
    assert init(runtime, owned_id(KEY, 6)) is NONE


def test_the_id_of_a_claim_that_has_ended_is_fenced_at_once(
    runtime: Runtime[TransactionShard],
) -> None:
    add(runtime, 5)
    assert set_owner(runtime, owner(5, live=False)) is BUSY
    assert init(runtime, owned_id(KEY, 5)) is FENCED
    assert end(runtime, 5) is FENCED
    assert write_markers(runtime) == [(owned_id(KEY, 5), 1, False)]
    assert set_owner(runtime, owner(5, live=False)) is NONE
    assert set_owner(runtime, owner(5)) is NONE, "a late repeat of the grant"
    assert init(runtime, owned_id(KEY, 5)) is FENCED


def test_an_older_transaction_is_aborted_and_its_markers_are_awaited(
    runtime: Runtime[TransactionShard],
) -> None:  # O8
    add(runtime, 5)
    assert set_owner(runtime, owner(6)) is BUSY
    assert add(runtime, 5) is FENCED
    assert set_owner(runtime, owner(6)) is BUSY
    assert runtime.shard.set_owner(KEY, owner(6), wall_ms=runtime.wall_ms).records == ()
    assert write_markers(runtime) == [(owned_id(KEY, 5), 1, False)]
    repeated = runtime.shard.set_owner(KEY, owner(6), wall_ms=runtime.wall_ms)
    assert repeated == Decision((), NONE)
    found = runtime.shard.describe(owned_id(KEY, 5))
    assert found is not None
    assert found.state is TxnState.COMPLETE_ABORT
    assert runtime.shard.outcome(FIRST, ORDERS) is TransactionOutcome.ABORT  # E17


@pytest.mark.parametrize("version", list(ClientVersion))
def test_a_decided_commit_of_an_older_claim_is_completed(  # E7, E9
    runtime: Runtime[TransactionShard], version: ClientVersion
) -> None:
    add(runtime, 5)
    assert end(runtime, 5, version) is NONE
    assert set_owner(runtime, owner(6)) is BUSY
    assert runtime.shard.outcome(FIRST, ORDERS) is TransactionOutcome.LISTED  # E17
    epoch = 1 if version is ClientVersion.V2 else 0
    assert write_markers(runtime) == [(owned_id(KEY, 5), epoch, True)]
    assert set_owner(runtime, owner(6)) is NONE
    assert runtime.shard.outcome(FIRST, ORDERS) is TransactionOutcome.COMMIT


def test_the_live_claims_transaction_and_those_of_others_go_on(
    runtime: Runtime[TransactionShard],
) -> None:
    add(runtime, 5)
    assert set_owner(runtime, owner(5)) is NONE
    other = producers_key("etl", "other")
    stranger = owner(9)._replace(transactional_id=owned_id(other, 9))
    assert runtime.append(runtime.shard.set_owner(other, stranger, wall_ms=runtime.wall_ms)) is NONE
    assert end(runtime, 5) is NONE


def test_a_lower_epoch_changes_nothing(runtime: Runtime[TransactionShard]) -> None:  # O3
    add(runtime, 5)
    lower = runtime.shard.set_owner(KEY, owner(4, live=False), wall_ms=runtime.wall_ms)
    assert lower == Decision((), FENCED)
    assert end(runtime, 5) is NONE


def test_the_end_of_an_older_claim_awaits_its_markers_though_a_newer_one_has_its_name(
    runtime: Runtime[TransactionShard],
) -> None:  # O8
    add(runtime, 5)
    assert set_owner(runtime, owner(6)) is BUSY
    ended = runtime.shard.set_owner(KEY, owner(5, live=False), wall_ms=runtime.wall_ms)
    assert ended == Decision((), BUSY)
    assert write_markers(runtime) == [(owned_id(KEY, 5), 1, False)]
    init(runtime, owned_id(KEY, 6))
    assert add(runtime, 6, ProducerIdAndEpoch(ProducerId(2), ProducerEpoch(0))) is NONE
    assert set_owner(runtime, owner(7)) is BUSY
    assert set_owner(runtime, owner(6, live=False)) is BUSY
    assert set_owner(runtime, owner(5, live=False)) is FENCED, "it waits for its own only"


def test_set_owner_repeated_after_a_crash_anywhere_ends_the_same(
    runtime: Runtime[TransactionShard],
) -> None:  # O9
    add(runtime, 5)
    before = len(runtime.log)
    for kept in range(before, before + 4):
        del runtime.log[before:]
        runtime.crash()
        set_owner(runtime, owner(6))
        write_markers(runtime)
        runtime.crash(keep=kept)
        while set_owner(runtime, owner(6)) is BUSY:
            assert write_markers(runtime) == [(owned_id(KEY, 5), 1, False)]
        assert init(runtime, owned_id(KEY, 5)) is FENCED
        assert init(runtime, owned_id(KEY, 6)) is NONE
