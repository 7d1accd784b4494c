"""Seeds of the simulator on some source, from 0 until one fails."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.faults import ROOT, SOURCE
from tests.support.found import Search

SEEDS_MAX = 1000
CONTROL_SEEDS_MIN = 50
LIMIT_S = 1800.0
"""For one source and one workload, of real time; a fault that hangs a run is found by that."""


@dataclass(frozen=True)
class Hunt:
    """What became of the seeds of one workload."""

    workload: str
    seeds: int
    """How many ran, the one that failed included."""
    problem: str
    """The first problem, the checker's before any other; empty without one."""
    kinds: tuple[str, ...]
    """What reported it."""


def hunt(
    source: Path,
    workload: str,
    seeds: int = SEEDS_MAX,
    *,
    brokers: int = 1,
    checker: bool = False,
) -> Hunt:
    """Run seeds from 0 on a source until one fails; ``checker``: in the checker's eyes."""
    command = [sys.executable, "-m", "tests.proofs._seek", workload, "0", str(seeds)]
    command += ["--brokers", str(brokers)]
    with subprocess.Popen(
        [*command, *(["--checker"] if checker else [])],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Hunt(workload, seeds, "a run never ended", ("a bound",))
    try:
        found = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        raise RuntimeError(f"the search ended without a word: {errors[-2000:]}") from None
    if found["seed"] is None:
        return Hunt(workload, seeds, "", ())
    return Hunt(workload, found["seed"] + 1, found["problem"], tuple(found["kinds"]))


class Hunter:
    """Looks for faults with seeds, and remembers how many the sound source has to stand."""

    def __init__(self, seeds_max: int = SEEDS_MAX, *, brokers: int = 1) -> None:
        """Look with so many brokers."""
        self._seeds_max = seeds_max
        self._brokers = brokers
        self._needed: dict[str, int] = {}

    def find(self, search: Search) -> tuple[str, Sequence[str]]:
        """Look for a fault with each of its workloads, up to the first success."""
        hunted = Hunt("", 0, "", ())
        for workload in search.argument.split():
            hunted = self._hunt(search.source, workload, self._seeds_max)
            if hunted.problem:
                break
        needed = self._needed.get(hunted.workload, CONTROL_SEEDS_MIN)
        self._needed[hunted.workload] = max(needed, hunted.seeds)
        problems = [f"{', '.join(hunted.kinds)}: {hunted.problem}"] if hunted.problem else []
        return f"{hunted.workload}, {hunted.seeds} seeds", problems

    def control(self) -> list[Hunt]:
        """Run the sound source over every seed that was needed, workload by workload."""
        return [self._hunt(SOURCE, *needed) for needed in sorted(self._needed.items())]

    def _hunt(self, source: Path, workload: str, seeds: int) -> Hunt:
        return hunt(source, workload, seeds, brokers=self._brokers)
