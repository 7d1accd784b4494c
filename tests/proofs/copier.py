"""``./dev prove copier --times N``: Kafka's transactions test as a matrix.

Broker or clients, killed hard or stopped cleanly, offsets with group metadata or plain, over one
partition or several: copiers move an input topic to an output topic in transactions while that
side is bounced; the output must be the input, each record once. ``_copier_rig`` says what one run
is.

Each run's result is kept in the ledger, and a run that is there is not made again: stop it at any
time, or give it ``--minutes``, and the same command goes on. Exit status 0: every cell was run so
often, and nothing was wrong. Then the dated report is written to ``docs/internals/proofs``.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.proofs._copier_process import COPIERS
from tests.proofs._copier_report import Matrix, report
from tests.proofs._copier_rig import Cell, Result, cells
from tests.proofs._report import ROOT, commit, conclude

LEDGER = ROOT / ".cache/copier.jsonl"
TIMES = 10
RECORDS = 100_000
SIZE = 750
RUN_LIMIT_S = 600


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev prove copier", description=__doc__)
    add = parser.add_argument
    add("--times", type=int, default=TIMES, help="runs of each cell")
    add("--records", type=int, default=RECORDS, help="in the input of each run")
    add("--minutes", type=float, default=None, help="begin no run after so long")
    add("--clients", default="confluent-kafka", help=f"by commas, of {', '.join(COPIERS)}")
    add("--ledger", type=Path, default=LEDGER, help="where the results are kept")
    add("--afresh", action="store_true", help="forget the results of earlier runs")
    add("--report", type=Path, default=None, help="default: by date, for every cell ten times")
    return parser.parse_args(argv)


def _load(ledger: Path) -> list[dict[str, Any]]:
    """Every entry; a last line that was cut off is none."""
    if not ledger.exists():
        return []
    lines = ledger.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _run(cell: Cell, seed: int, records: int) -> Result:
    """One run, in a process of its own, so that nothing of it lives on."""
    with tempfile.TemporaryDirectory(prefix="fencelog-copier-") as folder:
        wanted = {"cell": asdict(cell), "folder": folder, "seed": seed}
        wanted |= {"records": records, "size": SIZE}
        command = [sys.executable, "-m", "tests.proofs._copier_rig", json.dumps(wanted)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
        )
    if done.returncode:
        failed = Result(cell=cell, seed=seed, records=records)
        failed.problems.append(f"the run failed: {done.stderr[-500:]}")
        return failed
    return Result.from_json(json.loads(done.stdout.splitlines()[-1]))


def _make_runs(wanted: argparse.Namespace, matrix: Sequence[Cell]) -> bool:
    """Make the runs that are missing; whether all are there."""
    ends_at = None if wanted.minutes is None else time.monotonic() + 60 * wanted.minutes
    under_test = commit()
    wanted.ledger.parent.mkdir(parents=True, exist_ok=True)
    done = {(Result.from_json(e["result"]).cell, e["number"]) for e in _load(wanted.ledger)}
    for number in range(wanted.times):
        for place, cell in enumerate(matrix):
            if (cell, number) in done:
                continue
            if ends_at is not None and time.monotonic() > ends_at:
                return False
            result = _run(cell, 1000 * number + place, wanted.records)
            entry = {"number": number, "commit": under_test, "result": result.to_json()}
            entry["at"] = datetime.now(UTC).isoformat()
            with wanted.ledger.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
            verdict = "; ".join(result.problems) or "nothing wrong"
            said = f"{number + 1}/{wanted.times} {cell.client}, {cell.name}"
            print(f"{said}: {result.seconds:.0f} s, {verdict}", file=sys.stderr, flush=True)
    return True


def main(argv: Sequence[str]) -> int:
    """Run what is missing and say what came of it."""
    wanted = _arguments(argv)
    if wanted.afresh:
        wanted.ledger.unlink(missing_ok=True)
    names = wanted.clients.split(",")
    if unknown := set(names) - COPIERS.keys():
        print(f"there is no copier of {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    all_cells = cells(names)
    is_whole = _make_runs(wanted, all_cells)
    entries = [each for each in _load(wanted.ledger) if Cell(**each["result"]["cell"]) in all_cells]
    matrix = Matrix(
        began=datetime.fromisoformat(entries[0]["at"]) if entries else datetime.now(UTC),
        commits=list(dict.fromkeys(each["commit"] for each in entries)),
        command=f"./dev prove copier --times {wanted.times} --records {wanted.records} "
        f"--clients {wanted.clients} --afresh",
        size=SIZE,
        times=wanted.times,
        wanted=all_cells,
        results=[Result.from_json(each["result"]) for each in entries],
    )
    is_full = is_whole and wanted.times >= TIMES
    return conclude("copier", matrix, report(matrix), wanted.report, is_full=is_full)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
