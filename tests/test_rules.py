"""Rules, the lines that keep them and the tests that prove them stay joined."""

import re
import shutil
from pathlib import Path

import pytest

from tests.proofs._planted import PLANTED, RULES, SEEN, Planted
from tests.proofs.ablation import RULES_PAGE, is_seen, plant, rules_page

ROOT = Path(__file__).parent.parent
IN_FORCE = (
    [f"D{n}" for n in (1, 2, 3, 4)]
    + [f"E{n}" for n in range(1, 18)]
    + [f"F{n}" for n in (2, 5, 6, 7)]
    + [f"V{n}" for n in range(1, 9)]
    + [f"S{n}" for n in range(1, 8)]
)
# One of each kind, quick ones; ``./dev prove ablation`` tries them all.
SLICE = {
    "test_a_lower_epoch_is_fenced_and_writes_nothing",
    "test_a_marker_between_question_and_append_voids_the_guard",
    "test_what_recovery_serves_survives_a_power_cut_that_follows",
    "test_an_answer_waits_for_the_sync_in_fsync_mode",
    "test_a_stale_member_takes_no_offset_into_a_transaction",
}


def test_every_rule_in_force_has_a_test() -> None:
    assert list(RULES) == IN_FORCE
    proven = {each.rule for each in PLANTED} | SEEN.keys()
    assert proven == set(IN_FORCE)


def test_the_page_of_rules_says_what_is_planted() -> None:
    assert RULES_PAGE.read_text(encoding="utf-8") == rules_page(), (
        "run ./dev prove ablation --write"
    )


@pytest.mark.parametrize(
    "test", sorted({each.test for each in PLANTED} | {t for ts in SEEN.values() for t in ts})
)
def test_every_test_that_is_named_exists(test: str) -> None:
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    function, _, parameter = name.partition("[")
    assert re.search(rf"^def {re.escape(function)}\(", text, re.MULTILINE), name
    if parameter and path.startswith("tests/scenarios"):
        assert (ROOT / "tests/scenarios" / f"{parameter.removesuffix(']')}.txt").is_file()


def test_every_fault_can_still_be_planted(tmp_path: Path) -> None:
    for number, fault in enumerate(PLANTED):
        copy = tmp_path / str(number)
        target = copy / "fencelog" / fault.file
        target.parent.mkdir(parents=True)
        shutil.copy(ROOT / "src/fencelog" / fault.file, target)
        plant(fault, copy)
        compile(target.read_text(encoding="utf-8"), str(target), "exec")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [each for each in PLANTED if each.test.rpartition("::")[2] in SLICE],
    ids=lambda fault: fault.rule,
)
def test_without_its_line_the_test_of_a_rule_turns_red(fault: Planted) -> None:
    seen, output = is_seen(fault)
    assert seen, output
