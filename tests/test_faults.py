"""Faults apply to the source as it stands, and rules, faults and those who find them are joined."""

import re

import pytest

from fencelog_sim.workloads import WORKLOADS
from tests.durability._faults import TOLD
from tests.proofs import _rules
from tests.proofs.delays import kind_named
from tests.proofs.faults import KINDS
from tests.support.faults import ROOT, faulty_files, load, names

IN_FORCE = (
    [f"D{n}" for n in (1, 2, 3, 4)]
    + [f"E{n}" for n in range(1, 18)]
    + [f"F{n}" for n in (2, 5, 6, 7, 8)]
    + ["I1"]
    + [f"V{n}" for n in range(1, 9)]
    + [f"O{n}" for n in range(1, 12)]
    + [f"R{n}" for n in range(1, 12)]
    + [f"S{n}" for n in (1, 2, 3, 4, 5, 6, 7, 9)]
)


@pytest.mark.parametrize("name", names())
def test_a_fault_applies_to_the_source_and_compiles(name: str) -> None:
    fault = load(name)
    for file, text in faulty_files(fault).items():
        compile(text, file, "exec")
    assert set(fault.rules) <= _rules.RULES.keys()
    for finder in fault.finders:
        assert finder.kind in KINDS


def test_the_arguments_of_finders_are_known() -> None:
    for fault in map(load, names()):
        for kind in ("simulator", "simulated-cluster"):
            assert {w for each in fault.arguments(kind) for w in each.split()} <= WORKLOADS.keys()
        assert set(fault.arguments("durability")) <= TOLD.keys()
        for each in fault.arguments("delays"):
            kind_named(each)


def test_every_rule_in_force_has_a_fault_or_a_test() -> None:
    assert list(_rules.RULES) == IN_FORCE
    proven = {rule for name in names() for rule in load(name).rules} | _rules.SEEN.keys()
    assert proven == set(IN_FORCE)


def test_the_page_of_rules_has_every_fault() -> None:
    table = "\n".join(_rules.table())
    assert table in _rules.PAGE.read_text(encoding="utf-8"), "run ./dev prove faults --refresh"


@pytest.mark.parametrize("test", sorted(_rules.tests_named()))
def test_every_test_that_is_named_exists(test: str) -> None:
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    function, _, parameter = name.partition("[")
    assert re.search(rf"^(?:async )?def {re.escape(function)}\(", text, re.MULTILINE), name
    if parameter and path.startswith("tests/scenarios"):
        assert (ROOT / "tests/scenarios" / f"{parameter.removesuffix(']')}.txt").is_file()
