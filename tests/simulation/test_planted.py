"""The simulator can fail: a few planted bugs are found within some seeds, and who tells of them.

All of them are hunted by ``./dev prove mutants``.
"""

from pathlib import Path

import pytest

from fencelog.check.verdict import ERRORS
from tests.proofs.mutants import hunt
from tests.simulation._bug import Bug, plant
from tests.simulation._planted_coordinators import STALE_RUN
from tests.simulation._planted_log import LSO_IS_HW, NO_DEDUPE
from tests.simulation._planted_storage import LAST_BATCH_DROPPED

SEEDS = 40
"""Several times what each needs, so that a change of the faults does not hide it."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("bug", "tellers"),
    [
        (NO_DEDUPE, ["duplicate"]),
        (LSO_IS_HW, ["precommitted-read", "aborted-read"]),
        (LAST_BATCH_DROPPED, ["a monitor"]),
        (STALE_RUN, ["a client"]),
    ],
    ids=lambda each: each.name if isinstance(each, Bug) else each[0],
)
def test_the_simulator_finds_a_planted_bug(tmp_path: Path, bug: Bug, tellers: list[str]) -> None:
    source, workload = plant(bug, tmp_path), bug.workloads[0]
    hunted = hunt(source, workload, SEEDS, checker=tellers[0] in ERRORS)
    assert set(tellers) & set(hunted.kinds), hunted
