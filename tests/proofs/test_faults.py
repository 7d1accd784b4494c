"""A slice of ``./dev prove faults``: some of each kind are found, and by which check."""

from pathlib import Path

import pytest

from fencelog.check.verdict import ERRORS
from tests.proofs._hunt import hunt
from tests.proofs.faults import BROKERS, find_by_test
from tests.support.faults import copy_source, load
from tests.support.found import look_for

BY_TESTS = (
    "epoch-not-checked-by-partition",
    "guard-outlives-a-marker",
    "tail-left-as-found",
    "answer-before-the-flush",
    "generation-not-checked",
)
"""Quick ones."""
SEEDS = 40
"""Several times what each needs, so that a change of the simulator's faults does not hide it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_TESTS)
def test_the_test_of_a_fault_fails(name: str) -> None:
    fault = load(name)
    found = look_for(fault, fault.arguments("test")[-1], find_by_test)
    assert found.problems, found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("no-dedupe", ["duplicate"]),
        ("lso-is-high-watermark", ["precommitted-read", "aborted-read"]),
        ("recovery-drops-the-last-batch", ["a monitor"]),
        ("stale-run-accepted", ["a client"]),
    ],
)
def test_the_simulator_finds_a_fault(tmp_path: Path, name: str, kinds: list[str]) -> None:
    fault = load(name)
    (argument,) = fault.arguments("simulator")
    source, workload = copy_source(fault, tmp_path), argument.split()[0]
    hunted = hunt(source, workload, SEEDS, checker=kinds[0] in ERRORS)
    assert set(kinds) & set(hunted.kinds), hunted


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    ["high-watermark-ignores-the-slowest", "min-insync-replicas-ignored"],
)
def test_the_simulator_finds_a_fault_of_a_cluster(tmp_path: Path, name: str) -> None:
    fault = load(name)
    (workload,) = fault.arguments("simulated-cluster")
    hunted = hunt(copy_source(fault, tmp_path), workload, SEEDS, brokers=BROKERS)
    assert "a monitor" in hunted.kinds, hunted
