"""A slice of ``./dev prove hostile``: every attack for a moment, and that its checks can fail.

Nothing here is about time: the answers to the bystander are right, the broker lives, its log says
nothing of internal errors, and its memory stays below what the configuration says.
"""

from pathlib import Path

import pytest

from tests.proofs._hostile_attacks import ATTACKS
from tests.proofs._hostile_run import DELAY_MS_MAX, Row, run
from tests.support.bystander import Watched

SLICE_S, SLICE_SIZE = 1.5, 0.1


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_breaks_nothing_for_a_bystander(attack: str, tmp_path: Path) -> None:
    row = run(attack, tmp_path, seconds=SLICE_S, size=SLICE_SIZE)
    assert not row.broken
    assert row.done
    assert row.watched.latencies["produce"]


def red(**seen: object) -> list[str]:
    return Row("attack", 1.0, **seen).problems  # type: ignore[arg-type]


def test_a_row_is_red_for_a_late_answer_that_the_machine_did_not_delay() -> None:
    late = DELAY_MS_MAX / 1e3 + 0.01
    assert red(watched=Watched({"produce": [(0.001, 0.0), (late, 0.0)]}))
    assert not red(watched=Watched({"produce": [(0.001, 0.0), (late, 0.02)]}))


def test_a_row_is_red_for_memory_wrong_answers_and_lines_of_the_log() -> None:
    allowed = Row("attack", 1.0, memory_before_mib=30).memory_mib_max
    assert not red(memory_before_mib=30, memory_mib=allowed)
    assert red(memory_before_mib=30, memory_mib=allowed + 1)
    assert red(watched=Watched(wrong=["record 7 was answered with 9"]))
    assert red(log=["ERROR"])
    assert red(broke="the broker ended with -9")
