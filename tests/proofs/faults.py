"""``./dev prove faults [NAME…]``: apply each fault to a copy of the source, and find it.

Each fault of ``tests/faults`` is looked for by every proof that its head names: a test fails, a
seed of the simulator fails, with one broker or three, a long proof reports a problem. The seeds
that found something then run on the sound source, too, and must fail nowhere. ``--write`` keeps the
tables in the report;
``--refresh`` runs nothing: it writes the patches anew, with the line numbers and the context of the
source as it stands, and the table of ``docs/internals/rules.md``.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from tests.durability._faults import find_in_trace
from tests.proofs import _rules
from tests.proofs._chaos_shorts import find_in_chaos
from tests.proofs._hunt import SEEDS_MAX, Hunt, Hunter
from tests.proofs._report import between, machine
from tests.proofs.bytes import find_at_every_byte
from tests.proofs.delays import find_by_delays
from tests.proofs.hostile import find_by_hostile_clients
from tests.proofs.kills import find_by_broker_kills
from tests.proofs.spark import find_by_spark_kills
from tests.support.faults import ROOT, Fault, FaultError, everything, faulty_files, refresh
from tests.support.found import Find, Found, Search, look_for, summary, table

REPORT = ROOT / "docs/internals/proofs/faults.md"
TEST_DEADLINE_S = 240
BROKERS = 3
COLUMNS = 400  # wide enough for the failure in pytest's summary
TESTS_FAILED = 1  # pytest's exit status; any other one means that no test ran to its end


def find_by_test(search: Search) -> tuple[str, Sequence[str]]:
    """Run one test against the copy; its failure is the problem."""
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
                *("--timeout=90", search.argument),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                **search.environment,
                "PYTHONDONTWRITEBYTECODE": "1",
                "COLUMNS": str(COLUMNS),
            },
            capture_output=True,
            text=True,
            timeout=TEST_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        print(error, file=sys.stderr)
        return search.argument, []
    if done.returncode != TESTS_FAILED:
        print(done.stdout, done.stderr, file=sys.stderr)
        return search.argument, []
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return search.argument, [line.partition(" - ")[2] or "red" for line in failed] or ["red"]


def hunters(seeds_max: int) -> dict[str, Hunter]:
    """Who looks for faults with seeds: of one broker, and of several."""
    return {"simulator": Hunter(seeds_max), "simulated-cluster": Hunter(seeds_max, brokers=BROKERS)}


def finders(seeking: Mapping[str, Hunter]) -> dict[str, Find]:
    """Who looks for faults, by what a ``Found-by`` line begins with."""
    return {
        "test": find_by_test,
        **{kind: each.find for kind, each in seeking.items()},
        "durability": find_in_trace,
        "bytes": find_at_every_byte,
        "delays": find_by_delays,
        "kills": find_by_broker_kills,
        "spark": find_by_spark_kills,
        "chaos": find_in_chaos,
        "hostile": find_by_hostile_clients,
    }


KINDS = tuple(finders(hunters(SEEDS_MAX)))


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev prove faults", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="a fault, a part of its name, or a rule")
    add("--found-by", action="append", choices=KINDS, help="by this only; may be repeated")
    add("--seeds", type=int, default=SEEDS_MAX, help="of the simulator, at most, for each")
    add("--seed", type=int, default=1, help="of the long proofs")
    add("--jobs", type=int, default=1, help="how many are looked for side by side")
    add("--write", action="store_true", help="keep the table of each kind that ran as a whole")
    add("--refresh", action="store_true", help="run nothing; write patches and rules anew")
    asked = parser.parse_args(arguments)
    asked.found_by = asked.found_by or list(KINDS)
    asked.faults = [each for each in everything() if _is_meant(each, asked.names)]
    if not asked.faults:
        parser.error("no fault has such a name or rule")
    return asked


def _is_meant(fault: Fault, words: Sequence[str]) -> bool:
    return not words or any(word in fault.name or word in fault.rules for word in words)


def search(kind: str, find: Find, asked: argparse.Namespace) -> list[Found]:
    """Look for all that one kind must find, and say each."""
    wanted = [(each, argument) for each in asked.faults for argument in each.arguments(kind)]
    found = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        # One by one in this thread: only the main one may set the alarm that ends a stuck case.
        side_by_side = map if asked.jobs == 1 else pool.map
        for each in side_by_side(lambda pair: look_for(*pair, find, asked.seed), wanted):
            found.append(each)
            print(f"{kind:10} {each.line}", flush=True)
    return found


def write_section(kind: str, found: Sequence[Found], controls: Sequence[Hunt]) -> None:
    """Put the table of one kind into the report."""
    today = datetime.now(tz=UTC).date().isoformat()
    lines = [f"{today}, {machine()}: {summary(found)}.", ""]
    if controls:
        seeds = ", ".join(f"{each.workload} {each.seeds}" for each in controls)
        lines += [f"The sound source over the same seeds: {seeds}, without a failure.", ""]
    between(REPORT, kind, [*lines, *table(found)])


def write_again() -> int:
    """Refresh every patch and the page of rules; returns the exit status."""
    failed = 0
    for each in everything():
        try:
            refresh(each.name)
        except FaultError as error:
            failed = 1
            print(error, file=sys.stderr)
    between(_rules.PAGE, "rules", _rules.table())
    return failed


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; returns the exit status."""
    asked = _arguments(arguments)
    if asked.refresh:
        return write_again()
    for fault in asked.faults:
        faulty_files(fault)
    seeking = hunters(asked.seeds)
    missed: list[str] = []
    for kind, find in finders(seeking).items():
        if kind not in asked.found_by:
            continue
        found = search(kind, find, asked)
        controls = seeking[kind].control() if kind in seeking else []
        bad = [each for each in controls if each.problem]
        missed += [f"{kind} {each.fault.name}" for each in found if not each.problems]
        missed += [f"the sound source, {each.workload}: {each.problem}" for each in bad]
        print(f"{kind}: {summary(found)}")
        if asked.write and not asked.names and not bad:
            write_section(kind, found, controls)
    print(*(f"NOT AS EXPECTED: {each}" for each in missed), sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
