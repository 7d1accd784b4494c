"""A slice of ``./dev prove bytes``: every fault of a kind somewhere, in each recorded stop."""

import asyncio

import pytest

from tests.proofs._bytes_check import MOVED, OUTCOMES
from tests.proofs._bytes_history import all_left
from tests.proofs.bytes import count, try_out

PART = 37


@pytest.mark.slow
def test_no_byte_that_is_lost_or_flipped_is_served_for_another() -> None:  # D1, D3, E15
    counts = count(PART)
    assert counts.problems == []
    assert {what for _, _, what in counts.outcomes} | {MOVED} == set(OUTCOMES)
    moved = sum(n for (_, _, what), n in counts.outcomes.items() if what == MOVED)
    assert moved < 0.001 * sum(counts.outcomes.values())


def test_a_start_from_real_files_gives_the_same_result() -> None:  # D3
    left = next(each for each in all_left() if each.name == "everything")
    counts = asyncio.run(try_out(left, 1009, on_disk=True))
    assert counts.on_disk > 20
    assert counts.problems == []
