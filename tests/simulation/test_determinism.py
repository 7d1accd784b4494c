"""One seed, one trace: a failure that cannot be repeated cannot be understood."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from fencelog_sim.workloads import WORKLOADS

SEED = 7
PROCESSES = 6
DEADLINE_S = 100
# Its sets of strings iterate in another order in each process; the command fixes their hashes.
FOREIGN = "queue-aiokafka"
OURS = sorted(WORKLOADS.keys() - {FOREIGN})
TWICE = """
import os, sys
from fencelog_sim.run import Case, run
for _ in range(2):
    print(run(Case(int(sys.argv[1]), sys.argv[2])).digest, flush=True)
os._exit(0)
"""


def output(command: list[str], hash_seed: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def in_six_processes(command: list[str]) -> list[list[str]]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda number: output(command, number), range(1, PROCESSES + 1)))


@pytest.mark.parametrize("workload", OURS)
def test_a_seed_has_one_digest_twice_in_a_process_and_in_six(workload: str) -> None:
    digests = in_six_processes(["-c", TWICE, str(SEED), workload])
    assert [len(each) for each in digests] == [2] * PROCESSES
    assert len({digest for each in digests for digest in each}) == 1, digests


def test_the_command_ends_with_the_same_digest_whatever_the_hashes_of_strings_are() -> None:
    last = {
        lines[-1]
        for lines in in_six_processes(
            ["-m", "fencelog_sim", str(SEED), "--workload", FOREIGN, "--no-shrink"]
        )
    }
    assert len(last) == 1, last
    assert last.pop().startswith("digest: ")


def test_another_seed_has_another_digest() -> None:
    one, other = (output(["-c", TWICE, str(seed), "queue"], 1)[0] for seed in (SEED, SEED + 1))
    assert one != other
