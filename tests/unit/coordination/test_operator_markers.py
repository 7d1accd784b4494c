"""What a marker from outside may do, case by case (E14, E17; ADR 10)."""

import pytest

from fencelog.coordination.operator_markers import validate_operator_marker
from fencelog.coordination.outcome import TransactionOutcome
from fencelog.errors import ErrorCode
from fencelog.log.values import MarkerToWrite, ProducerView
from tests.support.log import abort, commit, marker

OPEN = ProducerView(7, 3, 4, 0, 2, 100)
FIRST = ProducerView(7, 3, 4, 0, -1, 100)
IDLE = ProducerView(7, 3, 4, 0, 2, None)


@pytest.mark.parametrize("outcome", [TransactionOutcome.ABORT, TransactionOutcome.UNKNOWN])
def test_a_transaction_that_no_coordinator_lists_is_aborted_in_its_epoch(
    outcome: TransactionOutcome,
) -> None:  # E17
    assert validate_operator_marker(abort(7, 3, 2), outcome, OPEN) == abort(7, 3, 2)


def test_what_is_decided_is_ended_as_decided() -> None:  # E17
    assert validate_operator_marker(commit(7, 3, 2), TransactionOutcome.COMMIT, OPEN) == commit(
        7, 3, 2
    )
    assert (
        validate_operator_marker(abort(7, 3, 2), TransactionOutcome.COMMIT, OPEN)
        is ErrorCode.INVALID_TXN_STATE
    )


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("state", [OPEN, IDLE, None])
def test_what_its_coordinator_lists_is_left_alone(
    commits: bool, state: ProducerView | None
) -> None:  # E14
    asked = marker(7, 3, 2, commit=commits)
    assert (
        validate_operator_marker(asked, TransactionOutcome.LISTED, state)
        is ErrorCode.INVALID_TXN_STATE
    )


@pytest.mark.parametrize("outcome", [TransactionOutcome.ABORT, TransactionOutcome.UNKNOWN])
@pytest.mark.parametrize("state", [OPEN, IDLE, None])
def test_no_operator_marker_commits_what_no_coordinator_committed(
    outcome: TransactionOutcome, state: ProducerView | None
) -> None:  # E14
    assert validate_operator_marker(commit(7, 3, 2), outcome, state) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("asked", "state", "error"),
    [
        (abort(7, 2, 2), OPEN, ErrorCode.INVALID_PRODUCER_EPOCH),
        (abort(7, 2, 2), IDLE, ErrorCode.INVALID_PRODUCER_EPOCH),
        (abort(7, 4, 2), OPEN, ErrorCode.INVALID_PRODUCER_EPOCH),
        (abort(7, 3, 1), OPEN, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (abort(7, 3, 1), IDLE, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    ],
)
def test_epochs_are_held_against_the_open_transaction(
    asked: MarkerToWrite, state: ProducerView, error: ErrorCode
) -> None:  # E2, E17
    assert validate_operator_marker(asked, TransactionOutcome.UNKNOWN, state) is error


@pytest.mark.parametrize(
    ("asked", "state"), [(abort(7, 3, 2), IDLE), (abort(7, 9, 2), IDLE), (abort(7, 3, 2), None)]
)
def test_where_nothing_is_open_nothing_is_written(
    asked: MarkerToWrite, state: ProducerView | None
) -> None:
    assert validate_operator_marker(asked, TransactionOutcome.UNKNOWN, state) is None


@pytest.mark.parametrize(("state", "written"), [(OPEN, 2), (FIRST, 0)])
def test_a_clients_coordinator_epoch_never_shuts_the_coordinator_out(
    state: ProducerView, written: int
) -> None:  # E17
    assert validate_operator_marker(
        abort(7, 3, 2**31 - 1), TransactionOutcome.UNKNOWN, state
    ) == abort(7, 3, written)
