"""Patterns of transactional ids: as ``re`` matches them, in linear time."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.coordination.id_pattern import CHARACTERS_MAX, IdPattern, PatternError

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\.", r"\w", r"\d", "-"])
QUANTIFIED = st.tuples(ATOMS, st.sampled_from(["", "*", "+", "?"])).map("".join)
PATTERNS = st.lists(st.lists(QUANTIFIED, max_size=5).map("".join), min_size=1, max_size=3).map(
    "|".join
)


@settings(deadline=None, max_examples=500)
@given(PATTERNS, st.text("ab.-1\n", max_size=6))
def test_an_id_matches_as_python_matches_it(pattern: str, text: str) -> None:
    expected = re.fullmatch(pattern, text, re.DOTALL) is not None
    assert IdPattern(pattern).matches(text) == expected


def test_a_pattern_that_backtracks_forever_elsewhere_is_answered() -> None:
    pattern = IdPattern("a*" * 40 + "b")
    assert not pattern.matches("a" * 1000)
    assert pattern.matches("a" * 1000 + "b")


@pytest.mark.parametrize(
    "pattern", ["(a)", "a{2}", "*a", "a**", "[a", "a\\", "\\Q", "^a", "x" * (CHARACTERS_MAX + 1)]
)
def test_what_is_not_supported_is_an_error(pattern: str) -> None:
    with pytest.raises(PatternError):
        IdPattern(pattern)
