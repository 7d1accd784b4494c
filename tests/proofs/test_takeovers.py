"""A slice of ``./dev prove takeovers``, and that its checks find what they must."""

import random
from pathlib import Path

import pytest

from tests.proofs._takeovers_rig import STRIKES, run

SLICE = [STRIKES[number] for number in (0, 3, 6)]


@pytest.mark.slow
@pytest.mark.conformance
def test_nothing_of_a_replaced_owner_is_behind_the_next_ones_fence(tmp_path: Path) -> None:  # O8
    verdict = run(tmp_path, takeovers=len(SLICE), seed=random.randrange(10**6), strikes=SLICE)
    assert verdict.problems == []
    assert len(verdict.takeovers) == len(SLICE)
    assert verdict.accepted > 0
    assert verdict.refused > 0
