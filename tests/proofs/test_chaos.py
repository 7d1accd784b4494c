"""A slice of ``./dev prove chaos``, and that its proxy delivers old messages late."""

import random
from pathlib import Path

import pytest

from tests.proofs._chaos_chapter import Script, play
from tests.proofs._chaos_check import check_chapter
from tests.proofs._chaos_nemesis import FAULTS, number_of, plan
from tests.proofs._chaos_shorts import SMALL
from tests.support.loops import CHOSEN, REAL

SLICE_S = 12.0
SLICE_GAP_S = 0.5
FAULTS_MIN = 4


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("loop", REAL)
def test_chaos_of_processes_network_and_disk_shows_no_anomaly(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # D1, D2, E4, E7, E10, E13, E14, E15
    monkeypatch.setenv(CHOSEN, loop)
    script = Script(
        number=1,
        workload="queue",
        durability="fsync",
        seed=f"slice-{random.randrange(10**6)}",
        seconds=SLICE_S,
        gap_s=SLICE_GAP_S,
        faults_min=FAULTS_MIN,
        scale=SMALL,
    )
    outcome = play(script, tmp_path, lambda counts: None)
    checked = check_chapter(script.workload, tmp_path)
    assert not outcome.problems, script.seed
    assert not checked.problems, (script.seed, checked.text)
    assert checked.counts["sends acknowledged"] > 0
    assert number_of(outcome.faults) >= FAULTS_MIN, outcome.faults


def test_a_seed_fixes_the_faults() -> None:
    for kinds in FAULTS.values():
        assert plan("7", kinds, 100, 2.0) == plan("7", kinds, 100, 2.0)
        assert plan("7", kinds, 100, 2.0) != plan("8", kinds, 100, 2.0)
        assert {fault.kind for fault in plan("7", kinds, 2000, 2.0)} == set(kinds)
