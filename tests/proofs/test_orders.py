"""Both crash orders happen without a transaction, and neither with one; a slice for each client."""

import pytest

from tests.proofs._orders_process import BEFORE_END, BETWEEN, OFFSETS_FIRST, OUTPUT_FIRST
from tests.proofs._orders_rig import CASES, CHUNK, Case, Result, run
from tests.support.broker import BrokerProcess

SLICE = ((OUTPUT_FIRST, BEFORE_END), (OFFSETS_FIRST, BETWEEN))


def of(*, is_transaction: bool) -> list[Case]:
    """Without a transaction all cases, with one as few as show something."""
    return [
        case
        for case in CASES
        if case.is_transaction == is_transaction
        and (not is_transaction or (case.order, case.killed) in SLICE)
    ]


def name_of(case: Case) -> str:
    return f"{case.client}-{case.order.partition(',')[0]}-{case.killed.replace(' ', '-')}"


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("case", of(is_transaction=False), ids=name_of)
def test_a_crash_between_output_and_offsets_duplicates_or_loses_records(
    case: Case, shared_broker: BrokerProcess, topic: str
) -> None:  # E11
    result = run(case, shared_broker.address, topic)
    expected = (CHUNK, 0) if case.order == OUTPUT_FIRST else (0, CHUNK)
    assert (result.doubled, result.lost) == expected


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("case", of(is_transaction=True), ids=name_of)
def test_a_crash_within_a_transaction_neither_duplicates_nor_loses_records(
    case: Case, shared_broker: BrokerProcess, topic: str
) -> None:  # E11
    result = run(case, shared_broker.address, topic)
    assert (result.doubled, result.lost, result.strange) == (0, 0, 0)


def test_a_result_is_expected_only_if_the_crash_cost_what_its_order_says() -> None:
    case = of(is_transaction=False)[0]
    assert Result(case=case, doubled=CHUNK, lost=0, strange=0).is_as_expected
    assert not Result(case=case, doubled=0, lost=0, strange=0).is_as_expected
    assert not Result(case=case, doubled=CHUNK, lost=1, strange=0).is_as_expected
