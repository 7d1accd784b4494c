"""A slice of ``./dev prove cluster``, in namespaces where they are to be had."""

import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.proofs import cluster
from tests.proofs._chaos_check import Checked
from tests.proofs._chaos_nemesis import Fault, plan
from tests.proofs._cluster_chapter import Chapter, Script
from tests.proofs._cluster_nemesis import FAULTS, NETWORK, lasts, part, ring
from tests.proofs._cluster_report import RECORDS, Proof
from tests.proofs._cluster_run import SCALE
from tests.support.network import Frames, between, missing

SLICE = ["--minutes", "0.1", "--chapter-seconds", "6", "--gap", "0.7", "--workloads", "queue"]
SLICE_S = 120.0


@pytest.mark.slow
@pytest.mark.conformance
def test_a_cluster_under_cuts_kills_and_full_disks_shows_no_anomaly(
    tmp_path: Path,
) -> None:  # D1, D2, E4, E7, E10, E17, F1, F2, F3, F4, F7
    report = tmp_path / "report.md"
    command = [sys.executable, "-m", "tests.proofs.cluster", *SLICE, "--report", str(report)]
    if missing():
        command.append("--processes-only")
    done = subprocess.run(command, capture_output=True, text=True, timeout=SLICE_S, check=False)
    if done.returncode == cluster.SKIPPED:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr + report.read_text()


def test_without_the_tools_for_namespaces_it_says_so_and_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(_: str) -> None:
        return None

    monkeypatch.setattr(cluster, "debian", lambda *_: Path("etcd"))
    monkeypatch.setattr(shutil, "which", nothing)
    assert cluster.main([]) == cluster.SKIPPED
    assert "skipped: not found: ip, tc, nft, " in capsys.readouterr().err


def test_a_seed_fixes_the_faults() -> None:
    for kinds in FAULTS.values():
        assert plan("7", kinds, 100, 2.0) == plan("7", kinds, 100, 2.0)
        drawn = plan("7", kinds, 2000, 2.0)
        assert {fault.kind for fault in drawn} == set(kinds)
        assert all(lasts(fault) > 0 for fault in drawn)


@pytest.mark.parametrize("seed", range(20))
def test_halves_leave_two_brokers_together(seed: int) -> None:
    brokers, members = ["b1", "b2", "b3"], ["e1", "e2", "e3"]
    some = part(random.Random(seed), brokers, members)
    assert len(some & set(brokers)) == 1
    assert some < {*brokers, *members}


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (ring(["a", "b", "c"]), {"ab", "bc", "ca"}),
        (between(["a"], ["a", "b"]), {"ab", "ba"}),
    ],
)
def test_what_a_cut_drops(pairs: Sequence[tuple[str, str]], expected: set[str]) -> None:
    assert {"".join(pair) for pair in pairs} == expected


def test_a_strong_fault_lasts_long() -> None:
    for kind in NETWORK:
        weak, strong = (Fault(kind, 0.0, 0.0, strength) for strength in (0.0, 1.0))
        assert lasts(weak) < lasts(strong)


@pytest.mark.parametrize(
    ("frames", "short", "full"),
    [
        (None, True, True),
        (Frames(dropped=0, delayed=0), False, False),
        (Frames(dropped=1, delayed=0), True, False),
        (Frames(dropped=0, delayed=1), True, False),
        (Frames(dropped=1, delayed=1), True, True),
    ],
)
def test_a_proof_holds_only_if_faults_of_the_network_had_effect(
    frames: Frames | None, short: bool, full: bool
) -> None:
    script = Script(
        number=1, workload="queue", durability="os", seed="1", seconds=6, gap_s=1, scale=SCALE
    )
    for records, seconds, expected in ((1, 6.0, short), (RECORDS, 3600.0, full), (0, 6.0, False)):
        counts = {"sends acknowledged": records}
        checked = Checked(problems=[], found={}, counts=counts, seconds=1.0, text="")
        chapter = Chapter(script, seconds=seconds, checked=checked)
        proof = Proof(
            began=datetime(2026, 11, 27, tzinfo=UTC),
            command="",
            commit="",
            frames=frames,
            chapters=[chapter],
        )
        assert proof.holds == expected
        chapter.own_problems.append("a value is lost")
        assert not proof.holds
