"""Short chapters beside the long run: faults to be found, and old ends of transactions alone."""

import tempfile
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from fencelog_sim.workload import Scale
from fencelog_sim.workloads import WORKLOADS
from tests.proofs._chaos_chapter import Script
from tests.proofs._chaos_check import Check
from tests.proofs._chaos_holds import END
from tests.proofs._chaos_live import Live, run_chapter
from tests.proofs._chaos_nemesis import number_of
from tests.proofs._chaos_report import Chapter
from tests.support.found import Search

SIMULATED = frozenset({"admin", "copy", "keyed", "quiet", "readers", "streams"})
CHAPTERS = [name for name in WORKLOADS if name not in SIMULATED]
"""Sessions, silences, resizes and what is meant to vanish are played by the simulator."""
SMALL = Scale(clients=3, partitions=2, records_per_send=20, pause_s=0.01, key_records=2_000)
FAULT_CHAPTER_S = 20.0
FAULT_GAP_S = 1.2
FAULT_ROUNDS_MAX = 6
OPEN_CHAPTER_S = 40.0
OPEN_GAP_S = 0.5
ONLY_HELD_ENDS = {"process": {}, "network": {f"hold {END}": 1}}


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


def find_in_chaos(search: Search) -> tuple[str, list[str]]:
    """Play short chapters over the copy until one turns red, in one durability mode."""
    faults = 0
    for number, workload in zip(range(FAULT_ROUNDS_MAX), cycle(CHAPTERS), strict=False):
        script = Script(
            number=number,
            workload=workload,
            durability=search.argument,
            seed=f"{search.seed}-{search.fault.name}-{number}",
            seconds=FAULT_CHAPTER_S,
            gap_s=FAULT_GAP_S,
            scale=SMALL,
            environment=search.environment,
        )
        chapter = played_and_checked(script, search.folder / f"round-{number}")
        faults += number_of(chapter.faults)
        if chapter.problems:
            return f"{faults} faults", chapter.problems
    return f"{faults} faults", []
