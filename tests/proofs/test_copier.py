"""A slice of ``./dev prove copier``, and that its checks find what they must."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.proofs import copier
from tests.proofs._copier_process import HANGS
from tests.proofs._copier_rig import PARTITIONS, Cell, Result, cells, check_copies, run
from tests.support.faults import copy_source, load

RECORDS, SIZE = 6_000, 250
SLICE = Cell(
    target="clients", how="hard", names_member=True, partitions=1, client="confluent-kafka"
)
BROKER_SLICE = Cell(
    target="broker", how="hard", names_member=False, partitions=PARTITIONS, client="confluent-kafka"
)


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.timeout(240)
@pytest.mark.parametrize("cell", [SLICE, BROKER_SLICE], ids=lambda cell: cell.target)
def test_what_copiers_write_is_what_they_read_each_record_once(
    cell: Cell, tmp_path: Path
) -> None:  # E7, E8, E10, E11, E15
    result = run(cell, tmp_path, seed=random.randrange(10**6), records=RECORDS, size=SIZE)
    assert result.problems == [], result
    assert result.bounces == 3
    assert result.committed > 0


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.timeout(240)
def test_the_matrix_finds_a_fault(tmp_path: Path) -> None:
    source = copy_source(load("abort-marked-as-commit"), tmp_path / "copy")
    wanted = {
        "cell": vars(BROKER_SLICE),
        "folder": str(tmp_path),
        "seed": 1,
        "records": 2_000,
        "size": SIZE,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.proofs._copier_rig", json.dumps(wanted)],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    result = Result.from_json(json.loads(done.stdout.splitlines()[-1]))
    assert any("are doubled" in each for each in result.problems), result


def test_a_copier_whose_client_hangs_ends_with_a_status_of_its_own() -> None:
    code = (
        "import threading; from tests.proofs import _copier_process as module; "
        "module.CALL_S = 0.01; "
        "module.KafkaPythonCopier._within_limit(threading.Event().wait)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (HANGS, "wait does not return\n")


def test_the_matrix_has_every_combination_once() -> None:
    matrix = cells(["confluent-kafka"])
    assert len(set(matrix)) == len(matrix) == 2**4


Records = Mapping[int, list[tuple[int, bytes]]]
SOUND: Records = {0: [(0, b"0"), (1, b"2")], 1: [(0, b"1"), (1, b"3")]}


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({0: SOUND[0], 1: [(0, b"1")]}, "1 records are lost, the first is 3"),
        ({**SOUND, 2: [(0, b"3")]}, "1 records are doubled"),
        ({**SOUND, 2: [(0, b"7")]}, "1 records were never in the input"),
        ({**SOUND, 0: [(0, b"2"), (1, b"0")]}, "out of order"),
    ],
)
def test_an_output_that_is_not_the_input_is_named(found: Records, problem: str) -> None:
    assert check_copies(SOUND, 2, 4) == []
    assert any(problem in each for each in check_copies(found, 2, 4))


def test_a_run_that_is_in_the_ledger_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Cell, int]] = []

    def run_of(cell: Cell, seed: int, records: int) -> Result:
        made.append((cell, seed))
        return Result(cell=cell, seed=seed, records=records)

    monkeypatch.setattr(copier, "_run", run_of)
    command = ["--ledger", str(tmp_path / "ledger"), "--report", str(tmp_path / "report.md")]
    assert copier.main([*command, "--times", "1"]) == 0
    first = len(made)
    with (tmp_path / "ledger").open("a") as file:
        file.write('{"number": 1, "cut o')
    assert copier.main([*command, "--times", "1"]) == 0
    assert len(made) == first == 16
