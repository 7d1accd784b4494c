"""``./dev prove hostile --minutes 30``: attacks, and what a client beside them has to wait.

Each attack runs for its share of the time against a broker of its own, at full size, while a
bystander writes a record every 20 ms. Exit status 0: no answer to it took 100 ms more than the
machine, each was right, the broker's memory stayed below what the configuration says, and each
fault applied to a copy of the source was found. A run of half an hour or more writes the dated
report in ``docs/internals/proofs``.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.proofs._hostile_attacks import ATTACKS
from tests.proofs._hostile_report import Proof, report
from tests.proofs._hostile_run import Row, run
from tests.proofs._report import chosen_seed, commit, conclude, parser
from tests.support.found import Search, look_for_all

REPORT_FROM_MINUTES = 30
FAULT_SECONDS, FAULT_SIZE = 10.0, 0.25


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    asked = parser("hostile", __doc__, full="half an hour or more of all attacks")
    add = asked.add_argument
    add("--minutes", type=float, default=30.0, help="of all attacks together")
    add("--attack", action="append", choices=ATTACKS, help="this only; may be repeated")
    add("--no-faults", action="store_true", help="leave out the faults")
    wanted = asked.parse_args(argv)
    if wanted.minutes <= 0:
        asked.error(f"--minutes {wanted.minutes}: it has to take some time")
    return wanted


def run_all(attacks: Sequence[str], minutes: float, seed: int) -> list[Row]:
    """Run attacks one after the other."""
    rows = []
    for name in attacks:
        with _scratch() as folder:
            row = run(name, Path(folder), seconds=60 * minutes / len(attacks), seed=seed)
        rows.append(row)
        told = "; ".join(row.problems) or f"{row.delay_ms:.0f} ms, {row.memory_mib:.0f} MiB"
        print(f"{name}: {told}", file=sys.stderr, flush=True)
    return rows


def _scratch() -> "tempfile.TemporaryDirectory[str]":
    """A directory in memory, where there is one: disks have their own delays."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(
        prefix="fencelog-hostile-",
        dir=memory if memory.is_dir() else None,
        ignore_cleanup_errors=True,
    )


def find_by_hostile_clients(search: Search) -> tuple[str, Sequence[str]]:
    """Run the attack that the fault's head says."""
    row = run(
        search.argument,
        search.folder,
        seconds=FAULT_SECONDS,
        size=FAULT_SIZE,
        seed=search.seed,
        environment=search.environment,
    )
    return f"{search.argument}, {FAULT_SECONDS:.0f} s", row.problems


def main(argv: Sequence[str]) -> int:
    """Run what is asked for; returns the exit status."""
    wanted = _arguments(argv)
    seed = chosen_seed(wanted.seed)
    began = datetime.now(UTC)
    attacks = wanted.attack or list(ATTACKS)
    proof = Proof(
        began=began,
        commit=commit(),
        command=f"./dev prove hostile --minutes {wanted.minutes:g} --seed {seed}",
        rows=run_all(attacks, wanted.minutes, seed),
        faults=[] if wanted.no_faults else look_for_all("hostile", find_by_hostile_clients, seed),
    )
    is_full = wanted.minutes >= REPORT_FROM_MINUTES and wanted.attack is None
    return conclude("hostile", proof, report(proof), wanted.report, is_full=is_full)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
