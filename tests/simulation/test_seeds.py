"""A fixed set of seeds over all workloads, and the seeds that once found a defect."""

import subprocess
import sys

import pytest

from fencelog.sim.workloads import WORKLOADS

SEEDS = 200
DEADLINE_S = 600
REGRESSIONS: list[tuple[int, str, str]] = []
"""Seed, workload, and what it found."""


def simulate(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fencelog.sim", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S)
def test_two_hundred_seeds_show_no_anomaly_and_all_kinds_of_faults() -> None:
    share = SEEDS // len(WORKLOADS)
    told = simulate("--seeds", f"0:{share}", "--workload", "all")
    assert f"{share * len(WORKLOADS)} seeds, 0 failed" in told
    for kind in ("kill", "power", "client-kill", "pause", "cut", "reset", "sync-fails"):
        assert f"\n {kind} " in told, told


@pytest.mark.parametrize(("seed", "workload", "found"), REGRESSIONS)
def test_a_seed_that_found_a_defect_stays_clean(seed: int, workload: str, found: str) -> None:
    del found
    simulate(str(seed), "--workload", workload)
