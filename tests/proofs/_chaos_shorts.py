"""Short chapters beside the long run: breaks to be found, and old ends of transactions alone."""

import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from fencelog_sim.workload import Scale
from tests.proofs._breaks import ANSWERED_BEFORE_WRITTEN, BrokerBreak, plant
from tests.proofs._chaos_chapter import Script
from tests.proofs._chaos_check import Check
from tests.proofs._chaos_holds import END
from tests.proofs._chaos_live import Live, run_chapter
from tests.proofs._chaos_nemesis import number_of
from tests.proofs._chaos_report import Chapter, Found

SMALL = Scale(clients=3, partitions=2, records_per_send=20, pause_s=0.01, key_records=2_000)
BREAK_CHAPTER_S = 20.0
BREAK_GAP_S = 1.2
BREAK_ROUNDS_MAX = 6
OPEN_CHAPTER_S = 40.0
OPEN_GAP_S = 0.5
ONLY_HELD_ENDS = {"process": {}, "network": {f"hold {END}": 1}}

DEDUPE_MISSING = BrokerBreak(
    name="a repeated batch is appended again",
    rule="E4",
    file="log/producers.py",
    sound="                return stored  # E4\n",
    broken="                return None\n",
    durability="os",
    kills=0,
)
STABLE_IS_HIGH = BrokerBreak(
    name="the last stable offset is the high watermark",
    rule="E10",
    file="log/partition_log.py",
    sound="        stable = self._state.transactions.last_stable_offset(self.high_watermark)\n",
    broken="        stable = self.high_watermark\n",
    durability="os",
    kills=0,
)
BREAKS = (DEDUPE_MISSING, STABLE_IS_HIGH, ANSWERED_BEFORE_WRITTEN)


def played_and_checked(script: Script, folder: Path) -> Chapter:
    """Play a chapter in an empty folder and wait for its check."""
    folder.mkdir()
    chapter = run_chapter(script, folder, Live())
    chapter.checked = Check(script.workload, folder).result()
    return chapter


def play_ends(seed: int, workloads: Sequence[str]) -> list[Chapter]:
    """Deliver nothing but old EndTxn frames, in later transactions, to each of these workloads."""
    with tempfile.TemporaryDirectory(prefix="fencelog-chaos-") as folder:
        return [
            played_and_checked(
                Script(
                    number=number,
                    workload=workload,
                    durability="os",
                    seed=f"{seed}-ends-{workload}",
                    seconds=OPEN_CHAPTER_S,
                    gap_s=OPEN_GAP_S,
                    scale=SMALL,
                    faults=ONLY_HELD_ENDS,
                ),
                Path(folder) / workload,
            )
            for number, workload in enumerate(workloads, 1)
        ]


def find_break(broken: BrokerBreak, folder: Path, seed: int, workloads: Sequence[str]) -> Found:
    """Play short chapters over a copy of the source with this break until one turns red."""
    environment = plant(broken, folder)
    began = time.monotonic()
    faults = 0
    for number, workload in zip(range(BREAK_ROUNDS_MAX), cycle(workloads), strict=False):
        place = folder / f"round-{number}"
        script = Script(
            number=number,
            workload=workload,
            durability=broken.durability,
            seed=f"{seed}-{broken.rule}-{number}",
            seconds=BREAK_CHAPTER_S,
            gap_s=BREAK_GAP_S,
            scale=SMALL,
            environment=environment,
        )
        chapter = played_and_checked(script, place)
        faults += number_of(chapter.faults)
        if chapter.problems:
            return Found(broken, time.monotonic() - began, faults, tuple(chapter.problems))
    return Found(broken, time.monotonic() - began, faults, ())


def find_breaks(seed: int, workloads: Sequence[str]) -> list[Found]:
    found = []
    for broken in BREAKS:
        with tempfile.TemporaryDirectory(prefix="fencelog-chaos-") as folder:
            found.append(find_break(broken, Path(folder), seed, workloads))
        verdict = "red" if found[-1].problems else "NOT FOUND"
        print(f"planted: {broken.name}: {verdict} after {found[-1].seconds:.0f} s", file=sys.stderr)
    return found
