"""Planted bugs fit the source as it stands, so that looking for them means something."""

import pytest

from tests.simulation._bug import Bug, broken_files
from tests.simulation._planted import ABLATIONS, PLANTED

ALL = {bug.name: bug for bug in (*PLANTED, *(each.bug for each in ABLATIONS))}


@pytest.mark.parametrize("bug", ALL.values(), ids=ALL)
def test_a_planted_bug_fits_the_source_and_compiles(bug: Bug) -> None:
    for file, text in broken_files(bug).items():
        compile(text, file, "exec")


def test_each_planted_bug_has_a_name_of_its_own() -> None:
    assert len({bug.name for bug in PLANTED}) == len(PLANTED)
