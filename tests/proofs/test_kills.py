"""A slice of ``./dev prove kills``, and that its checks find what they must."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.proofs import _broker_kills as broker_part
from tests.proofs._compare import Written, compare_plain, compare_transactions
from tests.proofs.kills import find_by_broker_kills
from tests.support.faults import load
from tests.support.found import look_for


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize(("durability", "kills"), [("os", 3), ("fsync", 2)])
def test_a_repeatedly_killed_broker_loses_duplicates_and_moves_nothing(
    durability: str, kills: int, tmp_path: Path
) -> None:  # D1, E4, E13, E15
    seed = random.randrange(10**6)
    verdict = broker_part.run(tmp_path / "data", kills=kills, seed=seed, durability=durability)
    assert verdict.problems == (), verdict
    assert verdict.kills == kills
    assert verdict.acknowledged > 0
    assert verdict.committed > 0


@pytest.mark.slow
@pytest.mark.conformance
def test_the_proof_finds_a_fault() -> None:
    fault = load("abort-marked-as-commit")
    (argument,) = fault.arguments("kills")
    found = look_for(fault, argument, find_by_broker_kills, seed=1)
    assert any("was aborted and is visible" in each for each in found.problems)


Records = Mapping[int, list[tuple[int, bytes]]]
SOUND: Records = {0: [(0, b"0"), (1, b"2")], 1: [(0, b"1")]}
ACKNOWLEDGED = {0: (0, 0), 1: (1, 0), 2: (0, 1)}


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({0: [(0, b"0"), (1, b"2")]}, "is lost"),
        ({**SOUND, 1: [(0, b"1"), (1, b"1")]}, "is there twice"),
        ({**SOUND, 0: [(0, b"2"), (1, b"0")]}, "out of order"),
        ({**SOUND, 1: [(1, b"1")]}, "was acknowledged at"),
        ({**SOUND, 2: [(0, b"77")]}, "was never sent"),
    ],
)
def test_a_fault_among_plain_records_is_named(found: Records, problem: str) -> None:
    written = Written(plain=ACKNOWLEDGED, sent_plain=3)
    assert compare_plain(written, SOUND) == []
    assert any(problem in each for each in compare_plain(written, found))


def of_transaction(number: int, *indexes: int) -> list[tuple[int, bytes]]:
    return [(index, b'{"txn": %d, "index": %d}' % (number, index)) for index in indexes]


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({0: of_transaction(1, 0)}, "is torn"),
        ({0: of_transaction(1, 0, 1), 1: of_transaction(1, 1)}, "or duplicated"),
        ({0: of_transaction(1, 0, 1), 1: of_transaction(2, 0, 1)}, "was aborted and is visible"),
        ({}, "was committed and is lost"),
        ({0: of_transaction(1, 0, 1), 1: of_transaction(9, 0, 1)}, "was never sent"),
        ({0: of_transaction(1, 1, 0)}, "out of order"),
    ],
)
def test_a_fault_among_transactions_is_named(found: Records, problem: str) -> None:
    written = Written(committed={1}, aborted={2}, unknown={3})
    sound = {0: of_transaction(1, 0, 1), 1: of_transaction(3, 0, 1)}
    assert compare_transactions(written, sound, 2) == ([], 1)
    assert any(problem in each for each in compare_transactions(written, found, 2)[0])
